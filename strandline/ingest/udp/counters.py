"""Counters of the accepted datagrams of each sender, on this machine's disk, so that no datagram is accepted twice.

The WINDOW_COUNTERS largest counters of each sender are kept. A counter that is larger than all of them is new. A
counter between them is new if it is not among them, so datagrams may overtake each other. A counter that is smaller
than all of them is refused, because it may have been used. A counter need not grow by one: it may be a time.

- `take` decides in memory. When `saved` returns, the counters that were taken before are on disk. A record that is
  appended only after that can't be accepted a second time, whenever the process is killed.
- SENDERS_MAX senders are remembered. Over it, the sender whose last datagram is the oldest is removed.
- If the disk fails, records are still accepted, and the failure is logged: a lost record is worse than a possible
  duplicate.

For one event loop. It has its own thread for writing.
"""

from __future__ import annotations

import asyncio
import sqlite3
from array import array
from bisect import bisect_left
from collections import OrderedDict
from pathlib import Path

import structlog

from strandline.core.errors import StackError
from strandline.ingest.append.worker_thread import WorkerThread

logger = structlog.get_logger()

COUNTERS_FILE = "counters.sqlite"
WINDOW_COUNTERS = 64
SENDERS_MAX = 50_000
_SCHEMA = "CREATE TABLE IF NOT EXISTS senders (sender BLOB PRIMARY KEY, counters BLOB NOT NULL) WITHOUT ROWID"


class Counters:
    """The counters of all senders of a gateway."""

    def __init__(self, directory: Path, *, senders_max: int = SENDERS_MAX) -> None:
        """Open the file with the counters of an earlier process. Raises StackError."""
        self._path = directory / COUNTERS_FILE
        self._senders_max = senders_max
        self._seen: OrderedDict[bytes, array[int]] = OrderedDict()
        """Sender -> its largest counters, in order. The sender whose last datagram is the oldest is first."""
        self._changed: set[bytes] = set()
        """Senders whose rows on disk are outdated, including removed senders."""
        self._disk = WorkerThread("counters")
        self._saving = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None
        """The save that will write the counters that are taken now."""
        self._is_saved = True
        try:
            self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute(_SCHEMA)
            for sender, counters in self._connection.execute("SELECT sender, counters FROM senders"):
                self._seen[sender] = array("Q", counters)
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise StackError(
                f"the counters of signed datagrams in {self._path} can't be read: {error}; free space on its disk. If you "
                "remove the file instead, datagrams within `max_age` can be accepted a second time"
            ) from error

    def __len__(self) -> int:
        return len(self._seen)

    def take(self, sender: bytes, counter: int) -> bool:
        """Take a counter of the sender. Return False if it was taken before or is too old."""
        seen = self._seen.get(sender)
        if seen is None:
            seen = self._seen[sender] = array("Q")
            if len(self._seen) > self._senders_max:
                self._changed.add(self._seen.popitem(last=False)[0])
        else:
            self._seen.move_to_end(sender)
        if not seen or counter > seen[-1]:
            seen.append(counter)
        else:
            place = bisect_left(seen, counter)
            if seen[place] == counter or (place == 0 and len(seen) >= WINDOW_COUNTERS):
                return False
            seen.insert(place, counter)
        if len(seen) > WINDOW_COUNTERS:
            del seen[0]
        self._changed.add(sender)
        return True

    async def saved(self) -> None:
        """Return when the counters that were taken before this call are on disk, or the disk has failed."""
        if self._next is None:
            self._next = asyncio.create_task(self._save())
        await asyncio.shield(self._next)

    async def close(self) -> None:
        """Save the counters, and close the file."""
        await self.saved()
        self._disk.close()
        self._connection.close()

    async def _save(self) -> None:
        async with self._saving:
            self._next = None
            changed, self._changed = self._changed, set()
            rows = [(sender, seen.tobytes()) for sender in changed if (seen := self._seen.get(sender)) is not None]
            gone = [(sender,) for sender in changed if sender not in self._seen]
            try:
                await self._disk.run(self._write, rows, gone)
            except sqlite3.Error as error:
                self._changed |= changed
                if self._is_saved:
                    logger.error(
                        "the counters of signed datagrams can't be saved; after a crash of this gateway the last datagrams "
                        "could be accepted a second time",
                        action="counters_unsaved", file=str(self._path), reason=str(error),
                    )  # fmt: skip
                self._is_saved = False
            else:
                self._is_saved = True

    def _write(self, rows: list[tuple[bytes, bytes]], gone: list[tuple[bytes]]) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany("INSERT OR REPLACE INTO senders (sender, counters) VALUES (?, ?)", rows)
            connection.executemany("DELETE FROM senders WHERE sender = ?", gone)
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
