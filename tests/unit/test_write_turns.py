"""Threads of one process that write to a ledger in SQLite: they wait without a connection."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from strandline.core.errors import LedgerUnavailable
from strandline.ledger import database
from strandline.ledger.database import Database

WRITERS = 40
"""More than the connections that a process opens."""


def test_reading_goes_on_while_many_threads_wait_to_write(tmp_path: Path) -> None:
    with closing(Database(f"sqlite:///{tmp_path / 'ledger.sqlite'}")) as opened:
        with opened.writing("make a table") as connection:
            connection.execute(sa.text("CREATE TABLE written (by INTEGER)"))
        begun = threading.Barrier(WRITERS + 1)

        def write(number: int) -> None:
            begun.wait()
            with opened.writing("write") as connection:
                connection.execute(sa.text("INSERT INTO written VALUES (:by)"), {"by": number})

        threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
        with opened.writing("hold the lock"):
            for thread in threads:
                thread.start()
            begun.wait()
            for _ in range(100):
                time.sleep(0.002)  # sleeps: so that the writers get the connections that are returned
                with opened.reading("count") as connection:
                    assert connection.execute(sa.text("SELECT count(*) FROM written")).scalar_one() == 0
        for thread in threads:
            thread.join()
        with opened.reading("count") as connection:
            assert connection.execute(sa.text("SELECT count(DISTINCT by) FROM written")).scalar_one() == WRITERS


def test_a_writer_that_waits_too_long_reports_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.05)
    found: list[Exception] = []
    with closing(Database(f"sqlite:///{tmp_path / 'ledger.sqlite'}")) as opened, opened.writing("hold the lock"):

        def write() -> None:
            try:
                with opened.writing("note the end"):
                    pass
            except LedgerUnavailable as error:
                found.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    assert "Could not note the end" in str(found[0])
