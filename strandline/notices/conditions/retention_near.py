"""Condition `retention_near`: retention comes close to the records that a restart needs."""

from __future__ import annotations

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.times.durations import format_about, format_duration
from strandline.notices.finding import Finding, Sight
from strandline.notices.options import Share
from strandline.notices.view import JobFacts, View, job_subject


class RetentionNearSpec(DocumentModel):
    """Limit of the remaining retention."""

    below: Share = Field(default=0.25, json_schema_extra={"default": "25%"})
    """Minimum share of the retention that must remain."""


class Fields(DocumentModel):
    retention_near: RetentionNearSpec | None = None
    """The streams will soon delete records that a restart of a job reads again: `{below: 25%}`."""


def look(options: RetentionNearSpec, view: View) -> Sight:
    """Find jobs whose restart needs records that retention deletes soon."""
    holding = {}
    for job in view.jobs:
        facts = view.surroundings.job_facts(job)
        left_ms, retention_ms = facts.retention_left_ms, facts.retention_ms
        if left_ms is not None and retention_ms and left_ms < options.below * retention_ms:
            holding[job_subject(job)] = _finding(job, facts)
    return Sight(holding=holding)


def _finding(job: str, facts: JobFacts) -> Finding:
    left_ms, retention = facts.retention_left_ms or 0, format_duration(facts.retention_ms or 0)
    after = "From now on," if left_ms <= 0 else "After that time,"
    when = "may have deleted" if left_ms <= 0 else f"deletes in {format_about(left_ms)}"
    return Finding(
        subject=job_subject(job),
        title=f"Retention {when} records that job {job} needs",
        reason=(
            f"The streams of job {job} keep records for {retention}. The oldest record that a restart reads again is "
            f"{format_about(max(0, (facts.retention_ms or 0) - left_ms))} old, because its window is still open."
        ),
        affected=(
            f"{after} a restart of job {job} fails, because it can't read the records of its open windows again. While the "
            "job runs, its results are complete."
        ),
        action=(
            f"Don't stop or restart job {job} until this problem is over.\n"
            "Raise the retention now (retention: in the stream's document), then run:\n"
            "strandline apply FILE\n"
            "Find out why no window closes:\n"
            f"strandline job explain {job}"
        ),
        job=job,
    )
