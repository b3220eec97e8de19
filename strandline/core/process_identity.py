"""The identity of a process: the kernel reuses pids, and the start time tells two processes apart.

The files are opened by name, not as a `Path`: `Path` interns each part of a name, and each pid is a new string. Python then
reallocates its table of interned strings (2 MB) now and then, and each thread of a long-lived process keeps a hole of that size.
"""

from __future__ import annotations


def process_identity(pid: int) -> str | None:
    """Return a text that no other process with this pid ever has; None when the process is gone or only a zombie.

    psutil's `create_time` won't do: it moves when the wall clock is set.
    """
    ticks = start_ticks(pid)
    if ticks is None:
        return None
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()}/{ticks}"


def start_ticks(pid: int) -> str | None:
    """When the process started, in clock ticks since the machine did; None when it is gone or only a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold spaces and parentheses itself, so fields are counted after the last one.
    fields = stat.rpartition(")")[2].split()
    state, threads, ticks = fields[0], int(fields[17]), fields[19]
    # A JVM's first thread may be a zombie while the others still write.
    return None if state in ("Z", "X") and threads <= 1 else ticks
