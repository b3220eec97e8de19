"""Standbys: runner processes that wait for a job; their Spark session is up and has run a small query.

A standby has already done what makes a cold start slow: the JVM, the session, its first plan, the first Python workers. It
costs the memory of an idle runner. One starts only while nothing else starts, because a start takes all cores for seconds.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import structlog

from strandline.core.errors import StackError
from strandline.services.supervision.runner_process import RunnerCommand, RunnerProcess

logger = structlog.get_logger()

STANDBY_NAME = "standby-"
"""The prefix of their names in `pids.json` and among the logs."""
CALM_S = 10.0
"""The next standby starts when no runner and no standby has been starting for so long."""


class Standbys:
    """Keeps `wanted` standbys. Only the supervisor's thread calls it."""

    def __init__(self, data_dir: Path, command: RunnerCommand, wanted: int) -> None:
        self._data_dir = data_dir
        self._command = command
        self._wanted = wanted
        self._waiting: list[RunnerProcess] = []
        self._numbers = itertools.count(1)
        self._busy_at = time.monotonic()

    def keep(self, *, is_calm: bool) -> None:
        """Reap standbys that have ended; start a missing one when the machine was calm for CALM_S."""
        for standby in [one for one in self._waiting if one.has_ended()]:
            logger.warning("a standby ended by itself", action="standby", log=str(standby.log))
            self._forget(standby)
        if not is_calm:
            self._busy_at = time.monotonic()
        if len(self._waiting) >= self._wanted or time.monotonic() - self._busy_at < CALM_S:
            return
        self._busy_at = time.monotonic()
        name = f"{STANDBY_NAME}{next(self._numbers)}"
        standby = RunnerProcess(self._data_dir, name, self._command, None, None)
        self._waiting.append(standby)
        logger.info("standby started", action="standby", pid=standby.pid)

    def take(self, job: str, lease: int) -> RunnerProcess | None:
        """Give the job to a standby and return it; None when there is none. A standby that is still starting will do, too: it
        is ahead of a cold start."""
        while self._waiting:
            standby = self._waiting[0]
            if standby.assign(job, lease):
                self._waiting.remove(standby)
                return standby
            self._forget(standby)
        return None

    def close(self) -> None:
        """Kill all: they do no work yet."""
        for standby in list(self._waiting):
            try:
                self._forget(standby)
            except StackError as error:
                logger.error("a standby did not end", action="close", error=str(error))

    def _forget(self, standby: RunnerProcess) -> None:
        standby.reap()
        self._waiting.remove(standby)
