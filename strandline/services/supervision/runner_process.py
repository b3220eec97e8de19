"""A runner process from the view of its supervisor: start, heartbeats, request to stop, and kill with its process tree.

A runner writes into a pipe to show that it works. Its existence proves little: a process that is stopped, or hangs on a disk,
does nothing.
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
"""Function of (job, epoch of the lease, file descriptor for heartbeats) that returns the command of a runner. No job for a
standby."""
FIRST_HEARTBEAT_S = 120.0
"""Maximum time in seconds from the start of a runner to its first heartbeat, on a busy machine."""
_HEARD_AT_ONCE_BYTES = 65_536
_LOOK_MAX_S = 1.0


def runner_name(job: str) -> str:
    """Return the name of a job's runner in `pids.json` and for its log."""
    return f"runner-{job}"


def runner_command(job: str | None, lease: int | None, alive_fd: int) -> Sequence[str]:
    """Return the command of a job's runner; without a job, of a standby that waits for one."""
    what = ["--standby"] if job is None else ["--job", job, "--lease", str(lease)]
    return [sys.executable, "-m", "strandline.processing.run.process", *what, "--alive-fd", str(alive_fd)]


class RunnerProcess(WorkerProcess):
    """Process of a job's runner, or of a standby that waits for a job."""

    def __init__(self, data_dir: Path, name: str, command: RunnerCommand, job: str | None, lease: int | None) -> None:
        """Start the process. A standby gets its job by `assign`."""
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
        self.is_stop_requested = False
        """True if the process was requested to stop. Then its end is no failure."""
        self.kill_at: float | None = None
        """Monotonic time by which it must have ended."""
        self._was_heard = False
        self._silent_s = 0.0
        self.began_at = self._listened_at = time.monotonic()
        """Monotonic time at which it got its job."""

    def assign(self, job: str, lease: int) -> bool:
        """Give a standby its job. It gets the name and the log of the job's runner. Return False if it can't be used: it has
        ended, or its new name could not be recorded. Then it must be reaped, because it may have the job."""
        log = self.log.with_name(f"{runner_name(job)}.log")
        try:
            with self.stdin as stdin:
                stdin.write(json.dumps({"job": job, "lease": lease, "log": str(log)}).encode() + b"\n")
        except (BrokenPipeError, ValueError):  # ValueError: it got a job before, and could not be reaped
            return False
        self.log = log
        self.began_at = self._listened_at = time.monotonic()
        if self.has_ended():
            return False
        try:
            self.rename(runner_name(job))
        except OSError as error:
            logger.error("can't record a standby as a runner", action="assign", job=job, error=str(error))
            return False
        return True

    def is_silent(self, patience_s: float) -> bool:
        """Return True if there was no heartbeat for `patience_s`; for the first one, FIRST_HEARTBEAT_S. Call it often. The time
        between two calls counts as at most one second, because no call listened in between."""
        now_s = time.monotonic()
        self._silent_s += min(now_s - self._listened_at, _LOOK_MAX_S)
        self._listened_at = now_s
        with contextlib.suppress(BlockingIOError):
            if os.read(self._alive_pipe, _HEARD_AT_ONCE_BYTES):
                self._was_heard, self._silent_s = True, 0.0
        return self._silent_s > (patience_s if self._was_heard else max(patience_s, FIRST_HEARTBEAT_S))

    @property
    def has_lost_pool(self) -> bool:
        """False: the process belongs to one job."""
        return False

    def let_go(self) -> None:
        """Kill the process tree of a job that is lost. Raises StackError."""
        self.kill_tree()

    def request_stop(self, patience_s: float) -> None:
        """Request the process to end immediately. The next run repeats its slice. A second call does nothing."""
        if self.is_stop_requested:
            return
        self.is_stop_requested = True
        self.kill_at = time.monotonic() + patience_s
        # Only the runner itself: its JVM must live until the runner has stopped the query. Popen's own method would also reap
        # it.
        os.kill(self.pid, signal.SIGTERM)

    def reap(self) -> int:
        """Reap it as any worker process. Append the output of a standby's JVM before its job to the job's log."""
        code = super().reap()
        os.close(self._alive_pipe)
        if self._first_log != self.log:
            try:
                with self._first_log.open("rb") as said, self.log.open("ab") as log:
                    log.write(said.read())
                self._first_log.unlink()
            except OSError as error:
                logger.warning(
                    "can't append the first output of a standby to the job's log", action="end", error=str(error)
                )
        return code


def ending(code: int) -> str:
    """Return the end of a runner or standby by its exit code: `was killed by SIGTERM`, `ended with code 3`."""
    if code in (EXIT_AWAY, EXIT_AWAY_UNSEEN):
        return "ended because an external service does not respond"
    if code == -signal.SIGKILL:
        return (
            "was killed by SIGKILL: by another process, by its own watchdog, or by the kernel because of a "
            "lack of memory"
        )
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended unexpectedly with code {code}"
