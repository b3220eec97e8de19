"""A planned slice that another version takes over, because the version that planned it couldn't finish it. Stores may contain
results of that version.

Two versions may compute different results of the same windows, with different keys, so that no store refuses the second ones.
Therefore a version takes a slice over only if no store contains anything of it, or if it computes the same and writes it to the
same sinks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from strandline.core.errors import Conflict
from strandline.core.record_headers import HEADER_EMISSION, HEADER_JOB, dead_letter_topic
from strandline.ledger.states import SliceRow, SliceStatus
from strandline.log.messages import LogMessage, last_records
from strandline.processing.emission.result_stream_writer import result_header
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.event_time import RECORDS
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.pipelines.row_step import Identity
from strandline.processing.pipelines.stages import Emit, RecordStage, Stage
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.run.newer_results import emissions_from
from strandline.results.newer_documents import newer_document
from strandline.results.sinks.registry import sink_of


@dataclass(frozen=True)
class Written:
    """A sink that contains results of the slice, or the stream of dead letters with dead letters of the slice."""

    where: str
    """For messages: the store, and its name."""
    stage: str | None
    """None for dead letters, which may come from any stage."""
    emit: Emit | None


def require_same_results(run: JobRun, index_url: str | None, *, is_before_emission: bool = False) -> None:
    """Raise Conflict if the run would take over a slice of which a store contains results that the run's version doesn't compute.

    Call it after the producers of older runs are fenced, and before the run emits anything.

    Args:
        index_url: Elasticsearch. None if documents go elsewhere.
        is_before_emission: True if the other version failed before it could emit anything. Then sinks that can't be queried are
            taken to contain nothing.
    Raises: Conflict, LogUnavailable, SinkUnavailable, IndexUnavailable, LedgerUnavailable.
    """
    last = run.ledger.last_slice(run.job)
    if last is None or last.status is not SliceStatus.PLANNED:
        return
    version = run.ledger.version_of_slice(run.job, before_epoch=run.epoch)
    if version is None or version == run.version:
        return
    before = load_pipeline(run.ledger, run.job, version)
    others = [
        one.where
        for one in _written(run, before, last, index_url, is_before_emission=is_before_emission)
        if not _computes_same(before, run.pipeline, one)
    ]
    if others:
        raise Conflict(
            f"slice {last.number} of job {run.job}: results of version {version} are in {', '.join(others)}, and version "
            f"{run.version} would compute others. Nothing was written; fix what version {version} failed over (strandline job "
            f"events {run.job}), then run strandline job start {run.job}: version {version} finishes the slice, and version "
            f"{run.version} begins after it. Or apply version {version} again without the sink that refuses results, and apply "
            "the other changes when the slice is committed"
        )


def _written(
    run: JobRun, before: CheckedPipeline, last: SliceRow, index_url: str | None, *, is_before_emission: bool
) -> Iterator[Written]:
    """Yield each sink of the version `before` that contains results of the slice `last`, and the stream of dead letters if it
    contains some of the slice. `index_url`, `is_before_emission`: as for `require_same_results`."""
    checkpoint = run.ledger.last_checkpoint(run.job)
    result_offsets = checkpoint.result_offsets if checkpoint else {}
    for stage in before.all_stages:
        for emit in stage.emits:
            where, sink = f"{emit.kind} {emit.name}", sink_of(emit)
            if sink.has_generations:
                has_results = index_url is not None and _has_documents(run, emit, last, index_url)
            elif sink.is_stream:
                has_results = _has_records(run, emit.name, result_offsets.get(emit.name, {}), last)
            else:
                emissions = emissions_from(run, stage.name, emit, last.number)
                if emissions is None:
                    has_results, where = not is_before_emission, f"{where} (perhaps: it can't be queried)"
                else:
                    has_results = any(number >= last.number for number, _ in emissions)
            if has_results:
                yield Written(where, stage.name, emit)
    topic = dead_letter_topic(run.job)
    since = checkpoint.dead_letter_offsets if checkpoint else {}
    if last_records(run.settings.kafka_bootstrap, run.index, topic, since, lambda one: _is_letter_of(one, last)):
        yield Written(f"stream {topic}", None, None)


def _has_documents(run: JobRun, emit: Emit, last: SliceRow, index_url: str) -> bool:
    # In all months: a late record revises, and an emission of records has, results of any time.
    found = newer_document(
        index_url,
        emit.name,
        run.job,
        epoch=run.epoch,
        emission=last.number - 1,
        after_ms=0,
        generation=run.ledger.job(run.job).generation,
    )
    return found is not None


def _has_records(run: JobRun, stream: str, since: dict[int, int], last: SliceRow) -> bool:
    def is_of_slice(message: LogMessage) -> bool:
        return (
            result_header(message, HEADER_JOB) == run.job
            and int(result_header(message, HEADER_EMISSION)) >= last.number
        )

    return bool(last_records(run.settings.kafka_bootstrap, run.index, stream, since, is_of_slice))


def _is_letter_of(message: LogMessage, last: SliceRow) -> bool:
    """Return True for the dead letter of a record of the slice, or of any result. `message`: a dead letter after the last
    checkpoint, so no committed slice wrote it."""
    offset, partition = result_header(message, "offset"), result_header(message, "partition")
    if not offset.isdecimal():
        return True
    stream, number = result_header(message, "stream"), int(partition)
    first = last.offsets_first.get(stream, {}).get(number, 0)
    return first <= int(offset) < last.offsets.get(stream, {}).get(number, 0)


def _computes_same(before: CheckedPipeline, after: CheckedPipeline, written: Written) -> bool:
    """Return True if the version `after` writes the same results to the sink `written`. False if that isn't certain."""
    if list(before.streams) != list(after.streams):
        return False
    if written.stage is None:
        said = [(one.spec.on_error, one.spec.late) for one in (before, after)]
        return said[0] == said[1] and all(_is_same(before, after, stage.name) for stage in before.all_stages)
    emits = next((stage.emits for stage in after.all_stages if stage.name == written.stage), ())
    return written.emit in emits and _is_same(before, after, written.stage)


def _is_same(before: CheckedPipeline, after: CheckedPipeline, name: str) -> bool:
    """Return True if the stage `name`, and all stages whose results it reads, compute the same in both versions."""
    old, new = (next((one for one in version.all_stages if one.name == name), None) for version in (before, after))
    if old is None or new is None or type(old) is not type(new) or _meaning(old) != _meaning(new):
        return False
    taken = [_taken(version, stage) for version, stage in ((before, old), (after, new))]
    return taken[0] == taken[1] and all(_is_same(before, after, one) for one in taken[0])


def _taken(pipeline: CheckedPipeline, stage: Stage | RecordStage) -> list[str]:
    if isinstance(stage, RecordStage):
        return []
    return [pipeline.stages[one].name for one in stage.reads if one != RECORDS]


def _meaning(stage: Stage | RecordStage) -> Identity:
    """Return what the stage computes, without the indices of the stages that it reads."""
    found = stage.identity
    for given in found.get("inputs", ()):
        given.pop("stage", None)
    return found
