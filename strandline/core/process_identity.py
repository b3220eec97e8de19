"""Which process a pid means: the kernel reuses pids, a start time tells two processes apart."""

from __future__ import annotations

from pathlib import Path


def process_identity(pid: int) -> str | None:
    """Return a text that no other process with this pid ever has; None when the process is gone or only a zombie.

    psutil's `create_time` won't do: it moves when the wall clock is set.
    """
    ticks = start_ticks(pid)
    if ticks is None:
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{ticks}"


def start_ticks(pid: int) -> str | None:
    """When the process started, in clock ticks since the machine did; None when it is gone or only a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold spaces and parentheses itself, so fields are counted after the last one.
    fields = stat.rpartition(")")[2].split()
    state, threads, ticks = fields[0], int(fields[17]), fields[19]
    # A JVM's first thread may be a zombie while the others still write.
    return None if state in ("Z", "X") and threads <= 1 else ticks
