"""Puts batches into the spool, together what came while the disk was busy.

A batch without room is refused, and its caller may try again. So that it is still the first of its topic then, the batches that
came behind it are refused, too, however small they are, and so is what comes before all who wait for the topic have their answer.
What is in doubt is not refused for that: it may be in the log. Other topics go on.
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
    """The batches on their way into the spool, in order. `run` puts them there; `on_spooled` is called after each time.

    `on_refused` is called with the topic of a batch without room: it puts here what waits of the topic elsewhere.
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
        """Topic -> records that are in the spool, or on the way into it. Whoever takes records out lowers it."""

        self._callers: Counter[str] = Counter()
        """Topic -> who waits for the outcome of a batch of it."""
        self._refused: dict[str, str] = {}
        """Topic -> why there was no room for a batch of it, until nobody waits for the topic any more."""

    def require_order(self, topic: str) -> None:
        """Raises SpoolFull while a new batch of the topic could overtake a refused one, whose caller does not know that yet.

        Told at once, the new one's caller does not wait: so many callers keep no topic refused for ever.
        """
        if topic in self._refused:
            raise SpoolFull(self._refused[topic])

    @contextlib.contextmanager
    def caller_of(self, topic: str) -> Iterator[None]:
        """Somebody waits in it for the outcome of a batch of the topic."""
        self._callers[topic] += 1
        try:
            yield
        finally:
            self._callers[topic] -= 1
            if not self._callers[topic]:
                self._refused.pop(topic, None)

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
            if len(parts) > 1:  # a smaller one, or one of another topic, may still fit
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
        """Take no batch of the topic until all that wait for it are told; those whose callers have left may be taken."""
        if self._callers[topic]:
            self._refused[topic] = reason
            self._on_refused(topic)


def _by_topic(batches: list[SpoolingBatch]) -> list[list[SpoolingBatch]]:
    """An attempt covers all that is older of its topic, so the batches of one topic stay together."""
    found: dict[str, list[SpoolingBatch]] = {}
    for batch in batches:
        found.setdefault(batch.topic, []).append(batch)
    return list(found.values())
