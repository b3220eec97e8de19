"""Ranges of offsets, which readers of the log read exactly: `range_reader` as columns, `messages` as whole messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OffsetRange:
    """A range of one partition: from `offset_first` up to, but not including, `offset_next`.

    Not every offset has a record.
    """

    stream: str
    partition: int
    offset_first: int
    offset_next: int
    checksum: int | None = None
    """Recorded checksum of the record batch that contains the last offset. None if unknown. A RangeReader compares it
    with the batch that it reads."""
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
