"""The one estimator for all sides: CPU-seconds of the side's whole process tree, from the moment when the first records are done
to the end of its answer, in one run of one job in one process. So the cold start, which is the same however many records
follow, is left out; what came before that moment is the cold figure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from benchmarks.process_tree import WatchedTree
from benchmarks.progress import Progress
from benchmarks.works import Outcome


@dataclass(frozen=True)
class Snapshot:
    """Where a run stood at a moment."""

    records: int
    at_s: float
    cpu_s: dict[str, float]
    """Since the process's start, by role."""

    @classmethod
    def take(cls, tree: WatchedTree, records: int) -> Snapshot:
        """Of a running process and all below it."""
        return cls(records, time.monotonic(), tree.cpu_by_role())


@dataclass(frozen=True)
class Spent:
    """What a part of a run took."""

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
    """From the process's start until the first records are done."""
    warm: Spent
    """From there to the end of its answer."""
    outcome: Outcome
    peak_mb: dict[str, float] = field(default_factory=dict)
    """Memory of its process tree, by role, when it had most; what several processes share counts once."""


def memory_text(peak_mb: dict[str, float]) -> str:
    """Memory as people read it: the whole and its parts."""
    parts = ", ".join(f"{role} {mb:,.0f}" for role, mb in peak_mb.items())
    return f"{sum(peak_mb.values()):,.0f} MB ({parts})"


def watch(lines: Iterable[str], mark: int, began_s: float, take: Callable[[int], Snapshot]) -> Run:
    """Follow a side's lines until its answer is complete. `take` makes a snapshot of it at so many records.
    Raises RuntimeError when the lines end before."""
    began, marked = Snapshot(0, began_s, {}), None
    for progress in filter(None, map(Progress.parse, lines)):
        if progress.complete:
            if marked is None or marked.records >= progress.records:
                raise RuntimeError(f"it was done before it was seen to have {mark:,} records")
            ended = take(progress.records)
            return Run(Spent.between(began, marked), Spent.between(marked, ended), progress.outcome)
        if marked is None and progress.records >= mark:
            marked = take(progress.records)
    raise RuntimeError("it ended before its answer was complete")
