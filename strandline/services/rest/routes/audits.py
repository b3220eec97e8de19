"""Audits: recompute the results of a job from the log, and compare them with the index, in the background."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from strandline.core.times.durations import TIME_MS_MAX
from strandline.services.jobs.orders import order_audit
from strandline.services.rest.dependencies import Caller, Control
from strandline.services.rest.views import AuditList
from strandline.services.supervision.audit_jobs import AuditState

router = APIRouter(tags=["jobs"])

End = Annotated[int | None, Query(ge=0, le=TIME_MS_MAX)]


@router.get("/v1/audits")
def list_audits(control: Control) -> AuditList:
    """Return the last audit of each job since this control service started, the newest first, without its report."""
    return AuditList(audits=control.audits.summaries())


@router.post("/v1/jobs/{name}/audit", status_code=202)
def start_audit(
    control: Control, caller: Caller, name: str, response: Response, after_ms: End = None, up_to_ms: End = None
) -> AuditState:
    """Start an audit of all windows, or of those that end after `after_ms`, up to `up_to_ms`. One audit runs at a
    time.
    """
    state = order_audit(control.audits, control.ledger, name, after_ms, up_to_ms, caller)
    response.headers["Location"] = f"/v1/jobs/{name}/audit"
    return state


@router.get("/v1/jobs/{name}/audit")
def show_audit(control: Control, name: str) -> AuditState:
    """Return the last audit of the job: its progress, or its report."""
    return control.audits.state(name)
