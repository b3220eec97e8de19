"""Clears the ledger of old slices, so that it does not grow for ever: now and then, in small transactions, beside the jobs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import structlog

from strandline.core.errors import StrandlineError
from strandline.ledger.ledger import Ledger
from strandline.processing.slices.old_slices import SlicesKept, floor_of_use

logger = structlog.get_logger()

LOOK_INTERVAL_S = 600.0
SLICES_A_TRANSACTION = 500
"""A job's run that wants to write waits for one transaction of these at most: some 20 ms."""
PAUSE_S = 0.05
"""Between two transactions, so that others come in between."""


class OldSlices:
    """Runs in a thread of its own between `start` and `close`, for the jobs that this control service leads."""

    def __init__(
        self,
        ledger: Ledger,
        leads: Callable[[str], bool],
        log_starts: Callable[[str], Mapping[int, int]],
        kept: SlicesKept,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        *,
        pause_s: float = PAUSE_S,
    ) -> None:
        """`leads(job)`: whether this control service leads it now. `log_starts(topic)`: the first offset that each of its
        partitions still holds. `now_ms` decides how long slices stay that nothing else needs, and no more."""
        self._ledger = ledger
        self._leads = leads
        self._log_starts = log_starts
        self._kept = kept
        self._now_ms = now_ms
        self._pause_s = pause_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="old-slices", daemon=True)

    def start(self) -> None:
        """Start to clear."""
        self._thread.start()

    def close(self) -> None:
        """End after the present transaction."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def clear(self) -> int:
        """Look once at all jobs; return how many slices were removed. An error of one job does not stop the others."""
        removed = 0
        for job in self._ledger.jobs():
            try:
                removed += self._clear_job(job.name)
            except StrandlineError as error:
                logger.warning("could not clear old slices", action="clear", job=job.name, error=str(error))
            except Exception:  # the edge: one job must not take the others with it
                logger.exception("could not clear old slices", action="clear", job=job.name)
        return removed

    def _clear_job(self, job: str) -> int:
        removed = 0
        while self._leads(job) and (gone := self._clear_some(job)):
            removed += gone
            if self._closing.wait(self._pause_s):
                break
        if removed:
            floor = self._ledger.floor(job)
            logger.info("cleared old slices", action="clear", job=job, floor=floor, slices=removed)
        return removed

    def _clear_some(self, job: str) -> int:
        """One transaction. The floor is worked out for it alone: what is needed may be more by the next one."""
        version = self._ledger.job(job).version
        floor = floor_of_use(self._ledger, job, self._log_starts, self._kept, self._now_ms())
        return self._ledger.raise_floor(job, version, floor, SLICES_A_TRANSACTION)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.clear()
            except StrandlineError as error:
                logger.warning("could not clear old slices", action="clear", error=str(error))
            except Exception:  # the edge: nobody would see that the thread has ended
                logger.exception("could not clear old slices", action="clear")
            self._closing.wait(LOOK_INTERVAL_S)
