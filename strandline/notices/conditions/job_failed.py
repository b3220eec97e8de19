"""Condition `job_failed`: a job failed. It stays failed until it is started."""

from __future__ import annotations

from strandline.core.document_model import DocumentModel
from strandline.ledger.states import EventRow
from strandline.notices.conditions.failures import BY_DIVERGENCE, BY_RECORD, failed_jobs
from strandline.notices.finding import Finding, Sight
from strandline.notices.options import NoOptions
from strandline.notices.view import View, job_subject, stopped_results

BY_EVENTS = True
_OWN_CONDITIONS = {BY_RECORD: "stopped_by_record", BY_DIVERGENCE: "divergence"}
"""Code of an error -> condition that reports it with more details."""


class Fields(DocumentModel):
    job_failed: NoOptions | None = None
    """A job failed."""


def look(options: NoOptions, view: View) -> Sight:
    """Find failed jobs. Failures that another condition of the notice reports are left out."""
    left = {code for code, keyword in _OWN_CONDITIONS.items() if keyword in view.keywords}
    return failed_jobs(view, lambda code: code not in left, lambda event: _finding(event, view))


def _finding(event: EventRow, view: View) -> Finding:
    job = str(event.job)
    return Finding(
        subject=job_subject(job),
        title=f"Job {job} failed",
        reason=event.message,
        affected=stopped_results(view, job),
        action=(
            f"strandline job status {job}\n"
            f"strandline job logs {job}\n"
            "Fix the cause that these commands show, then run:\n"
            f"strandline job start {job}"
        ),
        job=job,
    )
