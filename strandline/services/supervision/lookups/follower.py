"""Follows the sources of lookups: reads each source when it is due, and records changes as a new version.

Any number of control services can do this. A reading is first claimed in the ledger, for a limited time. If a reader crashes,
another one takes over, and late results of a paused reader are not recorded (`ledger/lookups/sources.py`). No job waits for it.
While a source can't be read, the current version stays effective. The lookup's status, its metrics, and an event report its
age.
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

POLL_INTERVAL_S = 1.0
RETRY_MS_MAX = 60_000
"""Maximum time until a source that could not be read is queried again, even if `every` is longer."""
READERS = 16
"""Maximum number of readings at the same time."""
READERS_PER_SOURCE = 2
"""Maximum number of readings of one database or stream at the same time: if it doesn't respond, others still have readers."""
END_PATIENCE_S = 5.0
"""Time in seconds for running readings when the service ends. Later results are read again."""


class Sources(Protocol):
    """Reader of sources, as `SourceReader`."""

    def read_on(self, present: LookupRow, position: Offsets | None) -> SourceRows: ...


class LookupFollower:
    """Runs in its own threads between `start` and `close`."""

    def __init__(self, ledger: FollowerLedger, sources: Sources, reader: str) -> None:
        """Args: reader: Name of this control service, which no other service has at the same time."""
        self._ledger = ledger
        self._sources = sources
        self._reader = reader
        self._errors = RepeatedErrors(logger)
        self._old: set[str] = set()
        """Lookups that are too old, and for which this service has recorded an event."""
        self._reading: dict[str, str] = {}
        """Lookups that are being read -> the database or stream of each."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follow-lookups", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Begin no new reading, and wait a moment for the running readings."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        deadline_s = time.monotonic() + END_PATIENCE_S
        while self._reading and time.monotonic() < deadline_s:
            time.sleep(0.05)

    def look(self) -> int:
        """Read each due source once, one after the other. Return the number of new versions."""
        return sum(self._follow(name) for name in self._ledger.due_lookups())

    def _run(self) -> None:
        is_released = False
        while not self._closing.is_set():
            try:
                if not is_released:  # readings of an earlier start of this service
                    self._ledger.release_lookups(self._reader)
                    is_released = True
                for name in self._ledger.due_lookups():
                    if name not in self._reading and len(self._reading) < READERS:
                        self._begin_reading(name, self._source_of(name))
                self._tell_of_old()
                self._errors.worked("lookups are followed again", action="follow lookups")
            except StrandlineError as error:
                self._errors.failed("can't follow lookups", error, action="follow lookups")
            except Exception:  # edge: the end of the thread would go unnoticed
                logger.exception("can't follow lookups", action="follow lookups")
            self._closing.wait(POLL_INTERVAL_S)

    def _source_of(self, name: str) -> str:
        """Return the database or stream that the lookup follows."""
        source = LookupSpec.described(self._ledger.lookup(name).document).source
        assert source is not None
        return f"database {source.sql.database}" if source.sql is not None else f"stream {source.stream}"

    def _begin_reading(self, name: str, source: str) -> None:
        """Start to read the lookup, unless its source has all of its readers. Raises RuntimeError if no thread can be started;
        the next poll tries again."""
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
        """Read one source, if it is still due. Return 1 if there is a new version, otherwise 0.

        1. Claim it, so that no other reader reads it.
        2. Read the changes since the current version.
        3. Record a new version, or that nothing changed, or the error.
        """
        try:
            claimed = self._ledger.claim_lookup(name, self._reader, HOLD_MS)
            return 0 if claimed is None else self._read(claimed)
        except StrandlineError as error:  # of the ledger: another reading follows when the claim has expired
            logger.warning("can't follow a lookup", action="follow lookups", lookup=name, error=str(error))
        except Exception:  # edge of a thread
            logger.exception("can't follow a lookup", action="follow lookups", lookup=name)
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
        """Record an event and log a warning for each lookup whose rows have become older than its `max_age`, once until
        they are current again.
        """
        found = self._ledger.lookup_sources()
        documents = {row.name: row.document for row in self._ledger.lookups()} if found else {}
        for name, row in found.items():
            source = LookupSpec.described(documents[name]).source if name in documents else None
            if source is None or row.age_ms <= source.age_ms_max:
                self._old.discard(name)
            elif name not in self._old:
                self._old.add(name)
                self._tell(
                    "lookup_old", name, f"lookup {name} has the content of its source of {format_about(row.age_ms)} ago"
                )
        self._old &= found.keys()

    def _tell(self, kind: str, name: str, message: str, *, is_well: bool = False) -> None:
        (logger.info if is_well else logger.warning)(message, action=kind, lookup=name)
        self._ledger.record_event(kind, message, facts={"lookup": name})
