"""What the UDP ports of a process have read and the log has not answered yet, bounded over all ports.

The writer refuses what is more than it may have under way, and no sender of datagrams can be told. So records wait instead:
those that were read until the writer has room, and the others in the sockets' buffers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from strandline.ingest.append.limits import BYTES_IN_FLIGHT_MAX


class RecordsWaiting:
    """Counts bytes as the writer does (`bytes_of`). Of what was added, each is taken away once.

    Invariant: the writer never has more than it takes, so it refuses nothing for want of room.
    """

    def __init__(self, bytes_max: int = BYTES_IN_FLIGHT_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        """Of all records that wait: the writer has them, or will get them."""
        self._in_writer = 0
        self._turn = asyncio.Lock()
        """Held by those that are the next to go to the writer."""
        self._answered = asyncio.Event()
        self._resumes: list[Callable[[], None]] = []

    @property
    def is_full(self) -> bool:
        """Whether no port may read on."""
        return self._bytes >= self._bytes_max

    def add(self, size: int) -> None:
        """Records of so many bytes were read."""
        self._bytes += size

    def take_away(self, size: int) -> None:
        """They are confirmed, spooled or refused."""
        self._bytes -= size
        if self._bytes <= self._bytes_max // 2:
            resumes, self._resumes = self._resumes, []
            for resume in resumes:
                resume()

    def when_there_is_room(self, resume: Callable[[], None]) -> None:
        """Call this once, when a half is free."""
        self._resumes.append(resume)

    @contextlib.asynccontextmanager
    async def in_writer(self, size: int) -> AsyncIterator[None]:
        """Wait until the writer has room for so many bytes, in the order of the calls. What is larger than all goes alone."""
        async with self._turn:
            while self._in_writer and self._in_writer + size > self._bytes_max:
                self._answered.clear()
                await self._answered.wait()
            self._in_writer += size
        try:
            yield
        finally:
            self._in_writer -= size
            self._answered.set()
