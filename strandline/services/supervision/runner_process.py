"""A runner process as its supervisor sees it: start it, hear it, tell it to end, kill it with its process tree.

A runner writes into a pipe to show that it works. That its process exists proves little: a process that is stopped, or
hangs on a disk, does nothing.
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

import structlog

from strandline.processing.run.exit_codes import EXIT_AWAY, EXIT_AWAY_UNSEEN
from strandline.services.processes.worker_process import WorkerProcess

logger = structlog.get_logger()

RunnerCommand = Callable[[str | None, int | None, int], Sequence[str]]
"""(job, epoch of the lease, file descriptor to write into) -> how the runner is started; no job for a standby."""
FIRST_HEARTBEAT_S = 120.0
"""How long a runner may take from its start to its first heartbeat, on a busy machine."""
_HEARD_AT_ONCE_BYTES = 65_536
_LOOK_MAX_S = 1.0


def runner_name(job: str) -> str:
    """What the runner of a job is called in `pids.json` and among the logs."""
    return f"runner-{job}"


def runner_command(job: str | None, lease: int | None, alive_fd: int) -> Sequence[str]:
    """How a job's runner is started; without a job, a standby that waits for one."""
    what = ["--standby"] if job is None else ["--job", job, "--lease", str(lease)]
    return [sys.executable, "-m", "strandline.processing.run.process", *what, "--alive-fd", str(alive_fd)]


class RunnerProcess(WorkerProcess):
    """The process of a job's runner, or of a standby that waits for a job."""

    def __init__(self, data_dir: Path, name: str, command: RunnerCommand, job: str | None, lease: int | None) -> None:
        """Start it. A standby takes its job with `assign`."""
        self._alive_pipe, alive_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            super().__init__(
                data_dir,
                name,
                command(job, lease, alive_fd),
                mark=job,
                stdin=subprocess.PIPE if job is None else subprocess.DEVNULL,
                pass_fds=[alive_fd],
            )
        except BaseException:
            os.close(self._alive_pipe)
            raise
        finally:
            os.close(alive_fd)
        self._first_log = self.log
        self.is_told = False
        """Whether it was told to end; then its end is no death."""
        self.kill_at: float | None = None
        """By this monotonic time it must have ended."""
        self._was_heard = False
        self._silent_s = 0.0
        self.began_at = self._listened_at = time.monotonic()
        """Monotonic time at which it got its job."""

    def assign(self, job: str, lease: int) -> bool:
        """Give a standby its job; it takes the name and the log of the job's runner. False when it is of no use: it has ended, or
        its new name could not be noted. Then it must be reaped, since it may have its job."""
        log = self.log.with_name(f"{runner_name(job)}.log")
        try:
            with self.stdin as stdin:
                stdin.write(json.dumps({"job": job, "lease": lease, "log": str(log)}).encode() + b"\n")
        except (BrokenPipeError, ValueError):  # ValueError: it was told before, and could not be reaped
            return False
        self.log = log
        self.began_at = self._listened_at = time.monotonic()
        if self.has_ended():
            return False
        try:
            self.rename(runner_name(job))
        except OSError as error:
            logger.error("a standby could not be recorded as a runner", action="assign", job=job, error=str(error))
            return False
        return True

    def is_silent(self, patience_s: float) -> bool:
        """Whether no heartbeat came for `patience_s`; the first one may take FIRST_HEARTBEAT_S. Call it often: however long the
        time between two calls, it counts as one second at most, since nobody listened."""
        now_s = time.monotonic()
        self._silent_s += min(now_s - self._listened_at, _LOOK_MAX_S)
        self._listened_at = now_s
        with contextlib.suppress(BlockingIOError):
            if os.read(self._alive_pipe, _HEARD_AT_ONCE_BYTES):
                self._was_heard, self._silent_s = True, 0.0
        return self._silent_s > (patience_s if self._was_heard else max(patience_s, FIRST_HEARTBEAT_S))

    def tell_to_end(self, patience_s: float) -> None:
        """Ask it to end at once; the next run does its slice again. A second call does nothing."""
        if self.is_told:
            return
        self.is_told = True
        self.kill_at = time.monotonic() + patience_s
        # Only the runner itself: its JVM must live until the runner has stopped the query. Popen's own method would reap it in
        # passing.
        os.kill(self.pid, signal.SIGTERM)

    def reap(self) -> int:
        """Reap it as any worker process; append what the JVM of a standby said before it had a job to the job's log."""
        code = super().reap()
        os.close(self._alive_pipe)
        if self._first_log != self.log:
            try:
                with self._first_log.open("rb") as said, self.log.open("ab") as log:
                    log.write(said.read())
                self._first_log.unlink()
            except OSError as error:
                logger.warning("what a standby said first is not in the job's log", action="end", error=str(error))
        return code


def ending(code: int) -> str:
    """How a runner or standby ended, by its exit code: `was killed by SIGTERM`, `ended with code 3`."""
    if code in (EXIT_AWAY, EXIT_AWAY_UNSEEN):
        return "ended because something outside does not answer"
    if code == -signal.SIGKILL:
        return "was killed by SIGKILL: by somebody, by its own watchdog, or by the kernel for want of memory"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended unasked with code {code}"
