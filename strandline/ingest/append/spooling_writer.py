"""The way into the log for streams that may be acknowledged from the spool, and for UDP, which cannot wait.

The way of a batch:

1. While Kafka confirms and nothing of its stream is spooled, it goes *directly*: all that waits is written in one
   transaction, and a record of it is read back once the transaction is committed.
2. Otherwise it goes to the spool, behind what is there already. What arrives while the disk is synced goes together.
3. When Kafka is back the spool is *drained*, stream by stream, in order, one transaction at a time; a stream with an
   empty spool goes directly again.

Why transactions: what was sent and not confirmed is in doubt, and will be sent again. Before that it must be certain that
the first attempt can't arrive any more, however long a network holds it. A new producer under the same transactional id
makes Kafka refuse everything the old one has sent (`init_transactions`); after that the log itself says which attempts
have arrived: whole transactions or nothing of them. Attempts are written down beforehand (drained records) or together
with the records (direct ones), each with the offsets behind which it can be found.

Invariants:
- One transaction is open at a time, and it is ended, fenced or timed out before the next.
- A record in doubt is in the spool with its attempt; no other record of its stream is sent before it is resolved.
- What is acknowledged is committed and read back, or on this machine's disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from strandline.core.errors import LogUnavailable
from strandline.core.record import HEADER_EPOCH, HEADER_SEQUENCE, HEADER_WRITER
from strandline.ingest.append.errors import SpoolFull
from strandline.ingest.append.outcome import Accepted
from strandline.ingest.append.spool import Attempt, Spool, SpooledRecord
from strandline.log.read_back import ReadBack, Written

logger = structlog.get_logger()

TRANSACTION_RECORDS_MAX = 10_000
TRANSACTION_BYTES_MAX = 8 * 1024 * 1024
TRANSACTION_TIMEOUT_S = 10
"""After this Kafka aborts a transaction whose writer died, and others' readers get past it."""
RETRY_S = 0.25
"""How soon Kafka is tried again after it failed."""
REFUSED_RETRY_S = 1.0
"""How soon a stream is drained again that could not be drained."""
ENDS_AGE_MAX_S = 10.0
"""How old the known ends of a stream's partitions may be: so much of the log is read to resolve an attempt."""
SCAN_IDLE_S = 5.0
"""A scan in which nothing comes for so long has failed, and is repeated."""
_RECORDS_PER_TURN = 1_000
_SERVE_S = 0.001
_PARTITION_BY_KEY = -1

T = TypeVar("T")


class _TopicTrouble(Exception):
    """One topic can't be drained at present; the others can."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Entry:
    """A batch that waits."""

    __slots__ = ("accepted", "records", "scan_from", "topic")

    def __init__(self, topic: str, records: Sequence[SpooledRecord], accepted: asyncio.Future[Accepted]) -> None:
        self.topic = topic
        self.records = records
        self.accepted = accepted
        self.scan_from: dict[int, int] | None = None
        """Set as soon as it may be in the log, behind these offsets."""

    def settle(self, where: Accepted) -> None:
        if not self.accepted.done():
            self.accepted.set_result(where)

    def fail(self, error: LogUnavailable) -> None:
        if not self.accepted.done():
            self.accepted.set_exception(error)


class SpoolingWriter:
    """One transactional producer and one spool, for one event loop. Used by `LogWriter`, which bounds what is under way."""

    def __init__(
        self,
        client_config: dict[str, Any],
        producer_config: dict[str, Any],
        *,
        writer_id: str,
        confirm_timeout_s: float,
        spool: Spool,
        make_producer: Callable[[dict[str, Any]], Producer] = Producer,
        make_consumer: Callable[[dict[str, Any]], Consumer] = Consumer,
    ) -> None:
        self._client_config = client_config
        self._producer_config = producer_config | {
            "transactional.id": f"strandline-{writer_id}",
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_S * 1_000,
            # Given up in doubt, like its transaction, which is then fenced before anything is sent again.
            "message.timeout.ms": TRANSACTION_TIMEOUT_S * 1_000,
        }
        self._writer_id = writer_id.encode()
        self._confirm_timeout_s = confirm_timeout_s
        self._make_producer = make_producer
        self._make_consumer = make_consumer
        self.spool = spool
        self._producer: Producer | None = None
        self._read_back: ReadBack[asyncio.Future[None]] | None = None
        self._ends: dict[str, tuple[float, dict[int, int]]] = {}
        """Topic -> when they were asked for, and the ends of its partitions then."""
        self._direct: deque[_Entry] = deque()
        self._writing: list[_Entry] = []
        """What the transaction holds that is being written directly."""
        self._to_spool: deque[_Entry] = deque()
        self._behind = Counter(spool.records_of)
        """Topic -> records that are in the spool, or on the way into it."""
        self._catching_up: str | None = None
        """The topic whose last spooled records are being drained: what comes of it waits for that, in memory."""
        self._is_away = False
        self._retry_at_s: dict[str, float] = {}
        self._work = asyncio.Event()
        self._spool_work = asyncio.Event()
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="spool")
        self._kafka = ThreadPoolExecutor(1, thread_name_prefix="kafka-transaction")
        self._tasks: list[asyncio.Task[None]] = []
        self.failure: str | None = None
        """Why nothing more is taken until the gateway is started again."""

    def start(self) -> None:
        """Begin to drain what an earlier process left; in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._tasks = [self._loop.create_task(self._run()), self._loop.create_task(self._spool_what_waits())]
        for task in self._tasks:
            task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """A crashed task is a bug: reject further records."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failure = repr(error)
            logger.error("the spooling writer failed", action="spooling_failed", error=repr(error), exc_info=error)
            for entry in (*self._writing, *self._direct, *self._to_spool):
                entry.fail(LogUnavailable(f"the spooling writer failed ({error!r}); restart the gateway"))

    async def close(self) -> None:
        """End; everything that was appended has been answered. What is spooled stays for the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for entry in (*self._writing, *self._direct, *self._to_spool):
            entry.fail(LogUnavailable("the gateway stopped; the records of this request may or may not be in the log"))
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._kafka.shutdown(wait=True, cancel_futures=True)
        self._drop_clients()
        self._disk.shutdown(wait=True, cancel_futures=True)
        self.spool.close()

    async def append(self, topic: str, records: Sequence[SpooledRecord]) -> Accepted:
        """Return where the records are, all of them. Raises SpoolFull, or LogUnavailable where a failed attempt went before."""
        if self.failure is not None:
            raise LogUnavailable(f"the spooling writer failed ({self.failure}); restart the gateway")
        entry = _Entry(topic, records, self._loop.create_future())
        if self._is_away or (self._behind[topic] and topic != self._catching_up):
            self._put_to_spool(entry)
        else:
            self._direct.append(entry)
            self._work.set()
            self._loop.call_later(self._confirm_timeout_s, self._stop_waiting, entry)
        return await entry.accepted

    def _put_to_spool(self, entry: _Entry) -> None:
        self._behind[entry.topic] += len(entry.records)
        self._to_spool.append(entry)
        self._spool_work.set()

    def _stop_waiting(self, entry: _Entry) -> None:
        """A batch that is not committed in time goes to the spool, and so does all that waits with it."""
        if entry.topic == self._catching_up and entry in self._direct:
            self._spool_waiting_of(entry.topic)
        elif entry in self._writing or entry in self._direct:
            self._go_away("no transaction was committed in time")

    def _spool_waiting_of(self, topic: str) -> None:
        """What waits of one topic goes to the spool, and what comes of it until that is drained."""
        if topic == self._catching_up:
            self._catching_up = None
        waiting = [entry for entry in self._direct if entry.topic == topic]
        for entry in waiting:
            self._direct.remove(entry)
            self._put_to_spool(entry)

    def _go_away(self, reason: str) -> None:
        """Spool what is being written, then what waits, and from now on what comes."""
        if not self._is_away:
            self._is_away = True
            logger.warning("Kafka does not confirm; records go to the spool", action="spool_begins", reason=reason)
        self._catching_up = None
        for entry in (*self._writing, *self._direct):
            self._put_to_spool(entry)
        self._writing.clear()
        self._direct.clear()

    # The spool's side.

    async def _spool_what_waits(self) -> None:
        """Put what waits on disk, together what came while the disk was busy."""
        while True:
            await self._spool_work.wait()
            self._spool_work.clear()
            while self._to_spool:
                await self._spool_some(self._take_alike())

    def _take_alike(self) -> list[_Entry]:
        """The next ones that are either all in doubt or all not, so that an attempt covers no record that it never had."""
        is_in_doubt = self._to_spool[0].scan_from is not None
        taken = []
        while self._to_spool and (self._to_spool[0].scan_from is not None) == is_in_doubt:
            taken.append(self._to_spool.popleft())
        return taken

    async def _spool_some(self, entries: list[_Entry]) -> None:
        records = [record for entry in entries for record in entry.records]
        attempted = {entry.topic: entry.scan_from for entry in entries if entry.scan_from is not None}
        try:
            await self._on_disk(self.spool.add, records, attempted)
        except SpoolFull as error:
            if len(entries) > 1 and not attempted:  # a smaller one may still fit
                for entry in entries:
                    await self._spool_some([entry])
                return
            logger.error("the spool refused records", action="spool_full", records=len(records), reason=str(error))
            for entry in entries:
                self._behind[entry.topic] -= len(entry.records)
                unknown = LogUnavailable(f"{error}; they were sent to Kafka before, and may or may not be in the log")
                entry.fail(unknown if entry.scan_from is not None else error)
            return
        for entry in entries:
            entry.settle(Accepted.SPOOL)
        self._work.set()

    # Kafka's side.

    async def _run(self) -> None:
        """Write and drain, for as long as the process runs: one thing at a time."""
        while True:
            try:
                is_idle = not self._direct and not self._behind.total()
                if self._producer is None and not is_idle:
                    await self._open()
                topic = self._next_to_drain()
                if self._direct:
                    await self._write_directly()
                elif topic is None:
                    await self._wait(None if is_idle else RETRY_S)
                if topic is not None:
                    await self._drain(topic)
            except (LogUnavailable, KafkaException) as error:
                self._go_away(str(error))
                await self._in_kafka_thread(self._drop_clients)
                await asyncio.sleep(RETRY_S)

    async def _wait(self, timeout_s: float | None) -> None:
        self._work.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._work.wait(), timeout_s)

    def _next_to_drain(self) -> str | None:
        now_s = self._loop.time()
        spooled = self.spool.records_of
        return next((t for t in spooled if spooled[t] and self._retry_at_s.get(t, 0.0) <= now_s), None)

    async def _open(self) -> None:
        """Get a producer; it fences all earlier ones. Raises KafkaException."""
        await self._in_kafka_thread(self._open_producer)
        self._read_back = ReadBack(
            self._client_config,
            writer_id=self._writer_id,
            timeout_s=self._confirm_timeout_s,
            make_consumer=self._make_consumer,
        )
        if self._is_away:
            self._is_away = False
            logger.info("Kafka confirms again; the spool is drained", action="spool_drains", records=self.spool.records)

    def _open_producer(self) -> None:
        producer = self._make_producer(self._producer_config)
        try:
            producer.init_transactions(max(2.0, self._confirm_timeout_s))
        except KafkaException:
            _close_producer(producer)
            raise
        self._producer = producer

    async def _resolve(self, attempt: Attempt) -> None:
        """Find in the log whether the attempt has arrived, and take its records out of the spool if so.

        It was made by an earlier producer, which is fenced: what has not arrived by now never will. Raises LogUnavailable.
        """
        chunk = await self._on_disk(partial(self.spool.head, attempt.topic, 0, 0, up_to_id=attempt.last_id))
        if chunk is None:
            await self._on_disk(self.spool.end, attempt.topic, None)
            return
        wanted = {(record.epoch, record.sequence) for record in chunk.records}
        found = await self._in_kafka_thread(partial(self._scan, attempt, wanted))
        if found and found != wanted:
            raise LogUnavailable(
                f"{len(found)} of {len(wanted)} records of one transaction are in topic {attempt.topic}; was the topic "
                f"made anew, or has retention taken some? The spool keeps them all: look at {self.spool.path}"
            )
        await self._on_disk(self.spool.end, attempt.topic, attempt.last_id if found else None)
        if found:
            self._behind[attempt.topic] -= len(chunk.records)
        logger.info(
            "an attempt in doubt was resolved",
            action="attempt_resolved",
            topic=attempt.topic,
            records=len(chunk.records),
            is_in_log=bool(found),
        )

    def _scan(self, attempt: Attempt, wanted: set[tuple[int, int]]) -> set[tuple[int, int]]:
        """Which of the wanted (epoch, sequence) of this writer are committed behind the attempt's offsets.

        Reads up to where the partitions end now; nothing older can arrive later, because it is fenced. Raises
        LogUnavailable when it can't be told, also while someone else's open transaction hides a part.
        """
        ends = self._ask_ends(attempt.topic)
        consumer = self._make_consumer(
            self._client_config
            | {
                "group.id": "strandline-resolve",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",  # what retention has taken can't be found
                "enable.partition.eof": True,
                "allow.auto.create.topics": False,
                "fetch.wait.max.ms": 100,
            }
        )
        try:
            starts = {number: attempt.scan_from.get(number, OFFSET_BEGINNING) for number in ends}
            left = {number for number, end in ends.items() if starts[number] < end}
            consumer.assign([TopicPartition(attempt.topic, number, starts[number]) for number in left])
            found: set[tuple[int, int]] = set()
            deadline_s = time.monotonic() + SCAN_IDLE_S
            while left and found != wanted:
                for message in consumer.consume(1_000, 0.5):
                    number, offset, error = message.partition(), message.offset(), message.error()
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        raise LogUnavailable(f"topic {attempt.topic} could not be read: {error.str()}")
                    if number is None or offset is None:
                        continue
                    if error is None:
                        deadline_s = time.monotonic() + SCAN_IDLE_S
                        if (place := self._place_of(message)) in wanted and place is not None:
                            found.add(place)
                    if offset >= ends[number] - (error is None):
                        left.discard(number)
                if time.monotonic() > deadline_s:
                    raise LogUnavailable(
                        f"topic {attempt.topic} could not be read to its end within {SCAN_IDLE_S:g} s, so it is not "
                        f"known what of it the spool still has to send; it is tried again"
                    )
            return found
        finally:
            consumer.close()

    def _place_of(self, message: Message) -> tuple[int, int] | None:
        headers: dict[str, Any] = dict(message.headers() or ())
        if headers.get(HEADER_WRITER) != self._writer_id:
            return None
        return int(headers[HEADER_EPOCH]), int(headers[HEADER_SEQUENCE])

    async def _write_directly(self) -> None:
        """Write what waits in one transaction. What it leaves in doubt goes to the spool. Raises LogUnavailable."""
        await self._take_waiting()
        if not self._writing:
            return
        try:
            await self._commit([record for entry in self._writing for record in entry.records])
        except BaseException as error:  # whatever ended us, these records are not forgotten
            self._go_away(str(error))
            raise
        if not self._writing:
            raise LogUnavailable("a transaction was committed after its records had gone to the spool")
        for entry in self._writing:
            entry.settle(Accepted.LOG)
        self._writing.clear()

    async def _take_waiting(self) -> None:
        """Take as much of what waits as one transaction may hold, each with the ends of its topic.

        What waits for a topic whose ends are not told goes to the spool: its trouble may be its own.
        """
        ends: dict[str, dict[int, int]] = {}
        for topic in {entry.topic for entry in self._direct}:
            try:
                ends[topic] = await self._ends_of(topic)
            except (LogUnavailable, KafkaException) as error:
                logger.warning("a topic does not answer", action="spool_begins", topic=topic, reason=str(error))
                self._spool_waiting_of(topic)
        records = size = 0
        while self._direct and self._direct[0].topic in ends:
            if records >= TRANSACTION_RECORDS_MAX or size >= TRANSACTION_BYTES_MAX:
                break
            entry = self._direct.popleft()
            entry.scan_from = ends[entry.topic]
            self._writing.append(entry)
            records += len(entry.records)
            size += sum(len(record.value) for record in entry.records)

    async def _drain(self, topic: str) -> None:
        """Write some of the oldest records of a stream, and take them out of the spool once they are in the log.

        With few left all of them are, and what comes meanwhile waits: else a stream that never rests would be spooled for
        ever. Raises LogUnavailable and KafkaException when the producer must be replaced.
        """
        try:
            attempt = await self._on_disk(self.spool.attempt_of, topic)
            if attempt is not None:
                try:
                    await self._resolve(attempt)
                except (LogUnavailable, KafkaException) as error:
                    raise _TopicTrouble(error) from error
            if self._behind[topic] > TRANSACTION_RECORDS_MAX:
                await self._drain_chunk(topic)
                return
            self._catching_up = topic
            while self._behind[topic] and self._catching_up == topic:
                if not await self._drain_chunk(topic):
                    await asyncio.sleep(_SERVE_S)  # the rest is on its way to the disk
            self._catching_up = None
        except _TopicTrouble as trouble:
            self._spool_waiting_of(topic)
            self._retry_at_s[topic] = self._loop.time() + RETRY_S
            reason = str(trouble.cause)
            logger.warning("spooled records could not be sent", action="drain_put_off", topic=topic, reason=reason)

    async def _drain_chunk(self, topic: str) -> bool:
        """One transaction of it; False when nothing of the topic is on disk.

        Raises _TopicTrouble, and LogUnavailable and KafkaException when the producer must be replaced.
        """
        chunk = await self._on_disk(self.spool.head, topic, TRANSACTION_RECORDS_MAX, TRANSACTION_BYTES_MAX)
        if chunk is None:
            return False
        try:
            await self._on_disk(self.spool.begin, Attempt(topic, chunk.last_id, await self._ends_of(topic)))
        except (LogUnavailable, KafkaException) as error:
            raise _TopicTrouble(error) from error
        try:
            await self._commit(chunk.records)
        except LogUnavailable:
            self._retry_at_s[topic] = self._loop.time() + REFUSED_RETRY_S  # if it is only this one, the others go on
            raise
        self._retry_at_s.pop(topic, None)
        await self._on_disk(self.spool.end, topic, chunk.last_id)
        self._behind[topic] -= len(chunk.records)
        return True

    async def _commit(self, records: Sequence[SpooledRecord]) -> None:
        """Write the records in one transaction and read the last one back: it vouches for all, they came together.

        Raises LogUnavailable: it is not known whether they are in the log, and the producer must be replaced.
        """
        producer = self._producer
        assert producer is not None
        reports: list[Message] = []

        def note(error: KafkaError | None, message: Message) -> None:
            if error is None:
                reports.append(message)

        last = records[-1]
        try:
            producer.begin_transaction()
            produce: Any = producer.produce
            for number, (topic, _, _, value, key, headers) in enumerate(records[:-1], 1):
                produce(topic, value, key, _PARTITION_BY_KEY, None, None, 0, headers)  # by position: half as much work
                if number % _RECORDS_PER_TURN == 0:
                    await asyncio.sleep(0)
            produce(last.topic, last.value, last.key, _PARTITION_BY_KEY, note, None, 0, last.headers)
            await self._in_kafka_thread(producer.commit_transaction, self._confirm_timeout_s)
        except KafkaException as error:
            # An abort is no proof: what was sent before it may arrive after it, under the same producer epoch, and become a
            # part of the next transaction. Only the fence of a new producer is one.
            reason = error.args[0].str()
            raise LogUnavailable(f"Kafka did not commit records of topic {last.topic} ({reason})") from error
        if not reports:
            raise LogUnavailable(f"a transaction of topic {last.topic} was committed, and its last record not reported")
        await self._read(reports[0], last)

    async def _read(self, report: Message, record: SpooledRecord) -> None:
        assert self._read_back is not None
        number, offset = report.partition(), report.offset()
        assert number is not None
        found: asyncio.Future[None] = self._loop.create_future()
        place = -1 if offset is None else offset
        self._read_back.expect(
            Written(
                record.topic, number, place, record.epoch, record.sequence, record.sequence, record.value, record.key
            ),
            found,
        )
        while self._read_back.is_busy:
            _, missed = self._read_back.serve(self._loop.time())
            for miss, _ in missed:
                raise LogUnavailable(miss.reason)
            await asyncio.sleep(_SERVE_S)

    async def _ends_of(self, topic: str) -> dict[int, int]:
        """Where the topic's partitions ended a while ago: nothing that is sent from now on stands before.

        Raises LogUnavailable.
        """
        asked_s, ends = self._ends.get(topic, (0.0, None))
        if ends is None or self._loop.time() - asked_s > ENDS_AGE_MAX_S:
            asked_s = self._loop.time()
            ends = await self._in_kafka_thread(self._ask_ends, topic)
            self._ends[topic] = (asked_s, ends)
        return ends

    def _ask_ends(self, topic: str) -> dict[int, int]:
        consumer = self._make_consumer(
            self._client_config | {"group.id": "strandline-ends", "isolation.level": "read_uncommitted"}
        )
        try:
            timeout_s = self._confirm_timeout_s
            described = consumer.list_topics(topic, timeout_s).topics[topic]
            if described.error is not None:
                raise LogUnavailable(f"topic {topic} can't be found: {described.error.str()}; apply its document again")
            ends = {}
            for number in described.partitions:
                offsets = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout_s, False)
                if offsets is None:
                    raise LogUnavailable(f"the end of {topic}/{number} was not told within {timeout_s:g} s")
                ends[number] = offsets[1]
            return ends
        finally:
            consumer.close()

    def _drop_clients(self) -> None:
        """Leave the clients; closing them may take long, and nothing of theirs can be confirmed any more."""
        producer, self._producer = self._producer, None
        read_back, self._read_back = self._read_back, None
        self._ends.clear()
        if producer is not None:
            _close_producer(producer)
        if read_back is not None:
            threading.Thread(target=read_back.close, name="kafka-close", daemon=True).start()

    async def _on_disk(self, function: Callable[..., T], *arguments: object) -> T:
        return await self._loop.run_in_executor(self._disk, function, *arguments)

    async def _in_kafka_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await self._loop.run_in_executor(self._kafka, function, *arguments)


def _close_producer(producer: Producer) -> None:
    """Let it end in a thread: its last reference goes there, and with it the connections."""

    def end() -> None:
        producer.purge()
        producer.flush(0.1)

    threading.Thread(target=end, name="kafka-close", daemon=True).start()
