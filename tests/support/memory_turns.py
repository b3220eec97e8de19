"""Runs of all tests at the same time on one machine: no more than have room in its memory.

Four workers and the servers that they start need about 7 GB (`RUN_BYTES`). A run for which there is no memory would have the
kernel kill processes of all runs. So a run in workers claims a share of the memory before it starts any, and waits while all
shares are claimed. A claim is an abstract Unix socket, which the kernel releases with the process.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

RUN_BYTES = 7_500_000_000
_NAME = "strandline-test-run"
_LOOK_S = 1.0
_SAY_S = 60.0
_WITH_SERVERS = {"contract", "integration", "migration", "fault"}
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_CLAIM = pytest.StashKey[socket.socket]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Wait for a share of the memory. A run in a single process, of a few modules as a rule, needs no share."""
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput") and needs_servers(config.args):
        config.stash[_CLAIM] = claim_share(
            shares(memory_bytes()), lambda text: print(text, file=sys.stderr, flush=True)
        )


def pytest_unconfigure(config: pytest.Config) -> None:
    if (claim := config.stash.get(_CLAIM, None)) is not None:
        claim.close()


def needs_servers(arguments: list[str]) -> bool:
    """True if the arguments of pytest name all tests, or tests of a kind that starts servers."""
    parts = [Path(one.partition("::")[0]).parts for one in arguments]
    return any(one[-1:] == ("tests",) or not _WITH_SERVERS.isdisjoint(one) for one in parts)


def memory_bytes() -> int:
    """The memory of this machine, or of the control group that this process is in, if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _CGROUP_LIMIT.read_text().strip() if _CGROUP_LIMIT.exists() else "max"
    return total if limit == "max" else min(total, int(limit))


def shares(memory: int) -> int:
    """Number of runs that have room in this memory. A single run is never kept from starting."""
    return max(1, memory // RUN_BYTES)


def claim_share(count: int, say: Callable[[str], None], name: str = _NAME) -> socket.socket:
    """Claim one of `count` shares; wait while other runs hold all of them. Close the result to release the share."""
    said_s = -_SAY_S
    while True:
        for number in range(count):
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                claim.bind(f"\0{name}-{number}")
            except OSError:
                claim.close()
            else:
                return claim
        if time.monotonic() - said_s >= _SAY_S:
            said_s = time.monotonic()
            say(
                f"waiting for memory: {count} other run(s) of the tests are at work, and each needs {RUN_BYTES / 1e9:g} GB of "
                f"the {memory_bytes() / 1e9:.0f} GB of this machine"
            )
        time.sleep(_LOOK_S)  # sleeps: the other runs take as long as they take
