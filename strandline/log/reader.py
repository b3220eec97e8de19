"""Reads exact ranges of offsets from the log as whole messages: for those who need few, with keys and headers.

The source, which reads every record, takes columns from `range_reader`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from strandline.core.errors import LogTruncated, LogUnavailable
from strandline.log.kafka_connection import consumer_settings, explained, librdkafka

MESSAGES_A_FETCH = 10_000
"""How many messages are taken from librdkafka's queue at once; records are decoded in these units."""
_GATHER_S = 0.02
"""How long messages are gathered at most before they are handed on together."""


@dataclass(frozen=True)
class OffsetRange:
    """A piece of one partition: from `offset_first` up to, but not including, `offset_next`. Not every offset has a record."""

    stream: str
    partition: int
    offset_first: int
    offset_next: int
    checksum: int | None = None
    """Recorded checksum of the record batch that contains the last offset; None if unknown. A RangeReader compares it with the
    batch that it reads."""
    inner_checksums: tuple[tuple[int, int], ...] = ()
    """Offsets before the last one, ascending, each with the recorded checksum of its batch. A RangeReader compares these, too."""

    @property
    def offset_count(self) -> int:
        """Maximum number of records in the range."""
        return self.offset_next - self.offset_first

    @property
    def recorded_checksums(self) -> tuple[tuple[int, int], ...]:
        """Offsets of the range, ascending, each with the recorded checksum of the batch that contains it."""
        last = () if self.checksum is None else ((self.offset_next - 1, self.checksum),)
        return self.inner_checksums + last


class LogReader:
    """Reads ranges of committed records. Not thread-safe. A process keeps one, since a new consumer costs 10 to 30 ms."""

    def __init__(
        self,
        bootstrap: str,
        timeout_s: float = 30.0,
        *,
        messages_a_fetch: int = MESSAGES_A_FETCH,
        queue_kb: int = 65_536,
    ) -> None:
        """`messages_a_fetch` and `queue_kb` bound the memory: lists of so many messages, and so many kB read ahead."""
        self._timeout_s = timeout_s
        self._messages_a_fetch = messages_a_fetch
        self._bootstrap = bootstrap
        own = consumer_settings("log-reader")
        self._consumer = Consumer(
            librdkafka(
                bootstrap,
                own
                | {
                    "enable.partition.eof": True,
                    "isolation.level": "read_committed",
                    "fetch.wait.max.ms": 10,  # only at the end of a partition does the broker wait
                    "queued.min.messages": 50_000,
                    "queued.max.messages.kbytes": queue_kb,
                    # While Kafka is away, librdkafka would write 20 lines a second; the error says the last reason instead.
                    "log_level": 2,
                    "error_cb": self._note,
                },
            )
        )
        self._last_error = ""

    def close(self) -> None:
        self._consumer.close()

    def _note(self, error: KafkaError) -> None:
        self._last_error = f"; its last error: {explained(error)}"

    def read(self, offset_range: OffsetRange) -> Iterator[list[Message]]:
        """Yield the records of the range in order, in lists of at most `messages_a_fetch`.

        Raises LogTruncated when the log no longer holds the range, LogUnavailable when nothing arrives within the timeout.
        """
        if offset_range.offset_first >= offset_range.offset_next:
            return
        place = f"stream {offset_range.stream}, partition {offset_range.partition}"
        partition = TopicPartition(offset_range.stream, offset_range.partition, offset_range.offset_first)
        self._last_error = ""
        self._consumer.assign([partition])
        try:
            offset_last = offset_range.offset_next - 1
            left = offset_range.offset_count
            deadline = time.monotonic() + self._timeout_s
            done = False
            while not done:
                messages = self._consume(min(left, self._messages_a_fetch), place)
                if not messages:
                    if time.monotonic() > deadline:
                        raise LogUnavailable(
                            f"Kafka at {self._bootstrap} sent nothing of {place} for {self._timeout_s:g} s "
                            f"(waiting for offset {offset_range.offset_first}{self._last_error}); is the broker up?"
                        )
                    continue
                deadline = time.monotonic() + self._timeout_s
                tail = messages[-1]
                left = max(1, offset_last - offset_of(tail))
                if offset_of(tail) < offset_last and all(message.error() is None for message in messages):
                    yield messages
                    continue
                kept, done = self._up_to(messages, offset_last, place)
                if kept:
                    yield kept
        finally:
            self._consumer.unassign()

    def _up_to(self, messages: list[Message], offset_last: int, place: str) -> tuple[list[Message], bool]:
        """The messages up to `offset_last`, and whether the range is complete.

        It is complete when `offset_last`, a later record or the partition's end was seen. Waiting for `offset_last` alone
        would hang when a transaction marker has that offset.
        """
        kept: list[Message] = []
        done = False
        for message in messages:
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    done = done or offset_of(message) > offset_last
                    continue
                raise _read_failure(error, place)
            offset = offset_of(message)
            if offset > offset_last:
                return kept, True
            kept.append(message)
            done = done or offset == offset_last
        return kept, done

    def _consume(self, count: int, place: str) -> list[Message]:
        """Up to so many messages. The client waits until it has them all or _GATHER_S is over; in a range with holes it never
        has them all."""
        try:
            return self._consumer.consume(count, _GATHER_S)
        except KafkaException as error:
            raise _read_failure(error.args[0], place) from error


def offset_of(message: Message) -> int:
    """The offset of a fetched message, or of the partition's end where the message is an EOF event."""
    offset = message.offset()
    assert offset is not None, "a message from the log has an offset"
    return offset


def _read_failure(error: KafkaError, place: str) -> Exception:
    if error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
        return LogTruncated(
            f"{place} no longer holds an offset that is needed ({error.str()}): retention removed it, or the log was cut off"
        )
    return LogUnavailable(f"reading {place} failed: {error.str()}")
