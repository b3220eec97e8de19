"""State of reading lookups whose rows come from a stream or a database: the reader, the position, and the outcome.

Several control services may read. Each reading is claimed first, for a time by the database's clock, and increments the
lookup's claim. Rows that were read under an older claim are not recorded. So versions never return to an earlier state
of the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from strandline.ledger.database import Database
from strandline.ledger.lookups.needs import forget_tables, hold_tables, lock_lookup
from strandline.ledger.models import lookup_sources, lookup_tables, lookup_versions, lookups
from strandline.ledger.part import Part
from strandline.ledger.states import LookupRow, LookupSourceRow, Offsets

_VERSIONS_A_SWEEP = 20
"""Number of new versions after which unneeded rows are removed: this reads the slices of all jobs."""


@dataclass(frozen=True)
class SourceBegin:
    """Begin of following a source."""

    position: Offsets | None
    """Position in a stream after the records that the version contains. None for a query."""
    wait_ms: int
    """Milliseconds until it is read again."""
    read_for_ms: int = 0
    """Milliseconds since the reading of the version's rows began."""
    skipped: int = 0
    skipped_last: str = ""


@dataclass(frozen=True)
class SourceRows:
    """Result of reading a source."""

    digest: str
    """Digest of the whole content, like that of a version."""
    packed: str | None
    """The rows. None if they are equal to those of the current version."""
    rows: int
    position: Offsets | None
    read_for_ms: int
    """Milliseconds since the reading began."""
    is_current: bool = True
    """True if it was read to its end."""
    skipped: int = 0
    """Number of records that could not become rows."""
    skipped_last: str = ""


class LookupSourceReader(Part):
    """Reads the state of following the sources of lookups."""

    def lookup_sources(self) -> dict[str, LookupSourceRow]:
        """Return lookup -> state of its reading, for all followed lookups, by name."""
        with self._database.reading("read how lookups are followed") as connection:
            found = connection.execute(_rows(self._database).order_by(lookup_sources.c.lookup))
            return {row.lookup: LookupSourceRow(*row) for row in found}

    def due_lookups(self) -> list[str]:
        """Return the lookups that must be read now."""
        now_ms = self._database.clock_ms()
        with self._database.reading("find the lookups that must be read") as connection:
            return list(connection.execute(sa.select(lookup_sources.c.lookup).where(_is_due(now_ms))).scalars())


class LookupSources(Part):
    """Records the rows that were read from sources of lookups. Each method is one transaction."""

    def claim_lookup(self, name: str, reader: str, hold_ms: int, *, at_once: bool = False) -> LookupSourceRow | None:
        """Begin a reading under a new claim. None if the lookup isn't due, or isn't followed.

        A reader that records nothing for `hold_ms` is treated as crashed. `at_once`: Begin even if the lookup isn't
        due, or another process reads it; the rows of that process are not recorded.
        """
        now_ms = self._database.clock_ms()
        with self._database.writing(f"begin to read lookup {name}") as connection:
            lock_lookup(connection, name)
            begun = {"claim": lookup_sources.c.claim + 1, "reader": reader} | _next(now_ms, hold_ms)
            of_lookup = lookup_sources.c.lookup == name
            claimed = sa.update(lookup_sources).where(of_lookup, sa.true() if at_once else _is_due(now_ms))
            if connection.execute(claimed.values(begun)).rowcount == 0:
                return None
            row = connection.execute(_rows(self._database).where(of_lookup)).one()
            return LookupSourceRow(*row)

    def release_lookups(self, reader: str) -> None:
        """Make the unfinished readings of this reader due immediately: it has restarted."""
        with self._database.writing(f"release what {reader} was reading") as connection:
            of_reader = sa.update(lookup_sources).where(lookup_sources.c.reader == reader)
            connection.execute(of_reader.values({"reader": ""} | _next(self._database.clock_ms(), 0)))

    def release_claim(self, name: str, claim: int) -> None:
        """Make a failed reading due again immediately, unless there is a newer claim."""
        with self._database.writing(f"release lookup {name}") as connection:
            of_claim = (lookup_sources.c.lookup == name) & (lookup_sources.c.claim == claim)
            released = {"reader": ""} | _next(self._database.clock_ms(), 0)
            connection.execute(sa.update(lookup_sources).where(of_claim).values(released))

    def record_lookup_rows(self, name: str, claim: int, read: SourceRows, wait_ms: int) -> LookupRow | None:
        """Record the rows that were read under this claim: as a new version, unless the current one has this content.
        Return the current version.

        None if there is a newer claim, or the lookup was deleted: then nothing changes. It is read again after
        `wait_ms`.
        """
        with self._database.writing(f"record the rows of lookup {name}") as connection:
            present = lock_lookup(connection, name)
            if not is_newest_claim(connection, name, claim):
                return None
            of_version = (lookup_versions.c.lookup == name) & (lookup_versions.c.version == present)
            known = connection.execute(sa.select(lookup_versions).where(of_version)).one()
            row = LookupRow(name, present, known.digest, known.document, known.rows, known.applied_ms)
            if known.digest != read.digest and read.packed is not None:
                row = LookupRow(name, present + 1, read.digest, known.document, read.rows, self._clock_ms())
                add_version(self._database, connection, row, read.packed)
                if row.version % _VERSIONS_A_SWEEP == 0:
                    forget_tables(self._database, connection, self._clock_ms())
            now_ms = self._database.clock_ms()
            values: dict[str, Any] = {"reader": "", "position": read.position, "failing_since_ms": None, "error": ""}
            values |= {"skipped": lookup_sources.c.skipped + read.skipped} | _next(now_ms, wait_ms)
            if read.skipped:
                values["skipped_last"] = read.skipped_last
            if read.is_current:
                values["current_ms"] = now_ms - read.read_for_ms
            connection.execute(sa.update(lookup_sources).where(lookup_sources.c.lookup == name).values(values))
            return row

    def record_lookup_failure(self, name: str, claim: int, error: str, wait_ms: int, *, is_torn: bool = False) -> None:
        """Record the reason of a failed reading, unless there is a newer claim.

        `is_torn`: The stream has lost records that were not read, so reading can't continue.
        """
        with self._database.writing(f"record that lookup {name} could not be read") as connection:
            lock_lookup(connection, name)
            if not is_newest_claim(connection, name, claim):
                return
            now_ms = self._database.clock_ms()
            since_ms = sa.func.coalesce(lookup_sources.c.failing_since_ms, now_ms)
            values: dict[str, Any] = {"reader": "", "error": error, "failing_since_ms": since_ms} | _next(
                now_ms, wait_ms
            )
            if is_torn:
                values["position"] = None
            connection.execute(sa.update(lookup_sources).where(lookup_sources.c.lookup == name).values(values))


def follow(database: Database, connection: sa.Connection, name: str, source: SourceBegin | None) -> None:
    """Follow the lookup's source from this position, under a new claim. `source`: None if it has none any more."""
    of_lookup = lookup_sources.c.lookup == name
    if source is None:
        connection.execute(sa.delete(lookup_sources).where(of_lookup))
        return
    now_ms = database.clock_ms()
    begun = {
        "reader": "",
        "position": source.position,
        "current_ms": now_ms - source.read_for_ms,
        "failing_since_ms": None,
        "error": "",
        "skipped": source.skipped,
        "skipped_last": source.skipped_last,
    } | _next(now_ms, source.wait_ms)
    known = connection.execute(
        sa.update(lookup_sources).where(of_lookup).values(begun | {"claim": lookup_sources.c.claim + 1})
    )
    if known.rowcount == 0:
        connection.execute(sa.insert(lookup_sources).values(begun | {"lookup": name, "claim": 1}))


def is_newest_claim(connection: sa.Connection, name: str, claim: int) -> bool:
    """Return True if the lookup is still followed and no reading has begun since this claim."""
    newest = sa.select(lookup_sources.c.claim).where(lookup_sources.c.lookup == name)
    return bool(connection.execute(newest).scalar() == claim)


def add_version(database: Database, connection: sa.Connection, row: LookupRow, packed: str) -> None:
    """Make this the current version of the lookup, whose row is locked."""
    hold_tables(database, connection)
    if row.version > 1:
        connection.execute(sa.update(lookups).where(lookups.c.name == row.name).values(version=row.version))
    else:
        connection.execute(sa.insert(lookups).values(name=row.name, version=1, created_ms=row.applied_ms))
    values = {name: value for name, value in vars(row).items() if name != "name"}
    connection.execute(sa.insert(lookup_versions).values(lookup=row.name, **values))
    table = {"digest": row.digest, "packed": packed, "kept_ms": row.applied_ms}
    connection.execute(database.insert_new(lookup_tables).values(table))


def _rows(database: Database) -> sa.Select[Any]:
    of, now_ms = lookup_sources.c, database.clock_ms()
    ages = (now_ms - of.current_ms, of.due_ms - now_ms, now_ms - of.failing_since_ms)
    age_ms, due_in_ms, failing_ms = (sa.case((one < 0, 0), else_=one) for one in ages)
    return sa.select(
        of.lookup, of.claim, of.position, age_ms, due_in_ms, failing_ms, of.error, of.skipped, of.skipped_last
    )


def _next(now_ms: sa.ColumnElement[int], wait_ms: int) -> dict[str, object]:
    return {"due_ms": now_ms + wait_ms, "wait_ms": wait_ms}


def _is_due(now_ms: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    """True also if the database's clock was set back since."""
    return (lookup_sources.c.due_ms <= now_ms) | (lookup_sources.c.due_ms > now_ms + lookup_sources.c.wait_ms)
