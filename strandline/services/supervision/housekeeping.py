"""Limits the files of a control service: logs of its processes, scratch directories of ended processes, snapshots of deleted
jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import structlog

from strandline.core.errors import StrandlineError
from strandline.core.settings import Settings
from strandline.ledger.lifecycle import LifecycleReader
from strandline.processing.run.snapshots import remove_of_deleted
from strandline.processing.spark.cluster import snapshot_directory
from strandline.processing.spark.scratch import sweep
from strandline.services.processes.log_files import bound_log, keep_newest

logger = structlog.get_logger()

POLL_INTERVAL_S = 10.0
_WORKERS = ("runner-*.log", "standby-*.log", "backfill-*.log", "audit-*.log")
_CRASHES = "java-crash-*.log"


class Housekeeping:
    """Runs in its own thread, from `__enter__` to `__exit__`."""

    def __init__(self, settings: Settings, ledger: LifecycleReader) -> None:
        self._settings = settings
        self._ledger = ledger
        self._logs = settings.data_dir / "logs"
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)

    def __enter__(self) -> Housekeeping:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join()

    def look(self) -> None:
        """Limit all files once. An error is logged, and doesn't stop the other steps: on a full disk, they free space.

        1. Limit each log of a runner, standby, backfill, or audit.
        2. Keep the newest crash logs of JVMs.
        3. Delete the scratch directories of ended processes, and the snapshots of deleted jobs.
        """
        for pattern in _WORKERS:
            for log in self._logs.glob(pattern):
                with _log_failure(f"can't limit the log {log}"):
                    bound_log(log, self._settings)
        with _log_failure("can't limit the logs of crashed JVMs"):
            keep_newest(self._logs.glob(_CRASHES), self._settings.logs_max)
        with _log_failure("can't delete the scratch directories of ended processes"):
            sweep(self._settings)
        with _log_failure("can't delete the snapshots of deleted jobs"):
            for job in remove_of_deleted(snapshot_directory(self._settings), self._ledger.deleted_job):
                logger.info("the snapshots of a deleted job were deleted", action="tidy", job=job)

    def _run(self) -> None:
        while True:
            with _log_failure("can't limit logs and scratch directories"):
                self.look()
            if self._closing.wait(POLL_INTERVAL_S):
                return


@contextmanager
def _log_failure(what_failed: str) -> Iterator[None]:
    try:
        yield
    except (OSError, StrandlineError) as error:
        logger.warning(what_failed, action="tidy", error=str(error))
