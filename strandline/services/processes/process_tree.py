"""Kills a process and all that it started. A mark in their environment tells which these are.

A runner is a Python process with a JVM and Python workers below it, and some of these make process groups of their own.
When the runner dies the others live on for a moment and could still write. After a restart of the control service or of
the machine a pid proves nothing; but every child inherits the mark, and no other process carries it.
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


def tree_mark(data_dir: Path, job: str = "") -> str:
    """The value of MARK_VARIABLE for a job's runner. Without a job: what the marks of all runners of this stack begin with."""
    return f"{data_dir.resolve()}:{job}"


def kill_tree(mark: str, *, whole_stack: bool = False) -> int:
    """Kill every process with this mark and wait until they are gone; returns how many there were.

    With `whole_stack`, every process whose mark begins with it. Raises StackError when one outlives SIGKILL.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + _TIMEOUT_S
    # Search again until none is found: one may have forked meanwhile.
    while found := [pid for pid in psutil.pids() if _kill_if_marked(pid, mark, whole_stack)]:
        killed.update(found)
        if time.monotonic() > deadline:
            raise StackError(f"processes {found} of a runner did not end even when killed; is a disk hanging?")
        time.sleep(_POLL_S)
    return len(killed)


def _kill_if_marked(pid: int, mark: str, whole_stack: bool) -> bool:
    if pid == os.getpid():
        return False
    try:
        process = psutil.Process(pid)
        found = process.environ().get(MARK_VARIABLE, "")
        is_marked = found.startswith(mark) if whole_stack else found == mark
        if is_marked:
            process.kill()  # psutil refuses where the kernel has given the pid to another process meanwhile
    except psutil.Error:
        return False  # ended, or of another user and so none of ours
    return is_marked
