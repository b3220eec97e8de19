"""Servers of a stack: started in their own session, awaited until they respond, stopped by their recorded pid."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from strandline.core.errors import StackError
from strandline.core.process_identity import process_identity
from strandline.services.processes.pids import PidFile

POLL_INTERVAL_S = 0.05
KILL_TIMEOUT_S = 10.0
_EXTENSIONS_MAX = 5
LOG_TAIL_LINES = 15


def emptied(directory: Path, mode: int = 0o755) -> Path:
    """Return the directory without its old files. Create it if it is missing. No server may use it. Files that can't be deleted
    stay, and don't prevent a start. A link with the name of the directory is deleted, not followed."""
    if directory.is_symlink():
        directory.unlink()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=mode, parents=True, exist_ok=True)
    return directory


@dataclass(frozen=True)
class Program:
    """One server of the stack: its command, and the check that it is ready."""

    name: str
    """Name of the server in `pids.json`."""
    arguments: Sequence[str]
    log: Path
    is_ready: Callable[[], bool]
    """Function that is called until it returns True. A refused connection returns False, without an error."""
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    directory: Path = Path("/")
    ready_timeout_s: float = 180.0
    """Maximum time in seconds without a new log line until the program is ready. See `StartLimit`."""
    stop_timeout_s: float = 20.0
    find_server: Callable[[], int | None] | None = None
    """For a program that starts the server in the background and ends: returns the server's pid, or None if no server runs."""


class Child:
    """A program that this process started."""

    def __init__(self, program: Program, launcher: subprocess.Popen[bytes]) -> None:
        self.program = program
        self.pid = launcher.pid
        self._launcher = launcher

    def is_alive(self) -> bool:
        """Return True if the server runs. Reaps an ended child."""
        is_running = process_identity(self.pid) is not None
        self._launcher.poll()  # after the check: a child that ends between the two is reaped by the next call
        return is_running

    def has_handed_over(self) -> bool:
        """Return True if the launcher has started the server in the background. From then on, `pid` is the server's.

        Raises StackError if the launcher failed.
        """
        assert self.program.find_server is not None
        code = self._launcher.poll()
        if code is None:
            return False
        if code != 0:
            raise StackError(f"{self.program.name} did not start:\n{log_tail(self.program.log)}")
        pid = self.program.find_server()
        if pid is None:
            raise StackError(f"{self.program.name} started no server, or it ended:\n{log_tail(self.program.log)}")
        self.pid = pid
        return True

    def kill_tree(self) -> None:
        """Kill the processes of the launcher. It is not reaped yet, so its process group is still its own."""
        if self._launcher.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._launcher.pid, signal.SIGKILL)
            self._launcher.wait()


def start(program: Program, pids: PidFile, check: Callable[[], None]) -> Child:
    """Start the program, record its pid, and wait until it is ready. `check` can raise to stop waiting. If it ends early or
    isn't ready in time, stop it and raise StackError with the last lines of its log."""
    program.log.parent.mkdir(parents=True, exist_ok=True)
    with program.log.open("ab") as log:
        launcher = subprocess.Popen(
            program.arguments,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(program.environment),
            cwd=program.directory,
            # Own session: Ctrl-C in the terminal reaches only `up`, which then stops all parts gracefully.
            start_new_session=True,
        )
    child = Child(program, launcher)
    limit = StartLimit(program.ready_timeout_s, time.monotonic())
    try:
        pids.add(program.name, child.pid)
        if program.find_server is not None:
            while not child.has_handed_over():
                _pause(program, limit, check)
            pids.add(program.name, child.pid)
        while not program.is_ready():
            if not child.is_alive():
                raise StackError(f"{program.name} ended while starting:\n{log_tail(program.log)}")
            _pause(program, limit, check)
    except BaseException:
        try:
            stop(program.name, child.pid, pids, timeout_s=program.stop_timeout_s)
        finally:  # a process that stays and is not recorded would hold the port of the next process
            child.kill_tree()
        raise
    return child


class StartLimit:
    """Time limit for the start of a program. It restarts with each line in the log of the program. So on a busy machine, a
    start that takes ten times as long isn't stopped while it makes progress. A start ends after `_EXTENSIONS_MAX` times the
    limit at the latest."""

    def __init__(self, limit_s: float, now_s: float) -> None:
        self._limit_s = limit_s
        self._began_s = self._grown_s = now_s
        self._log_bytes = 0

    def is_over(self, now_s: float, log_bytes: int) -> bool:
        """Return True if the program must be stopped. `log_bytes` is the current size of its log."""
        if log_bytes != self._log_bytes:
            self._log_bytes, self._grown_s = log_bytes, now_s
        return now_s - self._grown_s > self._limit_s or now_s - self._began_s > _EXTENSIONS_MAX * self._limit_s

    def waited_s(self, now_s: float) -> float:
        """Return the time in seconds since the start."""
        return now_s - self._began_s


def _pause(program: Program, limit: StartLimit, check: Callable[[], None]) -> None:
    check()
    now_s = time.monotonic()
    if limit.is_over(now_s, program.log.stat().st_size if program.log.exists() else 0):
        raise StackError(f"{program.name} was not ready after {limit.waited_s(now_s):.0f} s:\n{log_tail(program.log)}")
    time.sleep(POLL_INTERVAL_S)


def stop(name: str, pid: int, pids: PidFile, *, timeout_s: float) -> None:
    """Let the recorded process and its group end, kill remaining processes after `timeout_s`, and remove the record. Does
    nothing to another process than the recorded one. Raises StackError if it survives SIGKILL."""
    if pids.alive().get(name) != pid:
        pids.remove(name, pid)
        return
    identity = process_identity(pid)
    _signal_group(pid, signal.SIGTERM)
    if not _wait_until_gone(pid, identity, timeout_s):
        _signal_group(pid, signal.SIGKILL)
        if not _wait_until_gone(pid, identity, KILL_TIMEOUT_S):
            raise StackError(f"{name} (process {pid}) did not end after SIGKILL; check that its disk responds")
    pids.remove(name, pid)


def _signal_group(pid: int, number: signal.Signals) -> None:
    """Signal the process and its group, unless this process is in the group."""
    try:
        group = os.getpgid(pid)
        if group == os.getpgrp():
            os.kill(pid, number)
        else:
            os.killpg(group, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise StackError(f"process {pid} belongs to another user; stop the stack as the user who started it") from error


def _wait_until_gone(pid: int, identity: str | None, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while process_identity(pid) == identity:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_INTERVAL_S)
    return True


def log_tail(log: Path) -> str:
    """Return the last lines of a log, indented, with its path."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return f"  (no log at {log})"
    last = "\n".join(f"  {line[:300]}" for line in text.splitlines()[-LOG_TAIL_LINES:])
    return f"{last or '  (empty)'}\n  (from {log})"
