"""An event loop whose time passes only when nothing is left to do. A story of timeouts told in it ends the same on any
machine: what a busy machine delays is not counted."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _PatientSelector(selectors.DefaultSelector):
    """Looks at what is ready without waiting, and lets the loop's time pass instead of waiting."""

    passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # no timer runs: only another thread can go on
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.passed_s += max(timeout, 0.0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 0 and jumps to the next timer whenever no callback is ready."""

    def __init__(self) -> None:
        self._patient = _PatientSelector()
        super().__init__(self._patient)

    def time(self) -> float:
        return self._patient.passed_s


def run_in_virtual_time(story: Coroutine[Any, Any, None]) -> None:
    """Run the story to its end in a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(story)
