"""Complete messages of the log, with keys and headers, for callers that need few records: exact ranges, and the last
messages.

The source, which reads every record, reads columns with `range_reader`. Both read record batches in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

from strandline.core.errors import LogTruncated, NotFound
from strandline.log.index import LogIndex
from strandline.log.reader import OffsetRange

MESSAGES_A_FETCH = 10_000
"""Maximum number of messages in a list. Records are decoded in these units."""
_OFFSETS_FIRST = 500


class LogMessage:
    """A committed record of the log, with the methods of a `confluent_kafka.Message`."""

    __slots__ = ("_offset_range", "_record")

    def __init__(self, offset_range: OffsetRange, record: Any) -> None:
        """`offset_range`: range that was read. `record`: from `RecordBatch.records`."""
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
    """Reads ranges of committed records. Not thread-safe. Must not be called inside an event loop.

    A process keeps one reader, because a new one must connect first.
    """

    def __init__(self, bootstrap: str, timeout_s: float = 30.0, *, messages_a_fetch: int = MESSAGES_A_FETCH) -> None:
        """`messages_a_fetch`: maximum number of messages in a list."""
        from strandline.log.range_reader import RangeReader  # its import takes a tenth of a second

        self._messages_a_fetch = messages_a_fetch
        self._reader = RangeReader(bootstrap, timeout_s)

    def close(self) -> None:
        self._reader.close()

    def read(self, offset_range: OffsetRange, *, allow_holes: bool = False) -> Iterator[list[LogMessage]]:
        """Yield the records of the range in log order, in lists of at most `messages_a_fetch`. No list is empty.

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


def last_records(
    bootstrap: str, index: LogIndex, topic: str, since: Mapping[int, int], is_wanted: Callable[[LogMessage], bool]
) -> list[LogMessage]:
    """Return for each partition the wanted records among the last ones, in order: at least one, if there is any from
    `since` on.

    Reads growing ranges from the end backwards until it finds a record, so that a long tail of other records or of
    transaction markers hides nothing. A topic that doesn't exist has no records. Records that retention removes during
    the search are left out. Raises LogUnavailable, LogTruncated.

    Args: since: Partition -> offset.
    """
    try:
        ends = index.settled_ends(topic)
        starts = index.starts(
            topic
        )  # after the ends: they may take long, and in the meantime the log may begin later or have a new partition
    except NotFound:
        return []
    found: list[LogMessage] = []
    with closing(LogReader(bootstrap)) as reader:
        for partition, end in ends.items():
            first, offsets = max(since.get(partition, 0), starts[partition]), _OFFSETS_FIRST
            here: list[LogMessage] = []
            while end > first and not here:
                begin = max(first, end - offsets)
                try:
                    for messages in reader.read(OffsetRange(topic, partition, begin, end)):
                        here += filter(is_wanted, messages)
                except LogTruncated:
                    start = index.starts(topic)[partition]
                    if start <= begin:
                        raise
                    first, here = start, []  # records that retention has removed in the meantime are ignored
                    continue
                end, offsets = begin, 4 * offsets
            found += here
    return found
