"""The schema's revision: reads that of the database, and migrates it to that of this code."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from strandline.core.errors import Conflict
from strandline.ledger.database import Database

HEAD = "0025"
"""The revision that this code is written for. Revisions are numbered, one after the other."""
_LOCK_KEY = 0x5374_7261_6E64
_HERE = Path(__file__).parent


def migrate(database: Database) -> None:
    """Bring the schema to HEAD; many processes may call this at once, and one of them does the work.

    Raises Conflict when the ledger was written by a release that is more than one revision ahead of this one (a
    revision keeps the code of the revision before it working, not more).
    """
    with database.reading("read the schema's revision") as connection:
        if _is_usable(_revision(connection)):
            return
    with database.writing("migrate the schema") as connection:
        database.hold_lock(connection, _LOCK_KEY)
        if not _is_usable(_revision(connection)):
            move_schema(connection, HEAD)


def revision_of(database: Database) -> str | None:
    """The revision of the database's schema; None where it has none yet."""
    with database.reading("read the schema's revision") as connection:
        return _revision(connection)


def move_schema(connection: sa.Connection, revision: str) -> None:
    """Run the migrations from where the schema is to `revision` (`base` for none), in the connection's transaction."""
    # Alembic takes long to import, and an up-to-date ledger does without it.
    from alembic import command, config

    settings = config.Config()
    settings.set_main_option("script_location", str(_HERE / "migrations").replace("%", "%%"))
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


def _is_usable(revision: str | None) -> bool:
    ahead = int(revision or 0) - int(HEAD)
    if ahead > 1:
        raise Conflict(
            f"The ledger's schema is at revision {revision}, and this release knows {HEAD}: "
            "upgrade Strandline, or take the ledger back as its migration notes say."
        )
    return ahead >= 0
