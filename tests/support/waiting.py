"""Waiting for what another process, another thread, or a broker makes visible later. All tests wait with these functions.

A time limit here has two properties:

- It starts again with each sign of progress: a changed answer, or a changed value of `progress`.
- It is longer on a machine that has other work. See `stretched`.

`tests/support/timing_check.py` finds waits that don't use this module.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

Value = TypeVar("Value")
LIMIT_S = 60.0
"""Default time in seconds without progress after which a wait fails."""
EXTENSIONS_MAX = 20
"""A wait ends after this many times its limit, even if an answer still changes: it can change without coming closer."""
_PAUSE_SHARE = 0.04
_PAUSE_MAX_S = 0.2
_UNSEEN: Any = object()


class Patience:
    """A time limit that starts again with each sign of progress, for loops that do work of their own.

    Call `check` once per turn of the loop. Most tests need only `wait_until`.
    """

    def __init__(
        self, what: str, limit_s: float = LIMIT_S, *, poll_s: float = 0.03, describe: Callable[[], object] | None = None
    ) -> None:
        """`what` completes the sentence "not ... within 60 s". `describe` returns the state to print at the limit."""
        self._what = what
        self._limit_s = limit_s
        self._allowed_s = limit_s
        self._poll_s = poll_s
        self._describe = describe
        self._began_s = self._moved_s = time.monotonic()
        self._seen = _UNSEEN

    def check(self, seen: object = None, last: object = _UNSEEN) -> None:
        """Raise AssertionError if `seen` has been the same for the whole limit. `last` is printed instead of `seen`."""
        now_s = time.monotonic()
        # The limit stays as long as the busiest moment of the wait made it: the machine may be idle again by now.
        self._allowed_s = max(self._allowed_s, stretched(self._limit_s))
        if self._seen is _UNSEEN or seen != self._seen:
            self._seen, self._moved_s = seen, now_s
        waited_s, still_s = now_s - self._began_s, now_s - self._moved_s
        if still_s <= self._allowed_s and waited_s <= EXTENSIONS_MAX * self._allowed_s:
            return
        state = "" if self._describe is None else f"\n{self._describe()}"
        raise AssertionError(
            f"not {self._what} within {waited_s:.0f} s, the last {still_s:.0f} s without progress "
            f"(limit {self._limit_s:g} s, {self._allowed_s:.0f} s with this load); "
            f"last: {seen if last is _UNSEEN else last!r}{state}"
        )

    def pause(self) -> None:
        """Wait before the next look."""
        time.sleep(self.pause_s())

    async def pause_async(self) -> None:
        """Wait before the next look, without blocking the event loop."""
        await asyncio.sleep(self.pause_s())

    def pause_s(self) -> float:
        """Time in seconds before the next look. A look costs CPU time of the platform under test (25 ms for the status of a job),
        so a long wait looks less often. It ends 4 % later at most."""
        waited_s = time.monotonic() - self._began_s
        return max(self._poll_s, min(_PAUSE_SHARE * waited_s, _PAUSE_MAX_S))


def wait_until(
    ask: Callable[[], Value],
    is_so: Callable[[Value], object] = bool,
    what: str = "so",
    timeout_s: float = LIMIT_S,
    poll_s: float = 0.03,
    *,
    describe: Callable[[], object] | None = None,
    progress: Callable[[], object] | None = None,
) -> Value:
    """Call `ask` until `is_so` accepts its answer; return this answer.

    Raises AssertionError with the last answer and the state from `describe` if nothing changes for `timeout_s`. Progress is a
    changed answer, or a changed value of `progress` if it is given.
    """
    patience = Patience(what, timeout_s, poll_s=poll_s, describe=describe)
    while True:
        value = ask()
        if is_so(value):
            return value
        patience.check(value if progress is None else progress(), value)
        patience.pause()


async def wait_until_async(
    is_so: Callable[[], object],
    what: str = "so",
    timeout_s: float = LIMIT_S,
    poll_s: float = 0.005,
    *,
    describe: Callable[[], object] | None = None,
) -> None:
    """Let the event loop run until `is_so` returns a true value. Fails in the same cases as `wait_until`."""
    patience = Patience(what, timeout_s, poll_s=poll_s, describe=describe)
    while not (value := is_so()):
        patience.check(value)
        await patience.pause_async()


def stretched(limit_s: float) -> float:
    """Return the limit for the current load of the machine; on an idle machine, it is `limit_s`.

    Use it for limits that are promised for a machine without other work, so that a test fails because of its subject
    and not because of other programs. The limit grows if the machine has more than two processes per core. It also
    grows if it has more than one, and this process has a lower priority. Linux gives a process 1.25 times less of a
    busy core per step of niceness (sched(7)).
    """
    processes_a_core = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    yields = 1.25 ** max(0, os.getpriority(os.PRIO_PROCESS, 0)) if processes_a_core > 1 else 1.0
    return limit_s * yields * max(1.0, processes_a_core / 2)
