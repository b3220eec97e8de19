"""Rounds of a supervisor with many jobs: the starts of all jobs share their requests to the ledger. The pools do nothing."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from strandline.core.errors import LedgerUnavailable
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import JobState
from strandline.services.supervision.leadership import ServiceIdentity
from strandline.services.supervision.placement import pool_placement
from strandline.services.supervision.pools import PoolProcess, Pools
from strandline.services.supervision.supervision_times import SupervisionTimes
from strandline.services.supervision.supervisor import Supervisor
from tests.support.ledgers import run_sql
from tests.support.waiting import wait_until
from tests.unit.test_pools import pipeline

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


class Stage:
    """A ledger with jobs, and supervisors whose rounds a test begins."""

    def __init__(self, directory: Path, job_count: int) -> None:
        self.directory, self.url = directory, f"sqlite:///{directory / 'ledger.sqlite'}"
        self.ledger = Ledger.open(self.url)
        self.jobs = [f"job-{number:02}" for number in range(job_count)]
        for job in self.jobs:
            self.ledger.submit_job(job, "", pipeline(job))

    @contextmanager
    def service(self, name: str) -> Iterator[Supervisor]:
        directory = self.directory / name
        (directory / "logs").mkdir(parents=True)
        pools = Pools(directory, 1_000, lambda _directory, _alive_fd: SLEEP, has_spare=True)
        supervisor = Supervisor(
            self.ledger,
            directory,
            service=ServiceIdentity(name, "", str(directory)),
            pools=pools,
            placement=pool_placement(self.ledger, []),
            times=SupervisionTimes(close_patience_s=0),
        )
        supervisor._leadership.start()
        try:
            wait_until(lambda: supervisor._leadership._is_announced, bool, "announced")
            yield supervisor
        finally:
            supervisor._end_all()
            supervisor._leadership.close()

    def run_all(self, pid: int = 1) -> None:
        """Begin a run of each job in the process `pid`."""
        for job in self.jobs:
            run = self.ledger.begin_run(job, pid)
            self.ledger.move_job(job, JobState.RUNNING, epoch=run.epoch)


def pool_of(supervisor: Supervisor) -> PoolProcess:
    assert supervisor._pools is not None
    (pool,) = supervisor._pools._pools
    return pool


def placed(supervisor: Supervisor) -> list[str]:
    return sorted(one.job for one in pool_of(supervisor).runners.values())


def kill_pool(supervisor: Supervisor) -> None:
    pool = pool_of(supervisor)
    os.kill(pool.pid, signal.SIGKILL)
    wait_until(pool.has_ended, bool, "the pool has ended")


@contextmanager
def counted_writes() -> Iterator[list[str]]:
    """Collect the begins of this thread's writes. Each write has its savepoint, also if threads share a transaction."""
    found, own = list[str](), threading.get_ident()

    def note(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if threading.get_ident() == own and statement.startswith("SAVEPOINT"):
            found.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


def transactions_of_rounds(directory: Path, job_count: int) -> list[int]:
    """Return the number of writing transactions of three rounds: first starts, a killed pool, and a take-over."""
    directory.mkdir()
    stage, found = Stage(directory, job_count), list[int]()
    with stage.service("one") as one:
        for prepare in (lambda: None, lambda: (stage.run_all(pool_of(one).pid), kill_pool(one))):
            prepare()
            with counted_writes() as counted:
                one._look()
            found.append(len(counted))
            assert placed(one) == stage.jobs
            assert {job.state for job in stage.ledger.jobs()} == {JobState.STARTING}
        died = [event.job for event in stage.ledger.events(limit=1_000) if event.kind == "runner_died"]
        assert sorted(died) == stage.jobs, "each job has its own event"
        assert all(stage.ledger.runs(job)[-1].outcome == "died" for job in stage.jobs)
        stage.run_all()
    with stage.service("two") as two:
        with counted_writes() as counted:
            two._look()
        found.append(len(counted))
        assert placed(two) == stage.jobs
    stage.ledger.close()
    return found


@pytest.mark.guarantee(
    "G1071",
    "A control service claims, starts, and takes over any number of jobs with the same number of transactions.",
    promise="kills-and-restarts-change-no-result",
)
def test_many_starts_need_as_many_transactions_as_one(tmp_path: Path) -> None:
    one, many = (transactions_of_rounds(tmp_path / str(count), count) for count in (1, 20))
    assert one == many and 0 not in one


def test_a_job_that_another_service_leads_keeps_no_other_job_from_its_start(tmp_path: Path) -> None:
    stage = Stage(tmp_path, 4)
    with stage.service("one") as one:
        one._look()
        stage.run_all()
        lost, *others = stage.jobs
        run_sql(stage.url, f"UPDATE leases SET epoch = epoch + 1, holder = 'thief' WHERE job = '{lost}'")
        kill_pool(one)
        one._look()
        assert placed(one) == others
        assert stage.ledger.job(lost).state is JobState.RUNNING, "its next leader decides"
        assert not one.leads(lost) and all(one.leads(job) for job in others)
    stage.ledger.close()


def test_a_job_whose_document_cannot_be_read_keeps_no_other_job_from_its_start(tmp_path: Path) -> None:
    stage = Stage(tmp_path, 3)
    broken, *others = stage.jobs
    run_sql(stage.url, f"UPDATE job_versions SET document = '{{\"pipeline\": 1}}' WHERE job = '{broken}'")
    with stage.service("one") as one:
        one._look()
        assert placed(one) == others
        assert one._troubled == {broken}
    stage.ledger.close()


@pytest.mark.parametrize("method", ["jobs_named", "end_each_run", "record_events", "move_jobs"])
def test_jobs_start_in_a_later_round_if_the_ledger_is_away_in_one(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, 3)
    with stage.service("one") as one:
        one._look()
        stage.run_all()
        kill_pool(one)

        def fail(*_arguments: Any) -> Any:
            raise LedgerUnavailable("away")

        with monkeypatch.context() as patched:
            patched.setattr(stage.ledger, method, fail)
            one._look()
            assert one._troubled == set(stage.jobs)
        one._look()
        assert placed(one) == stage.jobs and one._troubled == set()
    stage.ledger.close()


def test_a_silent_pool_is_killed_once_and_each_of_its_jobs_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, 3)
    with stage.service("one") as one:
        one._look()
        stage.run_all()
        kills = list[int]()
        kill_tree = PoolProcess.kill_tree
        with monkeypatch.context() as patched:
            patched.setattr(PoolProcess, "is_silent", lambda pool, patience_s: True)
            patched.setattr(PoolProcess, "kill_tree", lambda pool: (kills.append(pool.pid), kill_tree(pool)))
            one._look()
        assert len(kills) == 1
        killed = [event.job for event in stage.ledger.events(limit=100) if event.kind == "runner_killed"]
        assert sorted(str(job) for job in killed) == stage.jobs
    stage.ledger.close()
