"""Watchdog of a run, in threads of its own. It checks that the run is current, and that Spark and the ledger answer.

The run's own thread may hang in a call to Spark or to the ledger; these threads don't. When asking does not help, they kill the
process group at once: Python and the JVM, whose Python workers then end by themselves. That is always safe: the next run
rewinds, and the ledger refuses what this run may still write.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import structlog

from strandline.core.errors import Fenced, InvalidSettings, LedgerUnavailable, StrandlineError
from strandline.ledger.roles import RunLedger

log = structlog.get_logger()

LOOK_S = 0.5
OBEY_S = 5.0
"""How long a superseded run may take to end by itself."""
STALL_LEASES = 3
"""Number of lease lengths without an answer of Spark, after which a run is ended."""
START_MAX_S = 900.0
"""A run is ended when Spark has answered nothing at all so long after its begin. Kafka and the ledger have shorter limits, so
what hangs is Spark: its Java process, or its cluster."""
_TELL_S = 2.0
"""How long the ledger may take to note why a run is ended at once."""
_TICK_S = 0.25


class Watchdog:
    """Watches one run, from `start` to `close`."""

    def __init__(
        self,
        ledger: RunLedger,
        job: str,
        epoch: int,
        lease: int | None,
        lease_s: float,
        alive_fd: int | None,
        end: Callable[[], None],
    ) -> None:
        """`lease` is the epoch of the leader's lease, None for a run that was started by hand. A byte is written to `alive_fd` at
        every tick. `end` must end the process."""
        self._ledger = ledger
        self._job = job
        self._epoch = epoch
        self._lease = lease
        self._lease_s = lease_s
        self._alive_fd = alive_fd
        self._end = end
        self.lease = lease
        self.fenced: Fenced | None = None
        """Set once this run is no longer the current one; the run's own thread raises it."""
        self._ledger_answered, self._spark_answered = threading.Event(), threading.Event()
        self._is_armed = self._has_begun = False
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("watchdog-look", self._look_on), ("watchdog-tick", self._tick_on))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop watching. The ledger is not asked afterwards."""
        self._closing.set()
        for thread in self._threads:
            thread.join(LOOK_S + self._lease_s)

    def beat(self) -> None:
        """Say that Spark answered just now. Its silence counts from the first call on."""
        self._is_armed = self._has_begun = True
        self._spark_answered.set()

    def disarm(self) -> None:
        """Stop watching Spark, which was asked to stop and may need time. The ledger is watched as before."""
        self._is_armed, self._has_begun = False, True

    def _look_on(self) -> None:
        while not self._closing.wait(LOOK_S):
            try:
                epoch, lease = self._ledger.standing(self._job)
            except (LedgerUnavailable, InvalidSettings) as error:  # a secret of the ledger may be being replaced
                log.warning("could not ask whether this run is still the current one", job=self._job, error=str(error))
                continue
            except StrandlineError as error:
                self.fenced = Fenced(str(error))
                return
            self._ledger_answered.set()
            if epoch != self._epoch:
                self.fenced = Fenced(f"job {self._job} is run by epoch {epoch} now; epoch {self._epoch} ends")
                return
            if self._lease is not None and lease != self._lease:
                self.fenced = Fenced(
                    f"job {self._job} is led under lease {lease} now; this run began under {self._lease} and ends"
                )
                return

    def _tick_on(self) -> None:
        """Counts only time in which this process ran: after a pause it asks before it decides."""
        unheard_s = stalled_s = fenced_s = starting_s = 0.0
        before_s = time.monotonic()
        while not self._closing.wait(_TICK_S):
            self._show_life()
            now_s = time.monotonic()
            ran_s, before_s = min(now_s - before_s, 2 * _TICK_S), now_s
            unheard_s = 0.0 if self._ledger_answered.is_set() else unheard_s + ran_s
            stalled_s = 0.0 if self._spark_answered.is_set() or not self._is_armed else stalled_s + ran_s
            starting_s = 0.0 if self._has_begun else starting_s + ran_s
            self._ledger_answered.clear()
            self._spark_answered.clear()
            fenced_s = fenced_s + ran_s if self.fenced else 0.0
            if fenced_s > OBEY_S:
                self._end_now(f"this run was superseded and did not end within {OBEY_S:g} s")
            elif unheard_s > self._lease_s and not self.fenced:
                self._end_now(f"the ledger could not be queried for {self._lease_s:g} s")
            elif stalled_s > STALL_LEASES * self._lease_s:
                self._end_now(f"Spark did not answer for {STALL_LEASES * self._lease_s:g} s")
            elif starting_s > START_MAX_S:
                self._end_now(f"Spark's query did not begin within {START_MAX_S:g} s")

    def _show_life(self) -> None:
        if self._alive_fd is not None:
            # A full pipe means that the control service is slow, a broken one that it is gone. The ledger
            # decides whether this run goes on.
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self._alive_fd, b".")

    def _end_now(self, why: str) -> None:
        log.error("the run is ended at once", job=self._job, epoch=self._epoch, why=why)
        # The ledger may be what hangs.
        reporting = threading.Thread(target=self._report, args=(why,), name="watchdog-report", daemon=True)
        reporting.start()
        reporting.join(_TELL_S)
        self._end()

    def _report(self, why: str) -> None:
        """Note in the ledger why the run ends: the job's status must name it, and a killed process can't."""
        with contextlib.suppress(StrandlineError):
            self._ledger.end_run(self._job, self._epoch, "failed", why)


def end_process_group() -> None:
    """Kill this process and, where it has a group of its own, all in that."""
    sys.stdout.flush()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
