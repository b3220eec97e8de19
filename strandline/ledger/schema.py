"""The revision of the ledger's schema: compares the database with this code, and migrates the database."""

from __future__ import annotations

import sqlalchemy as sa

from strandline.core.errors import Conflict
from strandline.ledger.database import Database

HEAD = "r0001"
"""Revision that this code needs. Revisions are numbered without gaps; each keeps the code of the previous revision working."""
_LOCK_KEY = 0x5374_7261_6E64


def migrate(database: Database) -> None:
    """Migrate the schema to HEAD, unless it has this revision or the next one. Many processes can call this at the same time.

    Raises Conflict if this code can neither use nor migrate the schema (see `revisions_ahead`).
    """
    with database.reading("read the schema's revision") as connection:
        if revisions_ahead(_revision(connection)) >= 0:
            return
    with database.writing("migrate the schema") as connection:
        database.hold_lock(connection, _LOCK_KEY)
        if revisions_ahead(_revision(connection)) < 0:
            move_schema(connection, HEAD)


def revision_of(database: Database) -> str | None:
    """Return the revision of the database's schema. None if it has no schema."""
    with database.reading("read the schema's revision") as connection:
        return _revision(connection)


def revisions_ahead(revision: str | None) -> int:
    """Return by how many revisions a schema is ahead of HEAD: at most 1, below 0 if it must be migrated.

    Args: revision: None if there is no schema.
    Raises: Conflict: The revision is more than one ahead, or isn't from a release.
    """
    if revision is None:
        return -_number(HEAD)
    if not (revision[:1] == HEAD[:1] and revision[1:].isdecimal()):
        # The revisions of development were 0001 to 0025.
        raise Conflict(
            f"ledger: its schema has revision {revision}, which no release has: a development version before 0.1.0 created it; "
            "such a ledger can't be upgraded. Use a new database (STRANDLINE_LEDGER_URL; for strandline up: a new --data-dir), "
            "and other names for jobs, aliases, and streams of results"
        )
    ahead = _number(revision) - _number(HEAD)
    if ahead > 1:
        raise Conflict(
            f"ledger: its schema has revision {revision}, and this release can use {HEAD} and the next revision only; "
            "upgrade Strandline, or restore a copy of the ledger from before its upgrade"
        )
    return ahead


def move_schema(connection: sa.Connection, revision: str) -> None:
    """Migrate the schema up or down to `revision` (`base`: no tables), in the transaction of the connection."""
    # Alembic takes long to import, and a ledger that is up to date doesn't need it.
    from alembic import command, config

    settings = config.Config()
    settings.set_main_option("script_location", "strandline:migrations")
    settings.set_main_option("path_separator", "os")
    settings.attributes["connection"] = connection
    if revision == "base" or revision < (_revision(connection) or ""):
        command.downgrade(settings, revision)
    else:
        command.upgrade(settings, revision)


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)


def _number(revision: str) -> int:
    return int(revision[1:])
