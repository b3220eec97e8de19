"""Watcher of an embedded stack: `python -m strandline.services.embedded.watcher PORT_OFFSET`.

It restarts a crashed server or gateway, as compose restarts containers. `up` starts the watcher last, and `down` stops it
first. It knows the processes only from `DIR/pids.json`. A part that crashes repeatedly is restarted after increasing pauses,
without a limit, because its cause can end (a full disk, a port that another program uses). The log contains the cause of each
crash. From the fifth crash in a row, it also contains their number.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

import structlog
from rich.console import Console

from strandline.core.errors import StrandlineError
from strandline.core.logs import configure_logs
from strandline.core.settings import Settings
from strandline.services.embedded.progress_display import Cancelled
from strandline.services.embedded.shutdown import WATCHER
from strandline.services.embedded.stack import Stack, read_stack, watching
from strandline.services.processes.log_files import bound_log
from strandline.services.processes.pids import PidFile

logger = structlog.get_logger()

POLL_INTERVAL_S = 0.5
LOG_INTERVAL_S = 10.0
PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 60.0
OFTEN = 5
"""Number of failures in a row from which the log contains their number."""
CALM_S = 60.0
"""Seconds for which a part must run before its pauses begin with the first one again."""


class Watcher:
    """Watches each part in its own thread, so that a part that starts slowly doesn't delay the others."""

    def __init__(
        self,
        parts: Mapping[str, Callable[[], object]],
        pids: PidFile,
        stopping: threading.Event,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        pause_first_s: float = PAUSE_FIRST_S,
    ) -> None:
        self._parts = parts
        """Name in `pids.json` -> function that starts the part, records its pid, and waits until it responds."""
        self._pids = pids
        self._stopping = stopping
        self._clock_s = clock_s
        self._pause_first_s = pause_first_s

    def run(self) -> None:
        """Watch until `stopping` is set."""
        threads = [threading.Thread(target=self._watch, args=part, name=part[0]) for part in self._parts.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _watch(self, name: str, start: Callable[[], object]) -> None:
        pause_s, started_s, deaths, cause = self._pause_first_s, self._clock_s(), 0, ""
        while not self._stopping.wait(POLL_INTERVAL_S):
            try:
                if name in self._pids.alive():
                    if self._clock_s() - started_s > CALM_S:
                        pause_s, deaths, cause = self._pause_first_s, 0, ""
                    continue
                what, deaths = "crashed" if self._forget(name) else "does not run", deaths + 1
            except (StrandlineError, OSError) as error:
                logger.error(f"can't watch {name}: {error}", action="restart", part=name)
                if self._stopping.wait(pause_s):
                    return
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
                continue
            again = f"{name} {what}; it is restarted in {pause_s:g} s"
            logger.warning(again, action="restart", part=name)
            if deaths >= OFTEN:
                often = f"{name} failed {deaths} times in a row{cause}; see its log, and fix the cause"
                logger.error(often, action="restart", part=name, deaths=deaths)
            if self._stopping.wait(pause_s):
                return
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
            try:
                start()
            except Cancelled:
                return
            except (StrandlineError, OSError) as error:
                logger.error(f"{name} did not start: {error}", action="restart", part=name)
                cause = f", the last time because {error}"
            else:
                logger.info(f"{name} runs again", action="restart", part=name, pid=self._pids.all().get(name))
            started_s = self._clock_s()

    def _forget(self, name: str) -> bool:
        """Remove the ended process from `pids.json`. Return False if it has no record, because its last start failed."""
        pid = self._pids.all().get(name)
        if pid is not None:
            self._pids.remove(name, pid)
        return pid is not None


def bound_logs(logs: Sequence[Path], settings: Settings, stopping: threading.Event) -> None:
    """Limit the size of the logs by the settings, until `stopping` is set."""
    while not stopping.wait(LOG_INTERVAL_S):
        for log in logs:
            try:
                bound_log(log, settings)
            except OSError as error:
                logger.warning(f"can't start {log} again: {error}", action="tidy")


def main() -> None:
    """Watch until SIGTERM. A part that is being started is then stopped. At the end, remove the own record from `pids.json`. So
    a watcher with a record but without a process was killed, not stopped."""
    settings = Settings()
    configure_logs(as_json=settings.log_json)
    there = read_stack(settings.data_dir)
    outside = there.outside_servers()
    stack = Stack(
        settings, settings.data_dir, int(sys.argv[1]), Console(quiet=True), outside, passwords=there.passwords
    )
    stopping = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()
        stack.cancel()

    signal.signal(signal.SIGTERM, stop)
    logger.info(watching(os.getpid()), action="watch")
    pids = PidFile(stack.data_dir)
    logs = [stack.data_dir / "logs" / f"{name}.log" for name in (*stack.parts, WATCHER)]
    bounding = threading.Thread(target=bound_logs, args=(logs, stack.settings, stopping), name="logs")
    bounding.start()
    Watcher(stack.parts, pids, stopping).run()
    bounding.join()
    pids.remove(WATCHER, os.getpid())


if __name__ == "__main__":
    main()
