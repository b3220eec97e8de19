"""Condition `work_ended`: a backfill or a batch ended."""

from __future__ import annotations

from strandline.core.document_model import DocumentModel
from strandline.ledger.states import EventRow
from strandline.notices.finding import Finding, Happened, Sight
from strandline.notices.options import NoOptions
from strandline.notices.view import View, job_subject

BY_EVENTS = True
BACKFILL, BATCH = "backfill_ended", "batch_completed"


class Fields(DocumentModel):
    work_ended: NoOptions | None = None
    """A backfill is complete or has failed, or a batch has completed. A failed batch is a failed job: `job_failed`."""


def look(options: NoOptions, view: View) -> Sight:
    """Find backfills and batches that ended."""
    happened = tuple(Happened(event.id, event.at_ms, _finding(event)) for event in view.new_events(BACKFILL, BATCH))
    return Sight(happened=happened, by_events=True, has_end=False)


def _finding(event: EventRow) -> Finding:
    job = str(event.job)
    if event.kind == BATCH:
        return Finding(
            subject=job_subject(job),
            title=f"Batch {job} has completed",
            reason=event.message,
            affected=f"All results of batch {job} are written.",
            action=f"There is nothing to do. To see the counts: strandline job status {job}",
            job=job,
        )
    generation, has_failed = event.facts.get("generation"), event.facts.get("state") == "failed"
    if has_failed:
        affected = (
            f"The results of job {job} are as they were before backfill {generation}. The running job isn't affected."
        )
        action = (
            f"strandline job backfills {job}\n"
            "Fix the cause that it names, then request the backfill again:\n"
            f"strandline job backfill {job} --from START --to END"
        )
    else:
        affected = f"The aliases of job {job} show the results of backfill {generation}."
        action = f"There is nothing to do. To see the counts: strandline job backfills {job}"
    return Finding(
        subject=f"{job_subject(job)}, backfill {generation}",
        title=f"Backfill {generation} of job {job} {'failed' if has_failed else 'is complete'}",
        reason=event.message if has_failed else "",
        affected=affected,
        action=action,
        job=job,
    )
