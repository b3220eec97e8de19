"""Failed jobs, for the conditions `job_failed`, `stopped_by_record`, and `divergence`."""

from __future__ import annotations

from collections.abc import Callable

from strandline.ledger.states import EventRow, JobState
from strandline.notices.finding import Finding, Happened, Sight
from strandline.notices.view import View, job_subject

EVENT = "job_failed"
BY_RECORD = "bad_record"
BY_DIVERGENCE = "divergence"


def failed_jobs(view: View, is_meant: Callable[[str], bool], finding_of: Callable[[EventRow], Finding]) -> Sight:
    """Return the failures of watched jobs, by the code of their error. A problem lasts as long as its job is failed. The event
    is recorded in the transaction in which the job fails, so no failure is missed, however short it is."""
    happened = tuple(
        Happened(event.id, event.at_ms, finding_of(event))
        for event in view.new_events(EVENT)
        if is_meant(view.failure_code(event))
    )
    failed = [job for job in view.jobs.values() if job.state is JobState.FAILED]
    holding = {job_subject(job.name): Finding(job_subject(job.name), "", "", "") for job in failed}
    return Sight(holding=holding, happened=happened, by_events=True)
