"""Puts batches into the spool. Batches that arrive while the disk is busy are written together.

A batch that doesn't fit is refused, and its caller may try again. So that the batch can still be the first of its topic
then, later batches of the topic are refused too, however small they are. This lasts until all callers that wait for the
topic have their answers. Batches in doubt are not refused, because they may be in the log. Other topics continue.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

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
        """Offsets from which the records may be in the log. None until they are sent; from then on the batch is in
        doubt."""
        self.clock: asyncio.TimerHandle | None = None
        """Timer while the batch is on the direct path. It references the batch with its records, so it is stopped as
        soon as that ends."""

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
    """The batches on their way into the spool, in order. `run` writes them, and calls `on_spooled` each time.

    `on_refused` is called with the topic of a refused batch: it must put the other waiting batches of the topic into
    this intake.
    """

    def __init__(
        self, spool: Spool, disk: WorkerThread, on_spooled: Callable[[], None], on_refused: Callable[[str], None]
    ) -> None:
        self._spool = spool
        self._disk = disk
        self._on_spooled = on_spooled
        self._on_refused = on_refused
        self._work = asyncio.Event()
        self.waiting: deque[SpoolingBatch] = deque()
        self.behind = Counter(spool.records_of)
        """Topic -> number of records that are in the spool or on the way to it. Code that removes records from the
        spool lowers it."""

        self._callers: Counter[str] = Counter()
        """Topic -> number of callers that wait for the outcome of a batch."""
        self._refused: dict[str, str] = {}
        """Topic -> reason why a batch was refused, until no caller waits for the topic any more."""

    def require_order(self, topic: str) -> None:
        """Raises SpoolFull if a new batch of the topic could overtake a refused batch whose caller doesn't know the
        outcome yet.

        The new caller gets the error immediately and doesn't wait, so frequent callers can't keep a topic refused
        forever.
        """
        if topic in self._refused:
            raise SpoolFull(self._refused[topic])

    @contextlib.contextmanager
    def caller_of(self, topic: str) -> Iterator[None]:
        """Count a caller that waits for the outcome of a batch of the topic."""
        self._callers[topic] += 1
        try:
            yield
        finally:
            self._callers[topic] -= 1
            if not self._callers[topic]:
                self._refused.pop(topic, None)

    def put(self, batch: SpoolingBatch) -> None:
        """Queue the batch for the spool, after all earlier batches."""
        batch.stop_clock()
        self.behind[batch.topic] += len(batch.records)
        self.waiting.append(batch)
        self._work.set()

    async def run(self) -> None:
        """Spool the waiting batches until the task is cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self.waiting:
                await self._add(self._take_alike())

    def _take_alike(self) -> list[SpoolingBatch]:
        """Return the next batches that are either all in doubt or all not, so that an attempt covers only records that
        were sent."""
        is_in_doubt = self.waiting[0].scan_from is not None
        taken = []
        while self.waiting and (self.waiting[0].scan_from is not None) == is_in_doubt:
            taken.append(self.waiting.popleft())
        return taken

    async def _add(self, batches: list[SpoolingBatch]) -> None:
        for batch in [one for one in batches if one.topic in self._refused and one.scan_from is None]:
            batches.remove(batch)
            self._drop(batch, SpoolFull(self._refused[batch.topic]))
        if not batches:
            return
        records = [record for batch in batches for record in batch.records]
        attempted = {batch.topic: batch.scan_from for batch in batches if batch.scan_from is not None}
        try:
            await self._disk.run(self._spool.add, records, attempted)
        except SpoolFull as error:
            parts = _by_topic(batches) if attempted else [[batch] for batch in batches]
            if len(parts) > 1:  # a smaller batch, or a batch of another topic, may still fit
                for part in parts:
                    await self._add(part)
                return
            logger.error("the spool refused records", action="spool_full", records=len(records), reason=str(error))
            for batch in batches:
                unknown = LogUnavailable(f"{error}; they were sent to Kafka before, and may or may not be in the log")
                self._drop(batch, unknown if batch.scan_from is not None else error)
            if not attempted:
                self._refuse_behind(batches[0].topic, str(error))
            return
        for batch in batches:
            batch.settle(Accepted.SPOOL)
        self._on_spooled()

    def _drop(self, batch: SpoolingBatch, error: LogUnavailable) -> None:
        self.behind[batch.topic] -= len(batch.records)
        batch.fail(error)

    def _refuse_behind(self, topic: str, reason: str) -> None:
        """Refuse all batches of the topic until all callers that wait for it have their outcomes.

        Batches without a caller may be accepted.
        """
        if self._callers[topic]:
            self._refused[topic] = reason
            self._on_refused(topic)


def _by_topic(batches: list[SpoolingBatch]) -> list[list[SpoolingBatch]]:
    """Group the batches by topic: an attempt covers all older records of its topic, so they must stay together."""
    found: dict[str, list[SpoolingBatch]] = {}
    for batch in batches:
        found.setdefault(batch.topic, []).append(batch)
    return list(found.values())
