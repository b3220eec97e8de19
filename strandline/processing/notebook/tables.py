"""The table for each `what` of a request: its columns, its division into Spark tasks, and the input of a task.

A table is planned where Spark plans, with access to the ledger and Kafka. It is bounded then: later records are not in it. Its
parts are sent to the tasks, which need only Kafka, and the ledger if records name schemas of a registry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.core.errors import BadRecord, InvalidSettings, LogTruncated, NotFound
from strandline.core.record_headers import HEADER_PAYLOAD_BYTES, REASON_RESULT, dead_letter_topic, unpack_header_values
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.roles import LedgerReader
from strandline.ledger.states import SliceRow
from strandline.log.index import LogIndex
from strandline.log.range_reader import FetchedRecords
from strandline.log.reader import OffsetRange
from strandline.processing.audit.index_reader import (
    EndRange,
    StoredDocument,
    close_snapshot,
    open_snapshot,
    read_documents,
)
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.record_fields import RecordField
from strandline.processing.formats.record_rows import RecordFormat, RowReader, record_format
from strandline.processing.notebook.request import Bound, Mode, Request, own_elasticsearch_url
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.event_time import EventTimeSource
from strandline.processing.pipelines.stages import RecordStage, Stage
from strandline.processing.pipelines.stored import inputs_of, load_pipeline
from strandline.processing.source.decoding import DecodedChunk, decode_pieces, decoder_of, reader_of_process
from strandline.processing.source.recorded_slices import TASK_ROWS, cut_tasks, recorded_rows
from strandline.processing.source.source_config import DecodingConfig, Piece, StreamDecoding
from strandline.processing.source.stream_formats import StreamFormats
from strandline.results.elasticsearch_client import RequestRefused, request
from strandline.results.names import EVENT_TIME_FIELD, OWN_PREFIX
from strandline.results.sinks.registry import sink_of

_MOMENT = pa.timestamp("us", tz="UTC")
_TIMEOUT_S = 30.0
_LETTER_HEADERS = {
    "reason": pa.string(),
    "message": pa.string(),
    "step": pa.string(),
    "stream": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "element": pa.int32(),
    "index": pa.string(),
    "document": pa.string(),
    HEADER_PAYLOAD_BYTES: pa.int64(),
}
"""Headers of a dead letter, with their types."""


class Part(Protocol):
    """The input of one Spark task. Pickled; contains no secret."""

    def read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield its rows."""


@dataclass(frozen=True)
class Table:
    """The requested table, as it is when it is planned."""

    schema: pa.Schema
    parts: Sequence[Part]


def plan_table(query: Request, ledger: LedgerReader, index: LogIndex, *, schema_only: bool = False) -> Table:
    """Return the columns of the table, and its division into parts, one for each Spark task, over the data that exists now.

    `schema_only`: True to return no parts. Raises NotFound if the job, stream, or slices don't exist; InvalidSettings if options
    don't fit them; LogTruncated if requested records were removed; LogUnavailable."""
    if query.what == "dead_letters":
        return _dead_letters(query, ledger, index)
    if query.what == "results":
        return _results(query, ledger, index, schema_only=schema_only)
    if query.stream is not None:
        return _of_stream(query, query.stream, ledger, index, schema_only=schema_only)
    return _of_slices(query, ledger, schema_only=schema_only)


# Records, and their bytes.


def _places(*, of_slices: bool) -> dict[str, pa.DataType]:
    columns = {"partition": pa.int32(), "offset": pa.int64(), "element": pa.int32(), "log_time": _MOMENT}
    more = {"slice": pa.int64(), "event_time": _MOMENT} if of_slices else {}
    return {f"{OWN_PREFIX}{name}": kind for name, kind in (columns | more).items()}


_REJECTION = {
    f"{OWN_PREFIX}{n}": t for n, t in (("reason", pa.string()), ("message", pa.string()), ("value", pa.binary()))
}
_RAW = {"partition": pa.int32(), "offset": pa.int64(), "log_time": _MOMENT, "value": pa.binary()}


def _schema_of_records(stream: StreamSpec, mode: Mode, *, of_slices: bool) -> pa.Schema:
    own = _places(of_slices=of_slices) | (_REJECTION if mode == "PERMISSIVE" else {})
    fields = {name: arrow_type("string" if kind == "json" else kind) for name, kind in stream.types.items()}
    if clash := sorted(own.keys() & fields.keys()):
        raise InvalidSettings(
            f"stream {stream.stream} has a field {clash[0]}, but an internal column has that name; read its bytes "
            "with what=raw"
        )
    places = _places(of_slices=of_slices)
    return pa.schema(list((places | fields | {name: kind for name, kind in own.items() if name not in places}).items()))


def _of_stream(query: Request, name: str, ledger: LedgerReader, index: LogIndex, *, schema_only: bool) -> Table:
    stream = StreamSpec.from_document(ledger.stream(name).document)
    is_raw = query.what == "raw"
    schema = _raw_schema(of_slices=False) if is_raw else _schema_of_records(stream, query.mode, of_slices=False)
    if schema_only:
        return Table(schema, [])
    bootstrap = query.addresses.kafka_bootstrap
    ranges = _ranges(query, name, index)
    if is_raw:
        return Table(schema, [RawPart(bootstrap, one) for one in ranges])
    own_format = record_format(stream)
    if own_format.keeps_sessions:
        raise InvalidSettings(
            f"stream {name} has the format {own_format.name}, in which a record depends on earlier ones; read the slices "
            "of a job with 'job', or the bytes with what=raw"
        )
    # The event time is for the job to find: here, a record without event time is valid.
    decoding = _decoding(query, StreamDecoding(name, own_format, tuple(stream.types), EventTimeSource(None)))
    return Table(schema, [RecordsPart(decoding, (Piece(one, None, None),), query.mode) for one in ranges])


def _decoding(query: Request, stream: StreamDecoding) -> DecodingConfig:
    return DecodingConfig(query.addresses.kafka_bootstrap, (stream,), query.addresses.ledger_url)


def _raw_schema(*, of_slices: bool) -> pa.Schema:
    return pa.schema(list((_RAW | ({"slice": pa.int64()} if of_slices else {})).items()))


def _ranges(query: Request, topic: str, index: LogIndex) -> list[OffsetRange]:
    """Return each partition from the requested start to its current end, in ranges of bounded size."""
    starts, ends = index.starts(topic), index.ends(topic)
    first = _offsets(query.since, topic, index, starts, ends)
    last = _offsets(query.until, topic, index, ends, ends)
    for partition, offset in first.items():
        if offset < starts[partition]:
            raise LogTruncated(
                f"stream {topic} no longer contains offset {offset} of partition {partition}: its first is {starts[partition]}"
            )
    return [
        OffsetRange(topic, partition, begin, min(begin + TASK_ROWS, last[partition]))
        for partition in sorted(ends)
        for begin in range(first[partition], last[partition], TASK_ROWS)
    ]


def _offsets(
    bound: Bound, topic: str, index: LogIndex, otherwise: Mapping[int, int], ends: Mapping[int, int]
) -> dict[int, int]:
    if bound.time_ms is not None:
        return index.offsets_at(topic, bound.time_ms, ends)
    if bound.offsets is None:
        return dict(otherwise)
    if unknown := sorted(bound.offsets.keys() - ends.keys()):
        raise InvalidSettings(f"stream {topic} has no partition {unknown[0]}; it has {len(ends)}, counted from 0")
    return {partition: min(bound.offsets.get(partition, otherwise[partition]), end) for partition, end in ends.items()}


def _of_slices(query: Request, ledger: LedgerReader, *, schema_only: bool) -> Table:
    """Return the table of the requested committed slices. Each is decoded and checked as by the job, with the rules that are
    recorded with the slice: version of the stream's document, watermark, and lookup versions."""
    assert query.job is not None and query.slices is not None
    job = ledger.job(query.job)
    name = _chosen_stream(query, inputs_of(ledger, query.job, job.version))
    stream = StreamSpec.from_document(ledger.stream(name).document)
    is_raw = query.what == "raw"
    schema = _raw_schema(of_slices=True) if is_raw else _schema_of_records(stream, query.mode, of_slices=True)
    if schema_only:
        return Table(schema, [])
    rows = _slice_rows(ledger, query.job, *query.slices)
    own_format, columns = record_format(stream), tuple(stream.types)
    formats = StreamFormats(ledger, {name: own_format})
    parts: list[Part] = []
    for version, of_version in groupby(rows, lambda row: row.version):
        listed = [replace(row, offsets={name: row.offsets.get(name, {})}) for row in of_version]
        numbers = np.array([row.number for row in listed])
        event_time = load_pipeline(ledger, query.job, version).input_of(name).event_time_source
        decoding = _decoding(query, StreamDecoding(name, own_format, columns, event_time))
        for task in cut_tasks(listed, 0, TASK_ROWS, formats):
            offsets = task.pieces[0].offsets
            ends = np.array([row.offsets[name].get(offsets.partition, 0) for row in listed])
            places = np.searchsorted(ends, [piece.offsets.offset_first for piece in task.pieces], "right")
            slices = numbers[places]
            if is_raw:
                whole = replace(offsets, offset_next=task.pieces[-1].offsets.offset_next, checksum=None)
                ends_of = [piece.offsets.offset_next for piece in task.pieces]
                parts.append(RawPart(query.addresses.kafka_bootstrap, whole, SliceNumbers.of(ends_of, slices)))
            else:
                ends_of = [piece.offsets.offset_next for piece in task.pieces]
                parts.append(RecordsPart(decoding, tuple(task.pieces), query.mode, SliceNumbers.of(ends_of, slices)))
    return Table(schema, parts)


def _chosen_stream(query: Request, streams: Sequence[str]) -> str:
    """Return the requested stream, or the only stream that the job reads. Raises InvalidSettings if the job doesn't read the
    requested stream, or if it reads several and none is requested. `streams`: the streams that the job reads."""
    if query.stream in streams or (query.stream is None and len(streams) == 1):
        return query.stream or streams[0]
    if query.stream is None:
        raise InvalidSettings(f"job {query.job} reads several streams; set 'stream' to one of: {', '.join(streams)}")
    raise InvalidSettings(f"job {query.job} does not read stream {query.stream}; it reads {', '.join(streams)}")


def _slice_rows(ledger: LedgerReader, job: str, first: int | None, last: int | None) -> Iterator[SliceRow]:
    """Yield the rows of the slices, which must exist and be committed. Raises NotFound."""
    checkpoint, floor = ledger.last_checkpoint(job), ledger.floor(job)
    committed = checkpoint.slice if checkpoint else 0
    begin, end = floor + 1 if first is None else first, committed if last is None else last
    if (first is not None or last is not None) and (begin <= floor or end > committed):
        raise NotFound(f"job {job} has readable slices {floor + 1} to {committed}, but {begin} to {end} were requested")
    yield from recorded_rows(ledger, job, begin, end)


@dataclass(frozen=True)
class SliceNumbers:
    """Finds the slice that contains an offset, for one partition."""

    ends: tuple[int, ...]
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, ends: Iterable[int], numbers: npt.NDArray[np.int64]) -> SliceNumbers:
        return cls(tuple(ends), tuple(numbers.tolist()))

    def at(self, offsets: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.array(self.numbers)[np.searchsorted(np.array(self.ends), np.asarray(offsets), "right")]


@dataclass(frozen=True)
class RawPart:
    """The bytes of records in a range of one partition."""

    bootstrap: str
    offsets: OffsetRange
    slices: SliceNumbers | None = None

    def read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for records in reader_of_process(self.bootstrap).read([self.offsets]):
            columns = [
                _same(records.offset_range.partition, len(records.offsets), pa.int32()),
                pa.array(records.offsets, pa.int64()),
                _moments(records.log_times_ms),
                pa.array(records.values, pa.binary()),
            ]
            if self.slices is not None:
                columns.append(pa.array(self.slices.at(records.offsets)))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True)
class RecordsPart:
    """Decoded records of ranges of one partition."""

    decoding: DecodingConfig
    pieces: tuple[Piece, ...]
    mode: Mode
    slices: SliceNumbers | None = None

    def read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for chunk in decode_pieces(self.decoding, self.pieces):
            yield batch_of_chunk(chunk, self.mode, schema, self.slices)


def batch_of_chunk(
    chunk: DecodedChunk, mode: Mode, schema: pa.Schema, slices: SliceNumbers | None = None
) -> pa.RecordBatch:
    """Return the rows of a chunk. `mode`: a rejected row has null fields, is left out, or raises BadRecord. `slices`: finds the
    slice of each row. None if slices aren't requested."""
    rejects, count = chunk.decoded.rejects, len(chunk.offsets)
    if rejects and mode == "FAILFAST":
        first = rejects[0]
        raise BadRecord(first.reason, f"{chunk.identity_at(first.index)}: {first.message}")
    is_taken = np.ones(count, np.bool_)
    is_taken[[reject.index for reject in rejects]] = False
    rows = np.flatnonzero(is_taken) if mode == "DROPMALFORMED" else np.arange(count)
    # For each row, its index among the accepted rows; null for a rejected row.
    places = pa.array((np.cumsum(is_taken) - 1)[rows], mask=~is_taken[rows])
    offsets = np.asarray(chunk.offsets, np.int64)[rows]
    elements = [None] * count if chunk.elements is None else chunk.elements
    own: dict[str, pa.Array] = {
        "partition": _same(chunk.partition, len(rows), pa.int32()),
        "offset": pa.array(offsets),
        "element": pa.array(elements, pa.int32()).take(pa.array(rows)),
        "log_time": _moments(np.asarray(chunk.log_times_ms, np.int64)[rows]),
    }
    if slices is not None:
        own |= {"slice": pa.array(slices.at(offsets)), "event_time": chunk.decoded.event_time.take(places)}
    if mode == "PERMISSIVE":
        numbers = np.cumsum(~is_taken) - 1
        of_rejects = pa.array(numbers, mask=is_taken)
        own |= {
            "reason": pa.array([one.reason for one in rejects], pa.string()).take(of_rejects),
            "message": pa.array([one.message for one in rejects], pa.string()).take(of_rejects),
            "value": pa.array([chunk.value_at(one.index) for one in rejects], pa.binary()).take(of_rejects),
        }
    columns = {f"{OWN_PREFIX}{name}": column for name, column in own.items()}
    columns |= {name: column.take(places) for name, column in chunk.decoded.arrays.items()}
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


# Dead letters.


def _dead_letters(query: Request, ledger: LedgerReader, index: LogIndex) -> Table:
    """Return the dead letters of the current incarnation of the job."""
    assert query.job is not None
    job = ledger.job(query.job)
    columns = {"number": pa.int64(), "log_time": _MOMENT, **_LETTER_HEADERS, "value": pa.binary()}
    schema = pa.schema([(name.replace("-", "_"), kind) for name, kind in columns.items()])
    try:
        ranges = _ranges(query, dead_letter_topic(query.job), index)
    except NotFound:  # none was ever written
        ranges = []
    present = [replace(one, offset_first=max(one.offset_first, job.letters_first)) for one in ranges]
    return Table(
        schema,
        [
            DeadLettersPart(query.addresses.kafka_bootstrap, one)
            for one in present
            if one.offset_first < one.offset_next
        ],
    )


@dataclass(frozen=True)
class DeadLettersPart:
    """Dead letters in a range of offsets."""

    bootstrap: str
    offsets: OffsetRange

    def read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        names = tuple(_LETTER_HEADERS)
        for letters in reader_of_process(self.bootstrap).read([self.offsets], (), names):
            yield pa.RecordBatch.from_arrays(list(_letter_columns(letters)), schema=schema)


def _letter_columns(letters: FetchedRecords) -> Iterator[pa.Array]:
    headers = [unpack_header_values(packed)[1] for packed in letters.header_values or [None] * len(letters.offsets)]
    yield pa.array(letters.offsets, pa.int64())
    yield _moments(letters.log_times_ms)
    for name, kind in _LETTER_HEADERS.items():
        texts = [one[name].decode("utf-8", "replace") if name in one else None for one in headers]
        yield pa.array(texts, pa.string()).cast(kind)
    yield pa.array(letters.values, pa.binary())


# Results.


def _results(query: Request, ledger: LedgerReader, index: LogIndex, *, schema_only: bool) -> Table:
    assert query.job is not None
    pipeline = load_pipeline(ledger, query.job, ledger.job(query.job).version)
    stage = _stage(query, pipeline)
    readable = [emit for emit in stage.emits if not sink_of(emit).is_elsewhere and query.store in (None, emit.kind)]
    emit = min(readable, key=lambda one: not sink_of(one).is_stream, default=None)
    if emit is None:
        emitted = ", ".join(f"{emit.kind}: {emit.name}" for emit in stage.emits) or "nothing"
        raise InvalidSettings(
            f"stage {stage.name} of job {query.job} emits to no {query.store or 'stream and to no index'} (it has {emitted})"
        )
    if sink_of(emit).is_stream:
        return _of_stream(query, emit.name, ledger, index, schema_only=schema_only)
    return _of_index(query, emit.name, stage, ledger, schema_only=schema_only)


def _stage(query: Request, pipeline: CheckedPipeline) -> Stage | RecordStage:
    emitting = [stage for stage in pipeline.all_stages if stage.emits]
    found = [stage for stage in emitting if query.stage in (None, stage.name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(stage.name for stage in emitting) or "none"
    if query.stage is None:
        raise InvalidSettings(
            f"job {query.job} has several stages that emit; set the option 'stage' to one of: {names}"
        )
    raise NotFound(f"job {query.job} has no stage {query.stage} that emits; stages that emit: {names}")


def _of_index(
    query: Request, alias: str, stage: Stage | RecordStage, ledger: LedgerReader, *, schema_only: bool
) -> Table:
    times = (
        {"window_start": ("window", "start"), "window_end": ("window", "end")}
        if isinstance(stage, Stage)
        else {EVENT_TIME_FIELD: ("@timestamp",)}
    )
    fields = [RecordField(name, "timestamp", required=False, path=path) for name, path in times.items()]
    fields += [RecordField(name, kind, required=False) for name, kind in stage.field_types.items() if name not in times]
    own = {f"{OWN_PREFIX}id": pa.string(), f"{OWN_PREFIX}emission": pa.int64()}
    schema = pa.schema([*own.items(), *((field.name, arrow_type(field.type)) for field in fields)])
    if schema_only:
        return Table(schema, [])
    # The documents of a running emission are left out: a result counts after its slice is committed.
    checkpoint = ledger.last_checkpoint(pipeline_job := str(query.job))
    url = query.addresses.elasticsearch_url
    since_ms, until_ms = query.since.time_ms, query.until.time_ms
    ends = EndRange(None if since_ms is None else since_ms - 1, None if until_ms is None else until_ms - 1)
    document_format = RecordFormat("json", tuple(fields), {})
    decoding = StreamDecoding(alias, document_format, tuple(one.name for one in fields), EventTimeSource(None))
    committed = checkpoint.slice if checkpoint else 0
    emitted_ms = checkpoint.emitted.get(stage.name) if checkpoint else None
    return Table(
        schema,
        [
            IndexPart(url, name, shown, pipeline_job, ends, committed, emitted_ms, decoding)
            for name, shown in _indices(url, alias).items()
        ],
    )


def _indices(url: str, alias: str) -> dict[str, dict[str, Any] | None]:
    """Return index -> the query for the documents that the alias shows, which is a part of the index after a backfill. None for
    all."""
    try:
        held = request(own_elasticsearch_url(url), "GET", f"/_alias/{alias}", timeout_s=_TIMEOUT_S)
    except RequestRefused as error:
        if error.status != 404:
            raise
        return {}  # nothing was emitted yet
    return {index: held[index]["aliases"][alias].get("filter") for index in sorted(held)}


@dataclass(frozen=True)
class IndexPart:
    """Results of a job in one index, for committed slices."""

    url: str
    index: str
    shown: dict[str, Any] | None
    """Query for the documents that the alias shows. None if it shows all documents of the index."""
    job: str
    ends: EndRange
    slice_last: int
    emitted_ms: int | None
    """End of the last windows that were emitted by then. A later revision by late records has a later emission."""
    decoding: StreamDecoding

    def read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        url = own_elasticsearch_url(self.url)
        rows, decoder = RowReader(self.decoding.format), decoder_of(self.decoding)
        snapshot = open_snapshot(url, self.index)
        try:
            for page in read_documents(url, snapshot, self.ends, 0, 1, self.shown):
                held = [one for one in page if self._counts(one)]
                if held:
                    columns = _decoded_documents(rows, decoder, [one.body for one in held], self.index)
                    own = pa.array([one.id for one in held]), pa.array([one.emission for one in held], pa.int64())
                    yield pa.RecordBatch.from_arrays([*own, *columns], schema=schema)
        finally:
            close_snapshot(url, snapshot)

    def _counts(self, one: StoredDocument) -> bool:
        if one.job not in (self.job, None):
            return False  # another job can have emitted to the alias, or can do so now
        if one.emission is None or one.emission <= self.slice_last:
            return True
        return self.emitted_ms is not None and one.end_ms is not None and one.end_ms <= self.emitted_ms


def _decoded_documents(rows: RowReader, decoder: Decoder, bodies: list[bytes], index: str) -> list[pa.Array]:
    (texts,) = (part.texts for part in rows.parts(bodies, []))
    decoded = decoder.decode(texts, [0] * len(texts), None)
    if decoded.rejects:
        first = decoded.rejects[0]
        raise BadRecord(
            REASON_RESULT, f"a document of index {index} is not a result of the stage: {first.message}", "read"
        )
    return list(decoded.arrays.values())


def _same(value: int, count: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def _moments(times_ms: Sequence[int] | npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(np.asarray(times_ms, np.int64) * 1000).cast(pa.timestamp("us")).cast(_MOMENT)
