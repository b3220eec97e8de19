"""The versions of the lookups' documents, and the rows of those that a replay may still need."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from strandline.core.errors import Conflict, NotFound
from strandline.ledger.lookups.needs import floor_of, forget_tables, has_same_document, lock_lookup, needs_of
from strandline.ledger.lookups.sources import LookupSourceReader, SourceBegin, add_version, follow, is_newest_claim
from strandline.ledger.models import lookup_sources, lookup_tables, lookup_versions, lookups
from strandline.ledger.part import Part
from strandline.ledger.states import LookupRow, LookupVersions

_PRESENT = (
    sa.select(
        lookups.c.name,
        lookups.c.version,
        lookup_versions.c.digest,
        lookup_versions.c.document,
        lookup_versions.c.rows,
        lookup_versions.c.applied_ms,
    )
    .join(
        lookup_versions, (lookup_versions.c.lookup == lookups.c.name) & (lookup_versions.c.version == lookups.c.version)
    )
    .order_by(lookups.c.name)
)


class LookupReader(LookupSourceReader):
    """Reads lookups, their versions and rows."""

    def lookups(self) -> list[LookupRow]:
        """Return all lookups in their current versions, by name."""
        with self._database.reading("list the lookups") as connection:
            return [LookupRow(*row) for row in connection.execute(_PRESENT)]

    def lookup(self, name: str) -> LookupRow:
        """Return a lookup in its current version. Raises NotFound."""
        with self._database.reading(f"read lookup {name}") as connection:
            row = connection.execute(_PRESENT.where(lookups.c.name == name)).first()
            if row is None:
                raise _no_lookup(name)
            return LookupRow(*row)

    def present_lookups(self, names: tuple[str, ...]) -> LookupVersions:
        """Return the current version of each of these lookups. Raises NotFound."""
        found = self.known_lookups(names)
        for name in names:
            if name not in found:
                raise _no_lookup(name)
        return {name: found[name] for name in names}

    def known_lookups(self, names: Collection[str]) -> LookupVersions:
        """Return the current version of each of these lookups. A lookup that doesn't exist is left out."""
        wanted = sa.select(lookups.c.name, lookups.c.version).where(lookups.c.name.in_(names))
        with self._database.reading("read the versions of lookups") as connection:
            return {name: version for name, version in connection.execute(wanted)}

    def lookup_history(self, name: str, newest: int | None = None) -> dict[int, LookupRow]:
        """Return version -> row, for all known versions or the newest ones, the oldest first. Raises NotFound."""
        wanted = sa.select(lookup_versions).where(lookup_versions.c.lookup == name)
        with self._database.reading(f"read the versions of lookup {name}") as connection:
            found = connection.execute(wanted.order_by(lookup_versions.c.version.desc()).limit(newest)).all()
        if not found:
            raise _no_lookup(name)
        return {one.version: _row(one) for one in reversed(found)}

    def lookup_version(self, name: str, version: int) -> LookupRow:
        """Return one version. Raises NotFound."""
        of_version = (lookup_versions.c.lookup == name) & (lookup_versions.c.version == version)
        with self._database.reading(f"read version {version} of lookup {name}") as connection:
            found = connection.execute(sa.select(lookup_versions).where(of_version)).first()
        if found is None:
            raise NotFound(f"There is no version {version} of lookup {name}.")
        return _row(found)

    def lookup_digests(self, name: str, first: int) -> dict[int, str]:
        """Return version -> digest, from this version on."""
        wanted = sa.select(lookup_versions.c.version, lookup_versions.c.digest)
        wanted = wanted.where(lookup_versions.c.lookup == name, lookup_versions.c.version >= first)
        with self._database.reading(f"read which rows versions of lookup {name} have") as connection:
            return {version: digest for version, digest in connection.execute(wanted)}

    def lookup_documents(self, name: str, first: int = 1) -> list[dict[str, Any]]:
        """Return the documents of the versions from this one on, each once, the oldest first. Raises NotFound."""
        wanted = sa.select(lookup_versions.c.document).where(
            lookup_versions.c.lookup == name, lookup_versions.c.version >= first
        )
        wanted = wanted.group_by(lookup_versions.c.document).order_by(sa.func.min(lookup_versions.c.version))
        with self._database.reading(f"read the documents of lookup {name}") as connection:
            found = list(connection.execute(wanted).scalars())
        if not found:
            raise _no_lookup(name)
        return found

    def lookup_table(self, digest: str) -> str:
        """Return the rows with this digest, packed. Raises NotFound if they are not kept any more."""
        wanted = sa.select(lookup_tables.c.packed).where(lookup_tables.c.digest == digest)
        with self._database.reading(f"read the rows {digest[:12]} of a lookup") as connection:
            found = connection.execute(wanted).scalar()
            if found is None:
                raise NotFound(f"The ledger does not keep the rows {digest[:12]} of a lookup any more.")
            return str(found)

    def lookup_floor(self, name: str) -> int | None:
        """Return the oldest version that a replay of any job may need. None if no job needs the lookup."""
        with self._database.reading(f"find which versions of lookup {name} are needed") as connection:
            return floor_of(connection, name)

    def jobs_with_lookup(self, name: str) -> list[str]:
        """Return the jobs whose slices or current version need the lookup."""
        with self._database.reading(f"find which jobs need lookup {name}") as connection:
            return sorted(needs_of(connection).get(name, {}))


class Lookups(Part):
    """Registers and deletes lookups. Each method is one transaction."""

    def put_lookup(
        self,
        name: str,
        document: dict[str, Any],
        digest: str,
        packed: str,
        rows: int,
        base: int | None = None,
        floor: int | None = None,
        source: SourceBegin | None = None,
        claim: int | None = None,
    ) -> LookupRow:
        """Register a lookup, or add a version. The same content again changes nothing.

        Args:
        - document: Without the rows, which are in `packed`.
        - base: Version that the document was checked against; 0 for none.
        - floor: The lookup's floor at that time.
        - source: Begin of following the rows' source. None if it isn't followed.
        - claim: Claim under which the rows were read, for a lookup that was followed before.

        Raises Conflict if the lookup has another version (unless only the rows of its source differ), or if there is a
        newer claim, whose rows may be newer.
        """
        with self._database.writing(f"register lookup {name}") as connection:
            present = lock_lookup(connection, name)
            if claim is not None and not is_newest_claim(connection, name, claim):
                raise Conflict(
                    f"Another process has read the source of lookup {name} since the reading of its rows began; apply the "
                    "documents again."
                )
            known = connection.execute(_PRESENT.where(lookups.c.name == name)).first() if present else None
            if known is not None and known.digest == digest:
                follow(self._database, connection, name, source)
                return LookupRow(*known)
            is_checked = base is None or has_same_document(connection, name, base, present)
            if not is_checked or (base is not None and floor != floor_of(connection, name)):
                raise Conflict(
                    f"Lookup {name} has just got another version, or another job that uses it; apply the documents again."
                )
            row = LookupRow(name, present + 1, digest, document, rows, self._clock_ms())
            add_version(self._database, connection, row, packed)
            follow(self._database, connection, name, source)
            forget_tables(self._database, connection, self._clock_ms())
            return row

    def delete_lookup(self, name: str) -> None:
        """Delete a lookup that no job needs. Raises Conflict if a job needs it; NotFound."""
        with self._database.writing(f"delete lookup {name}") as connection:
            if not lock_lookup(connection, name):
                raise _no_lookup(name)
            if needing := sorted(needs_of(connection).get(name, {})):
                raise Conflict(
                    f"Lookup {name} is needed by job {', '.join(needing)}: its current version uses it, or a slice that a "
                    "replay can read was enriched with it. Delete the job first, or run it without the lookup until these "
                    "slices are old."
                )
            for table in (lookup_versions, lookup_sources):
                connection.execute(sa.delete(table).where(table.c.lookup == name))
            connection.execute(sa.delete(lookups).where(lookups.c.name == name))
            forget_tables(self._database, connection, self._clock_ms())


def _row(found: Any) -> LookupRow:
    return LookupRow(found.lookup, found.version, found.digest, found.document, found.rows, found.applied_ms)


def _no_lookup(name: str) -> NotFound:
    return NotFound(f"There is no lookup {name}; register it with `strandline apply FILE`.")
