"""Child processes of the stack: started, waited for, stopped; and only ever those that were recorded."""

from __future__ import annotations

import json
import operator
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from strandline.core.errors import StackError
from strandline.core.process_identity import process_identity
from strandline.services.embedded.addresses import StackAddresses
from strandline.services.embedded.progress_display import Cancelled, ProgressDisplay
from strandline.services.embedded.stack import down
from strandline.services.processes import child_process
from strandline.services.processes.child_process import Program, start, stop
from strandline.services.processes.pids import PidFile
from tests.support.waiting import stretched, wait_until

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"


@pytest.fixture
def pids(tmp_path: Path) -> PidFile:
    return PidFile(tmp_path)


def python_program(directory: Path, code: str, is_ready: Callable[[], bool] = lambda: True, **more: float) -> Program:
    """A server named mqtt that runs a few lines of Python."""
    arguments = [sys.executable, "-c", code]
    return Program("mqtt", arguments, directory / "logs" / "mqtt.log", is_ready, stop_timeout_s=5.0, **more)


def never_ready() -> bool:
    return False


def test_child_has_its_own_session_and_is_recorded(pids: PidFile, tmp_path: Path) -> None:
    child = start(python_program(tmp_path, "import time; time.sleep(600)"), pids, lambda: None)
    assert pids.alive() == {"mqtt": child.pid}
    assert os.getsid(child.pid) == child.pid != os.getsid(0)
    stop("mqtt", child.pid, pids, timeout_s=10.0)
    assert not child.is_alive() and pids.all() == {}


def test_child_that_is_seen_dead_is_reaped_whenever_it_died(
    pids: PidFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = start(python_program(tmp_path, "import time; time.sleep(600)"), pids, lambda: None)

    def identity_after_its_death(pid: int) -> str | None:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: process_identity(pid), lambda identity: identity is None, "dead")
        return process_identity(pid)

    monkeypatch.setattr(child_process, "process_identity", identity_after_its_death)
    assert not child.is_alive()
    with pytest.raises(ChildProcessError):  # nothing is left to wait for
        os.waitpid(child.pid, os.WNOHANG)


def test_child_that_ends_early_is_told_with_the_end_of_its_log(pids: PidFile, tmp_path: Path) -> None:
    code = "print('no licence for this'); raise SystemExit(3)"
    with pytest.raises(StackError, match=r"mqtt ended while starting:\n  no licence for this\n  \(from .*mqtt\.log\)"):
        start(python_program(tmp_path, code, never_ready), pids, lambda: None)
    assert pids.all() == {}


def test_child_that_is_never_ready_is_told_and_stopped(pids: PidFile, tmp_path: Path) -> None:
    program = python_program(tmp_path, "import time; time.sleep(600)", never_ready, ready_timeout_s=0.5)
    with pytest.raises(StackError, match=r"mqtt was not ready after \d+ s"):
        start(program, pids, lambda: None)
    assert pids.all() == {}


def test_giving_up_stops_the_child_that_is_starting(pids: PidFile, tmp_path: Path) -> None:
    progress = ProgressDisplay(Console(quiet=True))
    seen: list[int] = []

    def is_ready() -> bool:
        seen.extend(pids.alive().values())
        progress.cancel()
        return False

    with pytest.raises(Cancelled):
        start(python_program(tmp_path, "import time; time.sleep(600)", is_ready), pids, progress.check)
    assert len(seen) == 1 and process_identity(seen[0]) is None and pids.all() == {}


def test_child_deaf_to_term_is_killed(pids: PidFile, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "mqtt.log"
    child = start(python_program(tmp_path, DEAF, lambda: "deaf" in log.read_text()), pids, lambda: None)
    began_s = time.monotonic()
    stop("mqtt", child.pid, pids, timeout_s=0.5)
    assert time.monotonic() - began_s >= 0.5
    assert not child.is_alive() and pids.all() == {}


def test_down_leaves_a_process_alone_that_got_a_recorded_number(pids: PidFile, tmp_path: Path) -> None:
    """Two processes run: one as it was recorded, one that has the number of a server that died."""
    StackAddresses.of(tmp_path, 0).write()
    ours, foreign = (
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        for _ in range(2)
    )
    try:
        pids.add("mqtt", ours.pid)
        pids.add("kafka", foreign.pid)
        file = tmp_path / "pids-identity.json"
        identities = json.loads(file.read_text())
        boot, ticks = identities["kafka"].rsplit("/", 1)
        file.write_text(json.dumps({**identities, "kafka": f"{boot}/{int(ticks) - 7}"}))
        down(tmp_path, Console(quiet=True))
        assert ours.wait(timeout=stretched(10)) == -signal.SIGTERM
        assert foreign.poll() is None
        assert pids.all() == {}
    finally:
        for process in (ours, foreign):
            process.kill()
            process.wait()


def test_down_stops_the_runners_after_their_control_service(pids: PidFile, tmp_path: Path) -> None:
    """A runner that is killed first would be started again by the control service."""
    StackAddresses.of(tmp_path, 0).write()
    code = (
        "import signal, sys, time, pathlib\n"
        "def end(*_):\n"
        "    with open('order', 'a') as file: file.write(sys.argv[1] + ' ')\n"
        "    raise SystemExit\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "pathlib.Path(sys.argv[1] + '.ready').touch()\n"
        "time.sleep(600)\n"
    )
    names = ["kafka", "elasticsearch", "mqtt", "control", "gateway-http", "runner-a"]
    processes = {}
    try:
        for name in names:
            arguments = [sys.executable, "-c", code, name]
            processes[name] = subprocess.Popen(arguments, cwd=tmp_path, start_new_session=True)
            pids.add(name, processes[name].pid)
        wait_until(
            lambda: [name for name in names if not (tmp_path / f"{name}.ready").exists()], operator.not_, "ready"
        )
        down(tmp_path, Console(quiet=True))
        order = (tmp_path / "order").read_text().split()
        assert order == ["gateway-http", "control", "runner-a", "mqtt", "elasticsearch", "kafka"]
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


@pytest.mark.parametrize("is_ours", [True, False], ids=["of this directory", "of another"])
def test_down_stops_an_elasticsearch_that_was_never_recorded(pids: PidFile, tmp_path: Path, is_ours: bool) -> None:
    """The `up` was killed just after the launcher had put it into the background."""
    StackAddresses.of(tmp_path, 0).write()
    directory = tmp_path / "elasticsearch"
    directory.mkdir()
    mark = f"-Dstrandline.elasticsearch={directory if is_ours else tmp_path / 'other'}"
    server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", mark], start_new_session=True)
    try:
        # A program that is just being started shows no arguments yet.
        wait_until(Path(f"/proc/{server.pid}/cmdline").read_bytes, bool, "the server shows its arguments")
        (directory / "tmp").mkdir()
        (directory / "tmp" / "elasticsearch.pid").write_text(f"{server.pid}\n")
        down(tmp_path, Console(quiet=True))
        assert server.poll() is None if not is_ours else server.wait(timeout=stretched(10)) == -signal.SIGTERM
        assert pids.all() == {}
    finally:
        server.kill()
        server.wait()
