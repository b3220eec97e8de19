"""Reading the log: exact ranges of offsets, the ends of partitions, and where a log time falls. One seam to librdkafka."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from strandline.core.errors import LogTruncated, LogUnavailable, NotFound

MESSAGES_A_FETCH = 10_000
"""Messages taken from librdkafka's queue at once: the unit in which records are decoded."""
_GATHER_S = 0.02
"""So long at most, messages are gathered that are handed on together."""
_ASK_AGAIN_S = 0.2
_SETTLED_TIMEOUT_S = 60.0
_SETTLED_POLL_S = 0.01


@dataclass(frozen=True)
class OffsetRange:
    """A piece of one partition: from `offset_first` up to, not including, `offset_next`. Offsets may have holes."""

    stream: str
    partition: int
    offset_first: int
    offset_next: int


class LogReader:
    """Reads ranges of committed records. Not thread-safe; made once a process and kept, since a new consumer costs
    10 to 30 ms."""

    def __init__(self, bootstrap: str, timeout_s: float = 30.0) -> None:
        self._timeout_s = timeout_s
        self._bootstrap = bootstrap
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "strandline-log-reader",  # never joined: partitions are assigned by hand
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",  # a missing offset is a failure to report, never a place to jump from
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,  # only at the end of a partition does the broker wait
                "queued.min.messages": 50_000,
                "queued.max.messages.kbytes": 65_536,
                "log_level": 3,
            }
        )

    def close(self) -> None:
        self._consumer.close()

    def read(self, offset_range: OffsetRange) -> Iterator[list[Message]]:
        """Yield the records of the range in order, in lists of at most MESSAGES_A_FETCH.

        Raises LogTruncated when the range is no longer held, LogUnavailable when nothing arrives within the timeout.
        """
        if offset_range.offset_first >= offset_range.offset_next:
            return
        place = f"stream {offset_range.stream}, partition {offset_range.partition}"
        partition = TopicPartition(offset_range.stream, offset_range.partition, offset_range.offset_first)
        self._consumer.assign([partition])
        try:
            offset_last = offset_range.offset_next - 1
            left = offset_range.offset_next - offset_range.offset_first
            deadline = time.monotonic() + self._timeout_s
            done = False
            while not done:
                messages = self._consume(min(left, MESSAGES_A_FETCH), place)
                if not messages:
                    if time.monotonic() > deadline:
                        raise LogUnavailable(
                            f"Kafka at {self._bootstrap} sent nothing of {place} for {self._timeout_s:g} s "
                            f"(waiting for offset {offset_range.offset_first}); is the broker up?"
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
        """Those at or before `offset_last`, and whether the range is complete: a later record or the partition's end
        was seen. Waiting for the last offset itself would hang where it is a transaction marker."""
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
        """Up to so many messages. The client waits until it has them all, so where the range has holes this waits in vain."""
        try:
            return self._consumer.consume(count, _GATHER_S)
        except KafkaException as error:
            raise _read_failure(error.args[0], place) from error


class LogIndex:
    """What is where in the log: partitions, starts, ends, offsets by log time. Asks the brokers at each call."""

    def __init__(self, bootstrap: str, timeout_s: float = 15.0) -> None:
        self._bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._admin = self._connect()
        self._partitions: dict[str, list[int]] = {}

    def topic_id(self, stream: str) -> str:
        """The topic's id: another one under the same name means another life of the topic."""
        futures = self._admin.describe_topics(TopicCollection([stream]), request_timeout=self._timeout_s)
        return str(self._result(futures[stream], stream).topic_id)

    def partitions(self, stream: str) -> list[int]:
        """The partition numbers; remembered, so growth is seen by a new run."""
        if stream not in self._partitions:
            futures = self._admin.describe_topics(TopicCollection([stream]), request_timeout=self._timeout_s)
            self._partitions[stream] = sorted(p.id for p in self._result(futures[stream], stream).partitions)
        return self._partitions[stream]

    def starts(self, stream: str) -> dict[int, int]:
        """Per partition the first offset held."""
        return self._offsets(stream, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def ends(self, stream: str) -> dict[int, int]:
        """Per partition the offset up to which every record is settled: from the first open transaction on, nothing is, be
        it committed or not."""
        return self._offsets(stream, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def ends_with_open(self, stream: str) -> dict[int, int]:
        """Per partition the offset after the last record, settled or not. Reading up to it waits until all before it is."""
        return self._offsets(stream, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)  # type: ignore[no-untyped-call]

    def settled_ends(self, stream: str) -> dict[int, int]:
        """As `ends`, once all that is in the stream now is settled. Kafka says that a transaction is committed before each
        partition knows it. Raises LogUnavailable when somebody's transaction stays open."""
        written = self.ends_with_open(stream)
        deadline = time.monotonic() + _SETTLED_TIMEOUT_S
        while True:
            ends = self.ends(stream)
            if all(ends[partition] >= offset for partition, offset in written.items()):
                return ends
            if time.monotonic() > deadline:
                raise LogUnavailable(
                    f"stream {stream} holds a transaction that is still open after {_SETTLED_TIMEOUT_S:g} s, so results behind "
                    "it can't be read; find its producer, or have Kafka abort it"
                )
            time.sleep(_SETTLED_POLL_S)

    def offsets_at(self, stream: str, log_time_ms: int, ends: Mapping[int, int]) -> dict[int, int]:
        """Per partition the first offset whose log time is at or after `log_time_ms`, but at most `ends`."""
        found = self._offsets(stream, OffsetSpec.for_timestamp(log_time_ms))
        # The broker answers -1 where no record is that young: then the cut is the end.
        return {p: min(found[p], end) if found.get(p, -1) >= 0 else end for p, end in ends.items()}

    def _offsets(
        self, stream: str, spec: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[int, int]:
        """Ask until there is an answer, for as long as the timeout. After a restart of a broker the client's memory of it is
        stale, and every answer an error, until it is made anew."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            wanted = {TopicPartition(stream, partition): spec for partition in self.partitions(stream)}
            futures = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=self._timeout_s)
            try:
                return {place.partition: int(self._result(future, stream).offset) for place, future in futures.items()}
            except LogUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_ASK_AGAIN_S)
                self._admin = self._connect()

    def _connect(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 3})

    def _result(self, future, stream: str):  # type: ignore[no-untyped-def]
        try:
            return future.result(timeout=self._timeout_s + 5)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise NotFound(f"Kafka at {self._bootstrap} has no topic {stream}; apply the stream first") from error
            raise LogUnavailable(
                f"Kafka at {self._bootstrap} did not say what stream {stream} holds: {error.args[0].str()}"
            ) from error
        except TimeoutError as error:
            raise LogUnavailable(f"Kafka at {self._bootstrap} did not answer within {self._timeout_s:g} s") from error


def offset_of(message: Message) -> int:
    """The offset of a fetched message, or of the end that an EOF event tells."""
    offset = message.offset()
    assert offset is not None, "a message from the log has an offset"
    return offset


def _read_failure(error: KafkaError, place: str) -> Exception:
    if error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
        return LogTruncated(
            f"{place} no longer holds an offset that the job needs ({error.str()}); raise the retention"
        )
    return LogUnavailable(f"reading {place} failed: {error.str()}")
