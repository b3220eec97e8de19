"""Condition `stopped_by_record`: a record stopped a job with `on_error: crash`."""

from __future__ import annotations

import re

from strandline.core.document_model import DocumentModel
from strandline.ledger.states import EventRow
from strandline.notices.conditions.failures import BY_RECORD, failed_jobs
from strandline.notices.finding import Finding, Sight
from strandline.notices.options import NoOptions
from strandline.notices.view import View, job_subject, stopped_results

BY_EVENTS = True
_RECORD = re.compile(
    r"(?P<reason>\w+) at (?P<step>\S+): "
    r"(?P<place>stream (?P<stream>\S+), partition (?P<partition>\d+), offset (?P<offset>\d+)(?:, element \d+)?): (?P<why>.*)"
)
"""Form in which a `BadRecord` names the record."""


class Fields(DocumentModel):
    stopped_by_record: NoOptions | None = None
    """A record stopped a job with `on_error: crash`."""


def look(options: NoOptions, view: View) -> Sight:
    """Find jobs that a record stopped."""
    return failed_jobs(view, lambda code: code == BY_RECORD, lambda event: _finding(event, view))


def _finding(event: EventRow, view: View) -> Finding:
    job = str(event.job)
    found = _RECORD.match(event.message)
    title, reason = f"A record stopped job {job} (on_error: crash)", event.message
    if found is not None:
        title = f"A record stopped job {job}: {found['place']}"
        reason = f"Reason {found['reason']} at step {found['step']}: {found['why']}"
    return Finding(
        subject=job_subject(job),
        title=title,
        reason=reason,
        affected=stopped_results(view, job),
        action=(
            f"strandline job status {job}\n"
            "- If the record is right: change the schema of the stream or the pipeline so that it accepts the record, then run:\n"
            "strandline apply FILE\n"
            f"strandline job start {job}\n"
            "- If the record is wrong: set on_error: dead_letter in the pipeline, and run the same two commands. To see the "
            "record, run:\n"
            f"strandline dead-letters list {job}"
        ),
        job=job,
    )
