"""Identity of a process. The kernel reuses pids, and the start time distinguishes two processes with the same pid.

The files are opened by name, not as a `Path`. A `Path` interns each part of a name, and each pid is a new string. Then Python
reallocates its table of interned strings (2 MB) from time to time, and each thread of a long-lived process keeps a hole of this
size.
"""

from __future__ import annotations


def process_identity(pid: int) -> str | None:
    """Return a string that no other process with this pid ever has. None if the process has ended or is a zombie. `create_time`
    of psutil is unsuitable, because it changes when the wall clock is set."""
    ticks = start_ticks(pid)
    if ticks is None:
        return None
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()}/{ticks}"


def start_ticks(pid: int) -> str | None:
    """Return the start time of the process, in clock ticks since the machine started. None if it has ended or is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses can contain spaces and parentheses, so fields are counted after the last parenthesis.
    fields = stat.rpartition(")")[2].split()
    state, threads, ticks = fields[0], int(fields[17]), fields[19]
    # The first thread of a JVM can be a zombie while the others still write.
    return None if state in ("Z", "X") and threads <= 1 else ticks
