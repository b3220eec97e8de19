"""Records for all members of one task, fetched with few requests. A *member* is a job of the task's pool.

One request to Kafka contains as many ranges as fit, of all members. While a member is computed, the broker sends the next ranges.
An error belongs to the range that is read at that moment, so it concerns one member.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from strandline.core.errors import LogUnavailable
from strandline.log.range_reader import FetchedBatches, FetchedRecords
from strandline.log.reader import OffsetRange

STUCK_MAX = 3
"""Number of ranges in succession that Kafka may not send. After them, no other range is waited for."""


class BatchReader(Protocol):
    """Fetches record batches of ranges. `RangeReader` is one."""

    def batches(self, ranges: Sequence[OffsetRange]) -> Iterator[FetchedBatches]:
        """Yield the batches of the ranges, one range after the other."""


class SharedRecords:
    """Reads ranges that were announced in the order in which they are read. A RecordReader.

    A range that was not announced, or is read again, is fetched alone. If a member doesn't read all of its ranges, they are left
    out when the next member reads.
    """

    def __init__(self, reader: BatchReader, announced: Sequence[OffsetRange]) -> None:
        self._reader = reader
        self._left = deque(one for one in announced if one.offset_first < one.offset_next)
        self._stream: Iterator[FetchedBatches] | None = None
        self._stuck = 0

    def read(
        self, ranges: Sequence[OffsetRange], headers: Sequence[str] = (), headers_beside: Sequence[str] = ()
    ) -> Iterator[FetchedRecords]:
        """Yield the records of the ranges in the order of the ranges, as `RangeReader.read`. Raises what it raises."""
        for wanted in ranges:
            if wanted.offset_first >= wanted.offset_next:
                continue
            batches = self._of_announced(wanted) if wanted in self._left else self._watched(wanted, self._alone(wanted))
            for arrived in batches:
                yield from arrived.columns(headers, headers_beside)

    def close(self) -> None:
        """Cancel a request that is under way."""
        if self._stream is not None:
            self._stream.close()  # type: ignore[attr-defined]
            self._stream = None

    def _alone(self, wanted: OffsetRange) -> Iterator[FetchedBatches]:
        self.close()
        return self._reader.batches([wanted])

    def _of_announced(self, wanted: OffsetRange) -> Iterator[FetchedBatches]:
        while self._left[0] != wanted:  # a member failed before it had read these
            self._left.popleft()
            self.close()
        if self._stream is None:
            self._stream = self._reader.batches(list(self._left))
        self._left.popleft()
        try:
            yield from self._watched(wanted, self._stream)
        except BaseException:
            self.close()
            raise

    def _watched(self, wanted: OffsetRange, batches: Iterator[FetchedBatches]) -> Iterator[FetchedBatches]:
        """Yield the batches of this range. Raises LogUnavailable, immediately if Kafka sent nothing of STUCK_MAX ranges
        before."""
        if self._stuck >= STUCK_MAX:
            raise LogUnavailable(
                f"stream {wanted.stream}, partition {wanted.partition} was not read, because Kafka sent nothing of the "
                f"{STUCK_MAX} ranges before it; the slice is read again later"
            )
        try:
            for arrived in batches:
                assert arrived.offset_range == wanted, "ranges arrive in the order of the request"
                yield arrived
                if arrived.is_last:
                    break
        except LogUnavailable:
            self._stuck += 1
            raise
        self._stuck = 0
