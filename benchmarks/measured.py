"""The estimator for all sides: CPU-seconds of the side's whole process tree, in one run of one job.

The warm figure starts when the first records are done, and ends with the side's output. So it excludes the cold start, which
doesn't depend on the number of records. The cold figure is the time before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from benchmarks.process_tree import WatchedTree
from benchmarks.progress import Progress
from benchmarks.works import Outcome


@dataclass(frozen=True)
class Snapshot:
    """Progress of a run at one moment."""

    records: int
    at_s: float
    cpu_s: dict[str, float]
    """CPU-seconds since the start of the process, by role."""

    @classmethod
    def take(cls, tree: WatchedTree, records: int) -> Snapshot:
        """Take a snapshot of a running process and its descendants."""
        return cls(records, time.monotonic(), tree.cpu_by_role())


@dataclass(frozen=True)
class Spent:
    """Cost of a part of a run."""

    records: int
    seconds: float
    cpu_s: dict[str, float]

    @classmethod
    def between(cls, before: Snapshot, after: Snapshot) -> Spent:
        cpu_s = {role: seconds - before.cpu_s.get(role, 0.0) for role, seconds in after.cpu_s.items()}
        return cls(after.records - before.records, after.at_s - before.at_s, cpu_s)

    @property
    def cpu_s_per_million(self) -> float:
        return sum(self.cpu_s.values()) * 1e6 / self.records

    @property
    def records_a_second(self) -> float:
        return self.records / self.seconds


@dataclass(frozen=True)
class Run:
    """One run of one side."""

    cold: Spent
    """From the start of the process until the first records are done."""
    warm: Spent
    """From then to the end of the output."""
    outcome: Outcome
    peak_mb: dict[str, float] = field(default_factory=dict)
    """Maximum memory of its process tree, by role. Shared memory counts once."""


def memory_text(peak_mb: dict[str, float]) -> str:
    """Return the memory for people: the total and its parts."""
    parts = ", ".join(f"{role} {mb:,.0f}" for role, mb in peak_mb.items())
    return f"{sum(peak_mb.values()):,.0f} MB ({parts})"


def watch(lines: Iterable[str], mark: int, began_s: float, take: Callable[[int], Snapshot]) -> Run:
    """Follow a side's lines until its output is complete. `take` makes a snapshot at that number of records. Raises
    RuntimeError if the lines end before."""
    began, marked = Snapshot(0, began_s, {}), None
    for progress in filter(None, map(Progress.parse, lines)):
        if progress.complete:
            if marked is None or marked.records >= progress.records:
                raise RuntimeError(f"the run was complete before a snapshot at {mark:,} records")
            ended = take(progress.records)
            return Run(Spent.between(began, marked), Spent.between(marked, ended), progress.outcome)
        if marked is None and progress.records >= mark:
            marked = take(progress.records)
    raise RuntimeError("the run ended before its output was complete")
