"""The stored data that an audit compares with the recomputed results: documents of the index, dead letters, and streams of
results. `sinks` has the results in other sinks. All is read in parts of bounded size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from strandline.core.record_headers import HEADER_ID, HEADER_JOB, REASON_EXPRESSION
from strandline.log.messages import LogMessage, LogReader
from strandline.log.reader import OffsetRange
from strandline.processing.audit.index_reader import (
    EndRange,
    count_documents,
    encode_result,
    read_documents,
    stage_of,
    window_end_and_emission,
)
from strandline.processing.audit.parts import Account
from strandline.processing.audit.reconciliation import (
    DEAD_LETTERS,
    RESULT_LETTERS,
    Row,
    Side,
    is_of_document,
)
from strandline.processing.audit_queries.table import Table
from strandline.processing.operators.blobs import batch_of
from strandline.processing.source.recorded_slices import TASK_ROWS
from strandline.results.names import generation_of
from strandline.results.sinks.registry import stream_store

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
"""Columns of `reconciliation.Row`."""
INDEX_PART_DOCUMENTS = 100_000


@dataclass(frozen=True)
class IndexPart:
    """One share of the documents in an alias's snapshot, read as a unit (`parts.Part`)."""

    name: str
    url: str
    job: str
    ends: EndRange
    store: str
    snapshot: str
    part: int
    parts: int
    compared: Table

    @property
    def rows(self) -> int:
        return INDEX_PART_DOCUMENTS

    def run(self) -> Account:
        with self.compared.writer(self.name) as rows:
            for page in read_documents(self.url, self.snapshot, self.ends, self.part, self.parts):
                # Another job can have emitted to the alias before, or can do so now.
                own = [document for document in page if document.job in (self.job, None)]
                found = [Row(self.store, d.id, Side.STORED, d.index, d.end_ms, d.emission, d.body) for d in own]
                rows.append(batch_of(found, ROWS_SCHEMA))
        return Account()


@dataclass(frozen=True)
class MessagesPart:
    """A range of offsets of the dead letters, or of a stream of results, read as a unit (`parts.Part`)."""

    name: str
    bootstrap: str
    offsets: OffsetRange
    rows_of: Callable[[LogMessage], Iterable[Row]]
    """Returns the rows to compare for one message. Pickled."""
    compared: Table

    @property
    def rows(self) -> int:
        return self.offsets.offset_count

    def run(self) -> Account:
        reader = LogReader(self.bootstrap)
        try:
            with self.compared.writer(self.name) as rows:
                for messages in reader.read(self.offsets):
                    found = [row for message in messages for row in self.rows_of(message)]
                    rows.append(batch_of(found, ROWS_SCHEMA))
        finally:
            reader.close()
        return Account()


def index_parts(url: str, job: str, snapshots: Mapping[str, str], ends: EndRange, compared: Table) -> list[IndexPart]:
    """Return the parts of the job's documents in the index, from the snapshot of each alias. `ends`: audited ends of
    windows. `compared`: table that gets the rows.
    """
    parts = [
        IndexPart(f"index-{alias}-{part}", url, job, ends, alias, snapshot, part, count, compared)
        for alias, snapshot in snapshots.items()
        for count in [count_documents(url, snapshot, ends) // INDEX_PART_DOCUMENTS + 1]
        for part in range(count)
    ]
    # Alternately, because only reading keeps a snapshot alive: others would expire while a large alias is read.
    return sorted(parts, key=lambda one: one.part)


def letters_parts(
    bootstrap: str,
    topic: str,
    first: Mapping[int, int],
    ends: Mapping[int, int],
    stores: Mapping[str, tuple[str, ...]],
    compared: Table,
) -> list[MessagesPart]:
    """Return the parts of the dead letters from `first` to before `ends` (partition -> offset). `stores`: stage -> its
    stores. `compared`: table that gets the rows.
    """
    rows_of = partial(_rows_of_letter, stores=stores)
    return _messages_parts(bootstrap, topic, (first, ends), rows_of, compared)


def results_parts(
    bootstrap: str,
    job: str,
    streams: Mapping[str, tuple[Mapping[int, int], Mapping[int, int]]],
    requested: EndRange,
    compared: Table,
) -> list[MessagesPart]:
    """Return the parts of the job's results in streams. `streams`: name -> (first offsets, end offsets), by partition.
    `requested`: audited ends of windows. `compared`: table that gets the rows.
    """
    return [
        part
        for name, bounds in sorted(streams.items())
        for part in _messages_parts(
            bootstrap,
            name,
            bounds,
            partial(_rows_of_result, store=stream_store(name), job=job, requested=requested),
            compared,
        )
    ]


def _rows_of_letter(message: LogMessage, stores: Mapping[str, tuple[str, ...]]) -> Iterator[Row]:
    headers, document = _headers(message), _document(message)
    reason, step, index = (headers.get(name, "") for name in ("reason", "step", "index"))
    if not is_of_document(reason, headers):
        yield Row(DEAD_LETTERS, _text(message.key()), Side.STORED, "", None, None, reason.encode())
        return
    end_ms, emission = window_end_and_emission(document)
    stage = stage_of(document)
    is_of_expression = reason == REASON_EXPRESSION
    if stage in stores:
        side = Side.STORED if is_of_expression else Side.LETTER
        yield Row(RESULT_LETTERS + stage, _text(message.key()), side, index, end_ms, emission, reason.encode())
    if is_of_expression:
        return
    # A document without an index has the same id under every alias of its stage.
    names = stores.get(step.removeprefix("emit "), ())
    own = [store for store in names if not index or _is_of_store(store, index)]
    for store in own:
        yield Row(store, headers.get("document", ""), Side.LETTER, index, end_ms, emission, reason.encode())
    if not own:
        yield Row(DEAD_LETTERS, _text(message.key()), Side.STORED, "", None, None, reason.encode())


def _rows_of_result(message: LogMessage, store: str, job: str, requested: EndRange) -> Iterator[Row]:
    headers, stream, document = _headers(message), str(message.topic()), _document(message)
    end_ms, emission = window_end_and_emission(document)
    # Another job can have emitted to the stream before.
    if headers.get(HEADER_JOB, job) == job and requested.holds(end_ms):
        identity = headers.get(HEADER_ID, f"{message.partition()}/{message.offset()}")
        yield Row(store, identity, Side.STORED, stream, end_ms, emission, encode_result(document))


def _headers(message: LogMessage) -> dict[str, str]:
    return {name: _text(value) for name, value in dict(message.headers() or ()).items()}


def _document(message: LogMessage) -> dict[str, Any]:
    """Return the document in a message. Empty if it has none."""
    try:
        found: dict[str, Any] = msgspec.json.decode(message.value() or b"", type=dict)
        return found
    except (msgspec.DecodeError, UnicodeError):
        return {}


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _messages_parts(
    bootstrap: str,
    topic: str,
    bounds: tuple[Mapping[int, int], Mapping[int, int]],
    rows_of: Callable[[LogMessage], Iterable[Row]],
    compared: Table,
) -> list[MessagesPart]:
    first, ends = bounds
    pieces = [
        OffsetRange(topic, partition, begin, min(begin + TASK_ROWS, end))
        for partition, end in sorted(ends.items())
        for begin in range(first.get(partition, 0), end, TASK_ROWS)
    ]
    return [
        MessagesPart(f"messages-{topic}-{piece.partition}-{piece.offset_first}", bootstrap, piece, rows_of, compared)
        for piece in pieces
    ]


def _is_of_store(store: str, index: str) -> bool:
    """Return True if `index`, which refused a document, belongs to this store: it is the stream or the table, or an index of the
    alias."""
    _, colon, name = store.partition(":")  # no alias has a colon
    return name == index if colon else generation_of(store, index) is not None
