"""The spool: keeps records on this machine's disk while Kafka can't accept them.

It is an SQLite file with a rollback journal, synced, with one connection. When `add` returns, all its records are on
disk; if it raises, none is. The records of a stream leave in the order in which they arrived. An *attempt* lists the
records that may be in the log. It is stored before they are sent, and kept until the outcome is known. Recovery
compares it with the log (attempts.py).

Invariants:

- A record keeps its first headers, epoch, and sequence number, however often it is sent.
- The sum of `bytes` never exceeds `bytes_max`: a batch that would exceed it is rejected, and the stored records stay.
- A topic gets at most SHARE times the bytes that stay free, so a flooded topic leaves space for the others.
- Records in doubt, whose outcome is unknown, are *set aside* until an operator decides. They continue to count, but the
  later records of their stream don't wait for them.
- One thread uses a Spool, and its methods block. The file is locked against other processes.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from strandline.core.errors import StackError
from strandline.ingest.append.outcome import SpoolFull

ROW_OVERHEAD_BYTES = 64
"""Bytes that a row uses on disk in addition to value, key, and headers."""
SHARE = 8
"""A single flooded topic can fill eight ninths of the spool; two flooded topics can fill eight seventeenths each."""
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
CREATE TABLE IF NOT EXISTS doubts (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    topic TEXT NOT NULL,
    scan_from TEXT
);
CREATE TABLE IF NOT EXISTS doubtful_records (
    id INTEGER PRIMARY KEY,
    doubt INTEGER NOT NULL,
    topic TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    value BLOB NOT NULL,
    key BLOB,
    headers BLOB NOT NULL,
    bytes INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS records_of_doubt ON doubtful_records (doubt, id);
"""
_SET_ASIDE = """
INSERT INTO doubtful_records (id, doubt, topic, epoch, sequence, value, key, headers, bytes)
SELECT id, ?, topic, epoch, sequence, value, key, headers, bytes FROM records WHERE topic = ? AND id <= ?
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
    """All headers, including writer, epoch, and sequence number."""


@dataclass(frozen=True)
class Chunk:
    """Some of the oldest records of one topic."""

    topic: str
    records: list[SpooledRecord]
    last_id: int


@dataclass(frozen=True)
class Attempt:
    """Note that the records of a topic up to an id may be in the log.

    If they are, they are at or after these offsets.
    """

    topic: str
    last_id: int
    scan_from: dict[int, int]
    """Partition -> offset. A partition without an entry is read from its start."""


@dataclass(frozen=True)
class Doubt:
    """Records of one attempt that are set aside."""

    number: int
    topic: str
    records: int
    scan_from: dict[int, int] | None
    """Partition -> offset, for the attempt to resend them. None if they weren't resent."""


class Spool:
    """The spool of one writer, in its own directory."""

    def __init__(self, directory: Path, *, bytes_max: int) -> None:
        """Open the spool, including the records of an earlier process. Raises StackError if the file can't be read, or
        another process uses it.
        """
        self.path = directory / SPOOL_FILE
        self.bytes_max = bytes_max
        try:
            self._connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._connection.execute("PRAGMA journal_mode = TRUNCATE")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.executescript(_SCHEMA)
            # Locked from now on, not only from the first write: the lock shows that the writer of the spool runs.
            self._connection.executescript("BEGIN EXCLUSIVE; COMMIT;")
            self.bytes_of, self.records_of = self._measure()
            self.doubts = self._read_doubts()
            """Records that are set aside, by the numbers of the doubts."""
        except sqlite3.Error as error:
            raise StackError(
                f"the spool {self.path} can't be opened: {error}; free space on its disk, or find the process that uses it"
            ) from error

    def _measure(self) -> tuple[dict[str, int], dict[str, int]]:
        rows = self._connection.execute("SELECT topic, count(*), sum(bytes) FROM records GROUP BY topic").fetchall()
        aside = self._connection.execute("SELECT topic, sum(bytes) FROM doubtful_records GROUP BY topic").fetchall()
        sizes = Counter({topic: size for topic, _, size in rows}) + Counter(dict(aside))
        return dict(sizes), {topic: count for topic, count, _ in rows}

    def _read_doubts(self) -> dict[int, Doubt]:
        rows = self._connection.execute(
            "SELECT number, doubts.topic, count(*), scan_from FROM doubts JOIN doubtful_records ON doubt = number GROUP BY number"
        )
        return {
            number: Doubt(number, topic, records, None if scan_from is None else _offsets(scan_from))
            for number, topic, records, scan_from in rows.fetchall()
        }

    @property
    def bytes(self) -> int:
        """Total size of all records in bytes."""
        return sum(self.bytes_of.values())

    @property
    def records(self) -> int:
        """Number of records that wait for Kafka, without the records that are set aside."""
        return sum(self.records_of.values())

    @property
    def records_in_doubt(self) -> int:
        """Number of records that are set aside until an operator decides."""
        return sum(one.records for one in list(self.doubts.values()))

    def add(self, records: Sequence[SpooledRecord], attempted: dict[str, dict[int, int]] | None = None) -> None:
        """Append the records durably.

        Args: attempted: Topic -> partition -> offset. The records of these topics were sent before and may be in the
        log, at or after these offsets. The spool must contain no other records of these topics.

        Raises SpoolFull: Then nothing was added.
        """
        assert not any(self.records_of.get(topic) for topic in attempted or {}), "an attempt covers what is older"
        rows = []
        bytes_new: Counter[str] = Counter()
        for record in records:
            headers = _encode_headers(record.headers)
            size = len(record.value) + len(record.key or b"") + len(headers) + ROW_OVERHEAD_BYTES
            rows.append((*record[:5], headers, size))
            bytes_new[record.topic] += size
        self._require_budget(bytes_new)
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

    def _require_budget(self, bytes_new: Mapping[str, int]) -> None:
        """Raises SpoolFull if one of the topics would exceed its share."""
        held = self.bytes
        left = self.bytes_max - held - sum(bytes_new.values())
        if left < 0:
            raise SpoolFull(
                f"spool {self.path}: {held} of at most {self.bytes_max} bytes are used. Nothing of this request was "
                f"spooled; restore Kafka, or raise STRANDLINE_SPOOL_BYTES_MAX"
            )
        for topic, size in bytes_new.items():
            if self.bytes_of.get(topic, 0) + size > SHARE * left:
                raise SpoolFull(
                    f"spool {self.path}: stream {topic} uses {self.bytes_of.get(topic, 0)} bytes, and {left} bytes are "
                    "reserved for other streams. Nothing of this request was spooled; restore Kafka, or raise "
                    "STRANDLINE_SPOOL_BYTES_MAX"
                )

    def head(self, topic: str, records_max: int, bytes_max: int, up_to_id: int | None = None) -> Chunk | None:
        """Return the oldest records of a topic, at least one, or None if it has none. If `up_to_id` is set, the other
        limits don't apply.

        Raises SpoolFull if the disk fails.
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
        """Return the attempt of the topic whose outcome is unknown, or None. Raises SpoolFull if the disk fails."""
        try:
            row = self._connection.execute(
                "SELECT last_id, scan_from FROM attempts WHERE topic = ?", (topic,)
            ).fetchone()
        except sqlite3.Error as error:
            raise self._unreadable(error) from error
        if row is None:
            return None
        return Attempt(topic, row[0], _offsets(row[1]))

    def begin(self, attempt: Attempt) -> None:
        """Store an attempt before it is made. Raises SpoolFull: then it must not be made."""
        try:
            with self._transaction():
                self._write_attempt(attempt)
        except sqlite3.Error as error:
            raise SpoolFull(f"the spool {self.path} could not be written ({error}); free space on its disk") from error

    def end(self, topic: str, drained_id: int | None) -> None:
        """End the attempt of a topic and remove the records up to `drained_id`, which are in the log. None if none is
        in the log.

        Raises SpoolFull: then the outcome still counts as unknown.
        """
        records = size = 0
        try:
            with self._transaction():
                self._connection.execute("DELETE FROM attempts WHERE topic = ?", (topic,))
                if drained_id is not None:
                    leaving = "FROM records WHERE topic = ? AND id <= ?"
                    records, size = self._connection.execute(
                        f"SELECT count(*), coalesce(sum(bytes), 0) {leaving}",
                        (topic, drained_id),  # the SQL contains no input
                    ).fetchone()
                    self._connection.execute(f"DELETE {leaving}", (topic, drained_id))
        except sqlite3.Error as error:
            raise SpoolFull(f"the spool {self.path} could not be written ({error}); free space on its disk") from error
        if records:
            self.bytes_of[topic] -= size
            self.records_of[topic] -= records

    # Records in doubt.

    def set_aside(self, attempt: Attempt) -> Doubt:
        """Set the records of the attempt aside, and end the attempt. Raises SpoolFull: then nothing has changed."""
        try:
            with self._transaction():
                number = self._connection.execute("INSERT INTO doubts (topic) VALUES (?)", (attempt.topic,)).lastrowid
                assert number is not None
                of_attempt = (attempt.topic, attempt.last_id)
                records = self._connection.execute(_SET_ASIDE, (number, *of_attempt)).rowcount
                self._connection.execute("DELETE FROM records WHERE topic = ? AND id <= ?", of_attempt)
                self._connection.execute("DELETE FROM attempts WHERE topic = ?", (attempt.topic,))
        except sqlite3.Error as error:
            raise SpoolFull(f"the spool {self.path} could not be written ({error}); free space on its disk") from error
        self.records_of[attempt.topic] -= records
        doubt = self.doubts[number] = Doubt(number, attempt.topic, records, None)
        return doubt

    def doubtful(self, number: int) -> list[SpooledRecord]:
        """Return the records of a doubt. Raises SpoolFull if the disk fails."""
        query = "SELECT topic, epoch, sequence, value, key, headers FROM doubtful_records WHERE doubt = ? ORDER BY id"
        try:
            rows = self._connection.execute(query, (number,)).fetchall()
        except sqlite3.Error as error:
            raise self._unreadable(error) from error
        return [
            SpooledRecord(topic, epoch, sequence, value, key, _decode_headers(headers))
            for topic, epoch, sequence, value, key, headers in rows
        ]

    def begin_again(self, number: int, scan_from: dict[int, int] | None) -> None:
        """Note that the records of a doubt will be resent, or with None that they weren't resent. Raises SpoolFull."""
        noted = None if scan_from is None else json.dumps(scan_from)
        try:
            with self._transaction():
                self._connection.execute("UPDATE doubts SET scan_from = ? WHERE number = ?", (noted, number))
        except sqlite3.Error as error:
            raise SpoolFull(f"the spool {self.path} could not be written ({error}); free space on its disk") from error
        self.doubts[number] = replace(self.doubts[number], scan_from=scan_from)

    def end_doubt(self, number: int) -> None:
        """Delete the records of a doubt: they are in the log, or an operator dropped them. Raises SpoolFull."""
        try:
            with self._transaction():
                (size,) = self._connection.execute(
                    "SELECT coalesce(sum(bytes), 0) FROM doubtful_records WHERE doubt = ?", (number,)
                ).fetchone()
                self._connection.execute("DELETE FROM doubtful_records WHERE doubt = ?", (number,))
                self._connection.execute("DELETE FROM doubts WHERE number = ?", (number,))
        except sqlite3.Error as error:
            raise SpoolFull(f"the spool {self.path} could not be written ({error}); free space on its disk") from error
        self.bytes_of[self.doubts.pop(number).topic] -= size

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _unreadable(self, error: sqlite3.Error) -> SpoolFull:
        return SpoolFull(f"the spool {self.path} could not be read ({error}); check its disk")

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


def _offsets(noted: str) -> dict[int, int]:
    return {int(number): int(offset) for number, offset in json.loads(noted).items()}
