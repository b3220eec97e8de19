"""The watcher of an embedded stack: it starts again what dies, with growing pauses, and keeps pids.json true."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from strandline.core.errors import StackError
from strandline.services.embedded.progress_display import Cancelled
from strandline.services.embedded.watcher import Watcher
from strandline.services.processes.pids import PidFile
from tests.support.waiting import stretched, wait_until


class Part:
    """A process that sleeps, and what starts it."""

    def __init__(self, pids: PidFile, name: str) -> None:
        self.pids, self.name = pids, name
        self.failures_left = 0
        self.failure: Exception = StackError(f"{name} has no room")
        self.starts_s: list[float] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self.starts_s.append(time.monotonic())
        if self.failures_left:
            self.failures_left -= 1
            raise self.failure
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        self.processes.append(process)
        self.pids.add(self.name, process.pid)

    def kill(self) -> None:
        os.kill(self.pids.alive()[self.name], signal.SIGKILL)


@pytest.fixture
def pids(tmp_path: Path) -> PidFile:
    return PidFile(tmp_path)


@pytest.fixture
def parts(pids: PidFile) -> Iterator[list[Part]]:
    parts = [Part(pids, "kafka"), Part(pids, "gateway-http")]
    for part in parts:
        part.start()
    yield parts
    for process in [process for part in parts for process in part.processes]:
        process.kill()
        process.wait()


@pytest.fixture
def watch(
    pids: PidFile, parts: list[Part], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., threading.Event]]:
    """Watches in a thread; returns what ends it."""
    monkeypatch.setattr("strandline.services.embedded.watcher.POLL_INTERVAL_S", 0.01)
    stopping = threading.Event()
    threads: list[threading.Thread] = []

    def watch(**more: float) -> threading.Event:
        watcher = Watcher({part.name: part.start for part in parts}, pids, stopping, **more)
        threads.append(threading.Thread(target=watcher.run))
        threads[-1].start()
        return stopping

    yield watch
    stopping.set()
    for thread in threads:
        thread.join(stretched(30))
        assert not thread.is_alive()


def test_what_dies_is_started_again_and_nothing_else(
    pids: PidFile, parts: list[Part], watch: Callable[..., threading.Event]
) -> None:
    kafka, gateway = parts
    before = pids.alive()
    with capture_logs() as logs:
        watch(pause_first_s=0.01)
        gateway.kill()
        wait_until(lambda: logs[-1:] and logs[-1]["log_level"] == "info", bool, "started again")
    assert pids.all() == {"kafka": before["kafka"], "gateway-http": gateway.processes[-1].pid} == pids.alive()
    assert len(kafka.processes) == 1 and len(gateway.processes) == 2
    assert [line["event"] for line in logs] == [
        "gateway-http crashed; it is restarted in 0.01 s",
        "gateway-http runs again",
    ]


def test_pauses_grow_while_it_does_not_start_and_the_cause_is_logged(
    pids: PidFile, parts: list[Part], watch: Callable[..., threading.Event]
) -> None:
    kafka, _ = parts
    with capture_logs() as logs:
        watch(pause_first_s=0.05)
        kafka.failures_left = 3
        kafka.kill()
        wait_until(lambda: logs[-1:] and logs[-1]["log_level"] == "info", bool, "started again")
    tried_s = kafka.starts_s[1:]
    gaps_s = [after - before for before, after in pairwise(tried_s)]
    assert (
        len(tried_s) == 4 and [gap >= least for gap, least in zip(gaps_s, (0.1, 0.2, 0.4), strict=True)] == [True] * 3
    )
    assert [line["event"] for line in logs if line["log_level"] == "error"] == [
        "kafka did not start: kafka has no room"
    ] * 3
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == [
        "kafka crashed; it is restarted in 0.05 s",
        "kafka does not run; it is restarted in 0.1 s",
        "kafka does not run; it is restarted in 0.2 s",
        "kafka does not run; it is restarted in 0.4 s",
    ]


@pytest.mark.guarantee("G77")
def test_what_fails_again_and_again_is_said_with_its_number_and_its_cause(
    parts: list[Part], watch: Callable[..., threading.Event]
) -> None:
    kafka, _ = parts
    with capture_logs() as logs:
        watch(pause_first_s=0.001)
        kafka.failures_left = 6
        kafka.kill()
        wait_until(lambda: logs[-1:] and logs[-1]["log_level"] == "info", bool, "started again")
    assert [line["event"] for line in logs if "in a row" in line["event"]] == [
        f"kafka failed {number} times in a row, the last time because kafka has no room; see its log, and fix the cause"
        for number in (5, 6, 7)
    ]


def test_a_part_that_ran_calmly_is_started_after_the_first_pause_again(
    pids: PidFile, parts: list[Part], watch: Callable[..., threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.services.embedded.watcher.CALM_S", 0.3)
    kafka, _ = parts
    with capture_logs() as logs:
        watch(pause_first_s=0.05)
        for number in (1, 2):
            kafka.kill()
            wait_until(lambda number=number: len(kafka.processes) == 1 + number, bool, "started again")
            wait_until(lambda: kafka.name in pids.alive(), bool, "recorded")
            time.sleep(0.5)  # sleeps: longer than CALM_S
    assert [line["event"].rpartition(" in ")[2] for line in logs if line["log_level"] == "warning"] == ["0.05 s"] * 2


def test_a_full_disk_ends_no_watch(
    pids: PidFile, parts: list[Part], watch: Callable[..., threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka, _ = parts
    no_room = OSError(errno.ENOSPC, "No space left on device")
    kafka.failures_left, kafka.failure = 2, no_room
    remove, refusals_left = pids.remove, [no_room] * 2

    def refuse(name: str, pid: int) -> None:
        if refusals_left:
            raise refusals_left.pop()
        remove(name, pid)

    monkeypatch.setattr(pids, "remove", refuse)
    with capture_logs() as logs:
        watch(pause_first_s=0.001)
        kafka.kill()
        wait_until(lambda: logs[-1:] and logs[-1]["log_level"] == "info", bool, "started again")
    assert pids.alive()["kafka"] == kafka.processes[-1].pid
    assert [line["event"] for line in logs if line["log_level"] == "error"] == [
        *["can't watch kafka: [Errno 28] No space left on device"] * 2,
        *["kafka did not start: [Errno 28] No space left on device"] * 2,
    ]


def test_nothing_is_started_once_it_is_to_stop(
    pids: PidFile, parts: list[Part], watch: Callable[..., threading.Event]
) -> None:
    kafka, _ = parts
    with capture_logs() as logs:
        stopping = watch(pause_first_s=600)
        kafka.kill()
        wait_until(lambda: logs, bool, "noticed")
        stopping.set()
    assert len(kafka.processes) == 1 and set(pids.all()) == {"gateway-http"}


def test_a_start_that_is_cancelled_ends_the_watch(pids: PidFile) -> None:
    def start() -> None:
        raise Cancelled

    Watcher({"kafka": start}, pids, threading.Event(), pause_first_s=0.01).run()
