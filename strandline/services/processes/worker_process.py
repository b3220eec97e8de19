"""A process that works for a control service: marked, recorded in `pids.json`, and killed with all its descendants."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import structlog

from strandline.core.errors import StackError
from strandline.services.processes.pids import PidFile
from strandline.services.processes.process_tree import MARK_VARIABLE, kill_tree, tree_mark

logger = structlog.get_logger()


class WorkerProcess:
    """One process, from its start to `reap`. Not thread-safe, except `kill_tree`."""

    def __init__(
        self,
        data_dir: Path,
        name: str,
        command: Sequence[str],
        *,
        mark: str | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start `command`, and record its pid as `name` in `pids.json`. If it can't be recorded, kill it and raise the
        error.

        Args: mark: Value in its environment by which `kill_tree` finds it and its descendants. Default: a dot and
        `name`, which is no job's mark. stdout: File descriptor for its output. Default: `logs/NAME.log`, which also
        gets stderr.
        """
        self.name = name
        self.log = data_dir / "logs" / f"{name}.log"
        self._mark = tree_mark(data_dir, mark or f".{name}")
        self._pids = PidFile(data_dir)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=log if stdout is None else stdout,
                stderr=log,
                env={**os.environ, MARK_VARIABLE: self._mark},
                start_new_session=True,
                pass_fds=pass_fds,
            )
        try:
            self._record()
        except BaseException:  # an unrecorded process would keep running unnoticed
            self._end()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None, "started without a pipe"
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None, "started without a pipe"
        return self._process.stdout

    def rename(self, name: str) -> None:
        """Record the process under another name, which replaces the first one."""
        self._pids.remove(self.name, self.pid)
        self.name = name
        self._record()

    def has_ended(self) -> bool:
        """Return True if the process has ended. It isn't reaped here: until `reap`, the kernel can't give its pid to another
        process."""
        if (
            self._process.returncode is not None
        ):  # `reap` has already collected it, so the kernel no longer knows the process
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self) -> None:
        """Wait until the process ends."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def kill_tree(self) -> None:
        """Kill the process and its descendants, and wait until they have ended. Any thread can call this. Raises StackError."""
        kill_tree(self._mark)

    def reap(self) -> int:
        """Kill the remaining processes of its tree, reap it, forget it, and return its exit code.

        Raises StackError if a process doesn't end. A record that stays in `pids.json`, for example because the disk is full, is
        no error: it has no effect.
        """
        code = self._end()
        try:
            self._pids.remove(self.name, self.pid)
        except (StackError, OSError) as error:
            logger.warning("an ended process stays recorded", action="end", process=self.name, error=str(error))
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        return code

    def _end(self) -> int:
        """Kill the tree, reap the process, and return its exit code."""
        self._process.kill()  # by its pid, too: a process that is just starting shows no mark
        self.kill_tree()
        return self._process.wait()

    def _record(self) -> None:
        try:
            self._pids.add(self.name, self.pid)
        except StackError:
            logger.info("a process ended immediately", action="start", process=self.name, log=str(self.log))
