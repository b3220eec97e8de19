"""How a new run of a job shuts out the runs before it: what they have open in Kafka is ended, and nothing more gets in."""

from __future__ import annotations

import time

import structlog

from strandline.core.record import dead_letter_topic
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import RunRow
from strandline.log.transactions import fence_producers
from strandline.processing.emission.dead_letters import dead_letter_id, slot_of_records, slot_of_results
from strandline.processing.emission.result_stream_writer import transactional_id
from strandline.processing.pipelines.model import PipelineSpec
from strandline.processing.pipelines.result_streams import emissions_to_streams

log = structlog.get_logger()


def shut_out_older_runs(ledger: Ledger, bootstrap: str, run: RunRow) -> int:
    """Take over every slot from which an older run may still write, and return how many those were.

    Called when the run has begun, before its first task. Raises LogUnavailable.
    """
    started = time.monotonic()
    slots = slots_of_older_runs(ledger, run)
    fence_producers(bootstrap, slots)
    seconds = round(time.monotonic() - started, 3)
    log.info("older runs shut out", job=run.job, epoch=run.epoch, slots=len(slots), seconds=seconds)
    return len(slots)


def slots_of_older_runs(ledger: Ledger, run: RunRow) -> list[tuple[str, str]]:
    """(transactional id, topic) of each slot from which an older run may still write.

    The run that committed last has shut out those before it, so only it and the runs after it can have anything open.
    """
    last = ledger.last_checkpoint(run.job)
    counts: dict[int, int] = {}
    for one in ledger.runs(run.job):
        if (last.epoch if last else 0) <= one.epoch < run.epoch:
            counts[one.version] = max(one.slots, counts.get(one.version, 0))
    ids: dict[str, str] = {}
    for version, count in counts.items():
        pipeline = PipelineSpec.from_document(ledger.job_version(run.job, version).document)
        for slot in range(count):
            ids |= _slots_of_version(run.job, pipeline, slot)
    return list(ids.items())


def _slots_of_version(job: str, pipeline: PipelineSpec, slot: int) -> dict[str, str]:
    """Transactional id -> topic, of all that the task of this number may write to."""
    stages = [step.window.name for step in pipeline.steps if step.window is not None and step.emit]
    places = [slot_of_records(slot), *(slot_of_results(stage, slot) for stage in stages)]
    ids = {dead_letter_id(job, place): dead_letter_topic(job) for place in places}
    streams = emissions_to_streams(pipeline)
    return ids | {transactional_id(job, stage, stream, slot): stream for stage, stream in streams}
