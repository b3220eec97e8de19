"""Watches over a run from threads of its own: whether it is still the one, and whether its control service can hear it.

The run's own thread may hang in a call to Spark or to the ledger; these don't. What they can't settle by asking they settle
by ending the process group at once: Python and the JVM with it, whose Python workers then end by themselves. That is never
wrong. Whoever runs the job next rewinds, and what this run still does is refused by the ledger.
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

from strandline.core.errors import Fenced, LedgerUnavailable, StrandlineError
from strandline.ledger.ledger import Ledger

log = structlog.get_logger()

LOOK_S = 0.5
OBEY_S = 5.0
"""How long a run that was found to be superseded may take to end by itself."""
STALL_LEASES = 3
"""After so many lease lengths without a sign of life from Spark the run is ended."""
_TICK_S = 0.25


class Guard:
    """The watch over one run, from `start` to `close`."""

    def __init__(
        self,
        ledger: Ledger,
        job: str,
        epoch: int,
        lease: int | None,
        lease_s: float,
        alive_fd: int | None,
        end: Callable[[], None],
    ) -> None:
        """`lease` is the epoch of the leader's lease, None for a run that was started by hand. Into `alive_fd` a byte is
        written at every tick. `end` must end the process."""
        self._ledger = ledger
        self._job = job
        self._epoch = epoch
        self._lease = lease
        self._lease_s = lease_s
        self._alive_fd = alive_fd
        self._end = end
        self.fenced: Fenced | None = None
        """Set once this run is no longer the one; the run's own thread is to raise it."""
        self._looked, self._stirred = threading.Event(), threading.Event()
        self._is_watched = False
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("guard-look", self._look_on), ("guard-tick", self._tick_on))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the watch; the ledger is not asked any more afterwards."""
        self._closing.set()
        for thread in self._threads:
            thread.join(LOOK_S + self._lease_s)

    def stir(self) -> None:
        """Say that Spark answered just now. From the first time on, its silence counts."""
        self._is_watched = True
        self._stirred.set()

    def rest(self) -> None:
        """Say that Spark has been told to stop, and may take its time; the rest is watched as before."""
        self._is_watched = False

    def _look_on(self) -> None:
        while not self._closing.wait(LOOK_S):
            try:
                epoch, lease = self._ledger.standing(self._job)
            except LedgerUnavailable as error:
                log.warning("could not look whether this run goes on", job=self._job, error=str(error))
                continue
            except StrandlineError as error:
                self.fenced = Fenced(str(error))
                return
            self._looked.set()
            if epoch != self._epoch:
                self.fenced = Fenced(f"job {self._job} is run by epoch {epoch} now; epoch {self._epoch} ends")
                return
            if self._lease is not None and lease != self._lease:
                self.fenced = Fenced(
                    f"job {self._job} is led under lease {lease} now; this run began under {self._lease} and ends"
                )
                return

    def _tick_on(self) -> None:
        """Counts only time in which this process ran: after a pause it may ask first."""
        unheard_s = stalled_s = fenced_s = 0.0
        before_s = time.monotonic()
        while not self._closing.wait(_TICK_S):
            self._beat()
            now_s = time.monotonic()
            ran_s, before_s = min(now_s - before_s, 2 * _TICK_S), now_s
            unheard_s = 0.0 if self._looked.is_set() else unheard_s + ran_s
            stalled_s = 0.0 if self._stirred.is_set() or not self._is_watched else stalled_s + ran_s
            self._looked.clear()
            self._stirred.clear()
            fenced_s = fenced_s + ran_s if self.fenced else 0.0
            if fenced_s > OBEY_S:
                self._end_now(f"this run was superseded and did not end within {OBEY_S:g} s")
            elif unheard_s > self._lease_s and not self.fenced:
                self._end_now(f"the ledger could not be asked for {self._lease_s:g} s")
            elif stalled_s > STALL_LEASES * self._lease_s:
                self._end_now(f"Spark did not answer for {STALL_LEASES * self._lease_s:g} s")

    def _beat(self) -> None:
        if self._alive_fd is not None:
            # A full pipe means that nobody reads it now, a broken one that the control service is gone: whether this
            # run goes on is the ledger's to say.
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self._alive_fd, b".")

    def _end_now(self, why: str) -> None:
        log.error("the run is ended at once", job=self._job, epoch=self._epoch, why=why)
        self._end()


def end_process_group() -> None:
    """Kill this process and, where it has a group of its own, all in that."""
    sys.stdout.flush()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
