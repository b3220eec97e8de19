"""`python -m benchmarks.example`: duration and CPU time of the slices of the example, and the age of records when their slice
is committed.

Starts `strandline example` in a temporary directory, with all its servers on this machine, and reads its ledger afterwards. The
first seconds after the start are left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.latency import percentile
from benchmarks.process_tree import cpu_by_role
from benchmarks.runners import runner_pid
from benchmarks.servers import free_offset
from strandline.core.errors import StrandlineError
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import CheckpointRow, SliceRow
from strandline.services.processes.pids import PidFile

JOB = "turbine-health"
SLICE_S_MAX, AGE_S_MAX = 1.0, 2.0
"""Limits of the duration of a slice, and of the age of its oldest record at the commit."""
_LOOK_EVERY_S = 1.0


@dataclass(frozen=True)
class Look:
    """CPU time of the runner up to one moment."""

    at_ms: int
    cpu_s: dict[str, float]
    """CPU-seconds by role of the process: `driver`, `jvm`, `python`."""


@dataclass(frozen=True)
class Slices:
    """Measurements, with a value for each slice."""

    seconds: list[float]
    """Seconds from the plan to the commit."""
    ages_s: list[float]
    """Age of the oldest record at the commit, since the newest record of the slice before, or a little less."""
    records: int

    def summary(self) -> str:
        return (
            f"{len(self.seconds):,} slices of {self.records / len(self.seconds):,.0f} records\n"
            f"from plan to commit: {_spread(self.seconds, SLICE_S_MAX)}\n"
            f"age of the oldest record at the commit: {_spread(self.ages_s, AGE_S_MAX)}"
        )


def _spread(values: list[float], goal_s: float) -> str:
    beyond = sum(one >= goal_s for one in values)
    return (
        f"p50 {percentile(values, 50):.2f} s, p99 {percentile(values, 99):.2f} s, at most {max(values):.2f} s "
        f"({beyond:,} of {len(values):,} took {goal_s:g} s or longer)"
    )


def measure(slices: list[SliceRow], checkpoints: list[CheckpointRow], left_out_s: float) -> Slices:
    """Evaluate the slices and checkpoints, which must be in order. Slices that were planned in the first `left_out_s` seconds
    after the first one are left out."""
    planned_ms = {row.number: row.planned_ms for row in slices}
    from_ms = slices[0].planned_ms + left_out_s * 1000
    pairs = [(a, b) for a, b in pairwise(checkpoints) if b.records and planned_ms[b.slice] >= from_ms]
    return Slices(
        [(row.committed_ms - planned_ms[row.slice]) / 1000 for _, row in pairs],
        [(row.committed_ms - before.latest_log_ms) / 1000 for before, row in pairs if before.latest_log_ms is not None],
        sum(row.records for _, row in pairs),
    )


def cpu_summary(looks: list[Look], checkpoints: list[CheckpointRow], from_ms: int) -> str:
    """Return the cost of a slice, from the first sample at or after `from_ms` to the last one before the last checkpoint,
    because the runner ends after it. Slices without records count, too. Raises ValueError if nothing was measured."""
    used = [look for look in looks if from_ms <= look.at_ms <= checkpoints[-1].committed_ms]
    slices = sum(used[0].at_ms < row.committed_ms <= used[-1].at_ms for row in checkpoints) if used else 0
    if not slices:
        raise ValueError(
            f"no slice was committed between two of {len(used)} samples of the runner; run the example for longer"
        )
    each_ms = {role: (used[-1].cpu_s[role] - used[0].cpu_s[role]) * 1000 / slices for role in used[0].cpu_s}
    parts = " / ".join(f"{role} {cost_ms:.0f}" for role, cost_ms in each_ms.items())
    return f"CPU time of the runner: {sum(each_ms.values()):.0f} ms a slice ({parts}), over {slices:,} slices"


def _runner(directory: Path) -> int | None:
    """Return the process that runs the example. None if it doesn't run yet."""
    path = directory / "ledger.sqlite"
    if path.exists():
        with suppress(StrandlineError), closing(Ledger.open(f"sqlite:///{path}")) as ledger:  # it is being created
            return runner_pid(PidFile(directory).all(), ledger, JOB)
    return None


def _watch_runner(example: subprocess.Popen[bytes], directory: Path) -> list[Look]:
    """Sample the runner until the example ends."""
    looks = []
    while example.poll() is None:
        time.sleep(_LOOK_EVERY_S)
        pid = _runner(directory)
        if pid is not None:
            cpu_s = cpu_by_role(pid)
            if any(cpu_s.values()):  # the process has not just ended
                looks.append(Look(time.time_ns() // 1_000_000, cpu_s))
    return looks


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.example", description="Measure the example's slices.")
    parser.add_argument("--seconds", type=int, default=120, help="seconds that the example runs (default %(default)s)")
    parser.add_argument("--left-out", type=int, default=30, help="seconds after the first slice that don't count")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="strandline-bench-") as directory:
        program = Path(sys.executable).with_name("strandline")
        options_of_example = ["--data-dir", directory, "--port-offset", free_offset(), "--seconds", options.seconds]
        with subprocess.Popen([program, "example", *map(str, options_of_example)]) as example:
            looks = _watch_runner(example, Path(directory))
        if example.returncode != 0:
            raise SystemExit(f"the example failed, with exit code {example.returncode}")
        with closing(Ledger.open(f"sqlite:///{directory}/ledger.sqlite")) as ledger:
            last = ledger.last_slice(JOB)
            assert last is not None, "the example committed no slice"
            checkpoints = ledger.checkpoints(JOB, last.number)[::-1]
            slices = ledger.slices(JOB, 1, last.number)
            print(measure(slices, checkpoints, options.left_out).summary())
            print(cpu_summary(looks, checkpoints, slices[0].planned_ms + options.left_out * 1000))


if __name__ == "__main__":
    main()
