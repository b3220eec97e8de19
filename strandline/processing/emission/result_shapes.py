"""Shapes of the documents of a stage's results (fields, ids, and constant values), and results that can't become a document.
Light to import: no SQL, no Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.stages import Emit, RecordStage, Stage
from strandline.results.document import Document, DocumentShape
from strandline.results.records.record_document import RecordShape
from strandline.results.sinks.registry import sink_of
from strandline.results.writer import PROBLEM, Refused


def letter_shape(
    pipeline: CheckedPipeline,
    stage: Stage | RecordStage,
    version: int,
    generation: int = 1,
    *,
    is_backfill: bool = False,
) -> DocumentShape:
    """Return the shape of the documents in dead letters of a stage's results: that of the stage's first index or stream.

    If it has none, the shape is that of a stream with the name of the stage. For a backfill, streams don't count."""
    sinks = [(emit, sink_of(emit)) for emit in stage.emits]
    places = [emit for emit, sink in sinks if sink.has_generations or (sink.is_stream and not is_backfill)]
    if places:
        return document_shape(pipeline, stage, places[0], version, generation, is_backfill=is_backfill)
    return _shape(pipeline, stage, version, generation, is_backfill, emit_name=stage.name, is_stream=True)


def document_shape(
    pipeline: CheckedPipeline,
    stage: Stage | RecordStage,
    emit: Emit,
    version: int,
    generation: int = 1,
    *,
    is_backfill: bool = False,
) -> DocumentShape:
    """Return the shape of the documents of one emission. A backfill's documents have ids from the data, with any guarantee of the
    job, because each attempt computes the same documents."""
    sink = sink_of(emit)
    place = {"emit_name": emit.name, "is_stream": sink.is_stream, "is_elsewhere": sink.is_elsewhere}
    return _shape(pipeline, stage, version, generation, is_backfill, **place)


def _shape(
    pipeline: CheckedPipeline,
    stage: Stage | RecordStage,
    version: int,
    generation: int,
    is_backfill: bool,
    **place: Any,
) -> DocumentShape:
    common: dict[str, Any] = {
        **place,
        "job": pipeline.job,
        "stage": stage.name,
        "version": version,
        "is_once": is_backfill or pipeline.spec.guarantee == "exactly_once",
        "generation": generation,
        "is_shown": not is_backfill,
    }
    if isinstance(stage, RecordStage):
        return RecordShape(by=(), aggregates=stage.fields, input_streams=tuple(pipeline.streams), **common)
    by = tuple(zip(stage.by, stage.by_types, strict=True))
    return DocumentShape(
        by=by,
        aggregates=tuple(stage.value_types.items()),
        beside_by=stage.identifying[len(by) :],
        is_revised=stage.revise_ms > 0,
        **common,
    )


def unusable_results(
    shape: DocumentShape, rows: pa.RecordBatch, epoch: int, emission: int
) -> Iterator[tuple[Document | Refused, str, str]]:
    """Yield the results that lack a required value, such as a sum that is too large for its type. Each has its document, the
    message, and the step without a value."""
    problems = rows.column(PROBLEM)
    if problems.null_count == len(problems):
        return
    bad = rows.filter(problems.is_valid())
    documents = shape.documents(bad.drop_columns([PROBLEM]), epoch, emission)
    for one, problem in zip(documents, bad.column(PROBLEM).to_pylist(), strict=True):
        yield one, problem, problem.partition(":")[0]  # a problem names its step first


def refusal_message(refused: Refused) -> str:
    """Return the reason why a store, or the form of the document, refuses a result."""
    return f"{refused.type}: {refused.reason}"
