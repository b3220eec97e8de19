"""Orders to jobs. Each writes the desired state into the ledger, and the supervisor acts on it."""

from __future__ import annotations

from typing import Literal

from strandline.core.errors import Conflict
from strandline.ledger.journal import Journal
from strandline.ledger.roles import OrderLedger
from strandline.ledger.states import Desired, JobRow
from strandline.services.supervision.audit_jobs import AuditJobs, AuditState

Verb = Literal["start", "stop", "drain", "restart", "restore"]
_DESIRED: dict[Verb, Desired] = {
    "start": Desired.RUNNING,
    "stop": Desired.STOPPED,
    "drain": Desired.DRAINED,
    "restart": Desired.RUNNING,
    "restore": Desired.RUNNING,
}


def order(ledger: OrderLedger, name: str, verb: Verb, principal: str | None) -> JobRow:
    """Order `verb` for a job, for `principal`. Raises NotFound; Conflict for a completed batch."""
    if verb == "restart":
        ledger.ask_restart(name)
    elif verb == "restore":
        ledger.order_restore(name)
    job, desired = ledger.job(name), _DESIRED[verb]
    if job.has_completed and desired is not Desired.STOPPED:
        raise Conflict(
            f"batch {name} has completed, so there is nothing to {verb}. To recompute its results in a new "
            f"generation, run strandline job reset {name} --to start. For another range, run it under another "
            "name"
        )
    job = ledger.set_desired(name, desired)
    if principal is not None:
        message = f"{principal} ordered: {verb} job {name}"
        ledger.record_event(f"{verb}_ordered", message, name, principal=principal)
    return job


def order_audit(
    audits: AuditJobs, ledger: Journal, job: str, after_ms: int | None, up_to_ms: int | None, principal: str | None
) -> AuditState:
    """Begin an audit of a job, for `principal`. Raises the errors of `AuditJobs.start`."""
    state = audits.start(job, after_ms, up_to_ms)
    if principal is not None:
        ledger.record_event("audit_ordered", f"{principal} ordered: audit job {job}", job, principal=principal)
    return state
