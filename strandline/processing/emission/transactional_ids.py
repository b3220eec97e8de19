"""The transactional ids under which a job's tasks write to Kafka. A *slot* is one such id: no two tasks at work share it. `task`
is the number of the bucket."""

from __future__ import annotations

from strandline.core.record_headers import dead_letter_topic


def id_of_rejected_records(job: str, task: int) -> str:
    """Return the id for the dead letters of rejected records."""
    return f"{dead_letter_topic(job)}.record-{task}"


def id_of_refused_results(job: str, stage: str, task: int) -> str:
    """Return the id for the dead letters of a stage's refused results."""
    return f"{dead_letter_topic(job)}.result-{stage}-{task}"


def id_of_backfilled_results(job: str, generation: int, stage: str, task: int) -> str:
    """Return the id for the dead letters of a backfill's refused results. All attempts use the same ids."""
    return f"{dead_letter_topic(job)}.backfill-{generation}-{stage}-{task}"


def id_of_result_stream(job: str, stage: str, stream: str, task: int) -> str:
    """Return the id for a stage's results in a stream. It begins with the job and a colon, which no name contains, so an ACL for
    that prefix is for this job only."""
    return f"{job}:result:{stage}:{stream}:{task}"
