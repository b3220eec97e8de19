"""Write records with one idempotent producer, and confirm a batch when its records are reported and read back.

The path of a batch:

1. Each record gets the next sequence number of its topic and is handed to the producer with its headers.
2. The event loop itself serves the clients, every millisecond while records are in flight. So a delivery report needs
   neither another thread nor a turn of the interpreter's lock.
3. When each record of the batch is reported, the last record in every partition is read back (read_back.py).
4. The batch is confirmed when all of these records are found.
5. If Kafka confirms no record of a topic for the confirmation timeout, each caller that has waited this long gets
   LogUnavailable: the outcome is unknown. If Kafka is only slow, callers wait longer, up to a bound.

Invariants:

- The sequence number of a topic only rises, in the order in which records are handed to the producer. So it rises
  within each partition too, with gaps for the records in other partitions.
- The bytes of a batch count as in flight until its last record is reported and read back, or has failed. A record that
  no caller waits for any more, but that Kafka may still accept, continues to count.
- The producer itself never gives up a record. Otherwise librdkafka would continue under a new producer epoch and resend
  the records that were sent after it, so some of them would be in the log twice.
- A producer that has failed permanently is replaced, never reused. A read-back that contradicts a report replaces both
  clients. This writer never resends records: a caller that gets LogUnavailable decides.
- Clients that can't be created, for example while a password or certificate is being replaced, are tried again. Until
  they exist, every caller gets LogAway.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException

from strandline.core.errors import InvalidSettings, LogUnavailable, RecordTooLarge
from strandline.core.record_headers import HEADER_SEQUENCE
from strandline.ingest.append.delivery import PATIENCE_TIMEOUTS, UNKNOWN_OUTCOME, DeliveryBatch, WaitingCallers
from strandline.ingest.append.kafka_clients import PARTITION_BY_KEY, KafkaClients
from strandline.ingest.append.limits import RECORDS_PER_TURN, BytesInFlight
from strandline.ingest.append.reachability import Reachability
from strandline.log.kafka_connection import Refusals
from strandline.log.read_back import ReadBack
from strandline.log.record_key import Record
from strandline.log.record_size import is_too_large

logger = structlog.get_logger()

SERVE_S = 0.001
"""Interval in seconds at which the clients are served while records are in flight."""
SERVE_IDLE_S = 0.1
"""Interval in seconds at which the clients are served otherwise."""
REMAKE_S = 0.25
"""Seconds after which the creation of clients is tried again."""

Headers = list[tuple[str, bytes]]

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
"""Errors of a record that would occur for other records of its topic, too."""
_REPLACED = "the writer closed its clients before the records were read back"


class IdempotentWriter:
    """One idempotent producer with `acks=all` and one read-back consumer, for one event loop. Used by `LogWriter`."""

    def __init__(
        self,
        clients: KafkaClients,
        *,
        epoch: int,
        confirm_timeout_s: float,
        in_flight: BytesInFlight,
        sequences: dict[str, int],
    ) -> None:
        """`sequences`: topic -> sequence number of its last record, shared with the other writer of the process."""
        self._clients = clients
        self._epoch = epoch
        self._confirm_timeout_s = confirm_timeout_s
        self._in_flight = in_flight
        self._sequences = sequences
        self._callers = WaitingCallers(confirm_timeout_s)
        self._under_way: Counter[str] = Counter()
        """Topic -> number of batches in flight, whether or not a caller still waits for them."""
        self._reported: list[DeliveryBatch] = []
        """Batches whose records are all reported and not yet read back."""
        self._is_broken = False
        """True if the clients must be replaced."""
        self._unmade: str | None = None
        """Reason why there are no clients: the previous ones are closed, and new ones can't be created yet. Otherwise
        None."""
        self._serving: asyncio.TimerHandle | None = None
        self._serve_at_s = 0.0
        self._retiring: set[threading.Thread] = set()
        self._refusals = Refusals()
        self._open_clients()

    def start(self) -> None:
        """Begin to serve the clients. Call it in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._reachability = Reachability(self._clients.bootstrap, self._loop.time)
        self._serve_in(SERVE_IDLE_S)

    async def close(self) -> None:
        """Fail the waiting batches and close the clients, within the confirmation timeout."""
        if self._serving is not None:
            self._serving.cancel()
        if self._unmade is None:
            self._retire_clients()
        await asyncio.to_thread(self._join_retiring)

    async def append(
        self,
        topic: str,
        records: Sequence[Record],
        common: Headers,
        headers_each: Iterable[Sequence[tuple[str, bytes]]],
        bytes_new: int,
    ) -> None:
        """Return when every record is confirmed.

        Raises LogAway (nothing was sent), and LogUnavailable or RecordTooLarge (outcome unknown). `bytes_new` is the
        size that the records count while they are in flight.
        """
        if self._unmade is not None:
            raise self._reachability.refusal(topic)
        self._reachability.check(topic, is_under_way=bool(self._under_way[topic]))
        batch = DeliveryBatch(topic, len(records), bytes_new, self._loop.create_future(), self._loop.time())
        self._in_flight.take(bytes_new)
        self._under_way[topic] += 1
        self._callers.add(batch)
        await self._send(records, common, headers_each, batch)
        await batch.confirmed
        if batch.error is not None:
            raise self._explain(topic, batch.error)

    async def check(self, timeout_s: float) -> None:
        """Return when Kafka answers. Raises LogUnavailable."""
        if self._unmade is not None:
            raise LogUnavailable(f"can't create the Kafka clients: {self._unmade}")
        try:
            await asyncio.to_thread(self._producer.list_topics, timeout=timeout_s)
        except KafkaException as error:
            raise LogUnavailable(
                f"Kafka at {self._clients.bootstrap} does not answer: {error.args[0].str()}{self._refusals.text()}"
            ) from error

    def note_error(self, error: KafkaError) -> None:
        """Handle an error of a client that `poll` reports. Errors of single records are in their delivery reports."""
        self._refusals(error)
        if error.fatal():
            self._is_broken = True
            logger.error("the producer failed for good", action="producer_failed", reason=error.str())
        elif error.code() == KafkaError._ALL_BROKERS_DOWN and self._in_flight.now:
            # If nothing is in flight, it may only be an idle connection that was closed.
            for topic in self._sequences:
                self._reachability.note_away(topic, error.str())

    def note_refusal(self, error: KafkaError) -> None:
        """Keep an error of the transactional producer for the message of `check`. Can be called in any thread.

        The user of that producer decides whether it must be replaced.
        """
        self._refusals(error)

    async def _send(
        self,
        records: Sequence[Record],
        common: Headers,
        headers_each: Iterable[Sequence[tuple[str, bytes]]],
        batch: DeliveryBatch,
    ) -> None:
        """Hand the records to the producer, until it refuses one: no record may overtake an earlier one."""
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
                    topic, value, key, PARTITION_BY_KEY, report, None, 0, [*headers, *own] if own else headers
                )  # by position: half as much work as by name
                sent += 1
                if sent % RECORDS_PER_TURN == 0:
                    self._sequences[topic] = batch.sequence_last = sequence
                    await asyncio.sleep(0)
                    if self._unmade is not None and batch.error is None:
                        batch.error = KafkaError(KafkaError._STATE, _REPLACED)
                    if batch.error is not None:
                        break
                    sequence, produce = self._sequences[topic], self._producer.produce
        except KafkaException as error:
            batch.error = error.args[0]
            self._is_broken = self._is_broken or batch.error.fatal()
        finally:
            # If this turn was cancelled, its numbers were stored before, and other batches may have used later numbers.
            self._sequences[topic] = batch.sequence_last = max(sequence, self._sequences.get(topic, 0))
            if sent < len(records):
                batch.sent = sent
                if batch.is_reported:
                    self._reported.append(batch)
            if self._serve_at_s - self._loop.time() > SERVE_S:
                self._serve_in(SERVE_S)

    def _report(self, batch: DeliveryBatch, error: KafkaError | None, message: Any) -> None:
        """Count a delivery report. The producer's `poll` calls this for each record."""
        batch.note_report(error, message)
        if batch.is_reported:
            self._reported.append(batch)

    # Every millisecond.

    def _serve_in(self, delay_s: float) -> None:
        if self._serving is not None:
            self._serving.cancel()
        self._serve_at_s = self._loop.time() + delay_s
        self._serving = self._loop.call_later(delay_s, self._serve)

    def _serve(self) -> None:
        """Run one turn: read delivery reports, start read-backs, confirm batches, and fail overdue batches."""
        try:
            if self._unmade is None:
                self._producer.poll(0)
                self._expect_reported()
                self._serve_read_back()
            self._give_up_overdue()
        except KafkaException as error:
            self._is_broken = True
            logger.error("a client of Kafka failed", action="client_failed", reason=error.args[0].str())
        finally:
            # First, so that other turns follow however this one ends.
            self._serve_in(SERVE_S if self._in_flight.now else SERVE_IDLE_S)
            if self._is_broken:
                self._replace_clients()

    def _expect_reported(self) -> None:
        """Start the read-back of the last record of each partition.

        A batch with a refused record has failed already.
        """
        reported, self._reported = self._reported, []
        for batch in reported:
            if batch.error is not None:
                self._settle(batch)
                continue
            for written in batch.take_last_written(self._epoch):
                self._read_back.expect(written, batch)

    def _serve_read_back(self) -> None:
        confirmed, missed = self._read_back.serve(self._loop.time())
        for batch in confirmed:
            batch.unread -= 1
            if not batch.unread:
                self._settle(batch)
        for miss, batches in missed:
            logger.error("a record was not read back", action="read_back_failed", reason=miss.reason)
            self._is_broken = True
            for batch in batches:
                self._fail(batch, miss.reason)

    def _give_up_overdue(self) -> None:
        """Fail the batches whose callers have waited too long.

        Their bytes stay in flight: Kafka may still accept the records.
        """
        now_s = self._loop.time()
        for batch in self._callers.take_overdue(now_s):
            self._reachability.note_away(batch.topic, "no confirmation in time")
            batch.confirmed.set_exception(
                LogUnavailable(
                    f"Kafka did not confirm within {now_s - batch.began_s:.1f} s; {UNKNOWN_OUTCOME}; "
                    f"check the brokers at {self._clients.bootstrap}"
                )
            )

    def _settle(self, batch: DeliveryBatch) -> None:
        """Release a batch that is read back or has a refused record. Idempotent."""
        self._release(batch)
        if batch.error is None:
            self._callers.note_heard(batch.topic, self._loop.time())
            self._reachability.note_reached(batch.topic)
        elif batch.error.code() in _AWAY_CODES:
            self._reachability.note_away(batch.topic, batch.error.str())
        batch.succeed()

    def _fail(self, batch: DeliveryBatch, reason: str) -> None:
        """Release a batch whose outcome is unknown."""
        self._release(batch)
        batch.fail(reason)

    def _release(self, batch: DeliveryBatch) -> None:
        if batch.bytes_in_flight:
            self._in_flight.give_back(batch.bytes_in_flight)
            batch.bytes_in_flight = 0
            self._under_way[batch.topic] -= 1

    # The two clients.

    def _open_clients(self) -> None:
        """Create the clients from the current settings, passwords, and certificates.

        Raises InvalidSettings and KafkaException.
        """
        producer = self._clients.producer(self.note_error)
        self._read_back: ReadBack[DeliveryBatch] = self._clients.read_back(self._confirm_timeout_s * PATIENCE_TIMEOUTS)
        self._producer = producer

    def _replace_clients(self) -> None:
        """Fail every record that is still waiting, drop the clients, and create new ones for the next records. If that
        isn't possible yet, it is tried again after REMAKE_S.
        """
        if self._unmade is None:
            self._retire_clients()
        else:
            self._fail_reported()
        try:
            self._open_clients()
        except (InvalidSettings, KafkaException) as error:
            reason = str(error)
            if reason != self._unmade:
                logger.error("can't create the Kafka clients; trying again", action="clients_not_made", reason=reason)
            self._unmade = reason
            self._serve_in(REMAKE_S)
            return
        self._is_broken, self._unmade = False, None
        logger.warning("the clients of Kafka were replaced", action="clients_replaced", kafka=self._clients.bootstrap)

    def _fail_reported(self) -> None:
        """Fail the batches that are not read back yet: their read-back client no longer exists."""
        reported, self._reported = self._reported, []
        for batch in reported:
            if batch.error is None:
                self._fail(batch, _REPLACED)
            else:
                self._settle(batch)

    def _retire_clients(self) -> None:
        """Fail every record that is still waiting, and close the clients in a thread, because closing can take long."""
        producer, read_back = self._producer, self._read_back
        producer.purge()
        producer.flush(0)
        self._fail_reported()
        for batch in read_back.abandon():
            self._fail(batch, _REPLACED)

        def close() -> None:
            read_back.close()
            producer.flush(0.1)

        thread = threading.Thread(target=close, name="kafka-close", daemon=True)
        self._retiring = {running for running in self._retiring if running.is_alive()} | {thread}
        thread.start()

    def _join_retiring(self) -> None:
        for thread in self._retiring:
            thread.join(self._confirm_timeout_s)

    def _explain(self, topic: str, error: KafkaError) -> LogUnavailable | RecordTooLarge:
        if is_too_large(error):
            return RecordTooLarge(
                f"topic {topic} accepts smaller records than the gateway; apply the stream's document again, which raises the "
                f"topic's max.message.bytes; {UNKNOWN_OUTCOME}"
            )
        kafka = self._clients.bootstrap
        reason = f"Kafka at {kafka} did not confirm ({error.str()})"
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            reason = f"Kafka at {kafka} has no topic {topic}; apply the stream's document again"
        return LogUnavailable(f"{reason}; {UNKNOWN_OUTCOME}")
