"""Condition `dead_letters`: a job rejects too many records, by reason."""

from __future__ import annotations

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration
from strandline.notices.finding import Finding, Sight
from strandline.notices.view import View, job_subject, show_duration

_MEANINGS = {
    "decode": "their payload can't be decoded",
    "schema": "a field is missing, or its value has another type",
    "time_unit": "a timestamp has another unit than the schema",
    "expression": "a step of the pipeline fails on their values",
    "lookup": "their key is not in a lookup",
    "late": "at their arrival, the watermark had passed their event time",
    "future_event": "their event time is too far in the future",
    "result": "the store refused their result",
}
"""Reason -> its meaning."""
_LATE = "late"
_NO_LETTERS = frozenset({"duplicate"})
"""Reasons for which a record is dropped without a dead letter."""


class DeadLettersSpec(DocumentModel):
    """Limit of dead letters."""

    above: int = Field(default=100, ge=0)
    """Number of dead letters of one reason."""
    within: Duration = Field(default=300_000, json_schema_extra={"default": "5m"})
    """Time within which they are written."""
    reasons: list[str] | None = Field(default=None, min_length=1, max_length=50)
    """Reasons that count, as `decode`. Default: all."""


class Fields(DocumentModel):
    dead_letters: DeadLettersSpec | None = None
    """A job wrote too many dead letters: `{above: 100, within: 5m, reasons: [decode]}`."""


AFTER_END = (
    "Only the rate is below the limit again. The dead letters still exist, and are missing from the results until you requeue "
    "them. To see them, run: strandline dead-letters list {job}"
)
"""Next step after the end of a problem."""


def look(options: DeadLettersSpec, view: View) -> Sight:
    """Find jobs with too many dead letters of one reason."""
    holding = {}
    for job in view.jobs:
        for reason, count in view.ledger.rejected_since(job, view.now_ms - options.within).items():
            is_meant = reason not in _NO_LETTERS if options.reasons is None else reason in options.reasons
            if is_meant and count > options.above:
                finding = _finding(job, reason, count, options)
                holding[finding.subject] = finding
    return Sight(holding=holding)


def _finding(job: str, reason: str, count: int, options: DeadLettersSpec) -> Finding:
    within = show_duration(options.within)
    return Finding(
        subject=f"{job_subject(job)}, reason {reason}",
        title=f"Job {job} wrote {count:,} dead letters with reason {reason} within {within}",
        reason=f"Reason {reason}: {_MEANINGS.get(reason, 'the records could not be used')}. The limit is {options.above:,}.",
        affected=f"These records are missing from the results of job {job}. No record is lost: each is a dead letter.",
        action=f"strandline dead-letters list {job} --reason {reason} --limit 10\n{_remedy(job, reason)}",
        job=job,
    )


def _remedy(job: str, reason: str) -> str:
    if reason == _LATE:
        return (
            "Find out why these devices send late: a wrong clock, or records that they stored without a connection.\n"
            "For later records, raise event_time.delay in the pipeline, then run:\n"
            "strandline apply FILE"
        )
    return (
        "Fix the device, or the schema of the stream or the pipeline (strandline apply FILE). Then put the records back:\n"
        f"strandline dead-letters requeue {job} --reason {reason} --dry-run\n"
        f"strandline dead-letters requeue {job} --reason {reason}"
    )
