"""An event loop whose time passes only when no work is left.

A test of timeouts in it ends the same on any machine: delays by a busy machine are not counted.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

Result = TypeVar("Result")

_THREAD_PATIENCE_S = 5.0
"""Real time. A call in another thread that takes longer waits for something that only the loop's time can bring."""


class _PatientSelector(selectors.DefaultSelector):
    """Looks at what is ready, and lets the loop's time pass instead of waiting; but it does wait for calls in other threads."""

    passed_s = 0.0
    calls_in_threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # no timer runs: only another thread can go on
            return super().select(None)
        ready = super().select(_THREAD_PATIENCE_S if self.calls_in_threads and timeout > 0 else 0)
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

    def run_in_executor(
        self, executor: Executor | None, func: Callable[..., Result], *args: Any
    ) -> asyncio.Future[Result]:
        call = super().run_in_executor(executor, func, *args)
        self._patient.calls_in_threads += 1
        call.add_done_callback(self._returned)
        return call

    def _returned(self, _call: asyncio.Future[Any]) -> None:
        self._patient.calls_in_threads -= 1


def run_in_virtual_time(story: Coroutine[Any, Any, None]) -> None:
    """Run the story to its end in a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(story)
