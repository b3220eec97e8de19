"""What an audit reads, as Spark frames: the audited slices decoded anew, the documents of the index, the dead letters.

Everything is read in pieces of a bounded size, each by a task of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from confluent_kafka import Message
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from strandline.core.record import HEADER_ID, HEADER_JOB
from strandline.ledger.states import SliceRow
from strandline.log.reader import LogReader, OffsetRange
from strandline.processing.audit.index_reader import EndRange, encode_result, read_documents, window_end_and_emission
from strandline.processing.audit.reconciliation import DEAD_LETTERS, STREAM_STORE, Row, Side, is_of_document
from strandline.processing.source.data_source import (
    EVENT_TIME,
    Piece,
    SourceConfig,
    decode_pieces,
    decoder_of,
    open_ledger,
)
from strandline.results.document import generation_of

TASK_ROWS = 250_000
"""Records, documents or dead letters that one task reads at most."""
PARTITION, OFFSET = "_strandline_partition", "_strandline_offset"
REASON = "_strandline_reason"
OWN = "_strandline_own"
"""Whether the record is accounted for in this stretch, or only read for its windows."""
ROWS_SCHEMA = pa.schema(
    [
        ("store", pa.string()),
        ("id", pa.string()),
        ("side", pa.int8()),
        ("place", pa.string()),
        ("end_ms", pa.int64()),
        ("emission", pa.int64()),
        ("body", pa.binary()),
    ]
)
ROWS_DDL = "store string, id string, side byte, place string, end_ms long, emission long, body binary"
"""The same for Spark: the columns of `judgement.Row`."""
_SLICES_A_LOOK = 1_000


@dataclass(frozen=True)
class StretchSource:
    """One stretch as its readers need it; travels pickled."""

    config: SourceConfig
    slice_first: int
    slice_own: int
    slice_last: int

    def arrow_schema(self) -> pa.Schema:
        """The pipeline's columns, the event time, where the record stands, and why it was refused (null: it was not)."""
        columns = [pa.field(name, self.config.column_types[name]) for name in self.config.columns]
        columns += [
            pa.field(EVENT_TIME, pa.timestamp("us", tz="UTC")),
            pa.field(PARTITION, pa.int32()),
            pa.field(OFFSET, pa.int64()),
            pa.field(OWN, pa.bool_()),
            pa.field(REASON, pa.string()),
        ]
        return pa.schema(columns)


class LogTask(InputPartition):
    """What one task reads of the log."""

    def __init__(self, pieces: list[Piece], own: bool) -> None:
        super().__init__(None)
        self.pieces = pieces
        self.own = own


def stretch_frame(spark: SparkSession, source: StretchSource) -> DataFrame:
    """Every record of the stretch's slices."""

    class BoundStretch(AuditedLog):
        bound = source

    spark.dataSource.register(BoundStretch)
    return spark.read.format(AuditedLog.name()).load()


class AuditedLog(DataSource):
    """Reads committed slices as a batch."""

    bound: StretchSource

    @classmethod
    def name(cls) -> str:
        return "strandline_audited_log"

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self.bound.arrow_schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        return StretchReader(self.bound)


class StretchReader(DataSourceReader):
    """Cuts the slices into tasks, and decodes their records with the decoder and the watermarks of the job."""

    def __init__(self, source: StretchSource) -> None:
        self._source = source

    def partitions(self) -> Sequence[InputPartition]:
        source, job = self._source, self._source.config.planner.job
        ledger = open_ledger()
        try:
            slices = (
                row
                for first in range(source.slice_first, source.slice_last + 1, _SLICES_A_LOOK)
                for row in ledger.slices(job, first, min(first + _SLICES_A_LOOK - 1, source.slice_last))
            )
            return cut_tasks(slices, source.slice_own, TASK_ROWS) or [LogTask([], own=True)]
        finally:
            ledger.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogTask)
        config, schema = self._source.config, self._source.arrow_schema()
        yield pa.RecordBatch.from_arrays([pa.nulls(0, item.type) for item in schema], schema=schema)
        for piece, _, _, offsets, decoded in decode_pieces(config, decoder_of(config), partition.pieces):
            refused = {reject.index: reject.reason for reject in decoded.rejects}
            kept = [offset for at, offset in enumerate(offsets) if at not in refused] if refused else offsets
            if kept:
                columns = [decoded.arrays[name] for name in config.columns]
                yield _batch(
                    schema, columns, decoded.event_time, piece, kept, partition.own, pa.nulls(len(kept), pa.string())
                )
            if refused and partition.own:
                count = len(refused)
                columns = [pa.nulls(count, config.column_types[name]) for name in config.columns]
                times = pa.array([0] * count, pa.timestamp("us", tz="UTC"))  # a window needs some time
                places = [offsets[at] for at in refused]
                yield _batch(schema, columns, times, piece, places, True, pa.array(refused.values(), pa.string()))


def _batch(
    schema: pa.Schema,
    columns: list[pa.Array],
    event_time: pa.Array,
    piece: Piece,
    offsets: list[int],
    own: bool,
    reasons: pa.Array,
) -> pa.RecordBatch:
    count = len(offsets)
    partitions = pa.array([piece.offsets.partition] * count, pa.int32())
    owns = pa.array([own] * count, pa.bool_())
    return pa.RecordBatch.from_arrays(
        [*columns, event_time, partitions, pa.array(offsets, pa.int64()), owns, reasons], schema=schema
    )


def cut_tasks(slices: Iterable[SliceRow], slice_own: int, rows_max: int) -> list[LogTask]:
    """Cut slices, in order, into tasks of one partition each and of at most `rows_max` offsets; slices before `slice_own`
    get tasks apart. An offset belongs to exactly one task, and keeps the watermark of its slice."""
    tasks: list[LogTask] = []
    open_tasks: dict[tuple[str, int, bool], tuple[LogTask, int]] = {}
    for row in slices:
        own = row.number >= slice_own
        for stream, ends in row.offsets.items():
            for partition, offset_next in sorted(ends.items()):
                first = row.offsets_first.get(stream, {}).get(partition, 0)
                while first < offset_next:
                    task, room = open_tasks.get((stream, partition, own), (None, 0))
                    if task is None or room == 0:
                        task, room = LogTask([], own), rows_max
                        tasks.append(task)
                    upto = min(offset_next, first + room)
                    task.pieces.append(Piece(OffsetRange(stream, partition, first, upto), row.watermark_ms))
                    open_tasks[stream, partition, own] = (task, room - (upto - first))
                    first = upto
    return tasks


@dataclass(frozen=True)
class HeldPart:
    """A part of one alias's snapshot."""

    store: str
    snapshot: str
    part: int
    parts: int


def held_frame(spark: SparkSession, url: str, ends: EndRange, parts: Sequence[HeldPart]) -> DataFrame:
    """The documents of the index, as rows to judge."""
    return _frame_of_parts(spark, _HeldReader(url, ends, tuple(parts)), len(parts))


@dataclass(frozen=True)
class _HeldReader:
    url: str
    ends: EndRange
    parts: tuple[HeldPart, ...]

    def rows(self, number: int) -> Iterator[list[Row]]:
        part = self.parts[number]
        for page in read_documents(self.url, part.snapshot, self.ends, part.part, part.parts):
            yield [Row(part.store, d.id, Side.HELD, d.index, d.end_ms, d.emission, d.body) for d in page]


def letters_frame(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    first: Mapping[int, int],
    ends: Mapping[int, int],
    stores: Mapping[str, tuple[str, ...]],
) -> DataFrame:
    """The dead letters from `first` to before `ends` (partition -> offset), as rows to judge. `stores`: those of each stage."""
    pieces = _pieces(topic, first, ends)
    return _frame_of_parts(spark, _LetterReader(bootstrap, tuple(pieces), dict(stores)), len(pieces))


@dataclass(frozen=True)
class _LetterReader:
    bootstrap: str
    pieces: tuple[OffsetRange, ...]
    stores: Mapping[str, tuple[str, ...]]

    def rows(self, number: int) -> Iterator[list[Row]]:
        reader = LogReader(self.bootstrap)
        try:
            for messages in reader.read(self.pieces[number]):
                yield [row for message in messages for row in self._rows_of(message.key(), message)]
        finally:
            reader.close()

    def _rows_of(self, key: object, message: object) -> Iterator[Row]:
        headers = {name: _text(value) for name, value in message.headers() or ()}  # type: ignore[attr-defined]
        reason, identity = headers.get("reason", ""), _text(key)
        if not is_of_document(reason):
            yield Row(DEAD_LETTERS, identity, Side.HELD, "", None, None, reason.encode())
            return
        end_ms, emission = _window_of(message.value())  # type: ignore[attr-defined]
        stage = headers.get("step", "").removeprefix("emit ")
        index = headers.get("index", "")
        # A document without an index has the same id under every alias of its stage.
        own = [store for store in self.stores.get(stage, ()) if not index or _is_of_store(store, index)]
        for store in own:
            yield Row(store, headers.get("document", ""), Side.LETTER, index, end_ms, emission, reason.encode())
        if not own:
            yield Row(DEAD_LETTERS, identity, Side.HELD, "", None, None, reason.encode())


def results_frame(
    spark: SparkSession,
    bootstrap: str,
    job: str,
    streams: Mapping[str, tuple[Mapping[int, int], Mapping[int, int]]],
    asked: EndRange,
) -> DataFrame:
    """The job's results in streams, as rows to judge. `streams`: name -> from where (partition -> offset) and before where."""
    pieces = [piece for name, (first, ends) in sorted(streams.items()) for piece in _pieces(name, first, ends)]
    return _frame_of_parts(spark, _ResultReader(bootstrap, job, tuple(pieces), asked), len(pieces))


@dataclass(frozen=True)
class _ResultReader:
    bootstrap: str
    job: str
    pieces: tuple[OffsetRange, ...]
    asked: EndRange

    def rows(self, number: int) -> Iterator[list[Row]]:
        reader, stream = LogReader(self.bootstrap), self.pieces[number].stream
        try:
            for messages in reader.read(self.pieces[number]):
                yield [row for message in messages for row in self._rows_of(stream, message)]
        finally:
            reader.close()

    def _rows_of(self, stream: str, message: Message) -> Iterator[Row]:
        headers = {name: _text(value) for name, value in dict(message.headers() or ()).items()}
        if headers.get(HEADER_JOB, self.job) != self.job:
            return  # of a job that emitted to the stream before
        try:
            source = msgspec.json.decode(message.value() or b"", type=dict)
        except (msgspec.DecodeError, UnicodeError):
            source = {}
        end_ms, emission = window_end_and_emission(source)
        if self.asked.holds(end_ms):
            identity = headers.get(HEADER_ID, f"{message.partition()}/{message.offset()}")
            yield Row(STREAM_STORE + stream, identity, Side.HELD, stream, end_ms, emission, encode_result(source))


def _pieces(topic: str, first: Mapping[int, int], ends: Mapping[int, int]) -> list[OffsetRange]:
    return [
        OffsetRange(topic, partition, begin, min(begin + TASK_ROWS, end))
        for partition, end in sorted(ends.items())
        for begin in range(first.get(partition, 0), end, TASK_ROWS)
    ]


def _window_of(value: bytes | None) -> tuple[int | None, int | None]:
    try:
        return window_end_and_emission(msgspec.json.decode(value or b"", type=dict))
    except (msgspec.DecodeError, UnicodeError):
        return None, None


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _frame_of_parts(spark: SparkSession, reader: _HeldReader | _LetterReader | _ResultReader, parts: int) -> DataFrame:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                for rows in reader.rows(number):
                    yield rows_batch(rows)

    return spark.range(0, parts, 1, max(1, parts)).mapInArrow(read, ROWS_DDL)


def rows_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows as Arrow."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(ROWS_SCHEMA)
    arrays = [pa.array(list(values), item.type) for values, item in zip(columns, ROWS_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS_SCHEMA)


def _is_of_store(store: str, index: str) -> bool:
    """Whether a document that was refused for `index` was meant for this store: a stream, or an alias by its generations."""
    return store == STREAM_STORE + index or (
        not store.startswith(STREAM_STORE) and generation_of(store, index) is not None
    )
