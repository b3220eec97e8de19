"""What gathers on the disk of a control service, kept within bounds: logs of its processes, scratch directories of dead ones,
snapshots of deleted jobs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import structlog

from strandline.core.errors import StrandlineError
from strandline.core.settings import Settings
from strandline.ledger.lives import LifeReader
from strandline.processing.run.snapshots import remove_of_deleted
from strandline.processing.spark.cluster import snapshot_directory
from strandline.processing.spark.scratch import sweep
from strandline.services.processes.log_files import bound_log, keep_newest

logger = structlog.get_logger()

LOOK_INTERVAL_S = 10.0
_WORKERS = ("runner-*.log", "standby-*.log", "backfill-*.log", "audit-*.log")
_CRASHES = "java-crash-*.log"


class Housekeeping:
    """Looks in a thread of its own, from `__enter__` to `__exit__`."""

    def __init__(self, settings: Settings, ledger: LifeReader) -> None:
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
        """One look. What can't be done is said, and keeps nothing else from being done: on a full disk, the rest makes room.

        1. Bound each log of a runner, standby, backfill or audit.
        2. Of what JVMs that crashed have written, keep the newest.
        3. Delete the scratch directories of dead processes, and the snapshots of deleted jobs.
        """
        for pattern in _WORKERS:
            for log in self._logs.glob(pattern):
                with _told(f"the log {log} could not be bounded"):
                    bound_log(log, self._settings)
        with _told("what crashed JVMs have written could not be bounded"):
            keep_newest(self._logs.glob(_CRASHES), self._settings.logs_kept)
        with _told("scratch directories of dead processes could not be deleted"):
            sweep(self._settings)
        with _told("snapshots of deleted jobs could not be deleted"):
            for job in remove_of_deleted(snapshot_directory(self._settings), self._ledger.deleted_job):
                logger.info("the snapshots of a deleted job were deleted", action="tidy", job=job)

    def _run(self) -> None:
        while True:
            with _told("logs and scratch directories could not be bounded"):
                self.look()
            if self._closing.wait(LOOK_INTERVAL_S):
                return


@contextmanager
def _told(what_failed: str) -> Iterator[None]:
    try:
        yield
    except (OSError, StrandlineError) as error:
        logger.warning(what_failed, action="tidy", error=str(error))
