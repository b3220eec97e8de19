"""What an audit compares the recomputed results with, as Spark frames: documents of the index, dead letters, streams of results.

Everything is read in pieces of a bounded size, each by a task of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from confluent_kafka import Message
from pyspark.sql import DataFrame, SparkSession

from strandline.core.record_headers import HEADER_ID, HEADER_JOB
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


Part = TypeVar("Part")


@dataclass(frozen=True)
class IndexPart:
    """A part of one alias's snapshot."""

    store: str
    snapshot: str
    part: int
    parts: int


def index_frame(spark: SparkSession, url: str, ends: EndRange, parts: Sequence[IndexPart]) -> DataFrame:
    """The documents of the index, as rows to compare."""

    def read(part: IndexPart) -> Iterator[list[Row]]:
        for page in read_documents(url, part.snapshot, ends, part.part, part.parts):
            yield [Row(part.store, d.id, Side.STORED, d.index, d.end_ms, d.emission, d.body) for d in page]

    return _frame_of_parts(spark, parts, read)


def letters_frame(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    first: Mapping[int, int],
    ends: Mapping[int, int],
    stores: Mapping[str, tuple[str, ...]],
) -> DataFrame:
    """The dead letters from `first` to before `ends` (partition -> offset), as rows to compare. `stores`: stage -> its stores."""
    return _frame_of_messages(spark, bootstrap, _pieces(topic, first, ends), lambda one: _rows_of_letter(one, stores))


def results_frame(
    spark: SparkSession,
    bootstrap: str,
    job: str,
    streams: Mapping[str, tuple[Mapping[int, int], Mapping[int, int]]],
    asked: EndRange,
) -> DataFrame:
    """The job's results in streams, as rows to compare. `streams`: name -> (first offsets, end offsets), by partition."""
    pieces = [piece for name, (first, ends) in sorted(streams.items()) for piece in _pieces(name, first, ends)]
    return _frame_of_messages(spark, bootstrap, pieces, lambda message: _rows_of_result(message, job, asked))


def _rows_of_letter(message: Message, stores: Mapping[str, tuple[str, ...]]) -> Iterator[Row]:
    headers = _headers(message)
    reason, stage, index = (
        headers.get("reason", ""),
        headers.get("step", "").removeprefix("emit "),
        headers.get("index", ""),
    )
    if is_of_document(reason):
        # A document without an index has the same id under every alias of its stage.
        own = [store for store in stores.get(stage, ()) if not index or _is_of_store(store, index)]
        end_ms, emission = window_end_and_emission(_document(message))
        for store in own:
            yield Row(store, headers.get("document", ""), Side.LETTER, index, end_ms, emission, reason.encode())
        if own:
            return
    yield Row(DEAD_LETTERS, _text(message.key()), Side.STORED, "", None, None, reason.encode())


def _rows_of_result(message: Message, job: str, asked: EndRange) -> Iterator[Row]:
    headers, stream, document = _headers(message), str(message.topic()), _document(message)
    end_ms, emission = window_end_and_emission(document)
    # Another job may have emitted to the stream before.
    if headers.get(HEADER_JOB, job) == job and asked.holds(end_ms):
        identity = headers.get(HEADER_ID, f"{message.partition()}/{message.offset()}")
        yield Row(STREAM_STORE + stream, identity, Side.STORED, stream, end_ms, emission, encode_result(document))


def _headers(message: Message) -> dict[str, str]:
    return {name: _text(value) for name, value in dict(message.headers() or ()).items()}


def _document(message: Message) -> dict[str, Any]:
    """The document in a message; an empty one where there is none."""
    try:
        found: dict[str, Any] = msgspec.json.decode(message.value() or b"", type=dict)
        return found
    except (msgspec.DecodeError, UnicodeError):
        return {}


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _pieces(topic: str, first: Mapping[int, int], ends: Mapping[int, int]) -> list[OffsetRange]:
    return [
        OffsetRange(topic, partition, begin, min(begin + TASK_ROWS, end))
        for partition, end in sorted(ends.items())
        for begin in range(first.get(partition, 0), end, TASK_ROWS)
    ]


def _frame_of_messages(
    spark: SparkSession, bootstrap: str, pieces: Sequence[OffsetRange], rows_of: Callable[[Message], Iterable[Row]]
) -> DataFrame:
    def read(piece: OffsetRange) -> Iterator[list[Row]]:
        reader = LogReader(bootstrap)
        try:
            for messages in reader.read(piece):
                yield [row for message in messages for row in rows_of(message)]
        finally:
            reader.close()

    return _frame_of_parts(spark, pieces, read)


def _frame_of_parts(
    spark: SparkSession, parts: Sequence[Part], read: Callable[[Part], Iterable[list[Row]]]
) -> DataFrame:
    """The rows of all parts, each read by a task of its own."""
    count = len(parts)

    def read_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                for rows in read(parts[number]):
                    yield rows_batch(rows)

    return spark.range(0, count, 1, max(1, count)).mapInArrow(read_all, ROWS_DDL)


def rows_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows as Arrow."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(ROWS_SCHEMA)
    arrays = [pa.array(list(values), item.type) for values, item in zip(columns, ROWS_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS_SCHEMA)


def _is_of_store(store: str, index: str) -> bool:
    """Whether `index`, which refused a document, belongs to this store: it is the stream, or an index of the alias."""
    return store == STREAM_STORE + index or (
        not store.startswith(STREAM_STORE) and generation_of(store, index) is not None
    )
