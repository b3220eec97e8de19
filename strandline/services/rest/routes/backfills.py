"""Backfills: recompute past windows with the current version of a pipeline, while the job keeps running."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from strandline.core.times.durations import TIME_MS_MAX
from strandline.services.jobs.backfills import BackfillView, backfill_view
from strandline.services.rest.dependencies import INTEGER_MAX, Caller, Control
from strandline.services.rest.views import BackfillList

router = APIRouter(tags=["jobs"])

BACKFILLS_MAX = 200
"""Maximum number of backfills in a list of all jobs."""
Generation = Annotated[int, Path(ge=0, le=INTEGER_MAX)]


@router.post("/v1/jobs/{name}/backfills", status_code=202)
def start_backfill(
    control: Control,
    caller: Caller,
    name: str,
    response: Response,
    from_ms: Annotated[int, Query(ge=0, le=TIME_MS_MAX)],
    to_ms: Annotated[int | None, Query(ge=0, le=TIME_MS_MAX)] = None,
) -> BackfillView:
    """Start a backfill of the windows that end after `from_ms`, up to `to_ms` or the last emission. A job can have
    one backfill at a time.
    """
    row = control.backfills.request(name, from_ms, to_ms, caller)
    response.headers["Location"] = f"/v1/jobs/{name}/backfills/{row.generation}"
    return backfill_view(row)


@router.get("/v1/backfills")
def list_all_backfills(
    control: Control, limit: Annotated[int, Query(ge=1, le=BACKFILLS_MAX)] = BACKFILLS_MAX
) -> BackfillList:
    """Return the newest backfills of all jobs, the newest first."""
    return BackfillList(backfills=[backfill_view(row) for row in control.ledger.newest_backfills(limit)])


@router.get("/v1/jobs/{name}/backfills")
def list_backfills(control: Control, name: str) -> BackfillList:
    """Return the backfills of the job, the oldest first."""
    control.ledger.job(name)
    return BackfillList(backfills=[backfill_view(row) for row in control.ledger.backfills(name)])


@router.get("/v1/jobs/{name}/backfills/{generation}")
def show_backfill(control: Control, name: str, generation: Generation) -> BackfillView:
    """Return one backfill: its progress, or its outcome."""
    return backfill_view(control.ledger.backfill(name, generation))


@router.post("/v1/jobs/{name}/backfills/{generation}/cancel", status_code=202)
def cancel_backfill(control: Control, caller: Caller, name: str, generation: Generation) -> BackfillView:
    """Cancel a backfill that is not complete. Its results were never visible, and are deleted."""
    return backfill_view(control.backfills.cancel(name, generation, caller))
