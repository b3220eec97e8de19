"""Standbys: runner processes that wait for a job, with a warm Spark session that has run a small query.

A standby has already done the slow parts of a cold start: the JVM, the session, its first plan, the first Python workers. It
needs the memory of an idle runner. A standby starts only while no other process starts, because a start uses all cores for
seconds.

A standby that exits is replaced after an increasing pause. After FAILURES_MAX exits in a row, none is started any more. Then jobs
start without a standby, and an event reports the reason. A restarted control service tries again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from strandline.core.errors import StackError
from strandline.services.supervision.failures import FAILURES_MAX, SOUND_S, FailureCounter
from strandline.services.supervision.runner_process import RunnerCommand, RunnerProcess, ending

logger = structlog.get_logger()

STANDBY_NAME = "standby-"
"""Prefix of the names of standbys in `pids.json` and for logs."""
CALM_S = 10.0
"""Seconds without a starting runner or standby before the next standby starts."""
PAUSE_MAX_S = 300.0


class Standbys:
    """Keeps `wanted` standbys. Only the supervisor's thread calls it."""

    def __init__(self, data_dir: Path, command: RunnerCommand, wanted: int, on_given_up: Callable[[str], None]) -> None:
        """Args: on_given_up: Called once with the reason why no standby is started any more."""
        self._data_dir = data_dir
        self._command = command
        self._wanted = wanted
        self._waiting: list[RunnerProcess] = []
        self._on_given_up = on_given_up
        self._failures = FailureCounter(None)
        self._numbers = itertools.count(1)
        self._busy_at = time.monotonic()

    def keep(self, *, is_calm: bool) -> None:
        """Reap standbys that have ended. Start a missing one if the machine was calm for CALM_S."""
        for standby in [one for one in self._waiting if one.has_ended()]:
            self._note_failure(standby)
        if not is_calm:
            self._busy_at = time.monotonic()
        if len(self._waiting) >= self._wanted or time.monotonic() - self._busy_at < CALM_S:
            return
        if not self._failures.may_start():
            return
        self._busy_at = time.monotonic()
        name = f"{STANDBY_NAME}{next(self._numbers)}"
        try:
            standby = RunnerProcess(self._data_dir, name, self._command, None, None)
        except OSError as error:
            self._count_failure(f"could not be started: {error}")
            return
        self._waiting.append(standby)
        logger.info("standby started", action="standby", pid=standby.pid)

    def take(self, job: str, lease: int) -> RunnerProcess | None:
        """Give the job to a standby and return it. None if there is none. A standby that is still starting is also used,
        because it is ahead of a cold start. A run starts now in any case, so the next standby waits for CALM_S."""
        self._busy_at = time.monotonic()
        while self._waiting:
            standby = self._waiting[0]
            if standby.assign(job, lease):
                self._waiting.remove(standby)
                self._failures = FailureCounter(None)
                return standby
            self._note_failure(standby)
        return None

    def close(self) -> None:
        """Kill all standbys, which do no work yet."""
        for standby in list(self._waiting):
            try:
                self._forget(standby)
            except (StackError, OSError) as error:
                logger.error("a standby did not end", action="close", error=str(error))

    def _note_failure(self, standby: RunnerProcess) -> None:
        if time.monotonic() - standby.began_at > SOUND_S:
            self._failures = FailureCounter(None)
        code = self._forget(standby)
        self._count_failure(f"{ending(code)}; see its log {standby.log}")

    def _count_failure(self, how: str) -> None:
        pause_s = self._failures.add(CALM_S, PAUSE_MAX_S)
        logger.warning(f"a standby {how}", action="standby", in_a_row=self._failures.count, next_in_s=pause_s)
        if self._failures.count >= FAILURES_MAX and self._wanted:
            self._wanted = 0
            self._on_given_up(
                f"{self._failures.count} standbys in a row exited; the last {how}. No standby is started any more, and jobs "
                "start without one; fix the cause, then restart the control service"
            )

    def _forget(self, standby: RunnerProcess) -> int:
        self._waiting.remove(standby)  # first: a standby that can't be reaped would block every start
        return standby.reap()
