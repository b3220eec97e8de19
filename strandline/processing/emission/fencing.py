"""Fencing: no run of a job writes to Kafka once a newer run has begun.

A new run fences every producer of the runs before it, before its own first task starts (`fence_older_runs`, in the driver).
A task asks, before and after it fences the producer whose id it uses, whether its run is still the current one
(`require_current_epoch`, in the executors).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import structlog

from strandline.core.errors import Fenced
from strandline.core.record_headers import dead_letter_topic
from strandline.ledger.states import OPEN_BACKFILLS, RunRow
from strandline.log.transactions import fence_producers
from strandline.processing.emission.transactional_ids import (
    id_of_refused_results,
    id_of_rejected_records,
    id_of_result_stream,
)
from strandline.processing.source.opened_ledger import kept_ledger, open_ledger

if TYPE_CHECKING:
    from strandline.ledger.roles import LedgerReader

log = structlog.get_logger()


def require_current_epoch(ledger_url: str, job: str, epoch: int) -> None:
    """Return if run `epoch` is still the newest run of the job. Raises Fenced if a newer run has begun.

    Called in the executors just before a write. Each process keeps the ledger open, and each call queries it.
    """
    with kept_ledger(ledger_url) as ledger:
        current = ledger.job(job).epoch
    if current != epoch:
        raise Fenced(f"Run {epoch} of job {job} no longer owns it, run {current} does. Run {epoch} ends; do nothing.")


def require_current_attempt(ledger_url: str, job: str, generation: int, epoch: int) -> None:
    """Raise Fenced if a newer attempt of the backfill has begun, or the backfill has ended."""
    with closing(open_ledger(ledger_url)) as ledger:
        current = ledger.backfill(job, generation)
    if current.epoch != epoch or current.state not in OPEN_BACKFILLS:
        raise Fenced(
            f"Attempt {epoch} of backfill {generation} of job {job} ends: the backfill is {current.state.value}, and its "
            f"newest attempt is {current.epoch}. Do nothing."
        )


def fence_older_runs(ledger: LedgerReader, bootstrap: str, run: RunRow) -> int:
    """Fence every producer through which an older run may still write, and return the number of these producers.

    Called when the run has begun, before its first task. Raises LogUnavailable.
    """
    started = time.monotonic()
    slots = slots_of_older_runs(ledger, run)
    fence_producers(bootstrap, slots)
    seconds = round(time.monotonic() - started, 3)
    log.info("older runs fenced", job=run.job, epoch=run.epoch, slots=len(slots), seconds=seconds)
    return len(slots)


def slots_of_older_runs(ledger: LedgerReader, run: RunRow) -> list[tuple[str, str]]:
    """Return (transactional id, topic) of each slot under which an older run may still write.

    The run that committed last has fenced those before it, so only that run and later ones can have a transaction open.
    """
    # Imported here: the workers load this module too, and need no pipeline model.
    from strandline.processing.pipelines.result_streams import emissions_to_streams
    from strandline.processing.pipelines.stored import spec_of_version

    last = ledger.last_checkpoint(run.job)
    counts: dict[int, int] = {}
    for one in ledger.runs(run.job):
        if (last.epoch if last else 0) <= one.epoch < run.epoch:
            counts[one.version] = max(one.slots, counts.get(one.version, 0))
    topics: dict[str, str] = {}
    for version, count in counts.items():
        pipeline = spec_of_version(ledger, run.job, version)
        stages, streams = pipeline.stage_names(), list(emissions_to_streams(pipeline))
        for task in range(count):
            topics |= _topics_of_task(run.job, stages, streams, task)
    return list(topics.items())


def _topics_of_task(job: str, stages: Sequence[str], streams: Sequence[tuple[str, str]], task: int) -> dict[str, str]:
    """Return transactional id -> topic for one task. `stages`: stages with dead letters. `streams`: (stage, stream) of each
    emission to a stream. `task`: number of the bucket."""
    ids = [id_of_rejected_records(job, task), *(id_of_refused_results(job, stage, task) for stage in stages)]
    topics = dict.fromkeys(ids, dead_letter_topic(job))
    return topics | {id_of_result_stream(job, stage, stream, task): stream for stage, stream in streams}
