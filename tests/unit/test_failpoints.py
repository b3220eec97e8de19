"""The effect of each order at a failpoint, observed from another process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from strandline.core.failpoints import BACKFILL_FAILPOINTS, FAILPOINTS, LIFECYCLE_FAILPOINTS, REPLAY_FAILPOINTS
from strandline.services.processes.process_tree import MARK_VARIABLE
from tests.support.waiting import stretched, wait_until

ROOT = Path(__file__).parents[2]
COME_THREE_TIMES = """
from strandline.core.failpoints import failpoint
for time in (1, 2, 3):
    failpoint("emit.written")
    print(time, flush=True)
"""


def come_three_times(armed: str, program: str = COME_THREE_TIMES, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "STRANDLINE_FAILPOINTS"}
    environment |= {"STRANDLINE_FAILPOINTS": armed} if armed else {}
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environment | more,
        capture_output=True,
        text=True,
        timeout=stretched(30),
        check=False,
    )


@pytest.mark.parametrize(
    ("armed", "code", "came_past"),
    [
        ("", 0, 3),
        ("emit.written=kill", -signal.SIGKILL, 0),
        ("plan.recorded=kill, emit.written=kill:3", -signal.SIGKILL, 2),
        ("emit.written=kill-family:2", -signal.SIGKILL, 1),
        ("plan.recorded=kill", 0, 3),
        ("@/no/such/file", 0, 3),
    ],
)
def test_a_kill_comes_where_and_when_it_was_ordered(armed: str, code: int, came_past: int) -> None:
    done = come_three_times(armed)
    assert (done.returncode, len(done.stdout.splitlines())) == (code, came_past), done.stderr


def test_a_pause_holds_the_process() -> None:
    began_s = time.monotonic()
    assert come_three_times("emit.written=pause:0.4").returncode == 0
    assert time.monotonic() - began_s >= 3 * 0.4


@pytest.mark.parametrize("order", ["explode", "note", ""])
def test_an_order_that_nobody_knows_is_refused(order: str) -> None:
    done = come_three_times(f"emit.written={order}")
    assert done.returncode == 1 and "is not an action" in done.stderr


def test_a_file_fires_once_over_all_processes(tmp_path: Path) -> None:
    file = tmp_path / "armed"
    file.write_text("emit.written=kill:2")
    assert come_three_times(f"@{file}").returncode == -signal.SIGKILL
    assert come_three_times(f"@{file}").returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["armed.fired"]


def test_a_file_notes_what_is_reached(tmp_path: Path) -> None:
    file = tmp_path / "armed"
    file.write_text("*=note")
    assert come_three_times(f"@{file}").returncode == 0
    assert (tmp_path / "armed.reached").read_text() == "emit.written\n" * 3


def test_the_family_dies_with_it_and_nobody_else() -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    mark = f"test:{os.getpid()}"
    with subprocess.Popen(sleeper, env=os.environ | {MARK_VARIABLE: mark}) as kin:
        with subprocess.Popen(sleeper, env=os.environ | {MARK_VARIABLE: f"{mark}x"}) as other:
            # A child has its own environment only once it has become another program.
            for one in (kin, other):
                wait_until(
                    Path(f"/proc/{one.pid}/cmdline").read_bytes, lambda line: b"time.sleep" in line, "its own program"
                )
            done = come_three_times("emit.written=kill-family", **{MARK_VARIABLE: mark})
            assert done.returncode == -signal.SIGKILL
            assert kin.wait(stretched(10)) == -signal.SIGKILL
            assert other.poll() is None
            other.kill()


def test_every_failpoint_stands_in_the_code_once() -> None:
    """In its one place: a name that is used twice would say nothing about where a process ended."""
    texts = [path.read_text() for path in (ROOT / "strandline").rglob("*.py") if path.name != "failpoints.py"]
    used = [name for text in texts for name in re.findall(r'failpoint\("([^"]+)"\)', text)]
    # Both kinds of transactions take the same steps.
    steps = [name for text in texts for name in re.findall(r'failpoint\(f"\{\w+\.failpoints\}\.(\w+)"\)', text)]
    kinds = [name for text in texts for name in re.findall(r'failpoints="(\w+)"', text)]
    used += [f"{kind}.{step}" for kind in kinds for step in steps]
    # A process has one of two loops, the query of a job or the turns of a pool. Both take these steps.
    of_loops = ["checkpoint.committed", "slice.before_action", "slice.written"]
    known = [*FAILPOINTS, *BACKFILL_FAILPOINTS, *LIFECYCLE_FAILPOINTS, *REPLAY_FAILPOINTS, *of_loops]
    assert sorted(used) == sorted(known)
    assert sum(text.count("failpoint(") for text in texts) == len(used) - len(kinds) * len(steps) + len(steps)
