"""Checks the pipelines of all jobs after the start of a control service, so that its first responses about jobs are fast.

A response about jobs needs their checked pipelines, for example for the cost of a rewind. A check takes some milliseconds, and
`job_status` caches its result.
"""

from __future__ import annotations

import threading
import time

import structlog

from strandline.core.errors import StrandlineError
from strandline.ledger.roles import LedgerReader
from strandline.services.jobs.job_status import check_pipelines

logger = structlog.get_logger()


class CheckedAhead:
    """Checks all pipelines once, in its own thread between `start` and `close`."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._ledger = ledger
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="check-pipelines", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Check no more pipelines, and wait for the running check."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            began_s = time.monotonic()
            for _ in check_pipelines(self._ledger, self._ledger.jobs()):
                # Requests and the supervisor need Python, too: the checks use half of it.
                if self._closing.wait(time.monotonic() - began_s):
                    return
                began_s = time.monotonic()
        except StrandlineError as error:  # the first response about jobs checks them
            logger.warning("can't check the pipelines ahead", action="check pipelines", error=str(error))
