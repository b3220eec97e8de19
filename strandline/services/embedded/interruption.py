"""Signals to `up` and `down`: while the stack starts or runs, they end it gracefully. While it stops, they are ignored."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def signals_raise_interrupt() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C, so that the stack stops gracefully."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handlers(interrupt, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def signals_wait() -> Iterator[None]:
    """Ignore signals: stopping takes a bounded time, and a second Ctrl-C must not interrupt it."""
    with _handlers(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def _handlers(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers, *numbers: signal.Signals
) -> Iterator[None]:
    """Handle these signals with `handler` inside the block. An ignored signal (nohup) stays ignored. Does nothing outside of
    the main thread, because Python allows handlers only there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])
