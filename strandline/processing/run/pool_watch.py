"""Watch of a pool, in its own thread. It shows that the process and its JVM live, and moves out a job whose slice is slow."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence

import structlog
from py4j.protocol import Py4JError

from strandline.processing.emission.work_marks import FoundMark

log = structlog.get_logger()

_TICK_S = 0.25


class PoolWatch:
    """Runs from `start` to `close`."""

    def __init__(
        self,
        alive_fd: int | None,
        marks: Callable[[], Sequence[FoundMark]],
        slice_s_max: float,
        move_out: Callable[[FoundMark, str], None],
    ) -> None:
        """`marks`: returns the marks of the workers. `move_out`: removes a job, with the reason, and ends its worker."""
        self.require_java: Callable[[], object] = lambda: None
        """Returns only if the JVM answers. Set once the JVM runs. While it hangs or fails, the process doesn't count as alive."""
        self._alive_fd, self._marks = alive_fd, marks
        self._slice_s_max, self._move_out = slice_s_max, move_out
        self._worked_s: dict[FoundMark, float] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pool-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._closing.set()

    def _run(self) -> None:
        before_s = time.monotonic()
        while not self._closing.wait(_TICK_S):
            if self._alive_fd is not None:
                self._beat(self._alive_fd)
            now_s = time.monotonic()
            # After a pause of this process, a worker gets the time that it needs.
            self.look(min(now_s - before_s, 2 * _TICK_S))
            before_s = now_s

    def _beat(self, alive_fd: int) -> None:
        """Show that the process lives. A batch waits for a JVM that hangs, and no other thread would notice it."""
        try:
            self.require_java()
        except (Py4JError, OSError) as error:
            log.warning("the JVM of the pool does not answer", error=str(error))
            return
        # A full pipe means that the control service is slow, a broken one that it has ended.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(alive_fd, b".")

    def look(self, passed_s: float) -> None:
        """Look at the marks after `passed_s` seconds, and move out each job whose mark stays for too long."""
        try:
            found = [one for one in self._marks() if one.job]
        except OSError as error:
            log.warning("can't read what the workers work on", error=str(error))
            return
        self._worked_s = {one: self._worked_s[one] + passed_s if one in self._worked_s else 0.0 for one in found}
        for one, worked_s in list(self._worked_s.items()):
            if worked_s > self._slice_s_max:
                del self._worked_s[one]
                self._move_out(one, f"its slice took more than {self._slice_s_max:g} s in a worker")
