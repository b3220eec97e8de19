"""Removes old slices and runs from the ledger, so that it doesn't grow forever: periodically, in small transactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import structlog

from strandline.ledger.roles import CompactionLedger
from strandline.processing.slices.old_runs import runs_of_no_use
from strandline.processing.slices.old_slices import SlicesKept, floor_of_use
from strandline.services.supervision.job_sweep import PeriodicJobTask

logger = structlog.get_logger()

POLL_INTERVAL_S = 600.0
SLICES_A_TRANSACTION = 500
"""Maximum number of slices in one transaction. A job's run that writes waits for at most one, about 20 ms."""
RUNS_A_TRANSACTION = 100
PAUSE_S = 0.05
"""Pause between two transactions, so that other transactions can run in between."""


class SliceCleanup:
    """Runs in its own thread between `start` and `close`, for the jobs that this control service leads."""

    def __init__(
        self,
        ledger: CompactionLedger,
        leads: Callable[[str], bool],
        log_starts: Callable[[str], Mapping[int, int]],
        kept: SlicesKept,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        *,
        pause_s: float = PAUSE_S,
    ) -> None:
        """Args: leads: Returns True if this control service leads the job now.
        `log_starts`: Returns the first offset that each partition of a topic still contains.
        `now_ms`: Determines only how long unneeded slices are kept."""
        self._ledger = ledger
        self._leads = leads
        self._log_starts = log_starts
        self._kept = kept
        self._now_ms = now_ms
        self._pause_s = pause_s
        self._sweep = PeriodicJobTask(ledger, self._clear_job, action="clear old slices", every_s=POLL_INTERVAL_S)
        self.start, self.close = self._sweep.start, self._sweep.close
        self.clear = self._sweep.look
        """Process all jobs once, and return the number of removed slices."""

    def _clear_job(self, job: str) -> int:
        self._clear_runs(job)
        removed = 0
        while self._leads(job) and (gone := self._clear_some(job)):
            removed += gone
            if self._sweep.is_closing(self._pause_s):
                break
        if removed:
            floor = self._ledger.floor(job)
            logger.info("cleared old slices", action="clear", job=job, floor=floor, slices=removed)
        return removed

    def _clear_runs(self, job: str) -> None:
        """Remove old runs. Before the slices, because no slice is removed while Kafka is unavailable, and then there are many
        runs."""
        old, removed = runs_of_no_use(self._ledger, job), 0
        for first in range(0, len(old), RUNS_A_TRANSACTION):
            if not self._leads(job) or self._sweep.is_closing(self._pause_s):
                break
            removed += self._ledger.remove_runs(job, old[first : first + RUNS_A_TRANSACTION])
        if removed:
            logger.info("cleared old runs", action="clear", job=job, runs=removed)

    def _clear_some(self, job: str) -> int:
        """Run one transaction. The floor is computed for it alone, because more slices can be needed by the next one."""
        version = self._ledger.job(job).version
        floor = floor_of_use(self._ledger, job, self._log_starts, self._kept, self._now_ms())
        return self._ledger.raise_floor(job, version, floor, SLICES_A_TRANSACTION)
