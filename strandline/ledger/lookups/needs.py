"""Which versions of lookups replays may still need.

A slice says by which version of each lookup it is enriched, and a version of a job by which one slices are that say none.
Versions never fall from slice to slice, so what the oldest slice of a job goes by is the oldest that the job can need: the
lookup's *floor* is the least of these of all jobs. A backfill of the job's present life needs what its version goes by: an audit
computes its windows again. Rows are kept by their digest, once, and go when all versions that have them
are below the floor and none of them is the present one. Documents without rows stay; of lookups that are followed, which have a
version for each change of their source, those go that are below the floor.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from strandline.core.errors import Conflict
from strandline.ledger.database import Database
from strandline.ledger.models import (
    backfills,
    job_versions,
    jobs,
    lookup_sources,
    lookup_tables,
    lookup_versions,
    lookups,
    slices,
)
from strandline.ledger.states import LookupVersions

_LOCK_KEY = 0x5374_7261_6E66


def lookups_of_version(
    connection: sa.Connection, job: str, before: int | None, checked: Mapping[str, int]
) -> LookupVersions:
    """What a new version of a job goes by where slices say none: for a lookup that the version before used what that went by, so
    that all its slices keep what they had; else the present version. `checked`: lookup -> the version that the job was checked
    against. Raises Conflict when a lookup has another one by now, unless that has other rows of its source alone."""
    known: LookupVersions = {}
    if checked and before is not None:
        of_before = (job_versions.c.job == job) & (job_versions.c.version == before)
        known = connection.execute(sa.select(job_versions.c.lookup_versions).where(of_before)).scalar() or {}
    found: LookupVersions = {}
    for name, version in sorted(checked.items()):
        present = lock_lookup(connection, name)
        if not has_same_document(connection, name, version, present):
            raise Conflict(f"Lookup {name} has just got another version; apply the documents again.")
        found[name] = known.get(name, present)
    return found


def hold_tables(database: Database, connection: sa.Connection) -> None:
    """Let nobody else remove rows until the transaction ends, nor take rows for kept that are just being removed."""
    database.hold_lock(connection, _LOCK_KEY)


def forget_tables(database: Database, connection: sa.Connection) -> None:
    """Remove the rows that no replay needs any more. Cheap where there are no lookups."""
    hold_tables(database, connection)
    versions = connection.execute(
        sa.select(
            lookup_versions.c.lookup, lookup_versions.c.version, lookup_versions.c.digest, lookups.c.version
        ).join(lookups, lookups.c.name == lookup_versions.c.lookup)
    ).all()
    kept = set(connection.execute(sa.select(lookup_tables.c.digest)).scalars())
    if len(kept) <= 1 and versions:
        return
    floors = floors_of(connection) if versions else {}
    needed = {
        digest
        for name, version, digest, present in versions
        if version >= min((present, *floors.get(name, {}).values()))
    }
    for digest in kept - needed:
        connection.execute(sa.delete(lookup_tables).where(lookup_tables.c.digest == digest))
    present_of = {name: present for name, _, _, present in versions}
    for name in connection.execute(sa.select(lookup_sources.c.lookup)).scalars().all():
        oldest = min((present_of[name], *floors.get(name, {}).values()))
        of_lookup = (lookup_versions.c.lookup == name) & (lookup_versions.c.version < oldest)
        connection.execute(sa.delete(lookup_versions).where(of_lookup))


def floor_of(connection: sa.Connection, name: str) -> int | None:
    """The oldest version that a replay of any job may need."""
    return min(floors_of(connection).get(name, {}).values(), default=None)


def floors_of(connection: sa.Connection) -> dict[str, dict[str, int]]:
    """Lookup -> job -> the oldest version that a replay of the job may need."""
    using = sa.select(job_versions.c.job, job_versions.c.version, job_versions.c.lookup_versions).join(
        jobs, jobs.c.name == job_versions.c.job
    )
    using = using.where(job_versions.c.lookup_versions != {}, jobs.c.deleted_ms.is_(None))
    bases: dict[str, dict[int, LookupVersions]] = {}
    for job, version, versions in connection.execute(using):
        bases.setdefault(job, {})[version] = versions
    floors: dict[str, dict[str, int]] = {}
    for job, of_versions in bases.items():
        of_job = slices.c.job == job
        live = set(connection.execute(sa.select(slices.c.version).where(of_job).distinct()).scalars())
        own = connection.execute(sa.select(jobs.c.version, jobs.c.generation).where(jobs.c.name == job)).one()
        of_life = (backfills.c.job == job) & (backfills.c.generation > own.generation)
        live |= {own.version, *connection.execute(sa.select(backfills.c.version).where(of_life)).scalars()}
        oldest = sa.select(slices.c.lookup_versions).where(of_job).order_by(slices.c.number).limit(1)
        said: LookupVersions = connection.execute(oldest).scalar() or {}
        for version in live & of_versions.keys():
            for name, base in of_versions[version].items():
                found = said.get(name, base)
                of_lookup = floors.setdefault(name, {})
                of_lookup[job] = min(found, of_lookup.get(job, found))
    return floors


def has_same_document(connection: sa.Connection, name: str, checked: int, present: int) -> bool:
    """Whether a document that was checked against one version fits the present one as well: it is that version, or has come from
    the lookup's source since."""
    if checked == present:
        return True
    of_both = (lookup_versions.c.lookup == name) & lookup_versions.c.version.in_((checked, present))
    documents = list(connection.execute(sa.select(lookup_versions.c.document).where(of_both)).scalars())
    return len(documents) == 2 and documents[0] == documents[1] and "source" in documents[0]


def lock_lookup(connection: sa.Connection, name: str) -> int:
    """Lock the lookup until the transaction ends, and return its present version; 0 when there is none."""
    wanted = sa.select(lookups.c.version).where(lookups.c.name == name).with_for_update()
    return int(connection.execute(wanted).scalar() or 0)
