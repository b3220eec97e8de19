"""Puts batches into the spool, together what came while the disk was busy."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence

import structlog

from strandline.core.errors import LogUnavailable
from strandline.ingest.append.outcome import Accepted, SpoolFull
from strandline.ingest.append.spool import Spool, SpooledRecord
from strandline.ingest.append.worker_thread import WorkerThread

logger = structlog.get_logger()


class SpoolingBatch:
    """The records of one `append` to a stream that may be spooled."""

    __slots__ = ("accepted", "clock", "records", "scan_from", "topic")

    def __init__(self, topic: str, records: Sequence[SpooledRecord], accepted: asyncio.Future[Accepted]) -> None:
        self.topic = topic
        self.records = records
        self.accepted = accepted
        self.scan_from: dict[int, int] | None = None
        """Set as soon as it may be in the log, behind these offsets: from then on it is in doubt."""
        self.clock: asyncio.TimerHandle | None = None
        """Runs while it is on the direct way. It holds the batch with its records, so it is stopped as soon as that ends."""

    def stop_clock(self) -> None:
        if self.clock is not None:
            self.clock.cancel()

    def settle(self, where: Accepted) -> None:
        self.stop_clock()
        if not self.accepted.done():
            self.accepted.set_result(where)

    def fail(self, error: LogUnavailable) -> None:
        self.stop_clock()
        if not self.accepted.done():
            self.accepted.set_exception(error)


class SpoolIntake:
    """The batches on their way into the spool, in order. `run` puts them there; `on_spooled` is called after each time."""

    def __init__(self, spool: Spool, disk: WorkerThread, on_spooled: Callable[[], None]) -> None:
        self._spool = spool
        self._disk = disk
        self._on_spooled = on_spooled
        self._work = asyncio.Event()
        self.waiting: deque[SpoolingBatch] = deque()
        self.behind = Counter(spool.records_of)
        """Topic -> records that are in the spool, or on the way into it. Whoever takes records out lowers it."""

    def put(self, batch: SpoolingBatch) -> None:
        """Have the batch spooled behind all that came before."""
        batch.stop_clock()
        self.behind[batch.topic] += len(batch.records)
        self.waiting.append(batch)
        self._work.set()

    async def run(self) -> None:
        """Spool what waits, for as long as the process runs."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self.waiting:
                await self._add(self._take_alike())

    def _take_alike(self) -> list[SpoolingBatch]:
        """The next ones that are either all in doubt or all not, so that an attempt covers no record that it never had."""
        is_in_doubt = self.waiting[0].scan_from is not None
        taken = []
        while self.waiting and (self.waiting[0].scan_from is not None) == is_in_doubt:
            taken.append(self.waiting.popleft())
        return taken

    async def _add(self, batches: list[SpoolingBatch]) -> None:
        records = [record for batch in batches for record in batch.records]
        attempted = {batch.topic: batch.scan_from for batch in batches if batch.scan_from is not None}
        try:
            await self._disk.run(self._spool.add, records, attempted)
        except SpoolFull as error:
            parts = _by_topic(batches) if attempted else [[batch] for batch in batches]
            if len(parts) > 1:  # a smaller one, or one of another topic, may still fit
                for part in parts:
                    await self._add(part)
                return
            logger.error("the spool refused records", action="spool_full", records=len(records), reason=str(error))
            for batch in batches:
                self.behind[batch.topic] -= len(batch.records)
                unknown = LogUnavailable(f"{error}; they were sent to Kafka before, and may or may not be in the log")
                batch.fail(unknown if batch.scan_from is not None else error)
            return
        for batch in batches:
            batch.settle(Accepted.SPOOL)
        self._on_spooled()


def _by_topic(batches: list[SpoolingBatch]) -> list[list[SpoolingBatch]]:
    """An attempt covers all that is older of its topic, so the batches of one topic stay together."""
    found: dict[str, list[SpoolingBatch]] = {}
    for batch in batches:
        found.setdefault(batch.topic, []).append(batch)
    return list(found.values())
