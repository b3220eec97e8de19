"""Shows the progress of `up` and `down`: a line for each completed step; on a terminal, also bars of the running steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class Cancelled(Exception):
    """A step ended because another step failed or the user cancelled."""


class ProgressDisplay:
    """Shows steps of several threads. If the output isn't a terminal, a step is one plain line, printed when it is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._live: Progress | None = None
        self._open = 0

    def cancel(self) -> None:
        """Make every running step end at its next `check`."""
        self._cancelled.set()

    def check(self) -> None:
        """Raise Cancelled after `cancel`. Long steps must call this regularly."""
        if self._cancelled.is_set():
            raise Cancelled

    @contextmanager
    def step(self, doing: str, done: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Show one step. Yields a function to call with the completed part of `total`. It raises Cancelled after `cancel`."""
        began_s = time.monotonic()
        live, task = self._begin(doing, total)

        def advance(completed: int) -> None:
            self.check()
            live.update(task, completed=completed)

        try:
            yield advance
        finally:
            self._end(live, task)
        self.say(f"[green]✓[/] {escape(done)} [dim]({time.monotonic() - began_s:.1f} s)[/]")

    def say(self, text: str) -> None:
        """Print one line, above the live display if there is one."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def _begin(self, doing: str, total: int | None) -> tuple[Progress, TaskID]:
        """Begin a step in the live display, which is on only while a step runs, so that it doesn't disturb other output."""
        with self._lock:
            if self._live is None:
                self._live = Progress(
                    SpinnerColumn(),
                    TextColumn("{task.description}"),
                    BarColumn(bar_width=24),
                    TimeElapsedColumn(),
                    console=self._console,
                    transient=True,
                    disable=not self._console.is_terminal,
                )
                self._live.start()
            self._open += 1
            return self._live, self._live.add_task(escape(doing), total=total)

    def _end(self, live: Progress, task: TaskID) -> None:
        with self._lock:
            live.remove_task(task)
            self._open -= 1
            if self._open == 0:
                live.stop()
                self._live = None
