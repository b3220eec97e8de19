"""The processes of a control service that end while the disk is full, or no file can be opened."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from structlog.testing import capture_logs

from strandline.ledger.ledger import Ledger
from strandline.services.processes import pids, worker_process
from strandline.services.processes.pids import PidFile
from strandline.services.processes.worker_process import WorkerProcess
from strandline.services.supervision.runner_process import RunnerProcess
from strandline.services.supervision.supervision_times import SupervisionTimes
from strandline.services.supervision.supervisor import Supervisor, _Runner
from tests.support.waiting import wait_until

JOB = "power"
SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
END = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]


class Disk:
    """Under `pids.json`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self._write = pids._replace
        monkeypatch.setattr(pids, "_replace", self._replace)

    def _replace(self, path: Path, content: dict[str, object]) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        self._write(path, content)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def recorded(directory: Path) -> int | None:
    return PidFile(directory).all().get(f"runner-{JOB}")


def test_a_process_is_reaped_even_where_it_stays_recorded(tmp_path: Path, disk: Disk) -> None:
    process = WorkerProcess(tmp_path, f"runner-{JOB}", SLEEP)
    assert not process.has_ended()
    disk.is_full = True
    with capture_logs() as logs:
        assert process.reap() == -signal.SIGKILL
    assert [line["event"] for line in logs] == ["an ended process stays recorded"]
    assert process.has_ended() and recorded(tmp_path) == process.pid
    disk.is_full = False
    assert process.reap() == -signal.SIGKILL, "again is the same"
    assert recorded(tmp_path) is None


def test_a_process_that_can_not_be_recorded_is_killed_although_it_shows_no_mark_yet(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between `exec` and the end of loading, the environment of a process is empty."""
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(worker_process, "kill_tree", lambda mark: 0)
    monkeypatch.setattr(subprocess, "Popen", start)
    disk.is_full = True
    with pytest.raises(OSError, match="No space left"):
        WorkerProcess(tmp_path, f"runner-{JOB}", SLEEP)
    assert [one.returncode for one in started] == [-signal.SIGKILL]


def test_a_process_whose_mark_can_not_be_read_yet_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = WorkerProcess(tmp_path, f"runner-{JOB}", SLEEP)
    environ, cmdline, looks = psutil.Process.environ, psutil.Process.cmdline, Counter[int]()

    def empty_at_first(one: psutil.Process) -> dict[str, str]:
        looks[one.pid] += 1
        return {} if one.pid == process.pid and looks[one.pid] < 3 else environ(one)

    monkeypatch.setattr(psutil.Process, "environ", empty_at_first)
    monkeypatch.setattr(psutil.Process, "cmdline", lambda one: [] if one.pid == process.pid else cmdline(one))
    began = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda one: began(one) - 5)  # a busy machine
    process.kill_tree()
    assert process.has_ended() and looks[process.pid] >= 3
    process.reap()


def test_a_standby_is_reaped_even_where_its_first_words_can_not_be_kept(tmp_path: Path) -> None:
    process = RunnerProcess(tmp_path, "standby-1", lambda *_: END, None, None)
    (tmp_path / "logs" / f"runner-{JOB}.log").mkdir()  # can't be written
    process.assign(JOB, 1)
    with capture_logs() as logs:
        process.reap()
    assert [line["event"] for line in logs] == ["can't append the first output of a standby to the job's log"]


def test_a_job_whose_runner_ends_on_a_full_disk_gets_another_when_there_is_room(tmp_path: Path, disk: Disk) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    ledger.submit_job(JOB, f"pipeline: {JOB}", {"pipeline": JOB})
    times = SupervisionTimes(pause_first_s=0.01, outage_pause_max_s=0.5, close_patience_s=5)
    supervisor = Supervisor(ledger, tmp_path, times=times, command=lambda *_: SLEEP)
    supervisor.start()
    try:
        first = wait_until(lambda: recorded(tmp_path), bool, "a runner")
        assert first is not None
        disk.is_full = True
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: ledger.job(JOB).message, lambda said: "No space left" in said, "the next can't start")
        disk.is_full = False
        wait_until(lambda: recorded(tmp_path), lambda pid: pid != first, "the next runner")
    finally:
        supervisor.close()
        ledger.close()


@pytest.mark.parametrize(
    "end",
    [
        lambda supervisor: supervisor._forget_lost(),
        lambda supervisor: supervisor._forget_deleted(set()),
        lambda supervisor: supervisor._end_all(),
        lambda supervisor: supervisor._end_at_once(JOB, "it is over"),
    ],
    ids=["lost", "deleted", "closing", "at once"],
)
def test_a_runner_that_can_not_be_ended_for_want_of_files_does_not_end_the_supervisor(
    tmp_path: Path, end: Callable[[Supervisor], None]
) -> None:
    def refuse() -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    ledger: Any = None
    supervisor = Supervisor(ledger, tmp_path)
    leadership: Any = SimpleNamespace(holds=lambda *_: False)
    process: Any = SimpleNamespace(reap=refuse, let_go=refuse, request_stop=lambda _: None, has_ended=lambda: True)
    supervisor._leadership = leadership
    supervisor._runners[JOB] = _Runner(process, 1, 0)
    with capture_logs() as logs:
        end(supervisor)
    assert "Too many open files" in [line.get("error", "").partition("] ")[2] for line in logs]
    assert JOB in supervisor._runners, "the next look tries again"
