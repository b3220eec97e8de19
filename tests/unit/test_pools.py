"""Pools as a supervisor sees them, and what the process of a pool does with jobs that hang or end a worker."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from py4j.protocol import Py4JNetworkError

from strandline.core.logs import JobLogs
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import JobRow
from strandline.processing.emission.work_marks import FoundMark, WorkMark, forget_marks, marks_of_living, read_marks
from strandline.processing.run.pool_features import MOVED_OUT
from strandline.processing.run.pool_orders import (
    EndOrder,
    PoolReports,
    StartOrder,
    decode_order,
    encode_order,
    read_batch,
    read_ended,
)
from strandline.processing.run.pool_watch import PoolWatch
from strandline.services.supervision.failures import SOUND_S
from strandline.services.supervision.placement import pool_placement
from strandline.services.supervision.pools import PoolProcess, Pools
from tests.support.waiting import wait_until

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


@pytest.fixture
def pools(tmp_path: Path) -> Iterator[Pools]:
    pools = Pools(tmp_path, 2, lambda directory, alive_fd: SLEEP, has_spare=True)
    yield pools
    pools.close()


def only(pools: Pools) -> PoolProcess:
    (pool,) = pools._pools
    return pool


def test_orders_and_reports_arrive_as_they_were_written(tmp_path: Path) -> None:
    for order in (StartOrder("a", 3, 7, True), StartOrder("b", None, 8), EndOrder("a", 7)):
        assert decode_order(encode_order(order)) == order
    reports = PoolReports(tmp_path)
    reports.batch(["a-long-name", "b"])
    reports.batch(["b"])
    reports.ended(7, 3)
    reports.ended(8, 0)
    with (tmp_path / "ended").open("ab") as file:
        file.write(b"[9,")  # incomplete
    found, position = read_ended(tmp_path)
    assert (read_batch(tmp_path), found) == (["b"], {7: 3, 8: 0})
    with (tmp_path / "ended").open("ab") as file:
        file.write(b" 1]\n")
    assert read_ended(tmp_path, position)[0] == {9: 1}, "only the new lines"


def test_a_full_pool_is_followed_by_another(pools: Pools) -> None:
    pools.keep()
    runners = [pools.start(job, 1) for job in ("a", "b", "c")]
    assert runners[0].pid == runners[1].pid != runners[2].pid


def test_without_a_spare_a_pool_starts_with_its_first_job(tmp_path: Path) -> None:
    pools = Pools(tmp_path, 2, lambda directory, alive_fd: SLEEP)
    try:
        pools.keep()
        pools.keep_spare(is_calm=True)
        assert pools._pools == []
        pools.start("a", 1)
        assert only(pools).runners
    finally:
        pools.close()


def test_the_end_of_one_run_is_no_end_of_the_others(pools: Pools) -> None:
    pools.keep()
    first, second = pools.start("a", 1), pools.start("b", 1)
    PoolReports(only(pools).directory).ended(first._number, 3)
    pools.keep()
    assert (first.has_ended(), second.has_ended(), first.has_lost_pool) == (True, False, False)
    first.kill_tree()
    assert first.reap() == 3 and not only(pools).has_ended()


def end_pool_in_batch(pools: Pools, jobs: list[str]) -> None:
    pool = only(pools)
    PoolReports(pool.directory).batch(jobs)
    os.kill(pool.pid, signal.SIGKILL)
    wait_until(pool.has_ended, bool, "the pool has ended")
    pools.keep()


def test_a_kill_from_outside_accuses_no_job(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    pools.keep()
    first = pools.start("a", 1)
    end_pool_in_batch(pools, ["a"])
    assert first.has_lost_pool and first.reap() == -signal.SIGKILL
    assert (pools.guilty, starts_after(pools, monkeypatch, ["a"])) == (set(), [False])


def test_the_only_job_in_the_batches_of_two_ended_pools_is_named(pools: Pools) -> None:
    pools.keep()
    first, second = pools.start("a", 1), pools.start("b", 1)
    end_pool_in_batch(pools, ["a", "b"])
    assert first.has_lost_pool and second.has_lost_pool
    pools.start("a", 1), pools.start("b", 1)
    end_pool_in_batch(pools, ["b"])
    assert pools.guilty == {"b"}
    assert not only(pools).has_ended()


def test_the_jobs_in_the_batches_of_two_ended_pools_are_alone_in_the_next_one(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools.keep()
    for _ in range(2):
        pools.start("a", 1), pools.start("b", 1)
        end_pool_in_batch(pools, ["a", "b"])
    assert (pools.guilty, starts_after(pools, monkeypatch, ["a", "a"])) == (set(), [True, False])


def test_an_end_long_after_the_one_before_accuses_no_job(pools: Pools) -> None:
    pools.keep()
    pools.start("a", 1)
    end_pool_in_batch(pools, ["a"])
    pools.start("a", 1).began_at -= SOUND_S
    end_pool_in_batch(pools, ["a"])
    assert pools.guilty == set()


def starts_after(pools: Pools, monkeypatch: pytest.MonkeyPatch, jobs: list[str]) -> list[bool]:
    """Start the jobs, and return for each start whether it is alone in a batch."""
    orders: list[StartOrder | EndOrder] = []
    monkeypatch.setattr(only(pools), "order", orders.append)
    for job in jobs:
        pools.start(job, 1)
    return [one.alone for one in orders if isinstance(one, StartOrder)]


def test_marks_name_the_jobs_of_workers(tmp_path: Path) -> None:
    mark = WorkMark(tmp_path)
    mark.works_on("a-job-with-a-long-name")
    mark.works_on("b")
    (tmp_path / "999999999").write_text("7 c", encoding="utf-8")
    assert {one.pid: one.job for one in read_marks(tmp_path)} == {os.getpid(): "b", 999999999: "c"}
    assert [one.job for one in marks_of_living(tmp_path)] == ["b"]
    forget_marks(tmp_path, [999999999])
    mark.works_on("")
    assert [one.job for one in read_marks(tmp_path)] == [""] and read_marks(tmp_path / "none") == []


def test_a_job_whose_mark_stays_is_moved_out_once() -> None:
    marks, moved = [FoundMark(1, "1 a"), FoundMark(2, "5 b"), FoundMark(3, "9 ")], list[str]()
    watch = PoolWatch(None, lambda: marks, 10.0, lambda mark, why: moved.append(mark.job))
    watch.look(0.5)
    for number in range(25):
        marks[1] = FoundMark(2, f"{6 + number} b")  # this worker goes on
        watch.look(0.5)
        if moved:
            marks[0] = FoundMark(1, "2 ")
    assert moved == ["a"]


def test_a_pause_of_the_process_moves_no_job_out() -> None:
    moved: list[str] = []
    watch = PoolWatch(None, lambda: [FoundMark(1, "1 a")], 10.0, lambda mark, why: moved.append(mark.job))
    watch.look(0.5)  # counts at most half a second of a pause
    watch.look(0.5)
    assert moved == []


def test_a_pool_whose_jvm_does_not_answer_does_not_count_as_alive() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    watch = PoolWatch(writing, list, 10.0, lambda mark, why: None)
    answers = threading.Event()
    watch.require_java = answers.wait  # it hangs
    watch.start()
    try:
        with pytest.raises(BlockingIOError):
            os.read(reading, 100)
        answers.set()
        wait_until(lambda: _read(reading), bool, "a heartbeat")

        failed = threading.Event()

        def fail() -> None:
            failed.set()
            raise Py4JNetworkError("the JVM has ended")

        watch.require_java = fail
        failed.wait()
        _read(reading)  # what was written before
        failed.clear()
        failed.wait()
        assert not _read(reading)
    finally:
        watch.close()
        watch._thread.join()
        os.close(reading)
        os.close(writing)


def _read(file: int) -> bytes:
    try:
        return os.read(file, 1_000)
    except BlockingIOError:
        return b""


def test_the_lines_of_a_job_go_to_its_own_log(tmp_path: Path) -> None:
    logs = JobLogs(structlog.processors.JSONRenderer(), tmp_path)
    with pytest.raises(structlog.DropEvent):
        logs(None, "info", {"event": "slice committed", "job": "a"})
    assert logs(None, "info", {"event": "the pool waits"}) == '{"event": "the pool waits"}'
    assert (tmp_path / "runner-a.log").read_text() == '{"event": "slice committed", "job": "a"}\n'


def pipeline(job: str, **more: object) -> dict[str, object]:
    window = {"name": "w", "tumbling": "1m", "by": ["device"], "aggregate": {"n": "count(*)"}}
    step = {"window": window, "emit": [{"elasticsearch": "w"}]}
    return {
        "pipeline": job,
        "input": {"stream": "s"},
        "event_time": {"field": "ts", "delay": "1s"},
        "steps": [step],
        **more,
    }


def test_placement_follows_settings_features_and_moves(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    try:
        batch = {"input": {"stream": "readings", "start": "earliest", "end": "latest"}}
        for job, more in {"a": {}, "own": {}, "kept": {"recovery": "snapshot"}, "batch": batch}.items():
            ledger.submit_job(job, "", pipeline(job, **more))
        read = pool_placement(ledger, ["own"])

        def is_for_pool(job: JobRow) -> bool:
            return read([job])(job)

        every = [ledger.job(job) for job in ("a", "own", "kept", "batch")]
        assert list(map(read(every), every)) == [True, False, False, False], "all jobs are read together"
        assert [is_for_pool(ledger.job(job)) for job in ("a", "own", "kept", "batch")] == [True, False, False, False]
        ledger.submit_job("batch", "", pipeline("batch", **batch, placement="pool"))
        assert is_for_pool(ledger.job("batch"))
        for placement, found in (("own", [False, False]), ("pool", [True, True])):
            for job in ("a", "own"):
                ledger.submit_job(job, "", pipeline(job, placement=placement))
            assert [is_for_pool(ledger.job(job)) for job in ("a", "own")] == found
        ledger.record_event(MOVED_OUT, "it hung", "a", 1, {"restarts": ledger.job("a").restarts})
        assert not is_for_pool(ledger.job("a"))
        ledger.ask_restart("a")
        assert is_for_pool(ledger.job("a"))
    finally:
        ledger.close()
