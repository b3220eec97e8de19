"""Condition `lag`: records wait for a job."""

from __future__ import annotations

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration
from strandline.notices.finding import Finding, Sight
from strandline.notices.view import View, job_subject, jobs_that_should_run, show_duration


class LagSpec(DocumentModel):
    """Limit of the lag."""

    above: int = Field(default=100_000, ge=0)
    """Number of records after the last committed slice."""
    hold: Duration = Field(default=120_000, alias="for", json_schema_extra={"default": "2m"})
    """Time for which the lag must stay above this number."""


class Fields(DocumentModel):
    lag: LagSpec | None = None
    """Records wait for a job: `{above: 100000, for: 2m}`."""


def look(options: LagSpec, view: View) -> Sight:
    """Find running jobs with a large lag. The lag is unknown while Kafka doesn't respond."""
    jobs, lost = jobs_that_should_run(view)
    holding, unknown = {}, set()
    for job in jobs:
        subject = job_subject(job.name)
        lag = view.surroundings.job_facts(job.name).lag_records
        if lag is None:
            unknown.add(subject)
        elif lag > options.above:
            holding[subject] = _finding(job.name, lag, options)
    return Sight(holding=holding, unknown=frozenset(unknown), lost=lost, hold_ms=options.hold)


def _finding(job: str, lag: int, options: LagSpec) -> Finding:
    return Finding(
        subject=job_subject(job),
        title=f"Job {job} lags behind: {lag:,} records wait",
        reason=f"The lag has been above {options.above:,} records for {show_duration(options.hold)}.",
        affected=f"The results of job {job} are late by these records. No record is lost while its streams retain them.",
        action=(
            f"strandline job explain {job}\n"
            f"strandline job status {job}\n"
            "If the job writes slices but too few: give it more cores (STRANDLINE_SPARK_CORES, STRANDLINE_SPARK_MASTER). "
            "If a store is slow, explain names it."
        ),
        job=job,
    )
