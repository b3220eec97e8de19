"""Rows for tests of the ledger, and ledgers that are made quickly."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from strandline.ledger import part
from strandline.ledger.database import Database, sqlite_file
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import CheckpointRow, EventTimeRule, SliceKind, SliceRow, SliceStatus

WITH_SERVERS = {"contract", "integration", "fault"}
"""The kinds of test in which a ledger is as safe as it is for users."""


def a_slice(number: int, epoch: int = 1, job: str = "power", **changed: Any) -> SliceRow:
    """Slice `number` of a stream with two partitions: ten records in one, twenty in the other."""
    values: dict[str, Any] = {
        "job": job,
        "number": number,
        "epoch": epoch,
        "version": 1,
        "offsets_first": {"turbines": {0: 10 * (number - 1), 1: 20 * (number - 1)}},
        "offsets": {"turbines": {0: 10 * number, 1: 20 * number}},
        "cut_time_ms": 1_000 * number,
        "watermark_ms": 900 * number,
        "rule": EventTimeRule(delay_ms=100, idle_timeout_ms=None),
        "reached": {"turbines": {0: 1_000 * (number - 1), 1: 1_000 * (number - 1)}} if number > 1 else {},
        "silence_ms": {},
        "kind": SliceKind.LIVE,
        "status": SliceStatus.PLANNED,
        "planned_ms": 1_000 * number,
        "stream_versions": {"turbines": 1},
    }
    return SliceRow(**values | changed)


def a_checkpoint(number: int, epoch: int = 1, job: str = "power", **changed: Any) -> CheckpointRow:
    """The checkpoint of `a_slice(number)`: 30 records, of which one was late and one broken."""
    values: dict[str, Any] = {
        "job": job,
        "slice": number,
        "epoch": epoch,
        "version": 1,
        "emitted": {"per_minute": 60_000 * number},
        "latest_event_ms": 1_000 * number,
        "latest_log_ms": 1_100 * number,
        "records": 30,
        "accepted": 28,
        "rejected": {"late": 1, "decode": 1},
        "results": {"per_minute": 5},
        "dead_letter_offsets": {0: 2 * number},
        "committed_ms": 1_200 * number,
        "result_offsets": {"turbine-minute": {0: 7 * number, 1: 3 * number}},
        "closes_ms": 1_000 * number - 100,
        "reached": {"turbines": {0: 1_000 * number, 1: 1_000 * number}},
    }
    return CheckpointRow(**values | changed)


def run_sql(ledger_url: str, statement: str, **parameters: Any) -> list[Any]:
    """Run one statement on a ledger's database from outside, as any SQL client may, and return its rows."""
    database = Database(ledger_url)
    try:
        with database.writing("run a test's statement") as connection:
            found = connection.execute(sa.text(statement), parameters)
            return list(found.all()) if found.returns_rows else []
    finally:
        database.close()


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite ledger with the present schema and nothing in it."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    Ledger.migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(autouse=True, scope="module")
def ledgers_are_copied(request: pytest.FixtureRequest, migrated_file: Path) -> Iterator[None]:
    """A new ledger in a SQLite file begins as a copy of one that was migrated: the migrations run once, not for each test.

    And its statements are compiled once in a process: each ledger of a test would compile them again.

    The tests of the migrations themselves do without.
    """
    if "migration" in request.path.parts:
        yield
        return
    statements = _known_statements(migrated_file)

    def copy_and_open(url: str) -> Database:
        path = sqlite_file(url)
        if path is not None:
            _provide(migrated_file, path)
        database = Database(url)
        if path is not None:
            for engine in (database._readers, database._writers):
                engine.dialect, engine._compiled_cache = statements.dialect, statements._compiled_cache
        if path is not None and not WITH_SERVERS & set(request.path.parts):
            sa.event.listen(database._readers, "connect", _sync_nothing)
        return database

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part, "Database", copy_and_open)
        yield


@functools.cache
def _known_statements(migrated_file: Path) -> sa.Engine:
    """An engine that has connected, and whose compiled statements all ledgers in SQLite share."""
    database = Database(f"sqlite:///{migrated_file}")
    with database.reading("open a ledger of the tests"):
        pass
    database.close()
    return database._readers


def _sync_nothing(connection: Any, record: Any) -> None:
    """Turn off syncing: the writes of a killed process stay, and no test cuts the machine's power."""
    connection.execute("PRAGMA synchronous=OFF").close()


def _provide(template: Path, path: Path) -> None:
    """Copy the template to `path` in one step, unless something is there: others may do the same just now."""
    if not path.exists() and path.parent.is_dir():
        copy = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        shutil.copy(template, copy)
        with contextlib.suppress(FileExistsError):
            os.link(copy, path)
        copy.unlink()
