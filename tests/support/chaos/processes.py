"""Which processes there are, by /proc."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name; the first is the state, the second the parent."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def name_of(pid: int) -> str:
    """As the kernel knows it; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def descendants(root: int) -> list[int]:
    """All that it started, and what these started."""
    below: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError, IndexError):
            if entry.name.isdigit():
                below.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
    found: list[int] = []
    rest = [root]
    while rest:
        children = below.get(rest.pop(), [])
        found += children
        rest += children
    return found
