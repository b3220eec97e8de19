"""Tasks that run in parallel to the event loop's callbacks, kept until they are done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """Holds its tasks: asyncio itself has weak references only, so a task could be collected before it is done."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def settle(self, timeout_s: float | None = None) -> set[asyncio.Task[None]]:
        """Wait until all are done. Return the tasks that aren't done at the timeout."""
        if not self._tasks:
            return set()
        _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
        return late
