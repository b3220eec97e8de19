"""Meter of the costs of runs: it adds up CPU time and bytes, and notes the sums in the ledger at a bounded rate.

No result, digest, or comparison depends on a cost. A sum that the ledger didn't confirm is noted again later.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog

from strandline.core.errors import StrandlineError
from strandline.ledger.costs import Costs
from strandline.ledger.states import RunCost
from strandline.processing.emission.keyed_task import BucketOutcome

log = structlog.get_logger()

NOTE_S = 5.0
"""Minimum time in seconds between two notes."""
RECENT_S = 30.0
"""Time in seconds over which the recent CPU time is measured."""


class RecentCpu:
    """CPU time over the last RECENT_S seconds."""

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._parts: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, cpu_us: int) -> None:
        """Add the CPU time of work that has just ended."""
        self._parts.append((now_s, cpu_us))

    def us_per_s(self, now_s: float) -> int:
        """Return the CPU time per second in microseconds."""
        while self._parts and self._parts[0][0] <= now_s - RECENT_S:
            self._parts.popleft()
        seconds = min(RECENT_S, max(NOTE_S, now_s - self._began_s))
        return int(sum(cpu_us for _, cpu_us in self._parts) / seconds)


@dataclass
class _Run:
    epoch: int
    recent: RecentCpu
    cpu_us: int = 0
    bytes: int = 0
    state_bytes: int = 0
    is_noted: bool = field(default=True)
    """True if the ledger contains these sums."""


class CostMeter:
    """Meters the runs of a process. Not thread-safe."""

    def __init__(self, ledger: Costs, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger, self._clock = ledger, clock
        self._runs: dict[str, _Run] = {}
        self._due_s = clock() + NOTE_S

    def add(self, job: str, epoch: int, cpu_us: int, records_bytes: int, state_bytes: int) -> None:
        """Add the cost of one batch of a run. `state_bytes`: size of the state after it."""
        now_s, run = self._clock(), self._runs.get(job)
        if run is None or run.epoch != epoch:
            run = self._runs[job] = _Run(epoch, RecentCpu(now_s))
        run.cpu_us += cpu_us
        run.bytes += records_bytes
        run.state_bytes, run.is_noted = state_bytes, False
        run.recent.add(now_s, cpu_us)

    def add_buckets(self, job: str, epoch: int, outcomes: Iterable[BucketOutcome]) -> None:
        """Add the cost of one batch of a run whose buckets Spark has processed in separate tasks."""
        cpu_us = records_bytes = state_bytes = 0
        for outcome in outcomes:
            cpu_us += outcome.cpu_us + sum(facts.cpu_us for facts in outcome.facts)
            records_bytes += sum(facts.bytes for facts in outcome.facts)
            state_bytes += outcome.state_bytes
        self.add(job, epoch, cpu_us, records_bytes, state_bytes)

    def note_if_due(self) -> None:
        """Note the changed sums in the ledger, if the last note is old enough."""
        if self._clock() >= self._due_s:
            self.note()

    def note(self) -> None:
        """Note the changed sums in the ledger. If the ledger doesn't respond, they are noted later."""
        now_s = self._clock()
        self._due_s = now_s + NOTE_S
        changed = {job: run for job, run in self._runs.items() if not run.is_noted}
        try:
            self._ledger.note_costs(
                [
                    RunCost(job, run.epoch, run.cpu_us, run.bytes, run.state_bytes, run.recent.us_per_s(now_s))
                    for job, run in changed.items()
                ]
            )
        except StrandlineError as error:
            log.warning("can't note the costs of jobs", jobs=len(changed), error=str(error))
            return
        for run in changed.values():
            run.is_noted = True

    def forget(self, job: str) -> None:
        """Forget the run of a job that has ended, after a note of its sums."""
        run = self._runs.get(job)
        if run is not None and not run.is_noted:
            self.note()
        self._runs.pop(job, None)
