"""Appends records to the log and says when Kafka has confirmed them. The one producer of a gateway process.

The way of a batch, and where what is still to come has its place:

1. `append` counts its bytes against the bound; over the bound nothing is sent (LogBusy).
2. Each record is handed to the producer with its headers. The sequence number of a record within its partition is given
   here, with the writer's epoch, once writers keep them.
3. A thread of its own polls the producer; delivery reports are counted there, and batches of which every record is
   reported come back to the event loop, once per poll.
4. The batch is confirmed. Between the last report and the answer stands the read-back from the head of the partition.
5. What Kafka has not confirmed in time is unknown: LogUnavailable. A stream that allows it goes to the spool instead.

Invariants:
- A batch leaves the count of bytes in flight only when its last record is reported: a record that was given up by its
  waiter but not by Kafka still counts.
- `_Batch.reported` is written by the polling thread only, `_Batch.sent` by the event loop only.
- A producer that has failed for good is replaced, never reused.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from strandline.core.errors import LogUnavailable
from strandline.core.record import HEADER_CONTENT_TYPE, HEADER_RECEIVED, HEADER_SOURCE, HEADER_WRITER
from strandline.ingest.framing import Record
from strandline.ingest.topics import record_batch_bytes_max

logger = structlog.get_logger()

BYTES_IN_FLIGHT_MAX = 64 * 1024 * 1024
"""Values, keys and overhead of all records that Kafka has not yet confirmed."""
RECORD_OVERHEAD_BYTES = 400
"""What a record costs in memory beside its value and key: headers, and librdkafka's own book-keeping."""
LINGER_MS = 2
"""How long the first record of a batch waits for others."""
RECORDS_PER_TURN = 1_000
"""A longer batch lets the event loop run in between; up to this, batches reach the log in the order of their calls."""
_POLL_S = 0.1

Headers = list[tuple[str, str | bytes | None]]

_UNKNOWN_OUTCOME = "the records of this request may or may not be in the log"


class LogBusy(LogUnavailable):
    """Too much is waiting for Kafka's confirmation; nothing of this batch was sent."""

    code = "log_busy"


class _Batch:
    """The records of one `append`, until the last of them is reported."""

    __slots__ = ("bytes_in_flight", "confirmed", "error", "reported", "sent")

    def __init__(self, records: int, bytes_in_flight: int, confirmed: asyncio.Future[None]) -> None:
        self.bytes_in_flight = bytes_in_flight
        self.confirmed = confirmed
        """Done when every record is reported, or when the time is up."""
        self.error: KafkaError | None = None
        """The first refusal."""
        self.reported = 0
        self.sent = records
        """Lowered when a record is refused at once, and the rest not tried."""


class LogWriter:
    """One idempotent producer with `acks=all`, for one event loop. It runs inside `async with`."""

    def __init__(
        self,
        kafka_bootstrap: str,
        *,
        writer_id: str,
        record_bytes_max: int,
        confirm_timeout_s: float,
        bytes_in_flight_max: int = BYTES_IN_FLIGHT_MAX,
        make_producer: Callable[[dict[str, Any]], Producer] = Producer,
    ) -> None:
        self._bootstrap = kafka_bootstrap
        self._writer_id = writer_id.encode()
        self._confirm_timeout_s = confirm_timeout_s
        self._bytes_in_flight_max = bytes_in_flight_max
        self._make_producer = make_producer
        self._config = {
            "bootstrap.servers": kafka_bootstrap,
            "client.id": writer_id,
            "acks": "all",
            "enable.idempotence": True,
            # After this a record is given up; what waits for it has been answered then.
            "message.timeout.ms": int(confirm_timeout_s * 1_000),
            "message.max.bytes": record_batch_bytes_max(record_bytes_max),
            "partitioner": "murmur2_random",  # where Kafka's own clients put the same key
            "linger.ms": LINGER_MS,
            "compression.type": "lz4",
            # The bound on what is in flight is ours: it refuses a batch before the first record of it is sent.
            "queue.buffering.max.messages": 0,
            "queue.buffering.max.kbytes": 2_147_483_647,
            "reconnect.backoff.max.ms": 1_000,
            "socket.nagle.disable": True,
            "log_level": 2,  # what is wrong comes through the error callback
            "error_cb": self._note_error,
        }
        self._producer = make_producer(self._config)
        self._done: list[_Batch] = []
        """Reported whole, not yet handed to the event loop. The polling thread's own."""
        self._is_broken = False
        """The producer has failed for good."""
        self._is_reachable = True
        self._closing = threading.Event()
        self._poller = threading.Thread(target=self._poll_until_closed, name="kafka-poll", daemon=True)
        self.bytes_in_flight = 0
        """Of all records that were handed to the producer and not yet reported, with their overhead."""

    async def __aenter__(self) -> LogWriter:
        self._loop = asyncio.get_running_loop()
        self._poller.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Wait, no longer than the confirmation timeout, until all that was appended is reported."""
        self._closing.set()
        await asyncio.to_thread(self._poller.join)

    async def append(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        received_ms: int,
        source: bytes | None,
        content_type: bytes,
        headers: Sequence[tuple[str, bytes]] = (),
        headers_each: Sequence[Sequence[tuple[str, bytes]]] | None = None,
    ) -> None:
        """Append the records in order, and return when Kafka has confirmed every one of them.

        `headers` are added to each record, and of `headers_each` to each its own: where the records of a batch have
        sources of their own, theirs is there and `source` is None.

        Raises LogBusy when too much is in flight and nothing was sent, and LogUnavailable when Kafka did not confirm in
        time or refused a record: some of the batch, or all of it, may be in the log. Cancelling means only that nobody
        waits any more.
        """
        if not records:
            return
        bytes_new = sum(len(value) + len(key or b"") + RECORD_OVERHEAD_BYTES for value, key in records)
        self._check_room(bytes_new)
        batch = _Batch(len(records), bytes_new, self._loop.create_future())
        self.bytes_in_flight += bytes_new
        timer = self._loop.call_later(self._confirm_timeout_s, self._give_up, batch)
        common: Headers = [
            (HEADER_WRITER, self._writer_id),
            (HEADER_RECEIVED, b"%d" % received_ms),
            (HEADER_CONTENT_TYPE, content_type),
            *headers,
        ]
        if source is not None:
            common.append((HEADER_SOURCE, source))
        try:
            await self._send(topic, records, common, headers_each or repeat((), len(records)), batch)
            await batch.confirmed
        finally:
            timer.cancel()
        if batch.error is not None:
            raise self._explain(topic, batch.error)

    async def check(self, timeout_s: float) -> None:
        """Return when Kafka answers. Raises LogUnavailable."""
        if not self._poller.is_alive() or self._closing.is_set():
            raise LogUnavailable("the writer is not running; restart the gateway")
        try:
            await asyncio.to_thread(self._producer.list_topics, timeout=timeout_s)
        except KafkaException as error:
            raise LogUnavailable(f"Kafka at {self._bootstrap} does not answer: {error.args[0].str()}") from error

    def _check_room(self, bytes_new: int) -> None:
        if self._closing.is_set():
            raise LogBusy("the gateway is stopping; nothing of this request was persisted: send it again")
        # A batch that is larger than the bound goes alone, else it could never go.
        if self.bytes_in_flight and self.bytes_in_flight + bytes_new > self._bytes_in_flight_max:
            raise LogBusy(
                f"{self.bytes_in_flight} bytes wait for Kafka to confirm, the limit is {self._bytes_in_flight_max}; "
                f"nothing of this request was persisted: send it again a little later"
            )

    async def _send(
        self,
        topic: str,
        records: Sequence[Record],
        common: Headers,
        headers_each: Iterable[Sequence[tuple[str, bytes]]],
        batch: _Batch,
    ) -> None:
        """Hand the records to the producer, until one is refused: none may overtake one that came before it."""
        produce, report = self._producer.produce, partial(self._report, batch)
        sent = 0
        try:
            for (value, key), own in zip(records, headers_each, strict=True):
                produce(topic, value, key, on_delivery=report, headers=[*common, *own] if own else common)
                sent += 1
                if sent % RECORDS_PER_TURN == 0:
                    await asyncio.sleep(0)
        except KafkaException as error:
            batch.error = error.args[0]
            self._is_broken = self._is_broken or batch.error.fatal()
        finally:
            if sent < len(records):
                batch.sent = sent
                if batch.reported == sent:
                    self._settle([batch])

    def _report(self, batch: _Batch, error: KafkaError | None, _message: object) -> None:
        """Count one record's delivery report. Runs in the polling thread."""
        if error is not None and batch.error is None:
            batch.error = error
        batch.reported += 1
        if batch.reported == batch.sent:
            self._done.append(batch)

    def _settle(self, batches: list[_Batch]) -> None:
        """Release whole batches; doing it twice changes nothing. Runs in the event loop."""
        for batch in batches:
            self.bytes_in_flight -= batch.bytes_in_flight
            batch.bytes_in_flight = 0
            if not batch.confirmed.done():
                batch.confirmed.set_result(None)

    def _give_up(self, batch: _Batch) -> None:
        """The time is up: whoever waits is told so, and the batch's bytes stay in flight."""
        if not batch.confirmed.done():
            batch.confirmed.set_exception(
                LogUnavailable(
                    f"Kafka did not confirm within {self._confirm_timeout_s:g} s; {_UNKNOWN_OUTCOME}; "
                    f"look at the brokers at {self._bootstrap}"
                )
            )

    def _poll_until_closed(self) -> None:
        """The polling thread: serve delivery reports, and replace a producer that has failed for good."""
        while not self._closing.is_set():
            self._producer.poll(_POLL_S)
            self._hand_over()
            if self._is_broken:
                self._abandon_producer()
                self._producer = self._make_producer(self._config)
                self._is_broken = False
                logger.warning("the producer failed for good and was replaced", action="producer_replaced")
        self._producer.flush(self._confirm_timeout_s)
        self._abandon_producer()

    def _abandon_producer(self) -> None:
        """Have every record that is still waiting reported as failed."""
        self._producer.purge()
        self._producer.flush(1.0)
        self._hand_over()

    def _hand_over(self) -> None:
        if self._done:
            done, self._done = self._done, []
            self._loop.call_soon_threadsafe(self._settle, done)
            if not self._is_reachable and any(batch.error is None for batch in done):
                self._is_reachable = True
                logger.info("Kafka confirms again", action="kafka_reached", kafka=self._bootstrap)

    def _note_error(self, error: KafkaError) -> None:
        """Runs in the polling thread. What concerns a record is in its report; here are the client's own troubles."""
        if error.fatal():
            self._is_broken = True
            logger.error("the producer failed for good", action="producer_failed", reason=error.str())
        elif self._is_reachable:
            self._is_reachable = False
            logger.warning("Kafka can't be reached", action="kafka_lost", kafka=self._bootstrap, reason=error.str())

    def _explain(self, topic: str, error: KafkaError) -> LogUnavailable:
        reason = f"Kafka at {self._bootstrap} did not confirm ({error.str()})"
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            reason = f"Kafka at {self._bootstrap} has no topic {topic}; apply the stream's document again"
        elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            reason = f"topic {topic} takes smaller records than the gateway; apply the stream's document again"
        return LogUnavailable(f"{reason}; {_UNKNOWN_OUTCOME}")
