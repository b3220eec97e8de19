"""The part of each file that is in the log, durably: a table of files, and the current attempt.

A file is recognized by the hash of its ingested bytes, not by its name. So a file that was moved or copied is ingested
once, and a file that has grown continues after the ingested part.

Progress is stored as a number of lines. The number of rows in these lines depends on settings and on the release; it is
stored for the ids of records.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strandline.core.errors import StackError

HEAD_BYTES = 4_096
_READ_BYTES = 1 << 20
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    identity TEXT NOT NULL UNIQUE,
    bytes INTEGER NOT NULL,
    head TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    rows INTEGER NOT NULL,
    line_next INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS files_by_content ON files (bytes, sha256);
CREATE TABLE IF NOT EXISTS attempts (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    file INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    sequence_first INTEGER NOT NULL,
    sequence_last INTEGER NOT NULL,
    scan_from TEXT NOT NULL,
    line_next INTEGER NOT NULL
);
"""


@dataclass(frozen=True)
class KnownFile:
    """A file, and how much of it is in the log."""

    id: int
    identity: str
    """Stays the same while the file only grows. Part of the message id of each of its records."""
    bytes: int
    """Number of bytes that are read of it. Bytes that are added in the meantime are read another time."""
    rows: int
    """Number of its rows that are in the log or were refused."""
    line_next: int
    """Number of its lines that contain these rows."""


@dataclass(frozen=True)
class FileAttempt:
    """Records that may be in the log: all of them or none."""

    file: int
    rows: int
    """Number of rows of the file that are done if the attempt has arrived."""
    epoch: int
    sequence_first: int
    sequence_last: int
    scan_from: dict[int, int]
    """Partition -> offset. The records of the attempt are not before these offsets."""
    line_next: int
    """Number of lines of the file that are done if the attempt has arrived."""


class Journal:
    """The journal of one stream's files, for one process at a time."""

    def __init__(self, path: Path) -> None:
        """Open the journal in this file. Raises StackError if it can't be read or written."""
        try:
            # Large files are hashed in a thread; no two calls overlap.
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode = TRUNCATE")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise StackError(f"the journal {path} can't be opened: {error}; free space on its disk") from error

    def close(self) -> None:
        self._connection.close()

    def file(self, path: Path, *, again: str | None = None) -> KnownFile:
        """Return the file with its progress, by its content. A file with unknown content is added.

        Args: again: Add it as new in any case, under an identity that ends with this string. Raises OSError.
        """
        size = path.stat().st_size
        head, digests = self._digests(path, size)
        found = None
        if again is None:
            marks = [(length, digest) for length, digest in digests.items() if length]
            found = next(
                filter(None, (self._known(length, digest) for length, digest in sorted(marks, reverse=True))), None
            )
        sha256 = digests[size]
        if found is None:
            identity = sha256[:32] + (f"-{again}" if again else "")
            self._connection.execute(
                "INSERT INTO files (identity, bytes, head, sha256, rows, line_next) VALUES (?, ?, ?, ?, 0, 0)"
                " ON CONFLICT DO NOTHING",
                (identity, size, head, sha256),
            )
        else:
            identity = found
            self._connection.execute(
                "UPDATE files SET bytes = ?, head = ?, sha256 = ? WHERE identity = ?", (size, head, sha256, identity)
            )
        row = self._connection.execute(
            "SELECT id, rows, line_next FROM files WHERE identity = ?", (identity,)
        ).fetchone()
        return KnownFile(row[0], identity, size, row[1], row[2])

    def attempt(self) -> FileAttempt | None:
        """Return the attempt that was begun and has not ended. None if there is none."""
        row = self._connection.execute(
            "SELECT file, rows, epoch, sequence_first, sequence_last, scan_from, line_next FROM attempts"
        ).fetchone()
        if row is None:
            return None
        file, rows, epoch, first, last, scan_from, line_next = row
        offsets = {int(number): int(offset) for number, offset in json.loads(scan_from).items()}
        return FileAttempt(file, rows, epoch, first, last, offsets, line_next)

    def begin(self, attempt: FileAttempt) -> None:
        """Store the attempt before it is made."""
        self._connection.execute(
            "INSERT OR REPLACE INTO attempts (one, file, rows, epoch, sequence_first, sequence_last, scan_from, line_next)"
            " VALUES (1, ?, ?, ?, ?, ?, ?, ?)",
            (
                attempt.file, attempt.rows, attempt.epoch, attempt.sequence_first, attempt.sequence_last,
                json.dumps(attempt.scan_from), attempt.line_next,
            ),
        )  # fmt: skip

    def end(self, attempt: FileAttempt, *, is_in_log: bool) -> None:
        """End the attempt: its outcome is known."""
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            if is_in_log:
                self.pass_over(attempt.file, attempt.rows, attempt.line_next)
            self._connection.execute("DELETE FROM attempts")

    def pass_over(self, file: int, rows: int, line_next: int) -> None:
        """Store the number of rows of the file that are done, and of the lines that contain them."""
        self._connection.execute("UPDATE files SET rows = ?, line_next = ? WHERE id = ?", (rows, line_next, file))

    def _known(self, length: int, digest: str) -> str | None:
        row = self._connection.execute(
            "SELECT identity FROM files WHERE bytes = ? AND sha256 = ? ORDER BY id LIMIT 1", (length, digest)
        ).fetchone()
        return None if row is None else str(row[0])

    def _digests(self, path: Path, size: int) -> tuple[str, dict[int, str]]:
        """Return the hash of the file's beginning, and hashes by length: for each known file that may be a beginning of
        this file."""
        with path.open("rb") as file:
            head = hashlib.sha256(file.read(min(HEAD_BYTES, size))).hexdigest()
            lengths = self._connection.execute(
                "SELECT DISTINCT bytes FROM files WHERE bytes < ? AND (bytes < ? OR head = ?) ORDER BY bytes",
                (size, HEAD_BYTES, head),
            ).fetchall()
            return head, _digests_at(file, [*(length for (length,) in lengths), size])


def _digests_at(file: object, lengths: Sequence[int]) -> dict[int, str]:
    """Return the hash of each beginning with one of these lengths. Raises OSError if the file has become shorter."""
    digest, at, found = hashlib.sha256(), 0, {}
    file.seek(0)  # type: ignore[attr-defined]
    for length in lengths:
        while at < length:
            block = file.read(min(_READ_BYTES, length - at))  # type: ignore[attr-defined]
            if not block:
                raise OSError("the file became shorter while it was read")
            digest.update(block)
            at += len(block)
        found[length] = digest.copy().hexdigest()
    return found
