"""Write to streams that may be acknowledged from the spool, and for UDP, which can't wait.

The path of a batch:

1. While Kafka confirms and no record of its stream is spooled, a batch is written *directly*. All waiting batches are
   written in one transaction, and a record of each transaction is read back after the commit (transactional_writer.py).
2. Otherwise the batch goes to the spool, after the spooled records (spool_intake.py).
3. When Kafka is back, the spool is *drained*, stream by stream (spool_drain.py). Batches of a stream with an empty
   spool are written directly again.

Each attempt is stored on disk with the offsets from which its records are searched (attempts.py). For drained records,
this happens before they are sent; for direct records, when they go to the spool.

Invariants:

- One transaction is open at a time. It is ended, fenced, or timed out before the next.
- A record in doubt is in the spool with its attempt. No other record of its stream is sent before it is resolved, or
  set aside until an operator decides.
- An acknowledged record is committed and read back, or on this machine's disk.
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
    """One transactional producer and one spool, for one event loop.

    Used by `LogWriter`, which limits the bytes in flight.
    """

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
        """Reason why every record is rejected until the gateway is restarted. None if it works."""

    def start(self) -> None:
        """Begin to drain the records of an earlier process. Call it in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._tasks = [self._loop.create_task(self._run()), self._loop.create_task(self._intake.run())]
        for task in self._tasks:
            task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """Reject all later records if a task crashed, which is a bug."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failure = repr(error)
            logger.error("the spooling writer failed", action="spooling_failed", error=repr(error), exc_info=error)
            self._fail_all(f"the spooling writer failed ({error!r}); restart the gateway")

    async def close(self) -> None:
        """End. Every appended batch gets an outcome, and spooled records stay for the next start."""
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
        """Return a future with the storage of all the records. Callers wait for it inside `caller_of`.

        Raises SpoolFull, immediately or by the future, and LogUnavailable if an earlier attempt failed.
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
        """Count a caller that waits for the future of `append`.

        While a caller of a refused batch waits, no later batch overtakes it.
        """
        return self._intake.caller_of(topic)

    # From the direct path to the spool.

    def _stop_waiting(self, batch: SpoolingBatch) -> None:
        """Move a batch that was not committed in time to the spool, with all batches that wait with it."""
        if batch.topic == self._drain.catching_up and batch in self._direct:
            self._spool_waiting_of(batch.topic)
        elif batch in self._writing or batch in self._direct:
            self._go_away("no transaction was committed in time")

    def _spool_waiting_of(self, topic: str) -> None:
        """Spool the waiting batches of one topic, and its new batches until the topic is drained."""
        if topic == self._drain.catching_up:
            self._drain.catching_up = None
        for batch in [batch for batch in self._direct if batch.topic == topic]:
            self._direct.remove(batch)
            self._intake.put(batch)

    def _go_away(self, reason: str) -> None:
        """Spool the batches that are being written, then the waiting ones, then new ones until a new producer exists."""
        if not self._is_away:
            self._is_away = True
            logger.warning("no transaction is committed; records go to the spool", action="spool_begins", reason=reason)
        self._drain.catching_up = None
        for batch in (*self._writing, *self._direct):
            self._intake.put(batch)
        self._writing.clear()
        self._direct.clear()

    def _spool_refused(self, drained: str | None, reason: str) -> None:
        """Handle a topic that refuses records of this size.

        The records that were being written are in doubt: they go to the spool, together with the waiting batches of
        their topics and of the topic that was being drained. The other topics wait for the next producer.
        """
        logger.warning("a topic accepts smaller records than the gateway", action="record_too_large", reason=reason)
        topics = {batch.topic for batch in self._writing}
        for batch in self._writing:
            self._intake.put(batch)
        self._writing.clear()
        for topic in (*topics, *([drained] if drained is not None else [])):
            self._spool_waiting_of(topic)

    # Kafka's side.

    async def _run(self) -> None:
        """Write and drain until the task is cancelled, one after the other."""
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
                # Each new client reads passwords and certificates again: they may just be being replaced.
                self._go_away(str(error))
                await self._kafka.run(self._drop_clients)
                await asyncio.sleep(RETRY_S)

    async def _wait(self, timeout_s: float | None) -> None:
        self._work.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._work.wait(), timeout_s)

    async def _open(self) -> None:
        """Open a producer, which fences all earlier ones. Raises KafkaException if Kafka doesn't respond,
        InvalidSettings if its settings can't be used.
        """
        await self._writer.open()
        self._come_back()

    def _come_back(self) -> None:
        """Write new batches directly again: there is a new producer, or the previous one was only slow."""
        if self._is_away:
            self._is_away = False
            logger.info("Kafka confirms again; the spool is drained", action="spool_drains", records=self.spool.records)

    async def _drain_some(self, topic: str) -> None:
        try:
            await self._drain.drain(topic)
        except TopicTrouble:
            self._spool_waiting_of(topic)

    async def _write_directly(self) -> None:
        """Write the waiting batches in one transaction.

        Batches in doubt go to the spool. Raises LogUnavailable and RecordTooLarge.
        """
        await self._take_waiting()
        if not self._writing:
            return
        try:
            await self._writer.commit([record for batch in self._writing for record in batch.records])
        except RecordTooLarge:
            raise
        except BaseException as error:  # whatever error ended the commit, these records must be kept
            self._go_away(str(error))
            raise
        if not self._writing:
            raise LogUnavailable("a transaction was committed after its records had gone to the spool")
        for batch in self._writing:
            batch.settle(Accepted.LOG)
        self._writing.clear()

    async def _take_waiting(self) -> None:
        """Take waiting batches for one transaction, each with the end offsets of its topic.

        The batches of a topic whose end offsets are unknown go to the spool: the other topics may work.
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
