"""Condition `divergence`: a job computed a different value for a result that a store already contains."""

from __future__ import annotations

from strandline.core.document_model import DocumentModel
from strandline.ledger.states import EventRow
from strandline.notices.conditions.failures import BY_DIVERGENCE, failed_jobs
from strandline.notices.finding import Finding, Sight
from strandline.notices.options import NoOptions
from strandline.notices.view import View, job_subject, stopped_results

BY_EVENTS = True


class Fields(DocumentModel):
    divergence: NoOptions | None = None
    """A store contains a different value under the id of a result. The job stopped and overwrote nothing."""


def look(options: NoOptions, view: View) -> Sight:
    """Find jobs that a divergence stopped."""
    return failed_jobs(view, lambda code: code == BY_DIVERGENCE, lambda event: _finding(event, view))


def _finding(event: EventRow, view: View) -> Finding:
    job = str(event.job)
    return Finding(
        subject=job_subject(job),
        title=f"Results of job {job} diverge: the store contains a different value",
        reason=event.message,
        affected=(
            f"At least one stored result of job {job} is wrong, or was changed by another program. Nothing was overwritten. "
            f"{stopped_results(view, job)}"
        ),
        action=(
            "Find out whether another program writes to the store, and which results differ:\n"
            f"strandline job status {job}\n"
            f"strandline audit {job}\n"
            "- If another program changed stored results, delete these results from the store, then run:\n"
            f"strandline job start {job}\n"
            "- Otherwise keep the store as it is, and report the output of these commands as a bug."
        ),
        job=job,
    )
