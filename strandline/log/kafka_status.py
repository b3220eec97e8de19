"""Current state of Kafka: the offsets and retention of a stream's topic, and the dead letters of a job. Reads only."""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from strandline.core.errors import NotFound
from strandline.core.record_headers import DEAD_LETTER_PARTITION, dead_letter_topic
from strandline.log.admin import KafkaAdmin
from strandline.log.answers import Answers, answer_of, answers_of, good
from strandline.log.messages import LogMessage, LogReader, offset_of
from strandline.log.reader import OffsetRange

_QUESTION_S_MIN = 0.05
"""Minimum timeout in seconds of the last of several requests, if earlier ones used up the time."""
_LETTERS_A_FETCH = 100
"""Each dead letter may be as large as the largest record."""


@dataclass(frozen=True)
class LogRange:
    """Offsets of a topic: for each partition the first offset that exists, and the offset after the last."""

    offset_first: dict[int, int]
    offset_next: dict[int, int]


@dataclass(frozen=True)
class TopicSummary:
    """Size and settings of a topic."""

    partitions: int
    records: int
    """Range of offsets, over all partitions: the maximum number of records."""
    config: Mapping[str, str]
    """All settings of the topic by name."""


@dataclass(frozen=True)
class DeadLetterRange:
    """A range of a dead-letter topic: from `offset_first` up to, but not including, `offset_next`."""

    topic_id: str
    offset_first: int
    offset_next: int


@dataclass(frozen=True)
class StoredDeadLetter:
    """A record (or result) that could not be used: its origin and the reason (headers), and the sender's bytes."""

    offset: int
    """Offset in the dead-letter stream."""
    log_time_ms: int
    headers: dict[str, str]
    value: bytes


_SAMPLE_RECORDS = 1_000
"""Number of the newest records whose mean size is the expected size of records."""
SAMPLE_BYTES_MAX = 16 << 20
"""Approximate maximum size in bytes of a sample of records."""


@dataclass(frozen=True)
class Sample:
    """Some of the newest records of a topic."""

    values: list[bytes]
    partitions: int
    """Number of partitions of the topic."""
    retention_ms: int
    """Retention of the topic in ms; -1 if records are kept forever."""


@dataclass
class NewestRecords:
    """Records of a stream, column by column. The records of one partition are in order."""

    partitions: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    log_times_ms: list[int] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    header_values: list[bytes | None] = field(default_factory=list)
    """Value of the first requested header that a record has, packed with its `headers_beside`."""
    is_cut: bool = False
    """True if there were more records than the limits allow."""


class KafkaStatus:
    """Reads the state of Kafka. Blocking, safe for several threads.

    Every method raises LogUnavailable if the brokers don't answer within `timeout_s`.
    """

    def __init__(self, kafka_bootstrap: str, *, timeout_s: float = 5.0) -> None:
        self._admin = KafkaAdmin(kafka_bootstrap, timeout_s=timeout_s)

    def check(self, wait_s: float | None = None) -> None:
        """Return if the brokers answer within `wait_s`, or within the timeout if it is None."""
        self._admin.check(wait_s)

    def range(self, topic: str, wait_s: float | None = None) -> LogRange:
        """Return the offsets of the topic. Raises NotFound if it doesn't exist, and LogUnavailable without an answer in
        `wait_s`.

        `wait_s`: None for the timeout of this object.
        """
        return answer_of(self.ranges_of([topic], wait_s), topic)

    def ranges_of(self, topics: Collection[str], wait_s: float | None = None) -> Answers[LogRange]:
        """Return the range of each of these topics, with one request for each of three questions. `wait_s`: see `range`."""
        until = time.monotonic() + (wait_s or self._admin.timeout_s)

        def left_s() -> float:
            return max(_QUESTION_S_MIN, until - time.monotonic())

        described = self._admin.describe_each(topics, left_s())
        partitions = {topic: range(found.partitions) for topic, found in good(described).items()}
        starts = self._admin.starts_each(partitions, left_s())
        ends = self._admin.ends_with_open_each(partitions, left_s())

        def range_of(topic: str) -> LogRange:
            answer_of(described, topic)
            return LogRange(answer_of(starts, topic), answer_of(ends, topic))

        return answers_of(topics, range_of)

    def topic_names(self) -> list[str]:
        """Return the names of all topics that this client can see, in order."""
        return sorted(self._admin.replicas())

    def summaries(self, topics: Collection[str]) -> Answers[TopicSummary]:
        """Return size and settings of each of these topics, with one request for each of four questions."""
        ranges, configs = self.ranges_of(topics), self._admin.config_each(topics)

        def summary_of(topic: str) -> TopicSummary:
            held = answer_of(ranges, topic)
            records = sum(held.offset_next[at] - first for at, first in held.offset_first.items())
            return TopicSummary(len(held.offset_next), records, answer_of(configs, topic))

        return answers_of(topics, summary_of)

    def newest_log_times(self, topic: str, partitions: Collection[int], wait_s: float | None = None) -> dict[int, int]:
        """Return the latest log time of a record in each partition, in ms. 0 for an empty partition.

        Raises NotFound.
        """
        return self._admin.newest_log_times(topic, partitions, wait_s)

    def retention_ms(self, topic: str) -> int:
        """Return the retention of the topic in ms; -1 if records are kept forever."""
        return int(self._admin.config(topic)["retention.ms"])

    def sample(self, topic: str, count: int) -> Sample:
        """Return about the `count` newest records, evenly from all partitions. Fewer if they are large. Tombstones are
        left out.

        Raises NotFound if the topic doesn't exist.
        """
        partitions = range(self._admin.describe(topic).partitions)
        starts, ends = self._admin.starts(topic, partitions), self._admin.ends(topic, partitions)
        each = -(-count // len(partitions))
        values: list[bytes] = []
        reader = LogReader(self._admin.bootstrap, self._admin.timeout_s, messages_a_fetch=_LETTERS_A_FETCH)
        try:
            for partition in partitions:
                room = SAMPLE_BYTES_MAX // len(partitions)
                tail = OffsetRange(topic, partition, max(starts[partition], ends[partition] - each), ends[partition])
                with closing(_values(reader.read(tail, allow_holes=True))) as found:
                    for value in found:
                        values.append(value)
                        room -= len(value)
                        if room < 0:
                            break
        finally:
            reader.close()
        return Sample(values, len(partitions), self.retention_ms(topic))

    def committed_ends(self, topic: str) -> dict[int, int]:
        """Return the end of each partition of the topic, without open transactions. Raises NotFound."""
        return self._admin.ends(topic, range(self._admin.describe(topic).partitions))

    def newest_records(
        self,
        topic: str,
        records_max: int,
        bytes_max: int,
        headers: Sequence[str] = (),
        since: Mapping[int, int] | None = None,
        headers_beside: Sequence[str] = (),
        partitions: Collection[int] | None = None,
        until: Mapping[int, int] | None = None,
    ) -> NewestRecords:
        """Return the newest records of the topic, about as many of each partition, with at most `bytes_max` bytes.

        Args:
            since, until: Partition -> first and next offset.
            headers, headers_beside: See RangeReader.
            partitions: Only these; None for all.

        Raises NotFound, LogTruncated.
        """
        from strandline.log.range_reader import RangeReader  # its import takes a tenth of a second

        ends = {
            at: min(end, (until or {}).get(at, end))
            for at, end in self.committed_ends(topic).items()
            if partitions is None or at in partitions
        }
        starts = self._admin.starts(topic, list(ends))
        firsts = {at: max(starts[at], (since or starts).get(at, starts[at])) for at in ends}
        share = max(1, records_max // max(1, sum(firsts[at] < end for at, end in ends.items())))
        ranges = [
            OffsetRange(topic, at, max(firsts[at], end - share), end) for at, end in ends.items() if firsts[at] < end
        ]
        found = NewestRecords(is_cut=any(end - firsts[at] > share for at, end in ends.items()))
        size = 0
        reader = RangeReader(self._admin.bootstrap, self._admin.timeout_s)
        try:
            for chunk in reader.read(ranges, headers, headers_beside, allow_holes=True):
                size += sum(len(value) for value in chunk.values if value)
                if size > bytes_max:
                    found.is_cut = True
                    break
                count = len(chunk.offsets)
                found.partitions += [chunk.offset_range.partition] * count
                found.offsets += chunk.offsets
                found.log_times_ms += chunk.log_times_ms
                found.values += chunk.values
                found.header_values += chunk.header_values or [None] * count
        finally:
            reader.close()
        return found

    def newest_that_fit(
        self, topic: str, records_max: int, bytes_wanted: int, bytes_max: int, *given: Any, **named: Any
    ) -> NewestRecords:
        """Return the newest records of the topic, as many as fit into `bytes_wanted`, but at most `records_max`.

        A sample of the newest records gives their mean size. The other arguments are those of `newest_records`.
        Raises NotFound, LogTruncated.
        """
        if records_max <= _SAMPLE_RECORDS:
            return self.newest_records(topic, records_max, bytes_max, *given, **named)
        sample = self.newest_records(topic, _SAMPLE_RECORDS, bytes_max)
        mean = sum(len(value or b"") for value in sample.values) / max(1, len(sample.values))
        count = min(records_max, max(_SAMPLE_RECORDS, int(bytes_wanted / max(1.0, mean))))
        return self.newest_records(topic, count, bytes_max, *given, **named)

    def offsets_at(self, topic: str, log_time_ms: int) -> dict[int, int]:
        """Return the first offset of each partition whose log time is at or after `log_time_ms`.

        If there is no such record, it is the end of the partition, without open transactions. Raises NotFound.
        """
        ends = self.committed_ends(topic)
        found = self._admin.offsets_at(topic, ends, log_time_ms)
        return {at: end if found[at] < 0 else found[at] for at, end in ends.items()}

    def dead_letters(self, job: str, after: int, limit: int) -> list[StoredDeadLetter]:
        """Return at most `limit` dead letters with an offset above `after`, the oldest first.

        Empty if there are none.
        """
        held = self.dead_letter_range(job)
        if held is None:
            return []
        found: list[StoredDeadLetter] = []
        with closing(self.read_dead_letters(job, max(after + 1, held.offset_first), held.offset_next)) as lists:
            for letters in lists:
                found += letters
                if len(found) >= limit:
                    break
        return found[:limit]

    def dead_letter_range(self, job: str, since_ms: int = 0) -> DeadLetterRange | None:
        """Return the range of a job's dead letters that were written at `since_ms` or later.

        None if the topic doesn't exist.
        """
        topic, partition = dead_letter_topic(job), DEAD_LETTER_PARTITION
        try:
            topic_id = self._admin.describe(topic).topic_id
        except NotFound:
            return None
        end = self._admin.ends(topic, [partition])[partition]
        first = self._admin.starts(topic, [partition])[partition]
        if since_ms > 0:
            found = self._admin.offsets_at(topic, [partition], since_ms)[partition]
            first = min(found, end) if found >= 0 else end
        return DeadLetterRange(topic_id, first, end)

    def read_dead_letters(self, job: str, offset_first: int, offset_next: int) -> Generator[list[StoredDeadLetter]]:
        """Yield the dead letters of a range in order, in lists of at most _LETTERS_A_FETCH. Close the generator if you
        stop early.

        Raises LogTruncated if the range is no longer in the log.
        """
        if offset_first >= offset_next:
            return
        reader = LogReader(self._admin.bootstrap, self._admin.timeout_s, messages_a_fetch=_LETTERS_A_FETCH)
        try:
            letters = OffsetRange(dead_letter_topic(job), DEAD_LETTER_PARTITION, offset_first, offset_next)
            for messages in reader.read(letters):
                yield [_dead_letter(message) for message in messages]
        finally:
            reader.close()


def lag_records(held: LogRange, position: Mapping[int, int]) -> int:
    """Return the number of records at or after `position` (offset_next per partition).

    A missing partition counts from its start.
    """
    return sum(
        max(0, offset_next - max(position.get(partition, 0), held.offset_first[partition]))
        for partition, offset_next in held.offset_next.items()
    )


def _values(lists: Iterator[list[LogMessage]]) -> Generator[bytes]:
    for messages in lists:
        yield from (_bytes(message.value()) for message in messages if message.value() is not None)


def _dead_letter(message: LogMessage) -> StoredDeadLetter:
    headers = {str(name): _text(value) for name, value in list(message.headers() or [])}
    return StoredDeadLetter(offset_of(message), message.timestamp()[1], headers, _bytes(message.value()))


def _text(value: str | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""


def _bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""
