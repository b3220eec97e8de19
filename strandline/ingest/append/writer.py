"""Appends records to the log and says when Kafka has confirmed them. The one producer of a gateway process.

The way of a batch:

1. `append` counts its bytes against the bound; over the bound nothing is sent (LogBusy). While Kafka is known to be away
   nothing is sent either (LogAway), but for one batch a topic: its confirmation tells that Kafka is back.
2. Each record gets the next sequence number of its topic and is handed to the producer with its headers.
3. The event loop itself serves the clients, every millisecond while anything is under way: a delivery report needs no
   other thread, and no turn of the interpreter's lock.
4. When each record of the batch is reported, the last one in every partition is read back (read_back.py).
5. The batch is confirmed when all of these are found. No caller gets success earlier.
6. When Kafka has confirmed nothing of a topic for the confirmation timeout, whoever has waited so long is told that the
   outcome is unknown: LogUnavailable. A Kafka that is only slow is waited for longer, up to a bound. A stream that allows
   it goes to the spool instead.

Invariants:
- The sequence number of a topic only rises, in the order in which records are handed to the producer, so it rises within
  each partition too (with gaps: the topic's other partitions have the numbers between).
- A batch leaves the count of bytes in flight only when its last record is reported and read back or given up: a record
  that was given up by its waiter but not by Kafka still counts.
- The producer itself never gives a record up. It would then have to count on without the record, and librdkafka does that
  under a new producer epoch, in which it sends again what it had sent after it: some of it would be in the log twice.
- A producer that has failed for good is replaced, never reused; a read-back that contradicts a report replaces both
  clients. Nothing is sent again by the writer itself: whoever gets LogUnavailable decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from strandline.core.errors import LogUnavailable
from strandline.core.record import (
    HEADER_CONTENT_TYPE,
    HEADER_EPOCH,
    HEADER_MESSAGE_ID,
    HEADER_RECEIVED,
    HEADER_SEQUENCE,
    HEADER_SOURCE,
    HEADER_WRITER,
)
from strandline.ingest.append.errors import LogAway, LogBusy
from strandline.ingest.append.outcome import Accepted
from strandline.ingest.append.spool import Spool, SpooledRecord
from strandline.ingest.append.spooling_writer import SpoolingWriter
from strandline.log.read_back import Missed, ReadBack, Written
from strandline.log.record_key import Record
from strandline.log.topics import record_batch_bytes_max

logger = structlog.get_logger()

BYTES_IN_FLIGHT_MAX = 64 * 1024 * 1024
"""Values, keys and overhead of all records that Kafka has not yet confirmed."""
RECORD_OVERHEAD_BYTES = 400
"""What a record costs in memory beside its value and key: headers, and librdkafka's own book-keeping."""
LINGER_MS = 2
"""How long the first record of a batch waits for others."""
RECORDS_PER_TURN = 1_000
"""A longer batch lets the event loop run in between; up to this, batches reach the log in the order of their calls."""
SERVE_S = 0.001
"""How often the clients are served while anything is under way."""
SERVE_IDLE_S = 0.1
"""How often they are served otherwise."""
PROBE_S = 0.25
"""While Kafka is away and nothing of a topic is under way, how often a batch is let through to find out."""
PATIENCE_TIMEOUTS = 5
"""A Kafka that confirms slowly is waited for up to so many confirmation timeouts."""
OVERDUE_CHECK_S = 0.02

Headers = list[tuple[str, bytes]]

_UNKNOWN_OUTCOME = "the records of this request may or may not be in the log"
_PARTITION_BY_KEY = -1
_AWAY_CODES = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.KAFKA_STORAGE_ERROR,
    }
)
"""Why a record was given up that others of its topic would be given up for too."""


class _Batch:
    """The records of one `append`, until the last of them is reported and read back."""

    __slots__ = (
        "began_s",
        "bytes_in_flight",
        "confirmed",
        "error",
        "last",
        "reported",
        "reported_before",
        "sent",
        "sequence_first",
        "sequence_last",
        "topic",
        "unread",
    )

    def __init__(
        self, topic: str, records: int, bytes_in_flight: int, confirmed: asyncio.Future[None], began_s: float
    ) -> None:
        self.topic = topic
        self.began_s = began_s
        self.sequence_first = self.sequence_last = 0
        """The numbers of its records; other batches' may stand between if it is longer than a turn."""
        self.bytes_in_flight = bytes_in_flight
        self.confirmed = confirmed
        """Done when every record is reported and read back, or when the time is up."""
        self.error: KafkaError | None = None
        """The first refusal."""
        self.last: dict[int | None, Message] = {}
        """Partition -> report of the last record delivered there."""
        self.reported = self.reported_before = 0
        """Its records that are reported; and how many were at the last look."""
        self.sent = records
        """Lowered when a record is refused at once, and the rest not tried."""
        self.unread = 0
        """Partitions that are yet to be read back."""


class LogWriter:
    """One idempotent producer with `acks=all` and one read-back consumer, for one event loop. It runs inside `async with`.

    Everything but the closing happens in the event loop.
    """

    def __init__(
        self,
        kafka_bootstrap: str,
        *,
        writer_id: str,
        epoch: int,
        record_bytes_max: int,
        confirm_timeout_s: float,
        bytes_in_flight_max: int = BYTES_IN_FLIGHT_MAX,
        spool: Spool | None = None,
        make_producer: Callable[[dict[str, Any]], Producer] = Producer,
        make_consumer: Callable[[dict[str, Any]], Consumer] = Consumer,
    ) -> None:
        """`writer_id` and `epoch` are from a `WriterIdentity`: no other process has or ever had both. `confirm_timeout_s` is
        how long Kafka may be silent about a topic, and PATIENCE_TIMEOUTS times that how long it may take over a batch.

        Without a spool, what may be spooled is treated like everything else.
        """
        self._bootstrap = kafka_bootstrap
        self._writer_id = writer_id.encode()
        self._epoch = epoch
        self._confirm_timeout_s = confirm_timeout_s
        self._bytes_in_flight_max = bytes_in_flight_max
        self._make_producer = make_producer
        self._make_consumer = make_consumer
        client_config = {
            "bootstrap.servers": kafka_bootstrap,
            "client.id": writer_id,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500,
            "socket.nagle.disable": True,
            "log_level": 2,  # what is wrong comes through the error callback
        }
        self._producer_config = client_config | {
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": 0,  # never; what waits is answered by a clock of our own
            # A topic that no broker knows by then is refused by its name; the brokers know each one that was applied.
            "topic.metadata.propagation.max.ms": max(100, int(confirm_timeout_s * 500)),
            "message.max.bytes": record_batch_bytes_max(record_bytes_max),
            "partitioner": "murmur2_random",  # where Kafka's own clients put the same key
            "linger.ms": LINGER_MS,
            "compression.type": "lz4",
            # The bound on what is in flight is ours: it refuses a batch before the first record of it is sent.
            "queue.buffering.max.messages": 0,
            "queue.buffering.max.kbytes": 2_147_483_647,
            "error_cb": self._note_error,
        }
        self._consumer_config = client_config
        self._sequences: dict[str, int] = {}
        """Topic -> the number of its last record."""
        self._waited_for: dict[str, deque[_Batch]] = {}
        """Topic -> the batches that somebody may still wait for, in the order of their calls."""
        self._heard_s: dict[str, float] = {}
        """Topic -> when Kafka last confirmed something of it."""
        self._check_overdue_s = 0.0
        self._under_way: Counter[str] = Counter()
        """Topic -> batches that are in flight, be they given up or not."""
        self._reported: list[_Batch] = []
        """Reported whole, and nothing of them read back yet."""
        self._is_broken = False
        """The clients must be replaced."""
        self._away: dict[str, float] = {}
        """Topics for which Kafka did not confirm when it was last asked -> when it may be asked again."""
        self._is_closing = False
        self._serving: asyncio.TimerHandle | None = None
        self._serve_at_s = 0.0
        self._retiring: set[threading.Thread] = set()
        self._all_settled = asyncio.Event()
        """Set while closing, once nothing is in flight."""
        self.bytes_in_flight = 0
        """Of all records that were handed to the producer and not yet reported and read back, with their overhead."""
        self._open_clients()
        self._spooling: SpoolingWriter | None = None
        if spool is not None:
            self._spooling = SpoolingWriter(
                client_config,
                self._producer_config,
                writer_id=writer_id,
                confirm_timeout_s=confirm_timeout_s,
                spool=spool,
                make_producer=make_producer,
                make_consumer=make_consumer,
            )

    async def __aenter__(self) -> LogWriter:
        self._loop = asyncio.get_running_loop()
        self._serve_in(SERVE_IDLE_S)
        if self._spooling is not None:
            self._spooling.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Wait, no longer than the confirmation timeout, until all that was appended is confirmed."""
        self._is_closing = True
        if self.bytes_in_flight:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_settled.wait(), self._confirm_timeout_s)
        if self._serving is not None:
            self._serving.cancel()
        self._retire_clients()
        await asyncio.to_thread(self._join_retiring)
        if self._spooling is not None:
            await self._spooling.close()

    async def append(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        received_ms: int,
        source: bytes | None,
        content_type: bytes,
        message_id: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        headers_each: Sequence[Sequence[tuple[str, bytes]]] | None = None,
        may_spool: bool = False,
    ) -> Accepted:
        """Append the records in order, and return when every one of them is confirmed and read back.

        With `may_spool` it also returns, Accepted.SPOOL, when they are on disk because Kafka can't confirm. A stream is
        written with it or without it, not now so and now so: else the two may reach the log in another order.

        `headers` are added to each record, and of `headers_each` to each its own: where the records of a batch have
        sources of their own, theirs is there and `source` is None. The sender's `message_id` goes to each record.

        Raises LogBusy (LogAway) when too much is in flight (Kafka is away) and nothing was sent, and LogUnavailable when
        Kafka did not confirm in time or refused a record: some of the batch, or all of it, may be in the log. Cancelling
        means only that nobody waits any more.
        """
        if not records:
            return Accepted.LOG
        bytes_new = sum(len(value) + len(key or b"") + RECORD_OVERHEAD_BYTES for value, key in records)
        self._check_room(bytes_new)
        common: Headers = [
            (HEADER_WRITER, self._writer_id),
            (HEADER_EPOCH, b"%d" % self._epoch),
            (HEADER_RECEIVED, b"%d" % received_ms),
            (HEADER_CONTENT_TYPE, content_type),
            *headers,
        ]
        if source is not None:
            common.append((HEADER_SOURCE, source))
        if message_id is not None:
            common.append((HEADER_MESSAGE_ID, message_id))
        each = headers_each or repeat((), len(records))
        if may_spool and self._spooling is not None:
            return await self._append_or_spool(self._spooling, topic, records, common, each, bytes_new)
        self._check_reached(topic)
        batch = _Batch(topic, len(records), bytes_new, self._loop.create_future(), self._loop.time())
        self.bytes_in_flight += bytes_new
        self._under_way[topic] += 1
        self._waited_for.setdefault(topic, deque()).append(batch)
        await self._send(records, common, each, batch)
        await batch.confirmed
        if batch.error is not None:
            raise self._explain(topic, batch.error)
        return Accepted.LOG

    async def _append_or_spool(
        self,
        spooling: SpoolingWriter,
        topic: str,
        records: Sequence[Record],
        common: Headers,
        headers_each: Iterable[Sequence[tuple[str, bytes]]],
        bytes_new: int,
    ) -> Accepted:
        first = self._sequences.get(topic, 0) + 1
        self._sequences[topic] = first + len(records) - 1
        numbered = [
            SpooledRecord(
                topic, self._epoch, sequence, value, key, [*common, *own, (HEADER_SEQUENCE, b"%d" % sequence)]
            )
            for sequence, ((value, key), own) in enumerate(zip(records, headers_each, strict=True), first)
        ]
        self.bytes_in_flight += bytes_new
        appending = asyncio.ensure_future(spooling.append(topic, numbered))
        appending.add_done_callback(lambda _: self._give_back(bytes_new))
        return await asyncio.shield(appending)

    def _give_back(self, bytes_done: int) -> None:
        self.bytes_in_flight -= bytes_done
        if self._is_closing and not self.bytes_in_flight:
            self._all_settled.set()

    async def check(self, timeout_s: float) -> None:
        """Return when Kafka answers. Raises LogUnavailable."""
        if self._spooling is not None and self._spooling.failure is not None:
            raise LogUnavailable(f"the spooling writer failed ({self._spooling.failure}); restart the gateway")
        if self._is_closing:
            raise LogUnavailable("the writer is not running; restart the gateway")
        try:
            await asyncio.to_thread(self._producer.list_topics, timeout=timeout_s)
        except KafkaException as error:
            raise LogUnavailable(f"Kafka at {self._bootstrap} does not answer: {error.args[0].str()}") from error

    def _check_room(self, bytes_new: int) -> None:
        if self._is_closing:
            raise LogBusy("the gateway is stopping; nothing of this request was persisted: send it again")
        # A batch that is larger than the bound goes alone, else it could never go.
        if self.bytes_in_flight and self.bytes_in_flight + bytes_new > self._bytes_in_flight_max:
            raise LogBusy(
                f"{self.bytes_in_flight} bytes wait for Kafka to confirm, the limit is {self._bytes_in_flight_max}; "
                f"nothing of this request was persisted: send it again a little later"
            )

    def _check_reached(self, topic: str) -> None:
        """While Kafka is away let one batch through, and none beside it. Raises LogAway for the others."""
        if topic in self._away:
            if self._under_way[topic] or self._loop.time() < self._away[topic]:
                raise LogAway(
                    f"Kafka at {self._bootstrap} does not confirm records of topic {topic} at present; nothing of this "
                    f"request was persisted: send it again a little later"
                )
            self._away[topic] = self._loop.time() + PROBE_S

    async def _send(
        self,
        records: Sequence[Record],
        common: Headers,
        headers_each: Iterable[Sequence[tuple[str, bytes]]],
        batch: _Batch,
    ) -> None:
        """Hand the records to the producer, until one is refused: none may overtake one that came before it."""
        topic, report, produce = batch.topic, partial(self._report, batch), self._producer.produce
        sequence = self._sequences.get(topic, 0)
        batch.sequence_first = sequence + 1
        headers: list[Any] = [*common, (HEADER_SEQUENCE, b"")]  # the producer copies them, so that one list serves all
        sent = 0
        try:
            for (value, key), own in zip(records, headers_each, strict=True):
                sequence += 1
                headers[-1] = (HEADER_SEQUENCE, b"%d" % sequence)
                produce(
                    topic, value, key, _PARTITION_BY_KEY, report, None, 0, [*headers, *own] if own else headers
                )  # by position: half as much work as by name
                sent += 1
                if sent % RECORDS_PER_TURN == 0:
                    self._sequences[topic] = batch.sequence_last = sequence
                    await asyncio.sleep(0)
                    if batch.error is not None:
                        break
                    sequence, produce = self._sequences[topic], self._producer.produce
        except KafkaException as error:
            batch.error = error.args[0]
            self._is_broken = self._is_broken or batch.error.fatal()
        finally:
            # A turn that was cancelled has been written down before, and others may have gone on from there.
            self._sequences[topic] = batch.sequence_last = max(sequence, self._sequences.get(topic, 0))
            if sent < len(records):
                batch.sent = sent
                if batch.reported == sent:
                    self._reported.append(batch)
            if self._serve_at_s - self._loop.time() > SERVE_S:
                self._serve_in(SERVE_S)

    def _report(self, batch: _Batch, error: KafkaError | None, message: Message) -> None:
        """Count one record's delivery report. Called by the producer's `poll`, in the order of each partition."""
        if error is None:
            batch.last[message.partition()] = message
        elif batch.error is None:
            batch.error = error
        batch.reported += 1
        if batch.reported == batch.sent:
            self._reported.append(batch)

    def _serve_in(self, delay_s: float) -> None:
        if self._serving is not None:
            self._serving.cancel()
        self._serve_at_s = self._loop.time() + delay_s
        self._serving = self._loop.call_later(delay_s, self._serve)

    def _serve(self) -> None:
        """One turn: take delivery reports, have what is delivered read back, and settle what is read back."""
        try:
            self._producer.poll(0)
            reported, self._reported = self._reported, []
            for batch in reported:
                self._expect(batch)
            self._serve_read_back()
            self._give_up_overdue()
        except KafkaException as error:
            self._is_broken = True
            logger.error("a client of Kafka failed", action="client_failed", reason=error.args[0].str())
        finally:
            if self._is_broken:
                self._replace_clients()
            self._serve_in(SERVE_S if self.bytes_in_flight else SERVE_IDLE_S)

    def _expect(self, batch: _Batch) -> None:
        """Have the last record of each partition read back; a batch in which one was refused has failed already."""
        if batch.error is not None:
            self._settle(batch)
            return
        batch.unread = len(batch.last)
        for number, message in batch.last.items():
            offset = message.offset()
            assert number is not None
            self._read_back.expect(
                Written(
                    batch.topic,
                    number,
                    -1 if offset is None else offset,
                    self._epoch,
                    batch.sequence_first,
                    batch.sequence_last,
                    message.value() or b"",
                    message.key(),
                ),
                batch,
            )
        batch.last.clear()

    def _serve_read_back(self) -> None:
        confirmed, missed = self._read_back.serve(self._loop.time())
        for batch in confirmed:
            batch.unread -= 1
            if not batch.unread:
                self._settle(batch)
        for miss, batches in missed:
            self._note_miss(miss)
            for batch in batches:
                self._fail(batch, miss.reason)

    def _settle(self, batch: _Batch) -> None:
        """Release a batch that is read back, or of which a record was refused; doing it twice changes nothing."""
        self._release(batch)
        if batch.error is None:
            self._heard_s[batch.topic] = self._loop.time()
            self._note_reached(batch.topic)
        elif batch.error.code() in _AWAY_CODES:
            self._note_away(batch.topic, batch.error.str())
        if not batch.confirmed.done():
            batch.confirmed.set_result(None)

    def _fail(self, batch: _Batch, reason: str) -> None:
        """Release a batch of which nobody can say what became of it."""
        self._release(batch)
        if not batch.confirmed.done():
            batch.confirmed.set_exception(LogUnavailable(f"{reason}; {_UNKNOWN_OUTCOME}"))

    def _release(self, batch: _Batch) -> None:
        if batch.bytes_in_flight:
            self._give_back(batch.bytes_in_flight)
            batch.bytes_in_flight = 0
            self._under_way[batch.topic] -= 1

    def _give_up_overdue(self) -> None:
        """Tell those who have waited too long: since when, and for how long Kafka was silent, both count."""
        now_s = self._loop.time()
        if now_s < self._check_overdue_s:
            return
        self._check_overdue_s = now_s + OVERDUE_CHECK_S
        for topic, batches in list(self._waited_for.items()):
            while batches and batches[0].confirmed.done():
                batches.popleft()
            if not batches:
                del self._waited_for[topic]
                continue
            first = batches[0]
            if first.reported != first.reported_before:
                first.reported_before = first.reported
                self._heard_s[topic] = now_s
            is_silent = now_s - self._heard_s.get(topic, 0.0) >= self._confirm_timeout_s
            patience_s = self._confirm_timeout_s * (1 if is_silent else PATIENCE_TIMEOUTS)
            while batches and now_s - batches[0].began_s >= patience_s:
                batch = batches.popleft()
                if not batch.confirmed.done():
                    self._give_up(batch)

    def _give_up(self, batch: _Batch) -> None:
        """The time is up: whoever waits is told so, and the batch's bytes stay in flight."""
        self._note_away(batch.topic, "no confirmation in time")
        batch.confirmed.set_exception(
            LogUnavailable(
                f"Kafka did not confirm within {self._loop.time() - batch.began_s:.1f} s; {_UNKNOWN_OUTCOME}; "
                f"look at the brokers at {self._bootstrap}"
            )
        )

    def _open_clients(self) -> None:
        self._producer = self._make_producer(self._producer_config)
        self._read_back: ReadBack[_Batch] = ReadBack(
            self._consumer_config,
            writer_id=self._writer_id,
            timeout_s=self._confirm_timeout_s * PATIENCE_TIMEOUTS,
            make_consumer=self._make_consumer,
        )

    def _replace_clients(self) -> None:
        """Every record that is still waiting fails; the next one goes through new clients."""
        self._retire_clients()
        self._open_clients()
        self._is_broken = False
        logger.warning("the clients of Kafka were replaced", action="clients_replaced", kafka=self._bootstrap)

    def _retire_clients(self) -> None:
        """Have every record that is still waiting reported as failed, and close the clients in a thread: it may take long."""
        producer, read_back = self._producer, self._read_back
        producer.purge()
        producer.flush(0)
        reported, self._reported = self._reported, []
        for batch in reported:
            if batch.error is None:
                self._fail(batch, "the writer closed its clients before the records were read back")
            else:
                self._settle(batch)
        for batch in read_back.abandon():
            self._fail(batch, "the writer closed its clients before the records were read back")

        def close() -> None:
            read_back.close()
            producer.flush(0.1)

        thread = threading.Thread(target=close, name="kafka-close", daemon=True)
        self._retiring = {running for running in self._retiring if running.is_alive()} | {thread}
        thread.start()

    def _join_retiring(self) -> None:
        for thread in self._retiring:
            thread.join(self._confirm_timeout_s)

    def _note_error(self, error: KafkaError) -> None:
        """Called by `poll`. What concerns a record is in its report; here are the client's own troubles."""
        if error.fatal():
            self._is_broken = True
            logger.error("the producer failed for good", action="producer_failed", reason=error.str())
        elif error.code() == KafkaError._ALL_BROKERS_DOWN and self.bytes_in_flight:
            # With nothing under way it may only be a connection that was closed because it was idle.
            for topic in self._sequences:
                self._note_away(topic, error.str())

    def _note_miss(self, miss: Missed) -> None:
        logger.error("a record was not read back", action="read_back_failed", reason=miss.reason)
        self._is_broken = True

    def _note_away(self, topic: str, reason: str) -> None:
        if topic not in self._away:
            self._away[topic] = 0.0
            logger.warning(
                "Kafka does not confirm", action="kafka_lost", kafka=self._bootstrap, topic=topic, reason=reason
            )

    def _note_reached(self, topic: str) -> None:
        if self._away.pop(topic, None) is not None:
            logger.info("Kafka confirms again", action="kafka_reached", kafka=self._bootstrap, topic=topic)

    def _explain(self, topic: str, error: KafkaError) -> LogUnavailable:
        reason = f"Kafka at {self._bootstrap} did not confirm ({error.str()})"
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            reason = f"Kafka at {self._bootstrap} has no topic {topic}; apply the stream's document again"
        elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            reason = f"topic {topic} takes smaller records than the gateway; apply the stream's document again"
        return LogUnavailable(f"{reason}; {_UNKNOWN_OUTCOME}")
