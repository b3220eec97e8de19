"""Check of the ledger: the responses of its database, its schema, whether it can be written, and its clock."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing

import sqlalchemy as sa

from strandline.core.errors import Conflict, LedgerUnavailable
from strandline.ledger.database import Database, sqlite_file
from strandline.ledger.models import metadata
from strandline.ledger.schema import HEAD, revision_of, revisions_ahead
from strandline.services.doctor.finding import Finding, ok, warning, wrong
from strandline.services.doctor.kafka import clock_findings

SUBJECT = "ledger"
UPGRADE = "to create it or bring it up to date, run python -m strandline.services.setup, or strandline up"


def check_ledger(url: str, *, is_upgraded_next: bool = False) -> Iterator[Finding]:
    """Yield the findings. Raises InvalidSettings for a URL that can't be a ledger.

    Args: is_upgraded_next: True if the caller brings the schema up to date itself.
    """
    file = sqlite_file(url)
    if file is not None and not file.exists():  # a connection would create the file
        there = next(one for one in file.absolute().parents if one.exists())
        if not os.access(there, os.W_OK):
            yield wrong(SUBJECT, f"there is no {file}, and {there} can't be written", "check STRANDLINE_LEDGER_URL")
        elif is_upgraded_next:
            yield ok(SUBJECT, f"{file} is created next")
        else:
            yield wrong(SUBJECT, f"there is no {file} yet", UPGRADE)
        return
    with closing(Database(url)) as database:
        try:
            revision = revision_of(database)
        except LedgerUnavailable as error:
            yield wrong(SUBJECT, str(error), "start the database, or check STRANDLINE_LEDGER_URL and its login")
            return
        yield ok(SUBJECT, f"its database answers at {database.address}")
        yield _of_revision(revision, is_upgraded_next)
        if revision == HEAD:
            yield from _of_writing(database)
        yield from _of_clock(database)


def _of_revision(revision: str | None, is_upgraded_next: bool) -> Finding:
    try:
        ahead = revisions_ahead(revision)
    except Conflict as error:
        message, _, remedy = str(error).removeprefix("ledger: ").partition("; ")
        return wrong(SUBJECT, message, remedy)
    if ahead == 1:
        message = f"its schema is at revision {revision}, one ahead of this release ({HEAD}), which can still use it"
        return warning(SUBJECT, message, "upgrade Strandline on this machine, too")
    if ahead == 0:
        return ok(SUBJECT, f"its schema is at revision {HEAD}, as this release needs it")
    message = (
        f"its schema is at revision {revision}, and this release needs {HEAD}" if revision else "it has no tables yet"
    )
    return ok(SUBJECT, f"{message}; that is done next") if is_upgraded_next else wrong(SUBJECT, message, UPGRADE)


def _of_writing(database: Database) -> Iterator[Finding]:
    """Check that every table can be written, with statements that change no row but need the same rights."""
    try:
        with database.writing("write to the ledger") as connection:
            for table in metadata.sorted_tables:
                connection.execute(sa.delete(table).where(sa.false()))
                nothing = sa.select(table).where(sa.false())
                connection.execute(sa.insert(table).from_select([column.name for column in table.columns], nothing))
    except LedgerUnavailable as error:
        remedy = (
            "give the user all rights on the ledger's tables, and check that the database accepts writes "
            "(it must not be a standby)"
        )
        yield wrong(SUBJECT, str(error), remedy)
        return
    yield ok(SUBJECT, "its tables can be written")


def _of_clock(database: Database) -> Iterator[Finding]:
    before_ms = time.time_ns() // 1_000_000
    with database.reading("read the database's clock") as connection:
        theirs_ms = int(connection.execute(sa.select(database.clock_ms())).scalar_one())
    yield from clock_findings(SUBJECT, theirs_ms, before_ms, time.time_ns() // 1_000_000)
