"""Records of the UDP ports of a process that were read and not confirmed yet, limited over all ports.

The writer refuses records over its limit of bytes in flight, and no sender of datagrams can be informed. So records
wait instead: those that were read wait for the writer, and the others wait in the sockets' buffers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from strandline.ingest.append.limits import BYTES_IN_FLIGHT_MAX


class RecordsWaiting:
    """Counts bytes like the writer does (`bytes_of`). Each added record must be removed once.

    Invariant: the bytes in the writer never exceed its limit, so it refuses no record for that reason.
    """

    def __init__(self, bytes_max: int = BYTES_IN_FLIGHT_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        """Size of all records that wait: the writer has them, or will get them."""
        self._in_writer = 0
        self._turn = asyncio.Lock()
        """Held by the records that are the next to go to the writer."""
        self._answered = asyncio.Event()
        self._resumes: list[Callable[[], None]] = []

    @property
    def is_full(self) -> bool:
        """True if no port may continue to read."""
        return self._bytes >= self._bytes_max

    def add(self, size: int) -> None:
        """Count the bytes of records that were read."""
        self._bytes += size

    def take_away(self, size: int) -> None:
        """Remove the bytes of records that are confirmed, spooled, or refused."""
        self._bytes -= size
        if self._bytes <= self._bytes_max // 2:
            resumes, self._resumes = self._resumes, []
            for resume in resumes:
                resume()

    def when_there_is_room(self, resume: Callable[[], None]) -> None:
        """Call `resume` once, when half of the limit is free."""
        self._resumes.append(resume)

    @contextlib.asynccontextmanager
    async def in_writer(self, size: int) -> AsyncIterator[None]:
        """Wait until the writer can accept this many bytes, in the order of the calls.

        A batch that exceeds the limit goes to the writer when no other is there.
        """
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
