"""The versions of lookups that replays may still need.

A slice contains the version of each lookup that enriches it. For slices that contain none, the version of the job
determines it. A replay of a job needs the lookup versions of its slices, and, while some slices contain none, those of
its job versions. A backfill of the job's current incarnation needs those of its job version, because an audit computes
its windows again. The minimum over all jobs is the lookup's *floor*.

In addition, these versions are kept: the current one, and those above the floor that were replaced less than an hour
ago. A process may have queried such a version, and not yet recorded a slice with it. Rows are stored once, by their
digest, and are removed when no kept version has them. Documents without rows are kept. A followed lookup has a version
for each change of its source; its documents are removed with the version.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

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
REPLACED_STAY_MS = 3_600_000
"""Time for which a replaced version is kept, even if nothing recorded uses it."""


def lookups_of_version(
    connection: sa.Connection, job: str, before: int | None, checked: Mapping[str, int]
) -> LookupVersions:
    """Return the lookup versions that a new version of a job uses for slices that contain none. Raises Conflict if a
    lookup has another version in the meantime, unless only the rows of its source differ.

    For a lookup of the previous job version they stay the same, so that all its slices keep their versions. For other
    lookups they are the current versions.

    Args: checked: Lookup -> version that the job was checked against.
    """
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
    """Prevent other transactions from removing rows until this one ends, and from relying on rows that are being
    removed."""
    database.hold_lock(connection, _LOCK_KEY)


def require_rows(database: Database, connection: sa.Connection, versions: LookupVersions) -> None:
    """Keep the rows of these versions until their use is recorded, in the same transaction.

    Raises Conflict if they were removed, because the versions were queried too long ago.
    """
    if versions:
        hold_tables(database, connection)
    for name, version in versions.items():
        rows = sa.select(lookup_tables.c.digest).join(
            lookup_versions, lookup_versions.c.digest == lookup_tables.c.digest
        )
        of_version = (lookup_versions.c.lookup == name) & (lookup_versions.c.version == version)
        if connection.execute(rows.where(of_version)).first() is None:
            raise Conflict(
                f"The ledger does not keep version {version} of lookup {name} any more; use the current version."
            )


def forget_tables(database: Database, connection: sa.Connection, now_ms: int) -> None:
    """Remove the rows that no replay needs any more. Cheap if there are no lookups."""
    hold_tables(database, connection)
    wanted = sa.select(
        lookup_versions.c.lookup, lookup_versions.c.version, lookup_versions.c.digest, lookup_versions.c.applied_ms
    )
    versions = connection.execute(wanted.order_by(lookup_versions.c.lookup, lookup_versions.c.version)).all()
    kept = set(connection.execute(sa.select(lookup_tables.c.digest)).scalars())
    if len(kept) <= 1 and versions:
        return
    needs = needs_of(connection) if versions else {}
    followed = set(connection.execute(sa.select(lookup_sources.c.lookup)).scalars())
    needed: set[str] = set()
    for name, of_lookup in groupby(versions, lambda one: str(one.lookup)):
        applied = {one.version: (one.applied_ms, one.digest) for one in of_lookup}
        staying = _staying({version: ms for version, (ms, _) in applied.items()}, needs.get(name, {}), now_ms)
        needed |= {digest for version, (_, digest) in applied.items() if version in staying}
        for version in applied.keys() - staying if name in followed else ():
            of_version = (lookup_versions.c.lookup == name) & (lookup_versions.c.version == version)
            connection.execute(sa.delete(lookup_versions).where(of_version))
    for digest in kept - needed:
        connection.execute(sa.delete(lookup_tables).where(lookup_tables.c.digest == digest))


def _staying(applied_ms: Mapping[int, int], needs: Mapping[str, set[int]], now_ms: int) -> set[int]:
    """Return the versions of a lookup that are kept.

    Args: applied_ms: Time at which each became effective, the oldest first; the last one is current. needs: Versions
    that each job needs.
    """
    present = max(applied_ms)
    needed = set[int]().union(*needs.values())
    if not needed:
        return {present}
    in_force = [version for version, ms in applied_ms.items() if ms <= now_ms - REPLACED_STAY_MS]
    first = max([min(needed), *in_force[-1:]])
    return needed | {present} | {version for version in applied_ms if version >= first}


def floor_of(connection: sa.Connection, name: str) -> int | None:
    """Return the oldest version that a replay of any job may need. None if no job needs the lookup."""
    return min((min(versions) for versions in needs_of(connection).get(name, {}).values()), default=None)


def needs_of(connection: sa.Connection) -> dict[str, dict[str, set[int]]]:
    """Return, for each lookup, the jobs whose replay may read it, and for each job the versions that its replay may
    read.

    Lookups and jobs without such a version are left out.
    """
    using = sa.select(job_versions.c.job, job_versions.c.version, job_versions.c.lookup_versions).join(
        jobs, jobs.c.name == job_versions.c.job
    )
    using = using.where(job_versions.c.lookup_versions != {}, jobs.c.deleted_ms.is_(None))
    bases: dict[str, dict[int, LookupVersions]] = {}
    for job, version, versions in connection.execute(using):
        bases.setdefault(job, {})[version] = versions
    needs: dict[str, dict[str, set[int]]] = {}
    for job, of_versions in bases.items():
        wanted = sa.select(slices.c.version, slices.c.lookup_versions).where(slices.c.job == job).distinct()
        cut = connection.execute(wanted).all()
        own = connection.execute(sa.select(jobs.c.version, jobs.c.generation).where(jobs.c.name == job)).one()
        of_life = (backfills.c.job == job) & (backfills.c.generation > own.generation)
        live = {own.version, *(version for version, _ in cut)}
        live |= set(connection.execute(sa.select(backfills.c.version).where(of_life)).scalars())
        said: list[LookupVersions] = [versions for _, versions in cut] or [{}]
        for version in live & of_versions.keys():
            for name, base in of_versions[version].items():
                of_job = needs.setdefault(name, {}).setdefault(job, set())
                of_job |= {versions.get(name, base) for versions in said}
    return needs


def has_same_document(connection: sa.Connection, name: str, checked: int, present: int) -> bool:
    """Return True if a document that was checked against one version also fits the current version: it is that version,
    or was read from the lookup's source since."""
    if checked == present:
        return True
    of_both = (lookup_versions.c.lookup == name) & lookup_versions.c.version.in_((checked, present))
    documents = list(connection.execute(sa.select(lookup_versions.c.document).where(of_both)).scalars())
    return len(documents) == 2 and documents[0] == documents[1] and "source" in documents[0]


def lock_lookup(connection: sa.Connection, name: str) -> int:
    """Lock the lookup until the transaction ends. Return its current version; 0 if there is none."""
    wanted = sa.select(lookups.c.version).where(lookups.c.name == name).with_for_update()
    return int(connection.execute(wanted).scalar() or 0)
