"""Responses about all jobs, which several clients may share.

With hundreds of jobs, such a response costs seconds of CPU time, and each open page of the console requests it again and again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SHARE = 10.0
"""A response is kept for this multiple of the time that it took. So pages use at most a tenth of a core for it."""


class KeptAnswer:
    """The newest response of one route. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._body: bytes | None = None
        self._began_s = self._took_s = 0.0
        self._running = 0

    def get(self, max_age_s: float, compute: Callable[[], bytes]) -> bytes:
        """Return a response whose data were read at most `max_age_s` seconds ago. With 0, always compute it."""
        with self._lock:
            body, age_s = self._body, self._clock() - self._began_s
            is_kept = self._running > 0 or age_s <= SHARE * self._took_s
            if body is not None and max_age_s > 0 and age_s <= max_age_s and is_kept:
                return body
            self._running += 1
        began_s = self._clock()
        try:
            body = compute()
        finally:
            with self._lock:
                self._running -= 1
        with self._lock:
            if self._body is None or began_s >= self._began_s:  # else, a later request was faster
                self._body, self._began_s, self._took_s = body, began_s, self._clock() - began_s
        return body
