"""Reads exact ranges of offsets from the log as whole messages, with keys and headers, for callers that need few records.

The source, which reads every record, reads columns with `range_reader`. Both read record batches in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MESSAGES_A_FETCH = 10_000
"""Maximum number of messages in a list; records are decoded in these units."""


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


class LogMessage:
    """A committed record of the log, with the methods of a `confluent_kafka.Message`."""

    __slots__ = ("_offset_range", "_record")

    def __init__(self, offset_range: OffsetRange, record: Any) -> None:
        """`offset_range`: range that was read. `record`: as `RecordBatch.records` yields it."""
        self._offset_range = offset_range
        self._record = record

    def topic(self) -> str:
        return self._offset_range.stream

    def partition(self) -> int:
        return self._offset_range.partition

    def offset(self) -> int:
        return int(self._record.offset)

    def timestamp(self) -> tuple[int, int]:
        """Return the timestamp type and the log time in ms. The log time is -1 if the record has none."""
        timestamp = self._record.timestamp
        return int(self._record.timestamp_type or 0), -1 if timestamp is None else int(timestamp)

    def key(self) -> bytes | None:
        key: bytes | None = self._record.key
        return key

    def value(self) -> bytes | None:
        value: bytes | None = self._record.value
        return value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return list(self._record.headers)


class LogReader:
    """Reads ranges of committed records. Not thread-safe, and not to be called inside an event loop.

    A process keeps one reader, because a new one has to connect first.
    """

    def __init__(self, bootstrap: str, timeout_s: float = 30.0, *, messages_a_fetch: int = MESSAGES_A_FETCH) -> None:
        """`messages_a_fetch`: maximum number of messages in a list."""
        from strandline.log.range_reader import RangeReader  # its client takes a tenth of a second to import

        self._messages_a_fetch = messages_a_fetch
        self._reader = RangeReader(bootstrap, timeout_s)

    def close(self) -> None:
        self._reader.close()

    def read(self, offset_range: OffsetRange, *, allow_holes: bool = False) -> Iterator[list[LogMessage]]:
        """Yield the records of the range in log order, in lists of at most `messages_a_fetch`; no list is empty.

        See `RangeReader.batches` for when the range is complete, for `allow_holes`, and for the errors: LogTruncated,
        LogUnavailable, LogChanged.
        """
        messages: list[LogMessage] = []
        for arrived in self._reader.batches([offset_range], allow_holes=allow_holes):
            for record in arrived.records():
                messages.append(LogMessage(offset_range, record))
                if len(messages) >= self._messages_a_fetch:
                    yield messages
                    messages = []
            if messages:
                yield messages
                messages = []


def offset_of(message: LogMessage) -> int:
    """Return the offset of a message."""
    return message.offset()
