"""Threads of one process that write to a ledger in SQLite: they wait without a connection."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from strandline.core.errors import LedgerUnavailable
from strandline.ledger import database
from strandline.ledger.database import Database
from tests.support.waiting import stretched

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


class Writers:
    """Threads that write one number each, while another thread holds the turn, so that they wait together."""

    def __init__(self, opened: Database) -> None:
        self._opened = opened
        self.commits = 0
        sa.event.listen(opened._writers, "commit", self._count)
        with opened.writing("make a table") as connection:
            connection.execute(sa.text("CREATE TABLE written (by INTEGER)"))
        self.commits = 0

    def _count(self, _connection: sa.Connection) -> None:
        self.commits += 1

    def write_together(self, numbers: range, *, odd_fail: bool = False) -> dict[int, str]:
        """Return number -> error of the writers that failed."""
        found: dict[int, str] = {}

        def write(number: int) -> None:
            try:
                with self._opened.writing("write") as connection:
                    connection.execute(sa.text("INSERT INTO written VALUES (:by)"), {"by": number})
                    if odd_fail and number % 2:
                        raise ValueError(f"{number} is odd")
                assert number in self.written(), "a thread goes on when its rows are committed"
            except Exception as error:  # noqa: BLE001 - the test compares it
                found[number] = str(error)

        threads = [threading.Thread(target=write, args=(number,)) for number in numbers]
        shared = self._opened._shared
        assert shared is not None
        with self._opened.writing("hold the turn"):
            for thread in threads:
                thread.start()
            while shared._waiting < len(threads):
                time.sleep(0.001)  # sleeps: until all wait
        for thread in threads:
            thread.join()
        return found

    def written(self) -> set[int]:
        with self._opened.reading("read") as connection:
            return set(connection.execute(sa.text("SELECT by FROM written")).scalars())


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Database]:
    with closing(Database(f"sqlite:///{tmp_path / 'ledger.sqlite'}")) as found:
        yield found


def test_threads_that_wait_share_few_commits(opened: Database) -> None:
    writers = Writers(opened)
    assert writers.write_together(range(20)) == {}
    assert writers.written() == set(range(20))
    assert writers.commits < 10


def test_a_thread_that_fails_undoes_its_own_rows_only(opened: Database) -> None:
    writers = Writers(opened)
    found = writers.write_together(range(10), odd_fail=True)
    assert found == {number: f"{number} is odd" for number in range(1, 10, 2)}
    assert writers.written() == set(range(0, 10, 2))


def test_a_commit_that_fails_fails_for_all_of_its_threads(opened: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    writers = Writers(opened)
    monkeypatch.setattr(database, "_SHARED_S_MAX", 10.0)

    def refuse(_connection: sa.Connection) -> None:
        raise sa.exc.OperationalError("COMMIT", None, OSError("disk I/O error"))

    shared = opened._shared
    assert shared is not None
    with contextlib.suppress(LedgerUnavailable), opened.writing("hold the turn"):
        sa.event.listen(opened._writers, "commit", refuse)
        threads_found: dict[int, str] = {}

        def write(number: int) -> None:
            try:
                with opened.writing(f"write {number}") as connection:
                    connection.execute(sa.text("INSERT INTO written VALUES (:by)"), {"by": number})
            except LedgerUnavailable as error:
                threads_found[number] = str(error)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        while shared._waiting < len(threads):
            time.sleep(0.001)  # sleeps: until all wait
    for thread in threads:
        thread.join()
    assert sorted(threads_found) == list(range(5))
    sa.event.remove(opened._writers, "commit", refuse)
    assert writers.written() == set()
    assert writers.write_together(range(3)) == {}, "the next transaction is a new one"


def test_a_transaction_that_the_database_rolled_back_fails_for_all_of_its_threads(opened: Database) -> None:
    writers = Writers(opened)
    shared = opened._shared
    assert shared is not None
    errors: dict[str, Exception] = {}
    may_fail = threading.Event()

    def write() -> None:
        try:
            with opened.writing("write first") as connection:
                connection.execute(sa.text("INSERT INTO written VALUES (1)"))
                assert may_fail.wait(stretched(10))
        except LedgerUnavailable as error:
            errors["first"] = error

    def fail() -> None:
        try:
            with opened.writing("write second") as connection:
                connection.connection.dbapi_connection.execute("ROLLBACK")  # type: ignore[union-attr]
                raise sa.exc.OperationalError("INSERT", None, OSError("database or disk is full"))
        except LedgerUnavailable as error:
            errors["second"] = error

    threads = [threading.Thread(target=write), threading.Thread(target=fail)]
    threads[0].start()
    while not shared._is_writing:
        time.sleep(0.001)  # sleeps: until the first one writes
    threads[1].start()
    while not shared._waiting:
        time.sleep(0.001)  # sleeps: until the second one waits
    may_fail.set()
    for thread in threads:
        thread.join()
    assert errors.keys() == {"first", "second"}
    assert writers.written() == set()


def test_a_thread_that_gives_up_does_not_hold_up_the_commit(opened: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread before it left the commit to it, because it waited for its turn."""
    writers = Writers(opened)
    shared = opened._shared
    assert shared is not None
    with shared._changed:
        shared._waiting += 1  # a thread that waits
    done = threading.Event()

    def write() -> None:
        with opened.writing("write") as connection:
            connection.execute(sa.text("INSERT INTO written VALUES (1)"))
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert not done.wait(0.1)
    with shared._changed:
        shared._waiting -= 1
        shared._changed.notify_all()
    thread.join(stretched(10))
    assert done.is_set()
    assert writers.written() == {1}
