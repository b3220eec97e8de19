"""A thread for blocking calls of the event loop: the disk's, or Kafka's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class WorkerThread:
    """One thread. Calls run one after another, in the order in which they were made."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Return what the function returns; it runs on even if the caller is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    def close(self) -> None:
        """Blocking. Wait for the call that runs, and drop those that have not begun."""
        self._pool.shutdown(wait=True, cancel_futures=True)
