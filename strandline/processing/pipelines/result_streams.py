"""Streams of results in documents and ledger: which job emits to which stream, and the schema of a stage's results.
`emission/result_stream_writer.py` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strandline.core.stream import StreamSpec
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.model import PipelineSpec
from strandline.processing.pipelines.stages import Stage
from strandline.results.names import WINDOW_FIELDS

if TYPE_CHECKING:  # the ledger's SQL takes half a second to import
    from strandline.ledger.ledger import Ledger


def emissions_to_streams(pipeline: PipelineSpec) -> Iterator[tuple[str, str]]:
    """(stage, stream) of each emission to a stream."""
    for step in pipeline.steps:
        for emit in step.emit or []:
            if step.window is not None and emit.stream is not None:
                yield step.window.name, emit.stream


def present_pipelines(ledger: Ledger) -> dict[str, PipelineSpec]:
    """Job -> its present version."""
    return {
        job.name: PipelineSpec.from_document(ledger.job_version(job.name, job.version).document)
        for job in ledger.jobs()
    }


def emitter_of(ledger: Ledger, stream: str) -> str | None:
    """The job whose present version emits to the stream. A stream has at most one."""
    for job, pipeline in present_pipelines(ledger).items():
        if any(emitted == stream for _, emitted in emissions_to_streams(pipeline)):
            return job
    return None


def stream_of_results(pipeline: CheckedPipeline, stage: Stage, name: str) -> StreamSpec:
    """The stream of a stage's results, made where no document describes it.

    Required are the fields of every result: the window's times, and `by` fields that every record has. Its key is the first
    `by` field.
    """
    schema: dict[str, object] = {}
    for field, kind in stage.field_types.items():
        of_input = pipeline.stream.fields.get(field) if field in stage.by else None
        schema[field] = {"type": kind, "required": of_input is not None and of_input.required}
    schema |= dict.fromkeys(WINDOW_FIELDS, "timestamp")
    document: dict[str, object] = {"stream": name, "schema": schema}
    if stage.by:
        document["key"] = stage.by[0]
    return StreamSpec.from_document(document)


def schema_mismatches(stream: StreamSpec, stage: Stage) -> list[str]:
    """Why the stage's results don't fit the stream's schema, as sentences; empty when they do."""
    results = stage.field_types | dict.fromkeys(WINDOW_FIELDS, "timestamp")
    found = [
        f"its field {name} is a {field.type}, and in the results a {results[name]}"
        for name, field in stream.fields.items()
        if name in results and results[name] != field.type
    ]
    found += [
        f"its field {name} is required, and the results don't have it"
        for name, field in stream.fields.items()
        if name not in results and field.required
    ]
    if stream.key is not None and stream.key not in results:
        found.append(f"its key {stream.key} is no field of the results")
    found += [f"{what} leads into it" for _, what in stream.entrances()]
    return found
