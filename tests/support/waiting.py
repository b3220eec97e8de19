"""Waiting on progress, with a deadline; and limits on a machine that has other work too."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def wait_until(
    ask: Callable[[], Value], is_so: Callable[[Value], bool], what: str, timeout_s: float = 30.0, poll_s: float = 0.03
) -> Value:
    """Ask again and again until the answer `is_so`, and return it. Fails with the last answer at the deadline."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = ask()
        if is_so(value):
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not {what} within {timeout_s:g} s; last: {value!r}")
        time.sleep(poll_s)


def stretched(limit_s: float) -> float:
    """A limit that is promised for a machine with nothing else to do, longer where this one has more than two processes a core at
    work, or more than one and this program yields to them: so that a test fails by what it tests, and not by what runs beside it.
    Linux gives a program 1.25 times less of a crowded core for each step of its niceness (sched(7))."""
    processes_a_core = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    yields = 1.25 ** max(0, os.getpriority(os.PRIO_PROCESS, 0)) if processes_a_core > 1 else 1.0
    return limit_s * yields * max(1.0, processes_a_core / 2)
