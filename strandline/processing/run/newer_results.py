"""A run looks for results that its ledger can't know, before it writes any.

A ledger that was put back to an older copy has forgotten slices whose results are out. The job would cut them anew and in another
way, and emit windows again that are there with other values. An interrupted slice is no such thing: it is in the ledger.
"""

from __future__ import annotations

from confluent_kafka import Message

from strandline.core.errors import Conflict
from strandline.core.record_headers import HEADER_EMISSION, HEADER_EPOCH, HEADER_JOB, dead_letter_topic
from strandline.ledger.states import CheckpointRow, SliceRow
from strandline.log.tail import last_records
from strandline.processing.emission.result_stream_writer import result_header
from strandline.processing.pipelines.checked_pipeline import aliases_of
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.pipelines.stages import Emit
from strandline.results.newer_documents import newer_document


def require_newest_ledger(run: JobRun, index_url: str | None) -> None:
    """Raise Conflict if results or dead letters of the job are there that the ledger knows nothing of: of a run after this one,
    of a slice after its last one, or of a record that none of its slices holds.

    Looks at the streams of results, the dead letters, files and tables, and the index at `index_url` (None: results go
    elsewhere). A package's sink can't be asked. Raises LogUnavailable, SinkUnavailable, IndexUnavailable.
    """
    checkpoint, last = run.ledger.last_checkpoint(run.job), run.ledger.last_slice(run.job)
    found = (
        _newer_result(run, checkpoint, last)
        or _newer_letter(run, checkpoint, last)
        or _newer_row(run, last)
        or (index_url and _newer_document(run, checkpoint, last, index_url))
    )
    if found:
        raise Conflict(
            f"the ledger is older than what job {run.job} has written: it knows {_known(run, last)}, and {found}. Was it put "
            "back to an older copy? Put back the newest copy, or submit the pipeline under another name, with other names of "
            "its aliases, streams of results and tables."
        )


def _known(run: JobRun, last: SliceRow | None) -> str:
    return f"{f'slices up to {last.number}' if last else 'no slice'} and {run.epoch - 1} runs before this one"


def _newer_result(run: JobRun, checkpoint: CheckpointRow | None, last: SliceRow | None) -> str | None:
    before = checkpoint.result_offsets if checkpoint else {}
    for stream in sorted({stream for stage in run.pipeline.all_stages for stream in stage.streams}):
        for message in last_records(
            run.settings.kafka_bootstrap,
            run.index,
            stream,
            before.get(stream, {}),
            lambda one: result_header(one, HEADER_JOB) == run.job,
        ):
            emission, epoch = int(result_header(message, HEADER_EMISSION)), int(result_header(message, HEADER_EPOCH))
            if epoch > run.epoch or emission > (last.number if last else 0):
                return f"stream {stream} holds results of emission {emission} by run {epoch}"
    return None


def _newer_letter(run: JobRun, checkpoint: CheckpointRow | None, last: SliceRow | None) -> str | None:
    """A rejected record stands in a slice. (The letter of a refused result names no record.)"""
    topic = dead_letter_topic(run.job)
    before = checkpoint.dead_letter_offsets if checkpoint else {}
    for message in last_records(run.settings.kafka_bootstrap, run.index, topic, before, _is_of_record):
        stream = result_header(message, "stream")
        partition, offset = int(result_header(message, "partition")), int(result_header(message, "offset"))
        if offset >= (last.offsets.get(stream, {}).get(partition, 0) if last else 0):
            return f"{topic} holds a dead letter of offset {offset} of stream {stream}, partition {partition}"
    return None


def _is_of_record(message: Message) -> bool:
    return result_header(message, "offset").isdecimal()


def _newer_row(run: JobRun, last: SliceRow | None) -> str | None:
    """Of files and tables. They tell no run; a slice that the ledger knows can't have been cut in another way."""
    for stage in run.pipeline.all_stages:
        for emit in stage.emits:
            emission = _newest_emission(run, stage.name, emit)
            if emission > (last.number if last else 0):
                return f"{emit.kind} {emit.name} holds results of emission {emission}"
    return None


def _newest_emission(run: JobRun, stage: str, emit: Emit) -> int:
    # Imported where they are used: each takes half a second.
    if emit.kind == "files":
        from strandline.results.sinks import files_writer

        return files_writer.newest_emission(emit.name, run.job, stage)
    if emit.kind == "sql":
        from strandline.results.sinks import sql_writer

        return sql_writer.newest_emission(sql_writer.sql_url(run.settings), emit.name, run.job)
    return 0


def _newer_document(run: JobRun, checkpoint: CheckpointRow | None, last: SliceRow | None, index_url: str) -> str | None:
    emitted = dict(checkpoint.emitted) if checkpoint else {}
    if checkpoint is not None and checkpoint.closes_ms is not None:
        # Of records, those below the watermark are late.
        emitted |= {stage.name: checkpoint.closes_ms - 1 for stage in run.pipeline.record_stages}
    generation = run.ledger.job(run.job).generation
    for stage, aliases in aliases_of(run.pipeline).items():
        for alias in aliases:
            origin = newer_document(
                index_url,
                alias,
                run.job,
                epoch=run.epoch,
                emission=last.number if last else 0,
                after_ms=emitted.get(stage, 0),
                generation=generation,
            )
            if origin:
                return f"the index holds results of emission {origin['emission']} by run {origin['epoch']}"
    return None
