"""Running processes. A process that ends in the meantime is left out, without an error."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable

import psutil


def name_of(pid: int) -> str:
    """Return the name of the process in the kernel. Empty if it has ended."""
    try:
        return psutil.Process(pid).name()
    except psutil.NoSuchProcess:
        return ""


def descendants(root: int) -> list[int]:
    """All that it started, and what these started."""
    try:
        return [one.pid for one in psutil.Process(root).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def signal_each(pids: Iterable[int], number: signal.Signals) -> list[int]:
    """Send a signal to each of these; returns those that were there."""
    found: list[int] = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).send_signal(number)
            found.append(pid)
    return found
