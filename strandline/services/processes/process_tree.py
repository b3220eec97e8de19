"""Kills a process and all its descendants, which are identified by a mark in their environment.

A runner is a Python process with a JVM and Python workers below it. Some of these create their own process groups. If the
runner crashes, the others live a moment longer and could still write. After a restart of the control service or the machine, a
pid proves nothing. But every child inherits the mark, and no other process has it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

from strandline.core.errors import StackError

MARK_VARIABLE = "STRANDLINE_RUNNER_OF"
_POLL_S = 0.02
_TIMEOUT_S = 10.0
_STARTING_S = 60.0
"""Maximum age in seconds of a process without arguments and environment that counts as one that is just starting."""
_KERNEL_THREADS = 2
"""Process id of the parent of all threads of the kernel (Linux)."""


def tree_mark(data_dir: Path, job: str = "") -> str:
    """Return the value of MARK_VARIABLE for a job's runner. Without a job, return the prefix of the marks of all runners of
    this stack."""
    return f"{data_dir.resolve()}:{job}"


def kill_tree(mark: str, *, whole_stack: bool = False) -> int:
    """Kill every process with this mark, wait until all have ended, and return their number. With `whole_stack`, kill every
    process whose mark begins with it. Raises StackError if a process survives SIGKILL."""
    killed: set[int] = set()
    deadline = time.monotonic() + _TIMEOUT_S
    # Search again until none is found: a process may have forked in the meantime.
    while found := [pid for pid in psutil.pids() if _kill_if_marked(pid, mark, whole_stack)]:
        killed.update(found)
        if time.monotonic() > deadline:
            raise StackError(f"processes {found} of a runner did not end after SIGKILL; check that the disks respond")
        time.sleep(_POLL_S)
    return len(killed)


def _kill_if_marked(pid: int, mark: str, whole_stack: bool) -> bool:
    """Return True if the process had the mark, or if it has just started and its mark can't be read yet."""
    if pid == os.getpid():
        return False
    try:
        process = psutil.Process(pid)
        environment = process.environ()
        if not environment:
            return _is_starting(process)
        found = environment.get(MARK_VARIABLE, "")
        is_marked = found.startswith(mark) if whole_stack else found == mark
        if is_marked:
            process.kill()  # psutil refuses if the kernel has given the pid to another process in the meantime
    except psutil.Error:
        return False  # ended, or of another user
    return is_marked


def _is_starting(process: psutil.Process) -> bool:
    """Return True if the process may be loading its program: until then, its arguments and its environment are empty.
    On a busy machine that can take seconds (Linux, `load_elf_binary`). Zombies and threads of the kernel have neither."""
    return (
        not process.cmdline()
        and process.status() != psutil.STATUS_ZOMBIE
        and _KERNEL_THREADS not in (process.pid, process.ppid())
        and 0 <= time.time() - process.create_time() < _STARTING_S
    )
