"""Load of a member of a pool: the cores that its new slices need."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

LOAD_S = 30.0
"""Time in seconds over which the load is measured."""


class _Slice(NamedTuple):
    at_s: float
    cpu_us: int
    log_ms: int | None
    """Latest log time up to and with the slice. None if there is no record yet."""


class MemberLoad:
    """CPU time of the new slices of the last LOAD_S seconds, divided by the time that they cover.

    A job that catches up reads hours of the log in seconds, so its slices cover the log time of their records. Replays don't
    count.
    """

    def __init__(self) -> None:
        self._slices: deque[_Slice] = deque()
        self._cpu_us = 0
        self._log_ms_before: int | None = None

    def add(self, now_s: float, cpu_us: int, log_ms: int | None) -> None:
        """Add a new slice that was just committed. `log_ms`: the latest log time up to and with it."""
        if not self._slices and self._log_ms_before is None:
            self._log_ms_before = log_ms
        self._slices.append(_Slice(now_s, cpu_us, log_ms))
        self._cpu_us += cpu_us

    def cores(self, now_s: float) -> float:
        """Return the number of cores that the job needs."""
        while self._slices and self._slices[0].at_s <= now_s - LOAD_S:
            gone = self._slices.popleft()
            self._cpu_us -= gone.cpu_us
            self._log_ms_before = gone.log_ms
        if not self._slices:
            return 0.0
        last_ms, first_ms = self._slices[-1].log_ms, self._log_ms_before
        covered_s = 0.0 if last_ms is None or first_ms is None else (last_ms - first_ms) / 1_000
        return self._cpu_us / 1e6 / max(LOAD_S, covered_s)
