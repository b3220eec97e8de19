"""`pids.json`: who is recorded, and that a number given out again is never taken for the process recorded under it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from strandline.core.errors import StackError
from strandline.core.process_identity import process_identity
from strandline.services.processes.pids import PidFile


@pytest.fixture
def pids(tmp_path: Path) -> PidFile:
    return PidFile(tmp_path)


def test_file_is_a_flat_map_from_name_to_pid(pids: PidFile, tmp_path: Path) -> None:
    pids.add("kafka", os.getpid())
    pids.add("control", os.getppid())
    assert json.loads((tmp_path / "pids.json").read_text()) == {"kafka": os.getpid(), "control": os.getppid()}
    assert list(pids.alive()) == ["kafka", "control"]


def test_nothing_recorded_is_nothing_alive(pids: PidFile) -> None:
    assert pids.all() == {} and pids.alive() == {}


def test_recycled_pid_is_not_alive(pids: PidFile, tmp_path: Path) -> None:
    """The number is in use, by a process that started at another time than the one recorded."""
    pids.add("kafka", os.getpid())
    identities = tmp_path / "pids-identity.json"
    boot, start_ticks = json.loads(identities.read_text())["kafka"].rsplit("/", 1)
    identities.write_text(json.dumps({"kafka": f"{boot}/{int(start_ticks) - 1}"}))
    assert pids.all() == {"kafka": os.getpid()}
    assert pids.alive() == {}


def test_pid_without_identity_is_not_alive(pids: PidFile, tmp_path: Path) -> None:
    (tmp_path / "pids.json").write_text(json.dumps({"kafka": os.getpid()}))
    assert pids.alive() == {}


def test_zombie_is_dead(pids: PidFile) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    pids.add("mqtt", child.pid)
    assert pids.alive() == {"mqtt": child.pid}
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and no process has collected it
    assert process_identity(child.pid) is None
    assert pids.alive() == {}
    child.wait()


def test_process_with_a_dead_first_thread_is_alive() -> None:
    """A JVM whose first thread ended can still write; the kernel shows it as a zombie."""
    program = (
        "import ctypes, sys, threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('on', flush=True), sys.stdin.read())).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    try:
        # pthread_exit keeps the interpreter's lock, so the thread never prints; that the state is Z is what matters.
        while ") Z " not in Path(f"/proc/{child.pid}/stat").read_text():
            assert child.poll() is None
        assert process_identity(child.pid) is not None
    finally:
        child.kill()
        child.stdin.close()
        child.stdout.close()
        child.wait()


def test_process_that_is_gone_cannot_be_recorded(pids: PidFile) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(StackError, match=r"ended before it could be recorded"):
        pids.add("mqtt", child.pid)


def test_remove_leaves_a_successor(pids: PidFile) -> None:
    """A process that removes late, after another process took the name, removes nothing."""
    pids.add("runner-a", os.getppid())
    pids.add("runner-a", os.getpid())
    pids.remove("runner-a", os.getppid())
    assert pids.alive() == {"runner-a": os.getpid()}
    pids.remove("runner-a", os.getpid())
    assert pids.all() == {}


def test_writers_at_the_same_time_lose_nothing(pids: PidFile) -> None:
    names = [f"runner-{number}" for number in range(16)]
    threads = [threading.Thread(target=pids.add, args=(name, os.getpid())) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(pids.alive()) == sorted(names)


@pytest.mark.parametrize("content", ["{", "[]"], ids=["cut", "list"])
def test_unreadable_file_is_told(pids: PidFile, tmp_path: Path, content: str) -> None:
    (tmp_path / "pids.json").write_text(content)
    with pytest.raises(StackError, match=r"pids\.json"):
        pids.all()


def test_looking_at_a_process_interns_no_string(monkeypatch):
    """Interned strings that come and go make each thread of a long-lived process keep a hole of 2 MB in its heap."""
    interned: list[str] = []
    intern = sys.intern
    monkeypatch.setattr(sys, "intern", lambda text: interned.append(text) or intern(text))
    assert process_identity(os.getpid()) is not None
    assert interned == []
