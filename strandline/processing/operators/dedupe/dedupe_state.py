"""The state of a `dedupe`: records in *segments*, which are sorted once and never changed. Pure.

A slice adds one segment of its own records, and older segments stay unchanged. So the cost of a slice depends on its own records,
however large the state is. Small segments are merged into larger ones, and each is at least twice as large as the next. So
there are few segments, and a record is written again only after as many new records arrived. The horizon is divided into eight
*spans* of event time. Segments of different spans aren't merged. So segments are forgotten as a whole, and a merge is never
larger than a span.

Large segments are stored outside the state, in a `SegmentStore`, and the state contains their names. A segment that was merged or
forgotten stays in the store for some steps, because an older state can be used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.processing.columns.codes import Codes, ranges
from strandline.processing.operators.blobs import batch_of, pack, unpack
from strandline.processing.operators.segments import SegmentStore, Unused, unused_after

Flags = npt.NDArray[np.bool_]
SPANS = 8
"""Number of parts of a horizon. A record is kept at most one part too long."""
_SPANS_APART = 2 * SPANS
"""Segments of older spans are small: their records were far ahead of their time. They count as one span."""
INLINE_ROWS_MAX = 2_048
"""Maximum number of rows of a segment in the state. All of these segments are written with each slice: 24 bytes per row."""
_INDEX = pa.schema(
    [
        ("count", pa.int64()),
        ("newest_us", pa.int64()),
        ("span", pa.int64()),
        ("name", pa.string()),
        ("steps_unused", pa.int64()),
    ]
)


@dataclass(frozen=True)
class RecordHashes:
    """Records that reached a `dedupe`, or that it keeps."""

    high: Codes
    low: Codes
    event_us: Codes

    def __len__(self) -> int:
        return len(self.high)

    def taken(self, places: Codes | Flags | slice) -> RecordHashes:
        return RecordHashes(self.high[places], self.low[places], self.event_us[places])

    @staticmethod
    def joined(parts: Sequence[RecordHashes]) -> RecordHashes:
        nothing = np.zeros(0, np.int64)
        columns = zip(*(vars(one).values() for one in [RecordHashes(nothing, nothing, nothing), *parts]), strict=True)
        return RecordHashes(*(np.concatenate(column) for column in columns))

    def in_order(self) -> RecordHashes:
        return self.taken(np.lexsort((self.event_us, self.low, self.high)))

    def begins(self) -> Flags:
        """Return a mask of the rows that begin another hash. The rows must be in the order of their hashes."""
        found = np.ones(len(self), np.bool_)
        found[1:] = (self.high[1:] != self.high[:-1]) | (self.low[1:] != self.low[:-1])
        return found

    def packed(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict(vars(self))

    @staticmethod
    def unpacked(batch: pa.RecordBatch) -> RecordHashes:
        """Return packed rows. The batch can have more columns."""
        return RecordHashes(
            *(batch.column(name).to_numpy(zero_copy_only=False) for name in ("high", "low", "event_us"))
        )


@dataclass(frozen=True)
class Segment:
    """Records in the order of their first hashes."""

    count: int
    newest_us: int
    span: int
    """Span of event time of its last record."""
    seen: RecordHashes | None
    """Rows of the segment. None if they aren't read yet."""
    name: str | None = None
    """Name in the store. None if the segment is in the state."""

    @staticmethod
    def of(seen: RecordHashes, span: int) -> Segment:
        return Segment(len(seen), int(seen.event_us.max()), span, seen)

    @property
    def rows(self) -> RecordHashes:
        assert self.seen is not None, "read before it is used"
        return self.seen

    def rows_of(self, highs: Codes) -> RecordHashes:
        """Return the rows that have one of these hashes, which ascend."""
        own = self.rows.high
        firsts = np.searchsorted(own, highs)
        is_here = own[np.minimum(firsts, len(own) - 1)] == highs
        if not is_here.any():
            return self.rows.taken(slice(0, 0))
        firsts, ends = firsts[is_here], np.searchsorted(own, highs[is_here], "right")
        return self.rows.taken(ranges(firsts, ends - firsts))

    def merged(self, newer: Segment, forgotten_us: int | None) -> Segment | None:
        """Return one segment of both, without forgotten records. None if it would be empty."""
        older, added = (_after(one.rows, forgotten_us) for one in (self, newer))
        places = np.searchsorted(older.high, added.high, "right")
        columns = zip(vars(older).values(), vars(added).values(), strict=True)
        both = RecordHashes(*(np.insert(old, places, new) for old, new in columns))
        return Segment.of(both, newer.span) if len(both) else None


@dataclass(frozen=True)
class DedupeState:
    """The state of one `dedupe`, and the names of unused segments with the number of steps since they were used."""

    segments: tuple[Segment, ...] = ()
    """Segments in the order in which they were added."""
    unused: Unused = ()

    def packed(self) -> list[pa.RecordBatch]:
        """Return the two batches of a state: an index, and the rows in the state."""
        rows = [(one.count, one.newest_us, one.span, one.name, None) for one in self.segments]
        index = batch_of([*rows, *((None, None, None, name, steps) for name, steps in self.unused)], _INDEX)
        return [index, RecordHashes.joined([one.rows for one in self.segments if one.name is None]).packed()]

    @staticmethod
    def unpacked(index: pa.RecordBatch, inline: pa.RecordBatch) -> DedupeState:
        """Return a packed state. Segments in the store aren't read yet."""
        segments, unused, rows, first = list[Segment](), list[tuple[str, int]](), RecordHashes.unpacked(inline), 0
        for count, newest_us, span, name, steps in zip(*(one.to_pylist() for one in index.columns), strict=True):
            if steps is not None:
                unused.append((name, steps))
                continue
            seen = None if name is not None else rows.taken(slice(first, first + count))
            first += count if name is None else 0
            segments.append(Segment(count, newest_us, span, seen, name))
        return DedupeState(tuple(segments), tuple(unused))

    def read(self, store: SegmentStore | None) -> DedupeState:
        """Return the state with the segments in the store. Raises StrandlineError."""
        names = [one.name for one in self.segments if one.name is not None]
        if not names:
            return self
        assert store is not None, "the state has segments in a store"
        blobs = dict(zip(names, store.read(names), strict=True))
        read = [
            one if one.name is None else replace(one, seen=RecordHashes.unpacked(unpack(blobs[one.name])[0]))
            for one in self.segments
        ]
        return replace(self, segments=tuple(read))

    def of_values(self, highs: Codes, forgotten_us: int | None) -> RecordHashes:
        """Return the kept records of these values that aren't forgotten, in their order. `highs`: first hashes, ascending."""
        return _after(RecordHashes.joined([one.rows_of(highs) for one in self.segments]), forgotten_us).in_order()

    def with_rows(self, new: RecordHashes, span: int, forgotten_us: int | None) -> DedupeState:
        """Return the state with these rows, which are in order and new, and without forgotten records."""
        segments = [one for one in self.segments if forgotten_us is None or one.newest_us > forgotten_us]
        new = _after(new, forgotten_us)
        if len(new):
            segments.append(Segment.of(new, span))
        at = len(segments) - 1
        while at > 0:
            if _are_merged(segments[at - 1], segments[at], span):
                merged = segments[at - 1].merged(segments[at], forgotten_us)
                segments[at - 1 : at + 1] = [] if merged is None else [merged]
                at = min(at, len(segments) - 1)
            else:
                at -= 1
        return replace(self, segments=tuple(segments))

    def kept(self, before: DedupeState, store: SegmentStore | None) -> DedupeState:
        """Return the state with large segments in the store. Remove segments from the store that weren't used for long enough."""
        if store is None:
            return self
        segments = [
            replace(one, name=store.add(pack([one.rows.packed()])))
            if one.name is None and one.count > INLINE_ROWS_MAX
            else one
            for one in self.segments
        ]
        used = {one.name for one in segments if one.name is not None}
        names = [one.name for one in before.segments if one.name is not None]
        return DedupeState(tuple(segments), unused_after(before.unused, names, used, store))


def _are_merged(older: Segment, newer: Segment, span: int) -> bool:
    """Return True if neighbouring segments are merged. `span`: current span."""
    if max(older.span, span - _SPANS_APART) != max(newer.span, span - _SPANS_APART):
        return False
    return older.count < 2 * newer.count or older.span == newer.span < span


def _after(seen: RecordHashes, time_us: int | None) -> RecordHashes:
    if time_us is None or not len(seen) or int(seen.event_us.min()) > time_us:
        return seen
    return seen.taken(seen.event_us > time_us)
