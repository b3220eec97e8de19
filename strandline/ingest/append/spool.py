"""The spool: keeps records on this machine's disk while Kafka can't take them. SQLite, rollback journal, synced, one connection.

When `add` returns, all its records are on disk; when it raises, none is. The records of a stream leave in the order in which
they came. An *attempt* says which of them may be in the log: it is written down before they are sent, and stays until the
outcome is known. Recovery compares it with the log (attempts.py).

Invariants:
- A record keeps the headers, epoch and sequence number that it got first, however often it is sent.
- The sum of `bytes` never goes over `bytes_max`: what would exceed it is rejected, and what is there stays.
- A topic gets no more than SHARE times what stays free, so one that is flooded leaves room for the others.
- One thread uses a Spool, and its methods block. The file is locked against other processes.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from strandline.core.errors import StackError
from strandline.ingest.append.outcome import SpoolFull

ROW_OVERHEAD_BYTES = 64
"""What a row takes on disk in addition to value, key and headers."""
SHARE = 8
"""Eight ninths of the spool for one topic alone; for two that are flooded eight seventeenths each."""
SPOOL_FILE = "spool.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    value BLOB NOT NULL,
    key BLOB,
    headers BLOB NOT NULL,
    bytes INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS records_of_topic ON records (topic, id);
CREATE TABLE IF NOT EXISTS attempts (
    topic TEXT PRIMARY KEY,
    last_id INTEGER NOT NULL,
    scan_from TEXT NOT NULL
);
"""
_encode_headers = msgspec.msgpack.Encoder().encode
_decode_headers = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode


class SpooledRecord(NamedTuple):
    """A record as it is sent, the first time and every later time."""

    topic: str
    epoch: int
    sequence: int
    value: bytes
    key: bytes | None
    headers: list[tuple[str, bytes]]
    """All of them, those for writer, epoch and sequence number included."""


@dataclass(frozen=True)
class Chunk:
    """Some of the oldest records of one topic."""

    topic: str
    records: list[SpooledRecord]
    last_id: int


@dataclass(frozen=True)
class Attempt:
    """The records of a topic up to an id may be in the log. If they are, they stand at or after these offsets."""

    topic: str
    last_id: int
    scan_from: dict[int, int]
    """Partition -> offset. A partition that is not named is read from its start."""


class Spool:
    """The spool of one writer, in a directory of its own."""

    def __init__(self, directory: Path, *, bytes_max: int) -> None:
        """Open the spool, with what an earlier process left in it. Raises StackError."""
        self.path = directory / SPOOL_FILE
        self.bytes_max = bytes_max
        try:
            self._connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._connection.execute("PRAGMA journal_mode = TRUNCATE")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.executescript(_SCHEMA)
            # Locked from now on, and not only from the first write: the lock tells that the spool's writer runs.
            self._connection.executescript("BEGIN EXCLUSIVE; COMMIT;")
            self.bytes_of, self.records_of = self._measure()
        except sqlite3.Error as error:
            raise StackError(
                f"the spool {self.path} can't be opened: {error}; free space on its disk, or find the process that uses it"
            ) from error

    def _measure(self) -> tuple[dict[str, int], dict[str, int]]:
        rows = self._connection.execute("SELECT topic, count(*), sum(bytes) FROM records GROUP BY topic").fetchall()
        return {topic: size for topic, _, size in rows}, {topic: count for topic, count, _ in rows}

    @property
    def bytes(self) -> int:
        """What all records take."""
        return sum(self.bytes_of.values())

    @property
    def records(self) -> int:
        """How many records wait."""
        return sum(self.records_of.values())

    def add(self, records: Sequence[SpooledRecord], attempted: dict[str, dict[int, int]] | None = None) -> None:
        """Put the records behind all others; they are on disk when this returns.

        `attempted`: topic -> partition -> offset. The records of these topics were sent before and may be in the log, at or
        after these offsets; the spool must hold no other records of these topics. Raises SpoolFull: then nothing was added.
        """
        assert not any(self.records_of.get(topic) for topic in attempted or {}), "an attempt covers what is older"
        rows = []
        bytes_new: Counter[str] = Counter()
        for record in records:
            headers = _encode_headers(record.headers)
            size = len(record.value) + len(record.key or b"") + len(headers) + ROW_OVERHEAD_BYTES
            rows.append((*record[:5], headers, size))
            bytes_new[record.topic] += size
        self._require_room(bytes_new)
        try:
            with self._transaction():
                self._connection.executemany(
                    "INSERT INTO records (topic, epoch, sequence, value, key, headers, bytes) VALUES (?,?,?,?,?,?,?)",
                    rows,
                )
                for topic, scan_from in (attempted or {}).items():
                    (last_id,) = self._connection.execute(
                        "SELECT max(id) FROM records WHERE topic = ?", (topic,)
                    ).fetchone()
                    self._write_attempt(Attempt(topic, last_id, scan_from))
        except sqlite3.Error as error:
            raise SpoolFull(
                f"the spool {self.path} could not be written ({error}); nothing of this request was spooled: "
                f"free space on its disk"
            ) from error
        for topic, size in bytes_new.items():
            self.bytes_of[topic] = self.bytes_of.get(topic, 0) + size
        for record in records:
            self.records_of[record.topic] = self.records_of.get(record.topic, 0) + 1

    def _require_room(self, bytes_new: Mapping[str, int]) -> None:
        """Raises SpoolFull where one of the topics would take more than it may."""
        held = self.bytes
        left = self.bytes_max - held - sum(bytes_new.values())
        if left < 0:
            raise SpoolFull(
                f"the spool {self.path} holds {held} bytes and may hold {self.bytes_max}; nothing of this request "
                f"was spooled: bring Kafka back, or raise STRANDLINE_SPOOL_BYTES_MAX"
            )
        for topic, size in bytes_new.items():
            if self.bytes_of.get(topic, 0) + size > SHARE * left:
                raise SpoolFull(
                    f"the spool {self.path} holds {self.bytes_of.get(topic, 0)} bytes of stream {topic}, and keeps the {left} "
                    "bytes that would be left for other streams; nothing of this request was spooled: bring Kafka back, or raise "
                    "STRANDLINE_SPOOL_BYTES_MAX"
                )

    def head(self, topic: str, records_max: int, bytes_max: int, up_to_id: int | None = None) -> Chunk | None:
        """The oldest records of a topic, at least one; None when it has none. With `up_to_id` the other bounds don't count.

        Raises SpoolFull when the disk fails.
        """
        try:
            return self._head(topic, records_max, bytes_max, up_to_id)
        except sqlite3.Error as error:
            raise self._unreadable(error) from error

    def _head(self, topic: str, records_max: int, bytes_max: int, up_to_id: int | None) -> Chunk | None:
        found: list[SpooledRecord] = []
        last_id = size = 0
        query = "SELECT id, topic, epoch, sequence, value, key, headers, bytes FROM records WHERE topic = ? ORDER BY id"
        with contextlib.closing(self._connection.execute(query, (topic,))) as rows:
            for row_id, name, epoch, sequence, value, key, headers, row_bytes in rows:
                size += row_bytes
                if up_to_id is not None:
                    if row_id > up_to_id:
                        break
                elif found and (len(found) >= records_max or size > bytes_max):
                    break
                found.append(SpooledRecord(name, epoch, sequence, value, key, _decode_headers(headers)))
                last_id = row_id
        return Chunk(topic, found, last_id) if found else None

    def attempt_of(self, topic: str) -> Attempt | None:
        """The attempt of the topic whose outcome is unknown, if there is one. Raises SpoolFull when the disk fails."""
        try:
            row = self._connection.execute(
                "SELECT last_id, scan_from FROM attempts WHERE topic = ?", (topic,)
            ).fetchone()
        except sqlite3.Error as error:
            raise self._unreadable(error) from error
        if row is None:
            return None
        return Attempt(topic, row[0], {int(number): offset for number, offset in json.loads(row[1]).items()})

    def begin(self, attempt: Attempt) -> None:
        """Write an attempt down before it is made. Raises SpoolFull: then it must not be made."""
        try:
            with self._transaction():
                self._write_attempt(attempt)
        except sqlite3.Error as error:
            raise SpoolFull(f"the spool {self.path} could not be written ({error}); free space on its disk") from error

    def end(self, topic: str, drained_id: int | None) -> None:
        """End the attempt of a topic. Records up to `drained_id` are in the log and leave the spool; None: none are.

        Raises SpoolFull: then the outcome counts as unknown still.
        """
        records = size = 0
        try:
            with self._transaction():
                self._connection.execute("DELETE FROM attempts WHERE topic = ?", (topic,))
                if drained_id is not None:
                    leaving = "FROM records WHERE topic = ? AND id <= ?"
                    records, size = self._connection.execute(
                        f"SELECT count(*), coalesce(sum(bytes), 0) {leaving}",
                        (topic, drained_id),  # the SQL holds no input
                    ).fetchone()
                    self._connection.execute(f"DELETE {leaving}", (topic, drained_id))
        except sqlite3.Error as error:
            raise SpoolFull(f"the spool {self.path} could not be written ({error}); free space on its disk") from error
        if records:
            self.bytes_of[topic] -= size
            self.records_of[topic] -= records

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _unreadable(self, error: sqlite3.Error) -> SpoolFull:
        return SpoolFull(f"the spool {self.path} could not be read ({error}); look at its disk")

    def _write_attempt(self, attempt: Attempt) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO attempts (topic, last_id, scan_from) VALUES (?, ?, ?)",
            (attempt.topic, attempt.last_id, json.dumps(attempt.scan_from)),
        )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # a full disk may have rolled it back already
                self._connection.execute("ROLLBACK")
            raise
