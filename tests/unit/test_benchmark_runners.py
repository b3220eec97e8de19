"""Tests of `benchmarks.runners`: the process of a job, and a warm standby."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.runners import runner_pid, warm_standby
from strandline.ledger.ledger import Ledger

POOL, SPARE = "runner-.pool-1", "runner-.pool-2"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """The ledger of job `a`, whose newest run is in process 7."""
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    ledger.submit_job("a", "", {"pipeline": "a"})
    ledger.begin_run("a", 7)
    yield ledger
    ledger.close()


def test_a_job_runs_in_its_own_runner_or_in_the_pool_of_its_newest_run(ledger: Ledger) -> None:
    assert runner_pid({POOL: 7, SPARE: 2}, ledger, "a") == 7
    assert runner_pid({POOL: 7, "runner-a": 3}, ledger, "a") == 3
    assert runner_pid({POOL: 1, "control": 7}, ledger, "a") is None


def test_a_warm_standby_has_no_job(tmp_path: Path, ledger: Ledger) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    pids = {POOL: 7, SPARE: 2, "standby-1": 3}
    assert warm_standby(tmp_path, pids, ledger) is None
    for name in (POOL, "standby-1"):
        (logs / f"{name}.log").write_text("standing by\n")
    assert warm_standby(tmp_path, pids, ledger) == "standby-1"
    (logs / f"{SPARE}.log").write_text("standing by\n")
    assert warm_standby(tmp_path, pids, ledger) == SPARE
