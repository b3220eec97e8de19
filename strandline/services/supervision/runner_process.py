"""One runner process as its supervisor sees it: how it is started, heard, told to end, and killed with its process tree.

A runner shows that it lives by writing into a pipe. Its process alone says little: one that is stopped, or that hangs on a
disk, is there and does nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from strandline.services.processes.process_tree import MARK_VARIABLE, kill_tree, tree_mark

RunnerCommand = Callable[[str | None, int | None, int], Sequence[str]]
"""(job, epoch of the lease, file descriptor to write into) -> how the runner is started; no job for a standby."""
FIRST_WORD_S = 120.0
"""How long a runner may take from its start to its first sign of life, on a machine that is busy."""
_HEARD_AT_ONCE_BYTES = 65_536
_LOOK_MAX_S = 1.0


def runner_command(job: str | None, lease: int | None, alive_fd: int) -> Sequence[str]:
    """How a job's runner is started; without a job, a standby that waits for one."""
    what = ["--standby"] if job is None else ["--job", job, "--lease", str(lease)]
    return [sys.executable, "-m", "strandline.processing.run.runner", *what, "--alive-fd", str(alive_fd)]


class RunnerProcess:
    """A process that was started, until `reap`. Not thread-safe, but for `kill_tree`."""

    def __init__(self, data_dir: Path, name: str, command: RunnerCommand, job: str | None, lease: int | None) -> None:
        """Start it; its output goes to `logs/NAME.log`. A standby takes its job with `assign`."""
        self.mark = tree_mark(data_dir, job or f"#{name}")
        self.log = data_dir / "logs" / f"{name}.log"
        self._own_log = self.log
        self._voice, alive_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    command(job, lease, alive_fd),
                    stdin=subprocess.PIPE if job is None else subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, MARK_VARIABLE: self.mark},
                    start_new_session=True,
                    pass_fds=[alive_fd],
                )
        except BaseException:
            os.close(self._voice)
            raise
        finally:
            os.close(alive_fd)
        self.is_told = False
        """Whether it was told to end, so that its end is not a death."""
        self.kill_at: float | None = None
        """By this monotonic time it must have ended."""
        self._was_heard = False
        self._silent_s = 0.0
        self.began_at = self._listened_at = time.monotonic()
        """Monotonic time at which it had its job."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def assign(self, job: str, lease: int, log: Path) -> bool:
        """Hand a standby its job; its output goes to `log` from then on. False when it has ended."""
        assert self._process.stdin is not None
        order = json.dumps({"job": job, "lease": lease, "log": str(log)})
        try:
            with self._process.stdin as door:
                door.write(order.encode() + b"\n")
        except BrokenPipeError:
            return False
        self.log = log
        self.began_at = self._listened_at = time.monotonic()
        return not self.has_ended()

    def has_ended(self) -> bool:
        """True once it has ended, and before it is reaped: until then the kernel can't give its pid to another."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, flags) is not None

    def is_silent(self, patience_s: float) -> bool:
        """Whether nothing was heard for so long, in seconds in which somebody listened. The first word may take
        FIRST_WORD_S: starting takes its time. Call it often: a long time between two calls counts as one second."""
        now_s = time.monotonic()
        self._silent_s += min(now_s - self._listened_at, _LOOK_MAX_S)
        self._listened_at = now_s
        with contextlib.suppress(BlockingIOError):
            if os.read(self._voice, _HEARD_AT_ONCE_BYTES):
                self._was_heard, self._silent_s = True, 0.0
        return self._silent_s > (patience_s if self._was_heard else max(patience_s, FIRST_WORD_S))

    def tell_to_end(self, patience_s: float) -> None:
        """Ask it to end after its slice. The second time nothing happens."""
        if self.is_told:
            return
        self.is_told = True
        self.kill_at = time.monotonic() + patience_s
        # Only the runner itself: its JVM must live to finish the slice. Popen's own method would reap it in passing.
        os.kill(self.pid, signal.SIGTERM)

    def kill_tree(self) -> None:
        """Kill it and all that it started, and wait until they are gone; any thread may. Raises StackError."""
        kill_tree(self.mark)

    def reap(self) -> int:
        """Kill what is left of its process tree, and reap it; returns its exit code. Raises StackError when one doesn't end."""
        self.kill_tree()
        code = self._process.wait()
        os.close(self._voice)
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._own_log != self.log:
            # What the JVM of a standby said went where its output went first.
            with self._own_log.open("rb") as said, self.log.open("ab") as log:
                log.write(said.read())
            self._own_log.unlink()
        return code
