"""Waiting on progress, with a deadline; and limits on a machine that has other work too."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")
_PAUSE_SHARE = 0.04
_PAUSE_MAX_S = 0.2


def wait_until(
    ask: Callable[[], Value], is_so: Callable[[Value], bool], what: str, timeout_s: float = 30.0, poll_s: float = 0.03
) -> Value:
    """Ask again and again until the answer `is_so`, and return it. Fails with the last answer at the deadline."""
    began = time.monotonic()
    while True:
        value = ask()
        if is_so(value):
            return value
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            raise AssertionError(f"not {what} within {timeout_s:g} s; last: {value!r}")
        time.sleep(pause_s(waited_s, poll_s))


def pause_s(waited_s: float, least_s: float) -> float:
    """How long to wait before asking again. To ask the platform how far it is takes time from what it does, 25 ms of a core for a
    job's status: who has waited long asks less often, and learns of it 4 % later at most."""
    return max(least_s, min(_PAUSE_SHARE * waited_s, _PAUSE_MAX_S))


def stretched(limit_s: float) -> float:
    """A limit that is promised for a machine with nothing else to do, longer where this one has more than two processes a core at
    work, or more than one and this program yields to them: so that a test fails by what it tests, and not by what runs beside it.
    Linux gives a program 1.25 times less of a crowded core for each step of its niceness (sched(7))."""
    processes_a_core = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    yields = 1.25 ** max(0, os.getpriority(os.PRIO_PROCESS, 0)) if processes_a_core > 1 else 1.0
    return limit_s * yields * max(1.0, processes_a_core / 2)
