"""Follows the stream documents in the ledger, for gateways that open ports and subscriptions by them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from strandline.core.errors import InvalidDocument, LedgerUnavailable
from strandline.core.stream import StreamSpec
from strandline.ledger.ledger import Ledger

logger = structlog.get_logger()

FOLLOW_EVERY_S = 2.0
"""A new or changed stream is taken up about this long after it was applied."""


class StreamFollower:
    """Hands over all streams, again and again: a gateway then does what has changed. For one event loop.

    `read` blocks; it is called in a thread. `update_streams` must cost little when nothing has changed, and may use the next
    look to try again what did not work, as opening a port that is taken. While the ledger is away nobody is called.
    """

    def __init__(
        self,
        read: Callable[[], list[StreamSpec]],
        update_streams: Callable[[list[StreamSpec]], None],
        *,
        every_s: float = FOLLOW_EVERY_S,
    ) -> None:
        self._read = read
        self._update_streams = update_streams
        self._every_s = every_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
        self._is_reached = True

    async def follow(self) -> None:
        """Follow until cancelled. Raises what `update_streams` raises, which ends it."""
        try:
            while True:
                found = await self._look()
                if found is not None:
                    self._update_streams(found)
                await asyncio.sleep(self._every_s)
        finally:
            self._thread.shutdown(wait=False)

    async def _look(self) -> list[StreamSpec] | None:
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, self._read)
        except LedgerUnavailable as error:
            if self._is_reached:
                logger.warning("the ledger can't be read", action="ledger_lost", reason=str(error))
            self._is_reached = False
            return None
        self._is_reached = True
        return found


def streams_reader(ledger: Ledger) -> Callable[[], list[StreamSpec]]:
    """Return the `read` of a follower over the ledger: every stream whose document this version can read."""

    def read() -> list[StreamSpec]:
        found = []
        for row in ledger.streams():
            # Applied by a newer version; this gateway serves the others.
            with contextlib.suppress(InvalidDocument):
                found.append(StreamSpec.from_document(row.document))
        return found

    return read
