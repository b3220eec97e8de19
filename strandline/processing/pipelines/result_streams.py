"""Streams of results in documents and ledger: the job that emits to a stream, and the schema of a stage's results.
`emission/result_stream_writer.py` writes them."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import TYPE_CHECKING

from strandline.core.documents import YamlDocument
from strandline.core.errors import Problem
from strandline.core.streams.stream import StreamSpec
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.graph.branches import made_by
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.stages import RecordStage, Stage
from strandline.processing.pipelines.stored import spec_of_row
from strandline.results.names import EVENT_TIME_FIELD, WINDOW_FIELDS
from strandline.results.sinks.registry import kind_of_streams, sink_of

if TYPE_CHECKING:  # the ledger's SQL takes half a second to import
    from strandline.ledger.roles import LedgerReader


def emissions_to_streams(pipeline: PipelineSpec) -> Iterator[tuple[str, str]]:
    """Yield (stage, stream) of each emission to a stream."""
    for stage, emit in pipeline.emissions():
        if sink_of(emit).is_stream:
            yield stage, emit.name


def streams_of_windows(pipeline: PipelineSpec) -> Iterator[str]:
    """Yield each stream to which it emits results of windows. Emitted records are in arrival order, and can be late."""
    for _, stream in emissions_to_streams(pipeline):
        if not pipeline.emits_records_to(stream):
            yield stream


def present_pipelines(ledger: LedgerReader) -> dict[str, PipelineSpec]:
    """Return job -> its current version."""
    return {job: spec_of_row(row) for job, row in ledger.current_versions_of_jobs().items()}


def emitter_of(ledger: LedgerReader, stream: str) -> str | None:
    """Return the job whose current version emits to the stream. A stream has at most one. None if there is none."""
    return ledger.owner_of_sink(kind_of_streams(), stream)


def emitters_of_inputs(ledger: LedgerReader, pipeline: CheckedPipeline) -> dict[str, str]:
    """Return stream -> the job that emits to it, for streams that the pipeline reads."""
    found = {stream: emitter_of(ledger, stream) for stream in pipeline.streams}
    return {stream: emitter for stream, emitter in found.items() if emitter is not None}


def former_emitter_of(ledger: LedgerReader, stream: str) -> str | None:
    """Return the job that emitted to the stream last, if no job does now. None if no job of the ledger ever did.

    The checkpoints of that job still contain where each of its emissions ends.
    """
    if emitter_of(ledger, stream) is not None:
        return None
    ends = {
        job: sum(offsets[stream].values())
        for job, offsets in ledger.last_result_offsets().items()
        if offsets.get(stream)
    }
    return max(ends, key=lambda job: ends[job], default=None)


def lagging_readers(ledger: LedgerReader, job: str) -> dict[str, list[str]]:
    """Return the jobs that still need the checkpoints of `job` for a stream to which it no longer emits: stream -> jobs.

    Such a job reads the stream and has no slice yet that reaches the end of the last emission.
    """
    last = ledger.last_checkpoint(job)
    if last is None or not last.result_offsets:
        return {}
    pipelines = present_pipelines(ledger)
    emitted = {stream for spec in pipelines.values() for _, stream in emissions_to_streams(spec)}
    former = {stream: ends for stream, ends in last.result_offsets.items() if ends and stream not in emitted}
    found: dict[str, list[str]] = {}
    for reader, spec in pipelines.items():
        if ledger.job(reader).has_completed:
            continue
        for stream in former.keys() & set(spec.streams):
            read = ledger.last_slice(reader)
            offsets = read.offsets.get(stream, {}) if read is not None else {}
            if any(offsets.get(partition, 0) < end for partition, end in former[stream].items()):
                found.setdefault(stream, []).append(reader)
    return found


def results_beside_streams(spec: PipelineSpec, document: YamlDocument, emitted: Container[str]) -> Iterator[Problem]:
    """Yield problems of the event times of a pipeline that reads results of windows. `emitted`: the streams of these results.

    Together with other streams, their watermark must be `emissions`, which shows when windows of later results begin and end.
    """
    for at, read in enumerate(spec.reads):
        path, time = spec.path_of_event_time(at), read.event_time
        if read.stream not in emitted:
            if time.watermark == "emissions":
                yield document.problem(
                    (*path, "watermark"),
                    f"no job emits results of windows to '{read.stream}', so it has no emissions; expected partitions or "
                    "newest",
                )
        elif len(spec.streams) == 1 and time.watermark != "emissions":
            continue
        elif time.field not in WINDOW_FIELDS:
            yield document.problem(
                path if time.field is None else (*path, "field"),
                f"'{read.stream}' contains results of another job, which are in the order of their windows; expected "
                f"{' or '.join(WINDOW_FIELDS)}",
            )
        elif time.watermark != "emissions":
            yield document.problem(
                (*path, "watermark"),
                f"'{read.stream}' contains results of another job. Other streams wait until that job has emitted the results "
                "that belong to the same time; expected emissions, which is the default here",
            )


def times_in_results(spec: PipelineSpec, document: YamlDocument, emitters: Container[str]) -> list[Problem]:
    """Return the problems if the range of a stream of results begins or ends at a time: it is read in whole emissions."""
    return [
        document.problem(
            (*spec.path_of_input(at), name),
            f"is a time, but '{read.stream}' contains results of another job, which are read in whole emissions; expected "
            f"{expected}",
        )
        for at, read in enumerate(spec.reads)
        for name, place, expected in (("start", read.start, "earliest or latest"), ("end", read.end, "latest"))
        if isinstance(place, int) and read.stream in emitters
    ]


def stream_of_results(pipeline: CheckedPipeline, stage: Stage | RecordStage, name: str) -> StreamSpec:
    """Return the stream of a stage's results, for a stream that no document describes.

    Required fields are those that every result has: the times, and `by` fields that all records have. A field is optional if a
    step or an aggregate with its name computes it. The key is the first `by` field. The key of emitted records is the key of
    their stream, if they still have that field.
    """
    schema: dict[str, object] = {}
    by = stage.by if isinstance(stage, Stage) else ()
    made = _made_by_windows(pipeline)
    for field, kind in stage.field_types.items():
        of_inputs = [stream.fields.get(field) for stream in pipeline.streams.values()]
        is_required = field in by and field not in made and all(one is not None and one.required for one in of_inputs)
        schema[field] = {"type": kind, "required": is_required}
    for field, kind in _times(stage).items():
        schema.setdefault(field, {"type": kind, "required": True})
    document: dict[str, object] = {"stream": name, "schema": schema}
    if by:
        document["key"] = by[0]
    elif isinstance(stage, RecordStage):
        key = pipeline.inputs[stage.paths[0].stream].stream.key
        if key in stage.field_types:
            document["key"] = key
    return StreamSpec.from_document(document)


def _made_by_windows(pipeline: CheckedPipeline) -> set[str]:
    """Return the fields that windows, joins, and the steps before and after them compute. Each can be null."""
    made: set[str] = set()
    for stage in pipeline.stages:
        made |= made_by((*stage.steps_before, *stage.post_steps)) | stage.window_types.keys() - set(stage.by)
    return made


def _times(stage: Stage | RecordStage) -> dict[str, str]:
    return dict.fromkeys(WINDOW_FIELDS if isinstance(stage, Stage) else (EVENT_TIME_FIELD,), "timestamp")


def schema_mismatches(stream: StreamSpec, stage: Stage | RecordStage) -> list[str]:
    """Return the reasons why the stage's results don't fit the stream's schema. Empty if they do."""
    results = _times(stage) | stage.field_types
    found = [
        f"its field {name} is a {field.type}, but a {results[name]} in the results"
        for name, field in stream.fields.items()
        if name in results and results[name] != field.type
    ]
    found += [
        f"its field {name} is required, but the results don't have it"
        for name, field in stream.fields.items()
        if name not in results and field.required
    ]
    if stream.key is not None and stream.key not in results:
        found.append(f"its key {stream.key} is not a field of the results")
    found += [f"{what} writes to it" for _, what in stream.entrances()]
    return found
