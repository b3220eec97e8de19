"""What an audit compares the recomputed results with, as Spark frames: documents of the index, dead letters, streams of results.

Everything is read in pieces of a bounded size, each by a task of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from confluent_kafka import Message
from pyspark.sql import DataFrame, SparkSession

from strandline.core.record import HEADER_ID, HEADER_JOB
from strandline.log.reader import LogReader, OffsetRange
from strandline.processing.audit.index_reader import EndRange, encode_result, read_documents, window_end_and_emission
from strandline.processing.audit.reconciliation import DEAD_LETTERS, STREAM_STORE, Row, Side, is_of_document
from strandline.processing.source.recorded_slices import TASK_ROWS
from strandline.results.document import generation_of

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
"""The same for Spark: the columns of `reconciliation.Row`."""


@dataclass(frozen=True)
class IndexPart:
    """A part of one alias's snapshot."""

    store: str
    snapshot: str
    part: int
    parts: int


def index_frame(spark: SparkSession, url: str, ends: EndRange, parts: Sequence[IndexPart]) -> DataFrame:
    """The documents of the index, as rows to compare."""
    return _frame_of_parts(spark, _HeldReader(url, ends, tuple(parts)), len(parts))


@dataclass(frozen=True)
class _HeldReader:
    url: str
    ends: EndRange
    parts: tuple[IndexPart, ...]

    def rows(self, number: int) -> Iterator[list[Row]]:
        part = self.parts[number]
        for page in read_documents(self.url, part.snapshot, self.ends, part.part, part.parts):
            yield [Row(part.store, d.id, Side.STORED, d.index, d.end_ms, d.emission, d.body) for d in page]


def letters_frame(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    first: Mapping[int, int],
    ends: Mapping[int, int],
    stores: Mapping[str, tuple[str, ...]],
) -> DataFrame:
    """The dead letters from `first` to before `ends` (partition -> offset), as rows to compare. `stores`: those of each stage."""
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
            yield Row(DEAD_LETTERS, identity, Side.STORED, "", None, None, reason.encode())
            return
        end_ms, emission = _window_of(message.value())  # type: ignore[attr-defined]
        stage = headers.get("step", "").removeprefix("emit ")
        index = headers.get("index", "")
        # A document without an index has the same id under every alias of its stage.
        own = [store for store in self.stores.get(stage, ()) if not index or _is_of_store(store, index)]
        for store in own:
            yield Row(store, headers.get("document", ""), Side.LETTER, index, end_ms, emission, reason.encode())
        if not own:
            yield Row(DEAD_LETTERS, identity, Side.STORED, "", None, None, reason.encode())


def results_frame(
    spark: SparkSession,
    bootstrap: str,
    job: str,
    streams: Mapping[str, tuple[Mapping[int, int], Mapping[int, int]]],
    asked: EndRange,
) -> DataFrame:
    """The job's results in streams, as rows to compare. `streams`: name -> from where (partition -> offset) and before where."""
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
            yield Row(STREAM_STORE + stream, identity, Side.STORED, stream, end_ms, emission, encode_result(source))


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
