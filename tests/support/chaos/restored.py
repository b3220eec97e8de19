"""Faults that take a store back to an earlier state while everything runs, and the remedy that the job's message names."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.support.chaos.acts import ANSWER_TIMEOUT_S, ask, wait_for_backfills
from tests.support.chaos.faults import End, Fault, send_signal
from tests.support.chaos.job_stack import JobStack
from tests.support.chaos.machine import copy_files
from tests.support.chaos.processes import signal_each
from tests.support.waiting import stretched, wait_until

LOST_S = 5.0
"""Minimum age of the copy to which a store is restored."""
FAILED_TIMEOUT_S = 180.0
BUSY_S = 2.0
"""Maximum time for a copy while the processes are stopped: one of them may hold SQLite's lock."""
TRIES_MAX = 50
LEDGER_BEHIND = "the ledger is older than what job {job} has written"
INDEX_BEHIND = "are missing in index"
REACHED_LEDGER, REACHED_INDEX = "ledger-behind", "index-behind"
OLDER, NEWEST, OLDER_INDEX = "ledger-older", "ledger-newest", "index-older"
"""Copies of the ledger and of the index's files, in the directory of the stack."""


class _Busy(Exception):
    """A stopped process holds the lock of the ledger."""


class LedgerRestored(Fault):
    """The ledger loses its last 5 s or more under the running jobs, as in a failover to an asynchronous replica. Each job that
    committed a slice meanwhile must fail with the documented message. The newest copy is restored, and the jobs are started."""

    is_alone = True

    def __init__(self) -> None:
        super().__init__("ledger restored", "", 0.0, End.WHEN_OTHERS_ENDED, touches=frozenset({"ledger"}))

    def prepare(self, stack: JobStack) -> None:
        wait_for_backfills(stack)

    def begin(self, stack: JobStack) -> None:
        with _copied(stack):
            self._copy(stack, stack.directory / OLDER)
        known = _committed(stack)
        began_s = time.monotonic()
        wait_until(
            lambda: _committed(stack),
            lambda now: (
                all(now.get(job, 0) > number for job, number in known.items()) and time.monotonic() - began_s >= LOST_S
            ),
            "committed: slices that the copy lacks",
            ANSWER_TIMEOUT_S,
        )
        with _copied(stack):
            self._swap(stack, stack.directory / OLDER, stack.directory / NEWEST)

    def end(self, stack: JobStack) -> None:
        found = wait_until(
            lambda: _failures(stack), lambda rows: len(rows) == len(stack.jobs), "failed", FAILED_TIMEOUT_S
        )
        for job, message in found.items():
            assert LEDGER_BEHIND.format(job=job) in message, message
        stack.noted[REACHED_LEDGER] += 1
        with _copied(stack):
            self._swap(stack, stack.directory / NEWEST, None)
        for one in stack.jobs:
            ask(stack, "to start", lambda control, job=one.name: control.order(job, "start"))

    def _copy(self, stack: JobStack, into: Path) -> None:
        if stack.postgresql is not None:
            stack.postgresql.copy(into)
            return
        _stopped(stack, lambda: _backup(_ledger(stack), into))

    def _swap(self, stack: JobStack, present: Path, kept: Path | None) -> None:
        """Make `present` the ledger. `kept`: where its state of now is copied first."""
        if stack.postgresql is not None:
            stack.postgresql.swap(present, kept)
            return

        def swap() -> None:
            if kept is not None:
                _backup(_ledger(stack), kept)
            _backup(present, _ledger(stack))

        _stopped(stack, swap)


class IndexRestored(Fault):
    """The index loses its last 5 s or more, as if it had been restored from a copy, and the runners are killed. Each job must
    refuse to start, with the command that restores the missing results. The command is given, and the jobs go on."""

    is_alone = True

    def __init__(self) -> None:
        super().__init__("index restored", "", 0.0, End.WHEN_OTHERS_ENDED, touches=frozenset({"elasticsearch"}))
        self._restored: dict[str, int] = {}

    def prepare(self, stack: JobStack) -> None:
        """The job restores results of its own version only, so none that another version emitted may be lost."""
        wait_for_backfills(stack)
        wait_until(
            lambda: _versions(stack),
            lambda found: all(found.get(job.name) == stack.versions[job.name] for job in stack.jobs),
            "committed: a slice of the newest version of each job",
            ANSWER_TIMEOUT_S,
        )
        self._restored = _restored(stack)

    def begin(self, stack: JobStack) -> None:
        data = stack.directory / "elasticsearch" / "data"
        with _without(stack, "elasticsearch"):
            copy_files(data, stack.directory / OLDER_INDEX)
        known, began_s = _results(stack), time.monotonic()
        wait_until(
            lambda: _results(stack),
            lambda now: (
                all(now.get(one.name, 0) > known.get(one.name, 0) for one in stack.jobs)
                and time.monotonic() - began_s >= LOST_S
            ),
            "committed: results that the copy lacks",
            ANSWER_TIMEOUT_S,
        )
        with _without(stack, "elasticsearch"):
            send_signal(stack.family(), signal.SIGKILL)
            copy_files(stack.directory / OLDER_INDEX, data)

    def end(self, stack: JobStack) -> None:
        found = wait_until(
            lambda: _failures(stack), lambda rows: len(rows) == len(stack.jobs), "failed", FAILED_TIMEOUT_S
        )
        for job, message in found.items():
            assert INDEX_BEHIND in message and f"strandline job backfill {job} --missing" in message, message
            ask(stack, "to restore", lambda control, job=job: control.order(job, "restore"))
        wait_until(
            lambda: _restored(stack),
            lambda times: all(times.get(job, 0) > self._restored.get(job, 0) for job in found),
            "restored: the missing results",
            FAILED_TIMEOUT_S,
        )
        stack.noted[REACHED_INDEX] += 1


@contextmanager
def _without(stack: JobStack, part: str) -> Iterator[None]:
    """Kill a server, and start it again at the end."""
    send_signal(stack.named(part), signal.SIGKILL)
    wait_until(lambda: stack.named(part), lambda pids: not pids, f"gone: {part}")
    yield
    stack.mend_all([part])


def _results(stack: JobStack) -> dict[str, int]:
    """Number of results that each job's checkpoints count."""
    rows = stack.ask_ledger("SELECT job, results FROM checkpoints")
    found: dict[str, int] = {}
    for row in rows:
        found[row["job"]] = found.get(row["job"], 0) + sum(row["results"].values())
    return found


def _restored(stack: JobStack) -> dict[str, int]:
    """Return the number of restores of missing results of each job."""
    rows = stack.ask_ledger("SELECT job, count(*) AS times FROM events WHERE kind = 'results_restored' GROUP BY job")
    return {row["job"]: row["times"] for row in rows}


def _failures(stack: JobStack) -> dict[str, str]:
    rows = stack.ask_ledger("SELECT name, message FROM jobs WHERE state = 'failed'")
    return {row["name"]: row["message"] for row in rows}


def _committed(stack: JobStack) -> dict[str, int]:
    rows = stack.ask_ledger("SELECT job, max(slice) AS slice FROM checkpoints GROUP BY job")
    return {row["job"]: row["slice"] for row in rows}


def _versions(stack: JobStack) -> dict[str, int]:
    """Version of the last committed slice of each job."""
    rows = stack.ask_ledger(
        "SELECT job, version FROM slices "
        "WHERE number = (SELECT max(slice) FROM checkpoints WHERE checkpoints.job = slices.job)"
    )
    return {row["job"]: row["version"] for row in rows}


def _ledger(stack: JobStack) -> Path:
    return Path(stack.ledger_url.removeprefix("sqlite:///"))


@contextmanager
def _copied(stack: JobStack) -> Iterator[None]:
    """The ledger is away for a moment: PostgreSQL stands still while its files are copied."""
    yield
    wait_until(lambda: stack.ask_ledger("SELECT name FROM jobs"), bool, "readable: the ledger", ANSWER_TIMEOUT_S, 0.1)


def _stopped(stack: JobStack, act: Callable[[], None]) -> None:
    """Do it while no process that has the ledger open runs, and none holds its lock."""
    for _ in range(TRIES_MAX):
        pids = send_signal(stack.ledger_users(), signal.SIGSTOP)
        try:
            act()
            return
        except _Busy:
            pass
        finally:
            signal_each(pids, signal.SIGCONT)
        time.sleep(0.2)  # sleeps: the processes run on, and give the lock free
    raise AssertionError(f"the ledger was locked at each of {TRIES_MAX} tries")


def _backup(source: Path, into: Path) -> None:
    """Raises _Busy, and changes nothing, if another process holds a lock for too long."""
    until_s = time.monotonic() + stretched(BUSY_S)

    def check(status: int, _remaining: int, _total: int) -> None:
        if status not in (sqlite3.SQLITE_OK, sqlite3.SQLITE_DONE) and time.monotonic() > until_s:
            raise _Busy

    try:
        with (
            closing(sqlite3.connect(source, timeout=0.5)) as read,
            closing(sqlite3.connect(into, timeout=0.5)) as written,
        ):
            read.backup(written, progress=check, sleep=0.1)
    except sqlite3.OperationalError as error:
        raise _Busy from error
