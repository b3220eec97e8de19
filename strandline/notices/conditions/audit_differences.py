"""Condition `audit_differences`: an audit found results that differ from the log."""

from __future__ import annotations

from strandline.core.document_model import DocumentModel
from strandline.notices.finding import Finding, Happened, Sight
from strandline.notices.options import NoOptions
from strandline.notices.view import View, job_subject

BY_EVENTS = True
EVENT = "audit_found_differences"


class Fields(DocumentModel):
    audit_differences: NoOptions | None = None
    """An audit found differences between the log and the results."""


def look(options: NoOptions, view: View) -> Sight:
    """Find audits that ended with differences."""
    happened = tuple(
        Happened(event.id, event.at_ms, _finding(str(event.job), event.message)) for event in view.new_events(EVENT)
    )
    return Sight(happened=happened, by_events=True, has_end=False)


def _finding(job: str, message: str) -> Finding:
    return Finding(
        subject=job_subject(job),
        title=f"An audit of job {job} found differences",
        reason=message,
        affected=f"Some results of job {job} are missing, wrong, or were changed after they were written.",
        action=(
            f"strandline audit {job}\n"
            "The command lists the results that differ.\n"
            "- If results are missing, restore exactly these:\n"
            f"strandline job backfill {job} --missing\n"
            "- If results differ, recompute the affected time in a new generation:\n"
            f"strandline job backfill {job} --from START --to END"
        ),
        job=job,
    )
