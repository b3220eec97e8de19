"""The processes that a runner leaves behind: found by a mark in their environment, ended together.

A runner is a Python process with a JVM and Python workers below it, and some of these make process groups of their own.
When the runner dies the others live on for a moment and could still write. A pid says little after a restart of the
control service or of the machine; the mark is inherited by all of them, and nothing else carries it.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from strandline.core.errors import StackError

MARK_VARIABLE = "STRANDLINE_RUNNER_OF"
_POLL_S = 0.02


def tree_mark(data_dir: Path, job: str = "") -> str:
    """The value of MARK_VARIABLE for a job's runner; without a job, how those of all runners of this stack begin."""
    return f"{data_dir.resolve()}:{job}"


def kill_tree(mark: str, *, whole_stack: bool = False, timeout_s: float = 10.0) -> int:
    """Kill every process with this mark and wait until they are gone; returns how many there were.

    With `whole_stack`, every process whose mark begins so. Raises StackError when one outlives SIGKILL.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + timeout_s
    # Again until none is found: one may have forked while we looked.
    while found := [pid for pid in _processes() if _kill_if_marked(pid, mark, whole_stack)]:
        killed.update(found)
        if time.monotonic() > deadline:
            raise StackError(f"processes {found} of a runner did not end even when killed; is a disk hanging?")
        time.sleep(_POLL_S)
    return len(killed)


def _processes() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def _kill_if_marked(pid: int, mark: str, whole_stack: bool) -> bool:
    """Kill the process if it carries the mark. The descriptor is opened first, so that the kernel can't have given the
    number to another process between the look and the signal."""
    if pid == os.getpid():
        return False
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        wanted = f"{MARK_VARIABLE}={mark}".encode()
        entries = environment.split(b"\0")
        if not any(entry.startswith(wanted) if whole_stack else entry == wanted for entry in entries):
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except (ProcessLookupError, PermissionError, FileNotFoundError):
        return False  # gone already, or another user's, which no runner of ours is
    finally:
        os.close(process)
    return True
