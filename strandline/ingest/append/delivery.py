"""A batch on its way to the log, and how long its caller waits for Kafka's confirmation."""

from __future__ import annotations

import asyncio
import math
from collections import deque

from confluent_kafka import KafkaError, Message

from strandline.core.errors import LogUnavailable
from strandline.log.read_back import DeliveredRecord

PATIENCE_TIMEOUTS = 5
"""While Kafka confirms slowly, callers wait for this many confirmation timeouts."""
OVERDUE_CHECK_S = 0.02
UNKNOWN_OUTCOME = "the records of this request may or may not be in the log"


class DeliveryBatch:
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
        """First and last sequence number of its records. Numbers of other batches can lie between them if the batch is
        longer than RECORDS_PER_TURN."""
        self.bytes_in_flight = bytes_in_flight
        self.confirmed = confirmed
        """Done when every record is reported and read back, or when the time is up."""
        self.error: KafkaError | None = None
        """First error that a delivery report contained."""
        self.last: dict[int | None, Message] = {}
        """Partition -> report of the last record delivered there."""
        self.reported = self.reported_before = 0
        """Number of records with a delivery report, now and at the previous check for overdue batches."""
        self.sent = records
        """Number of records handed to the producer. Lower than the size of the batch if a record was refused
        immediately."""
        self.unread = 0
        """Number of partitions whose last record is not read back yet."""

    @property
    def is_reported(self) -> bool:
        """True if every record that was sent has its delivery report."""
        return self.reported == self.sent

    def note_report(self, error: KafkaError | None, message: Message) -> None:
        """Count the delivery report of one record. The reports of a partition arrive in order."""
        if error is None:
            self.last[message.partition()] = message
        elif self.error is None:
            self.error = error
        self.reported += 1

    def take_last_written(self, epoch: int) -> list[DeliveredRecord]:
        """Return the last record of each partition, which must be read back."""
        last, self.last = self.last, {}
        self.unread = len(last)
        return [self._written(number, message, epoch) for number, message in last.items()]

    def _written(self, number: int | None, message: Message, epoch: int) -> DeliveredRecord:
        offset, value, key = message.offset(), message.value() or b"", message.key()
        assert number is not None, "a delivered record has a partition"
        place = -1 if offset is None else offset
        return DeliveredRecord(self.topic, number, place, epoch, self.sequence_first, self.sequence_last, value, key)

    def succeed(self) -> None:
        """Wake the caller. If a record was refused, `error` is set."""
        if not self.confirmed.done():
            self.confirmed.set_result(None)

    def fail(self, reason: str) -> None:
        """Raise LogUnavailable in the caller: the outcome is unknown."""
        if not self.confirmed.done():
            self.confirmed.set_exception(LogUnavailable(f"{reason}; {UNKNOWN_OUTCOME}"))


class WaitingCallers:
    """The batches that callers wait for, and the time of Kafka's last confirmation for each topic.

    A caller waits for the confirmation timeout while Kafka is silent about its topic. While Kafka is only slow, it
    waits PATIENCE_TIMEOUTS times as long.
    """

    def __init__(self, confirm_timeout_s: float) -> None:
        self._confirm_timeout_s = confirm_timeout_s
        self._batches: dict[str, deque[DeliveryBatch]] = {}
        """Topic -> batches in the order of their calls."""
        self._heard_s: dict[str, float] = {}
        """Topic -> time at which Kafka last confirmed a record of it."""
        self._check_s = 0.0

    def add(self, batch: DeliveryBatch) -> None:
        self._batches.setdefault(batch.topic, deque()).append(batch)

    def note_heard(self, topic: str, now_s: float) -> None:
        """Note that Kafka confirmed records of the topic."""
        self._heard_s[topic] = now_s

    def take_overdue(self, now_s: float) -> list[DeliveryBatch]:
        """Remove and return the batches whose callers have waited too long. Checks at most once in OVERDUE_CHECK_S."""
        if now_s < self._check_s:
            return []
        self._check_s = now_s + OVERDUE_CHECK_S
        return [batch for topic in list(self._batches) for batch in self._take_overdue_of(topic, now_s)]

    def _take_overdue_of(self, topic: str, now_s: float) -> list[DeliveryBatch]:
        batches = self._batches[topic]
        while batches and batches[0].confirmed.done():
            batches.popleft()
        if not batches:
            del self._batches[topic]
            return []
        first = batches[0]
        if first.reported != first.reported_before:
            first.reported_before = first.reported
            self._heard_s[topic] = now_s
        is_silent = now_s - self._heard_s.get(topic, -math.inf) >= self._confirm_timeout_s
        patience_s = self._confirm_timeout_s * (1 if is_silent else PATIENCE_TIMEOUTS)
        overdue = []
        while batches and now_s - batches[0].began_s >= patience_s:
            batch = batches.popleft()
            if not batch.confirmed.done():
                overdue.append(batch)
        return overdue
