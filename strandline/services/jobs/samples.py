"""Samples: records that a user sends with a request, not through a gateway. They are decoded and computed, and never written."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from strandline.core.described import Described
from strandline.core.documents import document_text
from strandline.core.errors import InvalidDocument, Problem
from strandline.core.files.parquet_rows import json_rows
from strandline.core.streams.stream import StreamSpec
from strandline.processing.desk.asked_schemas import asked_schemas
from strandline.processing.desk.first_pipeline import Columns, first_pipeline, sender_of
from strandline.processing.desk.records import DeskRecords
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.proposals import infer_sample
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.event_time import EventTimeSource
from strandline.services.jobs.apply_documents import Batch
from strandline.services.jobs.previews import chosen_pipeline, registry_settings, run_over
from strandline.services.processes.limited_work import RunLimited, run_here

ROWS_MAX = 20
"""Maximum number of decoded records that a preview returns."""
_REASONS_MAX = 5
_OF_PIPELINE = "for a pipeline: "
"""Begin of the note that the pipeline already follows."""


@dataclass(frozen=True)
class SampleProposalView(Described):
    """Documents that were proposed from a sample. Nothing was registered."""

    stream: str
    documents: str
    """Document of the stream and of a first pipeline, in YAML."""
    notes: list[str]
    """Remarks for the reader of the proposal."""
    records: int
    """Number of sample records."""
    accepted: int
    """Number of rows of the sample that the stream's document accepts."""
    rejected: list[str]
    """Reasons for the first rejected rows."""


@dataclass(frozen=True)
class SamplePreviewView(Described):
    """Records of a sample as the stream's document decodes them, and the results of the pipeline. Nothing was written."""

    stream: str
    fields: dict[str, str]
    """Field of the stream -> type."""
    rows: list[dict[str, Any]]
    """The first accepted records, at most 20."""
    reasons: list[str]
    """Reasons for the first rejected records."""
    records: int
    """Number of records, or of their rows if a record has several."""
    accepted: int
    rejected: dict[str, int]
    """Reason -> number of records."""
    pipeline: str | None
    """Name of the pipeline; null if the documents contain none."""
    result_counts: dict[str, int]
    """Stage -> number of results."""
    results: list[dict[str, Any]]
    """Documents, at most 1,000, with an equal share for each stage."""
    dead_letters: list[dict[str, Any]]
    """Records and results that could not be used, at most 100."""


def propose_documents(name: str, sample: bytes) -> SampleProposalView:
    """Propose a stream of this name, and a first pipeline that reads it. Raises NoSampleError."""
    proposal, values = infer_sample(name, sample)
    document = proposal.document
    columns = _decode(StreamSpec.from_document(document), values).columns
    if "key" not in document and _may_have_key(document, sender := sender_of(document, columns)):
        document["key"] = sender
    pipeline = first_pipeline(document, columns, event_time=proposal.event_time)
    return SampleProposalView(
        stream=name,
        documents=f"{document_text(document)}---\n{document_text(pipeline)}",
        notes=[note for note in proposal.notes if not note.startswith(_OF_PIPELINE)],
        records=proposal.records,
        accepted=proposal.accepted,
        rejected=proposal.rejected,
    )


def _may_have_key(document: dict[str, Any], field: str | None) -> bool:
    """Return True if the field is a plain member of a JSON object."""
    return field is not None and document["format"] == "json" and document["schema"][field] == "string"


def preview_sample(
    batch: Batch, pipeline: CheckedPipeline | None, sample: bytes, run_limited: RunLimited = run_here
) -> SamplePreviewView:
    """Decode the sample by the stream's document, and run the pipeline over it, with limits of memory and time.

    If the pipeline reads several streams, the sample belongs to the first one, and the others are empty. All windows are closed
    at the end. `pipeline`: pipeline of the batch; None if it contains only a stream.

    Raises NoSampleError, TooExpensive, TransientError; InvalidDocument if the batch contains neither a stream nor a pipeline.
    """
    stream = pipeline.inputs[0].stream if pipeline is not None else next(iter(batch.streams), None)
    if stream is None:
        raise InvalidDocument([Problem("the documents contain no stream and no pipeline that reads a sample")])
    registry = {} if pipeline is None else registry_settings(pipeline)
    return run_limited("preview", _preview, stream, pipeline, sample, environment=registry)


def pipeline_of(batch: Batch, name: str | None, source: str) -> CheckedPipeline | None:
    """Return the pipeline of this name, or the single pipeline. None if the batch has none. Raises InvalidDocument."""
    return None if name is None and not batch.pipelines else chosen_pipeline(batch, name, source)


def _preview(stream: StreamSpec, pipeline: CheckedPipeline | None, sample: bytes) -> SamplePreviewView:
    _, values = infer_sample(stream.stream, sample)
    found = _decode(stream, values)
    shown = pa.RecordBatch.from_pydict({name: _first(one) for name, one in found.columns.items()})
    view = SamplePreviewView(
        stream=stream.stream,
        fields=dict(stream.types),
        rows=[json.loads(row) for row in json_rows(shown)],
        reasons=found.reasons,
        records=found.records,
        accepted=found.accepted,
        rejected={},
        pipeline=None,
        result_counts={},
        results=[],
        dead_letters=[],
    )
    if pipeline is None:
        return view
    return replace(view, pipeline=pipeline.job, **run_over(pipeline, _records(pipeline, values)))


def _records(pipeline: CheckedPipeline, values: Sequence[bytes]) -> DeskRecords:
    """Return the sample as records of one partition. Their log time is now if the pipeline uses it, else their event time."""
    source = pipeline.inputs[0].event_time_source
    uses_log = source.field is None or source.or_log
    now_ms = time.time_ns() // 1_000_000
    log_times_ms = [now_ms] * len(values) if uses_log else None
    return DeskRecords(values, [0] * len(values), log_times_ms, stream=pipeline.inputs[0].name)


@dataclass(frozen=True)
class _Decoded:
    columns: Columns
    records: int
    accepted: int
    reasons: list[str]


def _decode(stream: StreamSpec, values: Sequence[bytes]) -> _Decoded:
    """Decode records as a job does."""
    config = record_format(stream)
    reader = RowReader(config, asked_schemas(config))
    fields = [one.name for one in config.fields]
    decoder = Decoder(config.fields, EventTimeSource(None), fields)
    parts: dict[str, list[pa.Array]] = {name: [] for name in fields}
    records = accepted = 0
    reasons: list[str] = []
    for rows in reader.parts(values, []):
        decoded = decoder.decode(rows.texts, [0] * len(rows.texts), None)
        records += len(rows.texts)
        accepted += len(decoded.event_time)
        reasons += [f"{one.reason}: {one.message}" for one in decoded.rejects][: _REASONS_MAX - len(reasons)]
        for name in fields:
            parts[name].append(decoded.arrays[name])
    columns = {
        name: pa.chunked_array(arrays) if arrays else pa.array([], pa.string()) for name, arrays in parts.items()
    }
    return _Decoded(columns, records, accepted, reasons)


def _first(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    first = column.slice(0, ROWS_MAX)
    return first.combine_chunks() if isinstance(first, pa.ChunkedArray) else first
