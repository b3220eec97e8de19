"""A process that works for a control service: marked, recorded in `pids.json`, and killed with all that it started."""

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
        """Start `command` and record it as `name`. What it says goes to `logs/NAME.log`, unless `stdout` says otherwise.

        It carries a mark by which `kill_tree` finds it: `mark`, or a dot and its name, which no job can have.
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
        except BaseException:  # a process that is not recorded would go on unseen
            self.kill_tree()
            self._process.wait()
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
        """Record the process under another name, in place of its first one."""
        self._pids.remove(self.name, self.pid)
        self.name = name
        self._record()

    def has_ended(self) -> bool:
        """Whether it has ended. It isn't reaped here: until `reap` the kernel can't give its pid to another process."""
        if self._process.returncode is not None:  # a `reap` came so far; the kernel knows the process no more
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self) -> None:
        """Wait until it ends by itself."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def kill_tree(self) -> None:
        """Kill it and all that it started, and wait until they are gone. Any thread may call this. Raises StackError."""
        kill_tree(self._mark)

    def reap(self) -> int:
        """Kill what is left of its tree, reap it, and forget it; returns its exit code. Raises StackError when one of them
        doesn't end. That it still stands in `pids.json`, as after a full disk, is no error: it counts for nothing there."""
        self.kill_tree()
        code = self._process.wait()
        try:
            self._pids.remove(self.name, self.pid)
        except (StackError, OSError) as error:
            logger.warning("an ended process stays recorded", action="end", process=self.name, error=str(error))
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        return code

    def _record(self) -> None:
        try:
            self._pids.add(self.name, self.pid)
        except StackError:
            logger.info("a process ended at once", action="start", process=self.name, log=str(self.log))
