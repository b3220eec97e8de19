"""Follows the sources of lookups: reads each when it is due, and records what has changed as a new version.

Any number of control services may do it. A reading is claimed in the ledger first, for a time; who dies while reading is followed
by another one, and what a sleeper brings late is not recorded (`ledger/lookups/sources.py`). No job waits for it: while a source
can't be read, the version that is there stays in force, and the lookup's status, metrics and an event say how old it is.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

import structlog

from strandline.core.errors import LedgerUnavailable, LogTruncated, StrandlineError
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.lookups.source import HOLD_MS
from strandline.core.times.durations import format_about
from strandline.ledger.lookups.sources import SourceRows
from strandline.ledger.roles import FollowerLedger
from strandline.ledger.states import LookupRow, LookupSourceRow, Offsets
from strandline.processing.source.followed.reading import wait_ms
from strandline.services.supervision.repeated_errors import RepeatedErrors

logger = structlog.get_logger()

LOOK_INTERVAL_S = 1.0
RETRY_MS_MAX = 60_000
"""A source that could not be read is asked again after so long at the latest, however seldom it is read."""
READERS = 16
"""Maximum number of readings at the same time."""
READERS_PER_SOURCE = 2
"""Maximum number of readings of one database or stream at the same time: if it doesn't respond, others still have readers."""
END_PATIENCE_S = 5.0
"""How long readings under way may take when the service ends; what they bring later is read again."""


class Sources(Protocol):
    """Reads them, as `SourceReader` does."""

    def read_on(self, present: LookupRow, position: Offsets | None) -> SourceRows: ...


class LookupFollower:
    """Runs in threads of its own between `start` and `close`."""

    def __init__(self, ledger: FollowerLedger, sources: Sources, reader: str) -> None:
        """`reader`: the name of this control service, which no other has at the same time."""
        self._ledger = ledger
        self._sources = sources
        self._reader = reader
        self._errors = RepeatedErrors(logger)
        self._old: set[str] = set()
        """The lookups that are too old, and that this service has told of."""
        self._reading: dict[str, str] = {}
        """Lookups that are being read -> the database or stream of each."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follow-lookups", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Begin no reading any more, and give those under way a moment to end."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        deadline_s = time.monotonic() + END_PATIENCE_S
        while self._reading and time.monotonic() < deadline_s:
            time.sleep(0.05)

    def look(self) -> int:
        """Read once each source that is due, one after the other; how many new versions came of it."""
        return sum(self._follow(name) for name in self._ledger.due_lookups())

    def _run(self) -> None:
        is_released = False
        while not self._closing.is_set():
            try:
                if not is_released:  # what an earlier start of this service was reading
                    self._ledger.release_lookups(self._reader)
                    is_released = True
                for name in self._ledger.due_lookups():
                    if name not in self._reading and len(self._reading) < READERS:
                        self._begin_reading(name, self._source_of(name))
                self._tell_of_old()
                self._errors.worked("lookups are followed again", action="follow lookups")
            except StrandlineError as error:
                self._errors.failed("could not follow lookups", error, action="follow lookups")
            except Exception:  # the edge: nobody would see that the thread has ended
                logger.exception("could not follow lookups", action="follow lookups")
            self._closing.wait(LOOK_INTERVAL_S)

    def _source_of(self, name: str) -> str:
        """Return the database or stream that the lookup follows."""
        source = LookupSpec.described(self._ledger.lookup(name).document).source
        assert source is not None
        return f"database {source.sql.database}" if source.sql is not None else f"stream {source.stream}"

    def _begin_reading(self, name: str, source: str) -> None:
        """Start to read the lookup, unless its source has all of its readers. Raises RuntimeError if no thread can be started;
        the next look tries again."""
        if list(self._reading.values()).count(source) >= READERS_PER_SOURCE:
            return
        self._reading[name] = source
        try:
            threading.Thread(target=self._follow_beside, args=(name,), daemon=True).start()
        except RuntimeError:
            self._reading.pop(name)
            raise

    def _follow_beside(self, name: str) -> None:
        try:
            self._follow(name)
        finally:
            self._reading.pop(name)

    def _follow(self, name: str) -> int:
        """Read one source, if it is still due; 1 when a new version came of it.

        1. Claim it, so that nobody else reads it.
        2. Read what has come since the version in force.
        3. Record that as a new version, or that nothing changed, or why it could not be read.
        """
        try:
            claimed = self._ledger.claim_lookup(name, self._reader, HOLD_MS)
            return 0 if claimed is None else self._read(claimed)
        except StrandlineError as error:  # of the ledger: another reading follows when the claim has run out
            logger.warning("could not follow a lookup", action="follow lookups", lookup=name, error=str(error))
        except Exception:  # the edge of a thread
            logger.exception("could not follow a lookup", action="follow lookups", lookup=name)
        return 0

    def _read(self, claimed: LookupSourceRow) -> int:
        present = self._ledger.lookup(claimed.lookup)
        source = LookupSpec.described(present.document).source
        assert source is not None
        try:
            read = self._sources.read_on(present, claimed.position)
        except LedgerUnavailable:
            raise
        except StrandlineError as error:
            torn = isinstance(error, LogTruncated)
            pause_ms = min(source.every, RETRY_MS_MAX)
            self._ledger.record_lookup_failure(claimed.lookup, claimed.claim, str(error), pause_ms, is_torn=torn)
            if claimed.failing_ms is None:
                self._tell("lookup_failing", claimed.lookup, f"lookup {claimed.lookup} can't be read: {error}")
            return 0
        version_bytes = None if read.packed is None else len(read.packed)
        pause_ms = wait_ms(source, version_bytes, is_current=read.is_current)
        row = self._ledger.record_lookup_rows(claimed.lookup, claimed.claim, read, pause_ms)
        if row is not None and claimed.failing_ms is not None:
            message = f"lookup {row.name} is read again, after {format_about(claimed.failing_ms)}"
            self._tell("lookup_read_again", row.name, message, is_well=True)
        return int(row is not None and row.version > present.version)

    def _tell_of_old(self) -> None:
        """An event for each lookup that has become too old, and a log line while this service sees it."""
        found = self._ledger.lookup_sources()
        documents = {row.name: row.document for row in self._ledger.lookups()} if found else {}
        for name, row in found.items():
            source = LookupSpec.described(documents[name]).source if name in documents else None
            if source is None or row.age_ms <= source.age_ms_max:
                self._old.discard(name)
            elif name not in self._old:
                self._old.add(name)
                self._tell("lookup_old", name, f"lookup {name} is as its source was {format_about(row.age_ms)} ago")
        self._old &= found.keys()

    def _tell(self, kind: str, name: str, message: str, *, is_well: bool = False) -> None:
        (logger.info if is_well else logger.warning)(message, action=kind, lookup=name)
        self._ledger.record_event(kind, message, facts={"lookup": name})
