"""`strandline up` on a stack that runs already: nothing is started twice, and what is missing is started."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from strandline.core.errors import StackError
from strandline.core.settings import Settings
from strandline.example.run import run_example
from strandline.services.embedded import preflight, stack
from strandline.services.embedded.addresses import StackAddresses
from strandline.services.embedded.shutdown import WATCHER
from strandline.services.embedded.stack import Stack, running_port_offset, up
from strandline.services.processes.pids import PidFile
from tests.unit.test_command_line import Say, say

__all__ = ["say"]

PARTS = set(Stack(Settings(), Path("/nowhere"), 0, Console(quiet=True)).parts)
OFFSET = 1200


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of a stack with OFFSET and without passwords.

    All its processes run: this process represents each.
    """
    StackAddresses.of(tmp_path, OFFSET).write()
    pids = PidFile(tmp_path)
    for name in (*PARTS, WATCHER, "runner-power"):
        pids.add(name, os.getpid())
    monkeypatch.setattr(stack, "find_java", lambda: tmp_path)
    monkeypatch.setattr(preflight, "require_free_space", lambda *_: None)
    for name in [one for one in os.environ if one.upper().startswith("STRANDLINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(stack, "ensure_passwords", lambda _: pytest.fail("it goes on to start something"))
    return tmp_path


def printed(data_dir: Path, **more: object) -> str:
    output = io.StringIO()
    up(Settings(**more), data_dir, OFFSET, True, Console(file=output, width=400))
    return output.getvalue()


def test_a_stack_that_runs_is_shown_and_nothing_is_started(data_dir: Path) -> None:
    text = printed(data_dir)
    assert f"the stack in {data_dir} already ran; nothing had to be repaired" in text
    for name in (*PARTS, WATCHER, "runner-power"):
        assert f"{name} ({os.getpid()})" in text
    assert f"API http://127.0.0.1:{8080 + OFFSET}" in text


@pytest.mark.guarantee(
    "G794",
    "`strandline up` on a running stack changes no running process, starts the missing ones, reports both, and ends "
    "with 0. If other options are requested, it names each difference and what to do.",
    promise="a-stack-keeps-its-data",
)
@pytest.mark.parametrize("more", [(), ("--detach",), ("--port-offset", str(OFFSET)), ("--no-passwords",)], ids=str)
def test_up_ends_with_0_on_a_running_stack(data_dir: Path, say: Say, more: tuple[str, ...]) -> None:
    """Also without --detach: the stack belongs to the command that started it, and Ctrl-C here must not stop it."""
    said = say("up", "--data-dir", str(data_dir), *more)
    assert said.code == 0, said.err
    assert "nothing had to be repaired" in said.out and "Ctrl-C" not in said.out


@pytest.mark.guarantee("G794")
def test_the_state_is_in_the_json(data_dir: Path, say: Say) -> None:
    said = say("up", "--data-dir", str(data_dir), "--json")
    answer = json.loads(said.out)
    assert (answer["already_ran"], answer["repaired"]) == (True, [])
    assert answer["running"] == dict.fromkeys((*PARTS, WATCHER, "runner-power"), os.getpid()) | answer["running"]
    assert answer["port_offset"] == OFFSET


@pytest.mark.guarantee("G794")
def test_what_is_missing_is_started_and_reported(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = PidFile(data_dir)
    for name in ("gateway-udp", "mqtt", WATCHER):
        pids.remove(name, os.getpid())
    monkeypatch.setattr(stack, "ensure_passwords", lambda _: None)
    monkeypatch.setattr(stack, "stop_part", lambda *_: None)
    monkeypatch.setattr(preflight, "require_free_ports", lambda *_: None)
    started: list[str] = []
    monkeypatch.setattr(Stack, "start_gateway", lambda _, name: started.append(f"gateway-{name}"))
    for name, method in (("mqtt", "start_mqtt"), (WATCHER, "start_watcher")):
        monkeypatch.setattr(Stack, method, lambda _, name=name: started.append(name))
    text = printed(data_dir)
    assert started == ["mqtt", "gateway-udp", WATCHER]
    assert f"the stack in {data_dir} already ran; repaired: mqtt, gateway-udp, watcher" in text


@pytest.mark.guarantee("G794")
def test_other_options_are_named_with_what_to_do(data_dir: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRANDLINE_AUTH", "tokens")
    more = ("--port-offset", "7", "--passwords", "--kafka", "farm:9092")
    said = say("up", "--data-dir", str(data_dir), *more)
    assert said.code == 1
    for difference in (
        f"it runs with --port-offset {OFFSET}, but 7 is requested",
        "it runs with its own kafka, but your kafka at farm:9092 is requested",
        "it runs with --no-passwords, but --passwords is requested",
        "it runs with STRANDLINE_AUTH=none, but tokens is requested",
        f"To use it as it is, run strandline up --data-dir {data_dir} without these options and variables",
        f"To change it, run strandline down --data-dir {data_dir} first",
    ):
        assert difference in said.err, said.err


def test_the_offset_of_a_stack_that_does_not_run_is_not_used_again(data_dir: Path) -> None:
    assert running_port_offset(data_dir) == OFFSET
    for file in data_dir.glob("pids*"):
        file.unlink()
    assert running_port_offset(data_dir) == 0
    shutil.rmtree(data_dir)
    assert running_port_offset(data_dir) == 0


def test_the_example_stops_no_stack_that_another_command_started(data_dir: Path) -> None:
    with pytest.raises(StackError, match=r"already runs in .* first, or pass another --data-dir and --port-offset"):
        run_example(Settings(), data_dir, OFFSET, 120.0, Console(quiet=True))
