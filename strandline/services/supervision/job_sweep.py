"""Periodic work on the jobs of a control service in a separate thread. No job waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial

import structlog

from strandline.core.errors import StrandlineError
from strandline.ledger.jobs import JobReader
from strandline.services.supervision.repeated_errors import RepeatedErrors

logger = structlog.get_logger()


class PeriodicJobTask:
    """Calls `work(job)` for every job that needs it, every `every_s` seconds between `start` and `close`. An error of one job
    does not stop the others. It is logged once, and its end too."""

    def __init__(
        self,
        ledger: JobReader,
        work: Callable[[str], int],
        *,
        action: str,
        every_s: float,
        jobs: Callable[[], Iterable[str]] | None = None,
    ) -> None:
        """Args: action: Description of the work for the log, as `copy dead letters`.
        jobs: Returns the jobs that need the work. None: all jobs do."""
        self._jobs = jobs or (lambda: [job.name for job in ledger.jobs()])
        self._work = work
        self._action = action
        self._every_s = every_s
        self._errors = RepeatedErrors(logger)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=action.replace(" ", "-"), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Start no more work, and wait until the running work has ended. `is_closing` now returns True, so that it can
        end early.
        """
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def is_closing(self, pause_s: float) -> bool:
        """Wait for `close`, at most `pause_s`. Return True if it was called: then the work must end."""
        return self._closing.wait(pause_s)

    def look(self) -> int:
        """Process these jobs once, and return the sum of the results."""
        return sum(self._attempt(partial(self._work, job), job) for job in self._jobs())

    def _run(self) -> None:
        while not self._closing.is_set():
            self._attempt(self.look)
            self._closing.wait(self._every_s)

    def _attempt(self, work: Callable[[], int], job: str = "") -> int:
        """Do the work. Errors are only logged."""
        try:
            done = work()
        except StrandlineError as error:
            self._errors.failed(f"can't {self._action}", error, action=self._action, job=job)
            return 0
        except Exception:  # edge: one job must not stop the others, and the end of the thread would go unnoticed
            logger.exception(f"can't {self._action}", action=self._action, job=job)
            return 0
        self._errors.worked("it works again", action=self._action, job=job)
        return done
