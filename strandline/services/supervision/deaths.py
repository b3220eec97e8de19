"""Deaths in a row: how often a process died without progress, and when the next one may start."""

from __future__ import annotations

import time
from dataclasses import dataclass

_DOUBLINGS_MAX = 16


@dataclass
class Deaths:
    """The deaths of one job's runners, or of one backfill's processes, since its last progress."""

    progress: object
    """What was done at these deaths: the last committed slice, or the last chunk. After progress, begin a new `Deaths`."""
    count: int = 0
    next_start: float = 0.0
    """Monotonic time before which no new process may start."""

    def add(self, pause_first_s: float, pause_max_s: float) -> float:
        """Count a death; returns the pause before the next start. It doubles with each death."""
        pause_s = min(pause_max_s, pause_first_s * 2.0 ** min(self.count, _DOUBLINGS_MAX))
        self.count += 1
        self.next_start = time.monotonic() + pause_s
        return pause_s

    def may_start(self) -> bool:
        return time.monotonic() >= self.next_start
