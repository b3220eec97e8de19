"""The way into the log for streams that may be acknowledged from the spool, and for UDP, which cannot wait.

The way of a batch:

1. While Kafka confirms and nothing of its stream is spooled, it goes *directly*: all that waits is written in one
   transaction, and a record of it is read back once the transaction is committed (transactional_writer.py).
2. Otherwise it goes to the spool, behind what is there already (spool_intake.py).
3. When Kafka is back the spool is *drained*, stream by stream (spool_drain.py). A stream with an empty spool goes directly
   again.

Each attempt is noted on disk with the offsets from which to look for it (attempts.py): for drained records before they are
sent, for direct ones when their records go to the spool.

Invariants:
- One transaction is open at a time, and it is ended, fenced or timed out before the next.
- A record in doubt is in the spool with its attempt; no other record of its stream is sent before it is resolved, or set aside
  until an operator decides.
- What is acknowledged is committed and read back, or on this machine's disk.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import structlog
from confluent_kafka import KafkaError, KafkaException

from strandline.core.errors import InvalidSettings, LogUnavailable, RecordTooLarge
from strandline.ingest.append.attempts import AttemptFinder
from strandline.ingest.append.kafka_clients import KafkaClients
from strandline.ingest.append.outcome import NOT_CONFIRMED, Accepted
from strandline.ingest.append.spool import Spool, SpooledRecord
from strandline.ingest.append.spool_drain import RETRY_S, SpoolDrain, TopicTrouble
from strandline.ingest.append.spool_intake import SpoolingBatch, SpoolIntake
from strandline.ingest.append.transactional_writer import (
    TRANSACTION_BYTES_MAX,
    TRANSACTION_RECORDS_MAX,
    TransactionalWriter,
)
from strandline.ingest.append.worker_thread import WorkerThread

logger = structlog.get_logger()


class SpoolingWriter:
    """One transactional producer and one spool, for one event loop. Used by `LogWriter`, which bounds what is under way."""

    def __init__(
        self,
        clients: KafkaClients,
        *,
        confirm_timeout_s: float,
        spool: Spool,
        on_error: Callable[[KafkaError], None],
    ) -> None:
        self._confirm_timeout_s = confirm_timeout_s
        self.spool = spool
        self._disk = WorkerThread("spool")
        self._kafka = WorkerThread("kafka-transaction")
        self._writer = TransactionalWriter(clients, self._kafka, confirm_timeout_s=confirm_timeout_s, on_error=on_error)
        self._finder = AttemptFinder(clients, self._kafka)
        self._work = asyncio.Event()
        self._intake = SpoolIntake(spool, self._disk, self._work.set, self._spool_waiting_of)
        self._drain = SpoolDrain(spool, self._disk, self._writer, self._finder, self._intake.behind)
        self._direct: deque[SpoolingBatch] = deque()
        """Batches that wait to be written directly."""
        self._writing: list[SpoolingBatch] = []
        """Batches of the transaction that is being written directly."""
        self._is_away = False
        self._tasks: list[asyncio.Task[None]] = []
        self.failure: str | None = None
        """Why every record is rejected until the gateway is started again."""

    def start(self) -> None:
        """Begin to drain what an earlier process left; in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._tasks = [self._loop.create_task(self._run()), self._loop.create_task(self._intake.run())]
        for task in self._tasks:
            task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """A crashed task is a bug: reject all later records."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failure = repr(error)
            logger.error("the spooling writer failed", action="spooling_failed", error=repr(error), exc_info=error)
            self._fail_all(f"the spooling writer failed ({error!r}); restart the gateway")

    async def close(self) -> None:
        """End; everything that was appended has been answered. What is spooled stays for the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail_all("the gateway stopped; the records of this request may or may not be in the log")
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._kafka.close()
        self._drop_clients()
        self._disk.close()
        self.spool.close()

    def _fail_all(self, reason: str) -> None:
        for batch in (*self._writing, *self._direct, *self._intake.waiting):
            batch.fail(LogUnavailable(reason))

    def append(self, topic: str, records: Sequence[SpooledRecord]) -> asyncio.Future[Accepted]:
        """Say where the records are, all of them, as soon as that is known. Who waits for it does so inside `caller_of`.

        Raises SpoolFull, at once or later, or LogUnavailable where a failed attempt went before.
        """
        if self.failure is not None:
            raise LogUnavailable(f"the spooling writer failed ({self.failure}); restart the gateway")
        self._intake.require_order(topic)
        batch = SpoolingBatch(topic, records, self._loop.create_future())
        if self._is_away or (self._intake.behind[topic] and topic != self._drain.catching_up):
            self._intake.put(batch)
        else:
            self._direct.append(batch)
            self._work.set()
            batch.clock = self._loop.call_later(self._confirm_timeout_s, self._stop_waiting, batch)
        return batch.accepted

    def caller_of(self, topic: str) -> AbstractContextManager[None]:
        """Somebody waits in it for what `append` says. While one does whose batch was refused, no later batch overtakes it."""
        return self._intake.caller_of(topic)

    # From the direct way to the spool.

    def _stop_waiting(self, batch: SpoolingBatch) -> None:
        """A batch that is not committed in time goes to the spool, and so does all that waits with it."""
        if batch.topic == self._drain.catching_up and batch in self._direct:
            self._spool_waiting_of(batch.topic)
        elif batch in self._writing or batch in self._direct:
            self._go_away("no transaction was committed in time")

    def _spool_waiting_of(self, topic: str) -> None:
        """Spool the waiting batches of one topic, and its new ones until it is drained."""
        if topic == self._drain.catching_up:
            self._drain.catching_up = None
        for batch in [batch for batch in self._direct if batch.topic == topic]:
            self._direct.remove(batch)
            self._intake.put(batch)

    def _go_away(self, reason: str) -> None:
        """Spool what is being written, then what waits, and what comes until a new producer is there."""
        if not self._is_away:
            self._is_away = True
            logger.warning("no transaction is committed; records go to the spool", action="spool_begins", reason=reason)
        self._drain.catching_up = None
        for batch in (*self._writing, *self._direct):
            self._intake.put(batch)
        self._writing.clear()
        self._direct.clear()

    def _spool_refused(self, drained: str | None, reason: str) -> None:
        """Kafka answers, but takes no records of this size. What was being written is in doubt: it goes to the spool, and with it
        what waits of its topics and of the one that was being drained. The other topics wait for the next producer."""
        logger.warning("a topic takes smaller records than the gateway", action="record_too_large", reason=reason)
        topics = {batch.topic for batch in self._writing}
        for batch in self._writing:
            self._intake.put(batch)
        self._writing.clear()
        for topic in (*topics, *([drained] if drained is not None else [])):
            self._spool_waiting_of(topic)

    # Kafka's side.

    async def _run(self) -> None:
        """Write and drain, for as long as the process runs: one thing at a time."""
        while True:
            try:
                is_idle = not self._direct and not self._intake.behind.total() and not self.spool.doubts
                if not self._writer.is_open and not is_idle:
                    await self._open()
                topic = self._drain.next_topic()
                if self._direct:
                    await self._write_directly()
                elif topic is None:
                    await self._wait(None if is_idle else RETRY_S)
                if topic is not None:
                    await self._drain_some(topic)
                await self._drain.apply_decisions()
                self._come_back()
            except RecordTooLarge as error:
                self._spool_refused(topic, str(error))
                await self._kafka.run(self._drop_clients)
            except (*NOT_CONFIRMED, KafkaException, InvalidSettings) as error:
                # Each client reads passwords and certificates anew: they may just be being replaced.
                self._go_away(str(error))
                await self._kafka.run(self._drop_clients)
                await asyncio.sleep(RETRY_S)

    async def _wait(self, timeout_s: float | None) -> None:
        self._work.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._work.wait(), timeout_s)

    async def _open(self) -> None:
        """Get a producer; it fences all earlier ones. Raises KafkaException and InvalidSettings."""
        await self._writer.open()
        self._come_back()

    def _come_back(self) -> None:
        """Let new batches be written directly again: there is a new producer, or the old one was only slow."""
        if self._is_away:
            self._is_away = False
            logger.info("Kafka confirms again; the spool is drained", action="spool_drains", records=self.spool.records)

    async def _drain_some(self, topic: str) -> None:
        try:
            await self._drain.drain(topic)
        except TopicTrouble:
            self._spool_waiting_of(topic)

    async def _write_directly(self) -> None:
        """Write what waits in one transaction. What it leaves in doubt goes to the spool. Raises LogUnavailable,
        RecordTooLarge."""
        await self._take_waiting()
        if not self._writing:
            return
        try:
            await self._writer.commit([record for batch in self._writing for record in batch.records])
        except RecordTooLarge:
            raise
        except BaseException as error:  # whatever ended us, these records are not forgotten
            self._go_away(str(error))
            raise
        if not self._writing:
            raise LogUnavailable("a transaction was committed after its records had gone to the spool")
        for batch in self._writing:
            batch.settle(Accepted.LOG)
        self._writing.clear()

    async def _take_waiting(self) -> None:
        """Take as much of what waits as one transaction may hold, each with the ends of its topic.

        The batches of a topic whose ends are not told go to the spool: the other topics may be well.
        """
        ends: dict[str, dict[int, int]] = {}
        for topic in {batch.topic for batch in self._direct}:
            try:
                ends[topic] = await self._finder.ends_of(topic)
            except (LogUnavailable, KafkaException) as error:
                logger.warning("a topic does not answer", action="spool_begins", topic=topic, reason=str(error))
                self._spool_waiting_of(topic)
        records = size = 0
        while self._direct and self._direct[0].topic in ends:
            if records >= TRANSACTION_RECORDS_MAX or size >= TRANSACTION_BYTES_MAX:
                break
            batch = self._direct.popleft()
            batch.scan_from = ends[batch.topic]
            self._writing.append(batch)
            records += len(batch.records)
            size += sum(len(record.value) for record in batch.records)

    def _drop_clients(self) -> None:
        self._writer.drop()
        self._finder.forget()
