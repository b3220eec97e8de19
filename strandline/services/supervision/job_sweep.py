"""Work on the jobs of a control service that none of them waits for: a thread that looks at all of them again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import structlog

from strandline.core.errors import StrandlineError
from strandline.ledger.jobs import JobReader
from strandline.services.supervision.repeated_errors import RepeatedErrors

logger = structlog.get_logger()


class JobSweep:
    """Calls `work(job)` for every job, every `every_s` seconds between `start` and `close`. An error of one job does not stop the
    others; it is logged once, as is its end."""

    def __init__(self, ledger: JobReader, work: Callable[[str], int], *, action: str, every_s: float) -> None:
        """`action`: what the work is, for the log, as `copy dead letters`."""
        self._ledger = ledger
        self._work = work
        self._action = action
        self._every_s = every_s
        self._errors = RepeatedErrors(logger)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=action.replace(" ", "-"), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Return when the work under way has ended; `is_closing` asks it to."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def is_closing(self, pause_s: float) -> bool:
        """Whether the work is to end; waits for so long to know it."""
        return self._closing.wait(pause_s)

    def look(self) -> int:
        """Look once at all jobs; return the sum of what the work returned."""
        return sum(self._attempt(partial(self._work, job.name), job.name) for job in self._ledger.jobs())

    def _run(self) -> None:
        while not self._closing.is_set():
            self._attempt(self.look)
            self._closing.wait(self._every_s)

    def _attempt(self, work: Callable[[], int], job: str = "") -> int:
        """Do it; of an error only the log tells."""
        try:
            done = work()
        except StrandlineError as error:
            self._errors.failed(f"could not {self._action}", error, action=self._action, job=job)
            return 0
        except (
            Exception
        ):  # the edge: one job must not take the others with it, and nobody would see that the thread has ended
            logger.exception(f"could not {self._action}", action=self._action, job=job)
            return 0
        self._errors.worked("it works again", action=self._action, job=job)
        return done
