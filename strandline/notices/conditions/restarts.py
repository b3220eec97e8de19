"""Condition `restarts`: the runner of a job ended several times within a short time, and was restarted."""

from __future__ import annotations

from collections import defaultdict

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration
from strandline.ledger.states import EventRow, JobState
from strandline.notices.finding import Finding, Sight
from strandline.notices.view import View, job_subject, show_duration

_KINDS = ("runner_died", "runner_killed")


class RestartsSpec(DocumentModel):
    """Limit of restarts."""

    times: int = Field(default=3, ge=1, le=1_000)
    """Number of restarts."""
    within: Duration = Field(default=600_000, json_schema_extra={"default": "10m"})
    """Time within which they happen."""


class Fields(DocumentModel):
    restarts: RestartsSpec | None = None
    """A job restarted several times: `{times: 3, within: 10m}`."""


def look(options: RestartsSpec, view: View) -> Sight:
    """Find jobs that restarted too often. A failed job doesn't restart, and `job_failed` reports it. Its earlier problem stays
    open until the job is started, because the job isn't well."""
    by_job: dict[str, list[EventRow]] = defaultdict(list)
    for event in view.ledger.recent_events(_KINDS, view.now_ms - options.within):
        if view.watches(event.job):
            by_job[str(event.job)].append(event)
    holding = {
        job_subject(job): _finding(job, events, options)
        for job, events in by_job.items()
        if len(events) >= options.times and job in view.jobs and view.jobs[job].state is not JobState.FAILED
    }
    failed = (job_subject(job.name) for job in view.jobs.values() if job.state is JobState.FAILED)
    return Sight(holding=holding, unknown=frozenset(failed))


def _finding(job: str, events: list[EventRow], options: RestartsSpec) -> Finding:
    within = show_duration(options.within)
    return Finding(
        subject=job_subject(job),
        title=f"Job {job} restarted {len(events)} times within {within}",
        reason=f"The last time: {events[-1].message}",
        affected=(
            f"Results of job {job} are late: each restart reads the records of the open windows again. No result is lost or "
            "written twice. If the job makes no progress, it fails after some more restarts."
        ),
        action=(
            f"strandline job events {job} --last 20\n"
            f"strandline job logs {job}\n"
            "strandline doctor\n"
            "Signal 9 or exit code 137 can mean that the machine has too little memory: see STRANDLINE_SPARK_DRIVER_MEMORY."
        ),
        job=job,
    )
