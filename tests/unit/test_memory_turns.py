"""Runs of all tests at the same time: no more than have room in the memory of the machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support import memory_turns
from tests.support.memory_turns import RUN_BYTES, claim_share, needs_servers, shares

HOLDS = """
import sys
from tests.support.memory_turns import claim_share
claim = claim_share(2, print, sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_machine_has_as_many_shares_as_runs_have_room() -> None:
    assert [shares(int(runs * RUN_BYTES)) for runs in (0.5, 1, 2.9, 3.1)] == [1, 1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["tests"], True),
        (["tests/unit", "tests/integration"], True),
        (["tests/fault/test_failover.py::test_x"], True),
        (["tests/unit", "tests/property", "tests/simulation"], False),
        (["tests/unit/test_x.py"], False),
    ],
)
def test_only_runs_that_start_servers_take_a_share(arguments: list[str], expected: bool) -> None:
    assert needs_servers(arguments) is expected


def test_a_run_waits_while_all_shares_are_held_and_goes_on_when_a_holder_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_turns, "_LOOK_S", 0.01)
    name, said = f"strandline-test-share-{os.getpid()}", list[str]()
    holders = [
        subprocess.Popen([sys.executable, "-c", HOLDS, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for holder in holders:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"

    def say(text: str) -> None:
        said.append(text)
        holders[0].kill()

    claim_share(2, say, name).close()
    assert said[0].startswith("waiting for memory: 2 other run(s) of the tests are at work")
    for holder in holders:
        holder.kill()
        holder.communicate()
