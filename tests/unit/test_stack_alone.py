"""Commands that start and stop one stack at the same time: two `up`, and a watcher during `down`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from strandline.core.errors import StackError
from strandline.core.settings import Settings
from strandline.services.embedded import shutdown, stack
from strandline.services.embedded.addresses import NOTHING_OUTSIDE, StackAddresses
from strandline.services.embedded.progress_display import ProgressDisplay
from strandline.services.embedded.stack import Stack
from strandline.services.processes.file_lock import held_alone
from strandline.services.processes.pids import PidFile

QUIET = Console(quiet=True)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Double of a part of the stack."""
    with subprocess.Popen(["/bin/sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


class LookedAround(Exception):
    """A start came so far as to look what runs."""


def test_two_starts_of_one_stack_are_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(_: Stack) -> None:
        second = Stack(Settings(), tmp_path, 0, QUIET)
        with pytest.raises(
            StackError, match=f"another `strandline up` or `down` runs in {tmp_path}; wait until it has ended"
        ):
            second.start()
        raise LookedAround

    monkeypatch.setattr(stack, "find_java", lambda: tmp_path)
    monkeypatch.setattr(Stack, "_running_parts", look)
    for _ in range(2):  # the first one's failure lets the next one start
        with pytest.raises(LookedAround):
            Stack(Settings(), tmp_path, 0, QUIET).start()


def test_what_a_start_leaves_running_keeps_no_other_start_out(tmp_path: Path) -> None:
    with held_alone(tmp_path / stack.LOCK_FILE, "held"):
        process = subprocess.Popen(["/bin/sleep", "600"])
    with process, held_alone(tmp_path / stack.LOCK_FILE, "held"):
        process.kill()


def test_what_the_watcher_starts_at_the_last_moment_is_stopped_in_its_turn(
    tmp_path: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []

    def stop_part(name: str, pids: PidFile, _: ProgressDisplay) -> None:
        stopped.append(name)
        if name == shutdown.WATCHER:
            pids.add("gateway-http", process.pid)

    monkeypatch.setattr(shutdown, "stop_part", stop_part)
    shutdown.stop_all(tmp_path, ProgressDisplay(QUIET))
    assert stopped == ["watcher", "gateway-http", "control", "mqtt", "elasticsearch", "kafka"]


def test_a_stop_keeps_the_record_of_what_was_started_meanwhile(
    tmp_path: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing could stop it afterwards."""
    pids = PidFile(tmp_path)
    with subprocess.Popen(["/bin/sleep", "600"]) as killed:
        pids.add("gateway-udp", killed.pid)
        killed.kill()

    def stop_part(name: str, pids: PidFile, _: ProgressDisplay) -> None:
        if name == "kafka":
            pids.add("control", process.pid)

    monkeypatch.setattr(shutdown, "stop_part", stop_part)
    shutdown.stop_all(tmp_path, ProgressDisplay(QUIET))
    assert pids.all() == pids.alive() == {"control": process.pid}


def test_down_is_refused_while_up_is_at_work_and_works_when_that_was_killed(tmp_path: Path) -> None:
    StackAddresses.of(tmp_path, 0, NOTHING_OUTSIDE, passwords=False, auth="none").write()
    with (
        held_alone(tmp_path / stack.LOCK_FILE, "held"),
        pytest.raises(
            StackError, match=f"`strandline up` or `down` runs in {tmp_path}; wait until it has ended, or end it"
        ),
    ):
        stack.down(tmp_path, QUIET)
    stack.down(tmp_path, QUIET)


def test_up_is_refused_while_down_is_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop_all(*_: object) -> None:
        with pytest.raises(StackError, match="wait until it has ended"):
            Stack(Settings(), tmp_path, 0, QUIET).start()
        raise LookedAround

    StackAddresses.of(tmp_path, 0, NOTHING_OUTSIDE, passwords=False, auth="none").write()
    monkeypatch.setattr(stack, "find_java", lambda: tmp_path)
    monkeypatch.setattr(Stack, "_running_parts", lambda _: pytest.fail("it looked what runs"))
    monkeypatch.setattr(stack, "stop_all", stop_all)
    with pytest.raises(LookedAround):
        stack.down(tmp_path, QUIET)
