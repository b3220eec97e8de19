"""The read-back: fetches a delivered record from the head of its partition before the writer treats it as confirmed.

It is sparse: it fetches only the newest of the records delivered to a partition. Records that are delivered in the
meantime wait, and the newest of them is fetched next. A partition keeps its order, and every record has a delivery
report with its offset. So one record that is found proves all earlier delivered records of the partition.

It compares the writer's id, epoch, and sequence number in the headers, and the bytes of value and key. A batch has a
range of sequence numbers, and any number of the range is accepted, because a delivery report doesn't contain the number
of its record.

Invariants:

- Each partition has at most one running read. A partition without a read is not assigned, so that other writers'
  records are not fetched unnecessarily.
- The consumer reads uncommitted records. Otherwise an open transaction of another producer would hide later records of
  the writer for as long as it stays open. A fetch ends at the high watermark in both cases, so a record that is found
  is on every in-sync replica.
- If the record isn't there yet (the high watermark lags behind, or there is a new leader), the fetch is repeated until
  the timeout. Another record at the offset, or a log that continues after it, is a failure immediately.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from strandline.core.record_headers import HEADER_EPOCH, HEADER_SEQUENCE, HEADER_WRITER
from strandline.log.kafka_connection import consumer_settings

SCAN_RECORDS_MAX = 100_000
"""Number of the newest records of a partition that are searched if the delivery report contains no offset."""
FETCH_BYTES = 32 * 1024
"""Maximum number of bytes of one partition in one response, unless its first batch is larger. The newest batches of
several partitions fit into one response, and few later records are fetched."""
START_EVERY_S = 0.004
"""Interval in seconds at which reads are started. All due partitions start together, because each start costs as much
as ten records."""
ASK_AGAIN_S = 0.02
"""Seconds until a fetch is repeated if the broker hasn't reached the record yet."""
_OFFSET_TAIL_BASE = -2000
"""librdkafka's logical offset of the n-th record from the end is this number minus n."""
_MESSAGES_PER_SERVE = 1_000

Ticket = TypeVar("Ticket")


class DeliveredRecord(NamedTuple):
    """A delivered record, as its delivery report describes it."""

    topic: str
    partition: int
    offset: int
    """Negative if the report contains no offset, for example after a repeated record that the broker already had."""
    epoch: int
    sequence_first: int
    sequence_last: int
    """Range of sequence numbers of its batch; the record has one of them."""
    value: bytes
    key: bytes | None


class ReadBackMiss(NamedTuple):
    """A read-back that did not find its record."""

    written: DeliveredRecord
    reason: str


@dataclass
class _Partition(Generic[Ticket]):
    """The reads of one partition."""

    tickets: deque[tuple[DeliveredRecord, Ticket]]
    """All records that wait for a confirmation, in the order of the log."""
    reading: DeliveredRecord | None = None
    waiting: DeliveredRecord | None = None
    """The newest record that was delivered since the read began."""
    began_s: float = 0.0
    scanned: int = 0
    scan_from: int | None = None
    """Offset before which there is no waiting record of this writer. None if unknown."""


class ReadBack(Generic[Ticket]):
    """Reads the delivered records of one writer back. Not thread-safe: one owner makes all calls.

    The owner calls `expect` for delivered records, and `serve` every few milliseconds while `is_busy`.
    """

    def __init__(
        self,
        config: dict[str, Any],
        *,
        writer_id: bytes,
        timeout_s: float,
        make_consumer: Callable[[dict[str, Any]], Consumer],
    ) -> None:
        self._writer_id = writer_id
        self._timeout_s = timeout_s
        self._partitions: dict[tuple[str, int], _Partition[Ticket]] = {}
        self._due: set[tuple[str, int]] = set()
        """Partitions with a waiting record and without a running read."""
        self._reading: set[tuple[str, int]] = set()
        self._again: set[tuple[str, int]] = set()
        """Partitions in `_reading` whose broker hasn't reached the record yet."""
        self._ended: set[tuple[str, int]] = set()
        """Partitions whose read has ended, and which are still assigned."""
        self._started_s = self._asked_again_s = 0.0
        self._consumer = make_consumer(
            consumer_settings("read-back")
            | {
                "isolation.level": "read_uncommitted",
                # A fetch of a record that isn't there yet returns soon, so that it doesn't delay other partitions.
                "fetch.wait.max.ms": 5,
                "fetch.message.max.bytes": FETCH_BYTES,
                "queued.min.messages": 1,
                "fetch.error.backoff.ms": 20,
                "check.crcs": True,
            }
            | config
        )

    @property
    def is_busy(self) -> bool:
        """True if a read is due or running, or if a partition is still assigned."""
        return bool(self._reading or self._due or self._ended)

    def expect(self, written: DeliveredRecord, ticket: Ticket) -> None:
        """Make `serve` return the ticket once this record, or a later record of its partition, has been read back."""
        partition_key = (written.topic, written.partition)
        partition = self._partitions.get(partition_key)
        if partition is None:
            partition = self._partitions[partition_key] = _Partition(deque())
        partition.tickets.append((written, ticket))
        waiting = partition.waiting
        if waiting is None or _is_before(waiting, written):
            partition.waiting = written
        if partition.reading is None:
            self._due.add(partition_key)

    def serve(self, now_s: float) -> tuple[list[Ticket], list[tuple[ReadBackMiss, list[Ticket]]]]:
        """Check the fetched records and start the reads that are due. Never waits.

        Returns the confirmed tickets, and each miss with the tickets of its partition, which are then removed.
        """
        confirmed: list[Ticket] = []
        missed: list[tuple[ReadBackMiss, list[Ticket]]] = []
        if self._reading:
            for message in self._consumer.consume(_MESSAGES_PER_SERVE, 0.0):
                self._take(message, confirmed, missed)
            for partition_key in list(self._reading):
                partition = self._partitions[partition_key]
                if now_s - partition.began_s > self._timeout_s:
                    self._miss(partition_key, f"could not be read within {self._timeout_s:g} s", missed)
        if (self._ended or self._due or self._again) and now_s - self._started_s >= START_EVERY_S:
            self._started_s = now_s
            self._start_due(now_s)
        return confirmed, missed

    def abandon(self) -> list[Ticket]:
        """Stop reading. Return the tickets that were still waiting."""
        tickets = [ticket for partition in self._partitions.values() for _, ticket in partition.tickets]
        self._partitions.clear()
        self._reading.clear()
        self._due.clear()
        self._ended.clear()
        return tickets

    def close(self) -> None:
        """Close the consumer's connections. Blocking."""
        self._consumer.close()

    def _take(
        self,
        message: Message,
        confirmed: list[Ticket],
        missed: list[tuple[ReadBackMiss, list[Ticket]]],
    ) -> None:
        topic, number, offset = message.topic(), message.partition(), message.offset()
        if topic is None or number is None or offset is None:
            return  # an error of the whole client; if it lasts, reads time out
        partition_key = (topic, number)
        partition = self._partitions.get(partition_key)
        if partition is None or partition.reading is None:
            return
        written = partition.reading
        if error := message.error():
            if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                # A new leader may not know the end of the log yet: repeat the fetch until the timeout.
                self._again.add(partition_key)
            elif error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                self._miss(partition_key, "can't be read: the topic no longer exists", missed)
            return
        is_ours = self._is_record(message, written)
        is_at_offset = offset == written.offset
        if is_ours and (is_at_offset or written.offset < 0):
            partition.scan_from = offset + 1
            left: deque[tuple[DeliveredRecord, Ticket]] = deque()
            for other, ticket in partition.tickets:
                if other is written or _is_before(other, written):
                    confirmed.append(ticket)
                else:
                    left.append((other, ticket))
            partition.tickets = left
            if left and partition.waiting is None:
                partition.waiting = left[-1][0]  # without offsets, the order of two records may be unknown
            self._end(partition_key, partition)
        elif written.offset < 0:
            partition.scanned += 1
            if partition.scanned > SCAN_RECORDS_MAX:
                self._miss(partition_key, f"is not among {SCAN_RECORDS_MAX} records", missed)
        elif offset >= written.offset:
            found = "another record is there" if is_at_offset else f"the log continues at offset {offset}"
            self._miss(partition_key, f"is not at offset {written.offset}: {found}", missed)

    def _is_record(self, message: Message, written: DeliveredRecord) -> bool:
        headers: dict[str, Any] = dict(message.headers() or ())
        sequence = headers.get(HEADER_SEQUENCE, b"")
        return (
            sequence.isdigit()
            and written.sequence_first <= int(sequence) <= written.sequence_last
            and headers.get(HEADER_EPOCH) == b"%d" % written.epoch
            and headers.get(HEADER_WRITER) == self._writer_id
            and message.value() == written.value
            and message.key() == written.key
        )

    def _miss(
        self,
        partition_key: tuple[str, int],
        what: str,
        missed: list[tuple[ReadBackMiss, list[Ticket]]],
    ) -> None:
        partition = self._partitions[partition_key]
        written = partition.reading
        assert written is not None
        numbers = f"{written.sequence_first} to {written.sequence_last}"
        reason = f"a record of this writer ({numbers}) in {written.topic}/{written.partition} {what}"
        missed.append((ReadBackMiss(written, reason), [ticket for _, ticket in partition.tickets]))
        partition.tickets.clear()
        partition.waiting = None
        self._end(partition_key, partition)

    def _end(self, partition_key: tuple[str, int], partition: _Partition[Ticket]) -> None:
        partition.reading = None
        self._reading.discard(partition_key)
        self._again.discard(partition_key)
        self._ended.add(partition_key)
        if partition.waiting is not None:
            self._due.add(partition_key)

    def _start_due(self, now_s: float) -> None:
        starting, self._due = self._due, set()
        ended, self._ended = self._ended, set()
        for partition_key in starting:
            partition = self._partitions[partition_key]
            partition.reading, partition.waiting = partition.waiting, None
            partition.began_s, partition.scanned = now_s, 0
        self._reading |= starting
        if self._again and now_s - self._asked_again_s >= ASK_AGAIN_S:
            self._asked_again_s = now_s
            ended |= self._again
            starting |= self._again
            self._again.clear()
        if ended:
            self._consumer.incremental_unassign([TopicPartition(*partition_key) for partition_key in ended])
        if starting:
            self._consumer.incremental_assign(
                [
                    TopicPartition(*partition_key, self._first_offset(self._partitions[partition_key]))
                    for partition_key in starting
                ]
            )

    def _first_offset(self, partition: _Partition[Ticket]) -> int:
        assert partition.reading is not None
        if partition.reading.offset >= 0:
            return partition.reading.offset
        return partition.scan_from if partition.scan_from is not None else _OFFSET_TAIL_BASE - SCAN_RECORDS_MAX


def _is_before(one: DeliveredRecord, other: DeliveredRecord) -> bool:
    """Return True if `one` is before `other` in their partition: by offset, or by sequence number if an offset is
    missing."""
    if one.offset >= 0 and other.offset >= 0:
        return one.offset < other.offset
    return one.sequence_last < other.sequence_first
