"""Condition `no_checkpoint`: a running job has work to do, but commits no slice."""

from __future__ import annotations

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration
from strandline.ledger.states import JobRow, SliceStatus
from strandline.notices.finding import Finding, Sight
from strandline.notices.view import View, job_subject, jobs_that_should_run, show_duration, show_time


class NoCheckpointSpec(DocumentModel):
    """Limit of the time without a commit."""

    hold: Duration = Field(default=300_000, alias="for", json_schema_extra={"default": "5m"})
    """Time without a checkpoint, while records wait."""


class Fields(DocumentModel):
    no_checkpoint: NoCheckpointSpec | None = None
    """A job has records to process, but has written no checkpoint for a time: `{for: 5m}`."""


def look(options: NoCheckpointSpec, view: View) -> Sight:
    """Find jobs that should run, have records to process, and have committed nothing for too long. A job without new records
    also commits nothing, which is no problem."""
    jobs, lost = jobs_that_should_run(view)
    holding, unknown = {}, set()
    for job in jobs:
        subject = job_subject(job.name)
        checkpoint, last = view.ledger.last_checkpoint(job.name), view.ledger.last_slice(job.name)
        since_ms = max(job.created_ms, checkpoint.committed_ms if checkpoint is not None else 0)
        if view.now_ms - since_ms <= options.hold:
            continue
        if last is not None and last.status is SliceStatus.PLANNED and view.now_ms - last.planned_ms > options.hold:
            reason = f"Slice {last.number} was planned at {show_time(last.planned_ms)} and isn't committed."
            holding[subject] = _finding(job, since_ms, reason, options)
            continue
        lag = view.surroundings.job_facts(job.name).lag_records
        if lag is None:
            unknown.add(subject)
        elif lag > 0:
            holding[subject] = _finding(job, since_ms, f"{lag:,} records wait, and no slice is in progress.", options)
    return Sight(holding=holding, unknown=frozenset(unknown), lost=lost)


def _finding(job: JobRow, since_ms: int, reason: str, options: NoCheckpointSpec) -> Finding:
    why = f" The job is {job.state.value}{f': {job.message}' if job.message else ''}."
    return Finding(
        subject=job_subject(job.name),
        title=f"Job {job.name} writes no checkpoints",
        reason=f"The last one is older than {show_duration(options.hold)}. {reason}{why}",
        affected=f"Job {job.name} has written no results since {show_time(since_ms)}. Its records wait in its streams.",
        action=(
            f"strandline job explain {job.name}\n"
            "strandline doctor\n"
            "explain names the store or server that doesn't respond. If none is named, run:\n"
            f"strandline job logs {job.name}\n"
            f"strandline job restart {job.name}"
        ),
        job=job.name,
    )
