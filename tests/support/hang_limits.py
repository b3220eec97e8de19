"""The time limit of each test, after which it counts as hanging: pytest-timeout's, but longer on a machine with other work.

pytest-timeout ends the whole worker when the limit is reached. So the limit must be reached only by tests that hang: it grows
with the load of the machine, as all limits of tests do (`waiting.stretched`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import pytest_timeout

from tests.support.waiting import stretched

_LOOK_S = 5.0


class HangLimit:
    """Calls `ends` when the limit is reached, unless it is cancelled before."""

    def __init__(self, limit_s: float, ends: Callable[[], None], look_s: float = _LOOK_S) -> None:
        self._limit_s, self._ends, self._look_s = limit_s, ends, look_s
        self._is_cancelled = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hang limit", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Return when `ends` is no longer called."""
        self._is_cancelled.set()
        self._thread.join()

    def _watch(self) -> None:
        began_s, allowed_s = time.monotonic(), self._limit_s
        while not self._is_cancelled.wait(min(self._look_s, self._limit_s)):
            # The limit stays as long as the busiest moment of the test made it.
            allowed_s = max(allowed_s, stretched(self._limit_s))
            if time.monotonic() - began_s > allowed_s:  # sleeps: the clock is the subject of this module
                self._ends()
                return


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> bool | None:
    """Replace pytest-timeout's own timer. With the method "signal", which a debugger needs, leave the test to it."""
    if settings.method != "thread":
        return None
    limit = HangLimit(settings.timeout, lambda: pytest_timeout.timeout_timer(item, settings))
    item.cancel_timeout = limit.cancel  # type: ignore[attr-defined]  # pytest-timeout calls it at the end of the test
    return True
