"""Samples: records that a user sends with a request, not through a gateway, or the newest records of a topic. They are decoded
and computed, and never written."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from strandline.core.described import Described
from strandline.core.documents import document_text
from strandline.core.errors import InvalidDocument, PermanentError, Problem
from strandline.core.files.parquet_rows import json_rows
from strandline.core.files.text_rows import RECORD_BYTES_MAX
from strandline.core.streams.format_registry import form_of
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.framing import FORM_OF_CONTENT_TYPE, frame
from strandline.log.kafka_status import KafkaStatus, NewestRecords
from strandline.processing.desk.asked_schemas import asked_schemas
from strandline.processing.desk.first_pipeline import Columns, first_pipeline, sender_of
from strandline.processing.desk.records import DeskRecords
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.proposals import Proposal, infer_sample, infer_topic_sample
from strandline.processing.formats.record_rows import RecordFormat, RowReader, record_format
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.event_time import EventTimeSource
from strandline.services.jobs.apply_documents import Batch
from strandline.services.jobs.previews import (
    BYTES_MAX,
    chosen_pipeline,
    in_log_order,
    preview_turn,
    registry_settings,
    run_over,
)
from strandline.services.processes.limited_work import RunLimited, run_here

ROWS_MAX = 20
"""Maximum number of decoded records that a preview returns."""
_REASONS_MAX = 5
_LINES = "application/x-ndjson"
_JSON_TYPES = ("application/json", _LINES)
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
    content_type: str | None
    """Content type with which the sample can be sent to the stream. Null if a gateway can't find its records."""
    body: str | None
    """The records in base64, one per line, if they must be sent in this form; null if the sample can be sent as it is."""


@dataclass(frozen=True)
class SamplePreviewView(Described):
    """Records of a sample, or the newest records of a topic, as the stream's document decodes them, and the results of the
    pipeline. Nothing was written."""

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
    spec = StreamSpec.from_document(document)
    columns = _decode(spec, values).columns
    sending = request_of_sample(spec, sample, values)
    if "key" not in document and _may_have_key(document, sender := sender_of(document, columns)):
        document["key"] = sender
    return SampleProposalView(
        stream=name,
        documents=_with_pipeline(proposal, columns),
        notes=[note for note in proposal.notes if not note.startswith(_OF_PIPELINE)],
        records=proposal.records,
        accepted=proposal.accepted,
        rejected=proposal.rejected,
        content_type=None if sending is None else sending[0],
        body=None if sending is None or sending[1] is None else base64.b64encode(sending[1]).decode(),
    )


def request_of_sample(stream: StreamSpec, sample: bytes, values: Sequence[bytes]) -> tuple[str, bytes | None] | None:
    """Return the content type and the body with which a gateway appends exactly these records of a sample.

    The body is None if it is the sample. Returns None if no request does this, for example for a sample with a header of CSV
    whose lines contain line breaks.
    """
    for content_type in (*_JSON_TYPES, form_of(stream.format).content_type.decode()):
        if _frames(stream, content_type, sample, values):
            return content_type, None
    lines = b"\n".join(values)
    return (_LINES, lines) if _frames(stream, _LINES, lines, values) else None


def _frames(stream: StreamSpec, content_type: str, body: bytes, values: Sequence[bytes]) -> bool:
    """Return True if a gateway finds these records in the body."""
    form = FORM_OF_CONTENT_TYPE.get(content_type)
    if form is None or not values:
        return False
    try:
        framed = frame(body, form, None, RECORD_BYTES_MAX, stream.framing)
    except PermanentError:
        return False
    found = [value for value, _ in framed.records]
    return len(found) == len(values) and all(map(_is_same, found, values))


def _is_same(found: bytes, value: bytes) -> bool:
    """Return True if both are the same record. The records of a sample in JSON can be written in another form."""
    if found == value:
        return True
    try:
        return bool(json.loads(found) == json.loads(value))
    except ValueError:
        return False


def propose_for_topic(name: str, records: Sequence[bytes], partitions: int, retention: str) -> tuple[Proposal, str]:
    """Return the proposal for an existing topic, and its document with a first pipeline in YAML. Raises NoSampleError.

    No key is proposed: the producers of the topic choose the partitions of its records.
    """
    proposal, values = infer_topic_sample(name, records, partitions, retention)
    return proposal, _with_pipeline(proposal, _decode(StreamSpec.from_document(proposal.document), values).columns)


def _with_pipeline(proposal: Proposal, columns: Columns) -> str:
    pipeline = first_pipeline(proposal.document, columns, event_time=proposal.event_time)
    return f"{document_text(proposal.document)}---\n{document_text(pipeline)}"


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
    stream = _read_stream(batch, pipeline)
    registry = {} if pipeline is None else registry_settings(pipeline)
    return run_limited("preview", _preview, stream, pipeline, sample, environment=registry)


def preview_topic(
    log: KafkaStatus,
    batch: Batch,
    pipeline: CheckedPipeline | None,
    topic: str,
    records: int,
    run_limited: RunLimited = run_here,
) -> SamplePreviewView:
    """Decode the newest records of the topic by the stream's document, and run the pipeline over them, as `preview_sample`.

    At most BYTES_MAX bytes are read, by this process. The records have their log times and headers. Records of several
    partitions are ordered by their log time.

    Raises NotFound, LogUnavailable, TooExpensive; TransientError if another preview takes too long; InvalidDocument if the batch
    contains neither a stream nor a pipeline.
    """
    stream = _read_stream(batch, pipeline)
    registry = {} if pipeline is None else registry_settings(pipeline)
    with preview_turn():
        headers, beside = run_limited("preview", row_headers, stream, environment=registry)
        newest = log.newest_records(topic, records, BYTES_MAX, headers, headers_beside=beside)
        return run_limited("preview", _preview_newest, stream, pipeline, newest, environment=registry)


def _read_stream(batch: Batch, pipeline: CheckedPipeline | None) -> StreamSpec:
    """Return the stream to which sample records belong. Raises InvalidDocument if there is none."""
    stream = pipeline.inputs[0].stream if pipeline is not None else next(iter(batch.streams), None)
    if stream is None:
        raise InvalidDocument([Problem("the documents contain no stream and no pipeline that reads a sample")])
    return stream


def pipeline_of(batch: Batch, name: str | None, source: str) -> CheckedPipeline | None:
    """Return the pipeline of this name, or the single pipeline. None if the batch has none. Raises InvalidDocument."""
    return None if name is None and not batch.pipelines else chosen_pipeline(batch, name, source)


def _preview(stream: StreamSpec, pipeline: CheckedPipeline | None, sample: bytes) -> SamplePreviewView:
    _, values = infer_sample(stream.stream, sample)
    return _view(stream, pipeline, _decode(stream, values), lambda run: _records(run, values))


def row_headers(stream: StreamSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the headers on which the rows of the stream's records depend. See RowReader."""
    reader = _row_reader(record_format(stream))
    return reader.headers, reader.headers_beside


def _preview_newest(stream: StreamSpec, pipeline: CheckedPipeline | None, newest: NewestRecords) -> SamplePreviewView:
    records = in_log_order(newest)
    found = _decode(stream, records.values, records.sources)
    return _view(stream, pipeline, found, lambda run: replace(records, stream=run.inputs[0].name))


def _view(
    stream: StreamSpec,
    pipeline: CheckedPipeline | None,
    found: _Decoded,
    records_for: Callable[[CheckedPipeline], DeskRecords],
) -> SamplePreviewView:
    view = SamplePreviewView(
        stream=stream.stream,
        fields=dict(stream.types),
        rows=_rows(found),
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
    return replace(view, pipeline=pipeline.job, **run_over(pipeline, records_for(pipeline)))


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


def _row_reader(config: RecordFormat) -> RowReader:
    return RowReader(config, asked_schemas(config))


def _decode(stream: StreamSpec, values: Sequence[bytes | None], sources: Sequence[bytes | None] = ()) -> _Decoded:
    """Decode records as a job does. `sources`: see `RowReader.parts`."""
    config = record_format(stream)
    reader = _row_reader(config)
    fields = [one.name for one in config.fields]
    decoder = Decoder(config.fields, EventTimeSource(None), fields)
    parts: dict[str, list[pa.Array]] = {name: [] for name in fields}
    records = accepted = 0
    reasons: list[str] = []
    for rows in reader.parts(values, sources):
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


def decode_one(
    stream: StreamSpec, value: bytes | None, source: bytes | None
) -> tuple[list[dict[str, Any]], str | None]:
    """Return the first rows of a record, as the stream's document decodes them, and the reason why it rejects them.

    Returns neither if the meaning of the record depends on earlier records. `source`: see `RowReader.parts`.
    """
    if form_of(stream.format).keeps_sessions:
        return [], None
    found = _decode(stream, [value], [source])
    return _rows(found), next(iter(found.reasons), None)


def _rows(found: _Decoded) -> list[dict[str, Any]]:
    shown = pa.RecordBatch.from_pydict({name: _first(one) for name, one in found.columns.items()})
    return [json.loads(row) for row in json_rows(shown)]


def _first(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    first = column.slice(0, ROWS_MAX)
    return first.combine_chunks() if isinstance(first, pa.ChunkedArray) else first
