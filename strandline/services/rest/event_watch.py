"""Looks for new events in the ledger, for all clients that follow them."""

from __future__ import annotations

import asyncio
import time

from fastapi.concurrency import run_in_threadpool

from strandline.ledger.roles import LedgerReader
from strandline.ledger.states import FollowedEvents

LOOK_S = 1.0
"""Seconds between queries."""
_AT_ONCE = 1_000


class EventWatch:
    """Counts the times at which new events were found. Use it from one event loop."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._ledger = ledger
        self._followed: FollowedEvents | None = None
        self._looked_s = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self._changes = 0

    async def look(self) -> int:
        """Return a number that has changed if an event became visible since the last call. Raises LedgerUnavailable.

        The ledger is queried at most once in LOOK_S. Callers at the same time share a query.
        """
        if self._looking is None and time.monotonic() - self._looked_s >= 0.9 * LOOK_S:
            self._looking = asyncio.create_task(self._look())
        if (looking := self._looking) is not None:
            await asyncio.shield(looking)  # the end of one caller doesn't end the query of the others
        return self._changes

    async def _look(self) -> None:
        try:
            if self._followed is None:
                newest = await run_in_threadpool(self._ledger.events, None, 0, FollowedEvents.BACK, newest=True)
                self._followed = FollowedEvents(newest[0].id - 1 if newest else 0)
                self._followed.new(row.id for row in newest)
            while True:
                rows = await run_in_threadpool(self._ledger.events, None, self._followed.after, _AT_ONCE)
                self._changes += bool(self._followed.new(row.id for row in rows))
                if len(rows) < _AT_ONCE:
                    break
            self._looked_s = time.monotonic()
        finally:
            self._looking = None
