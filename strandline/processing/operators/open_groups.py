"""The open groups of one window stage: recent ones in the state, and the others in segments next to it. Pure.

A group is the partial result of one *place*: a (pane, key, partition). The window operator works on a state that it reads and
returns as a whole, so a step would cost as much as all open groups together. Here a large state is kept in two parts:

- *Recent* groups, a small state of the operator. A step first takes the groups that its rows change from the segments into this
  part. From then on the copy in a segment is out of date.
- *Segments*, which never change. Each contains groups in the order of their panes, and within a pane in the order of a hash of
  their place. When there are many recent groups, they become a new segment. `FANOUT` segments of about the same size become one.

So a step costs what its rows and the windows that it closes need. A group is written again when the segment that contains it
becomes `FANOUT` times larger (the size-tiered compaction of log-structured merge trees).

The results are the same bits as those of the operator on one state: it folds the same rows into the same partial results, in the
same order. It also merges the same groups of a window.

Some stages keep their state in one part: windows made by records, joins, and stages that revise results. The panes of new rows
don't determine which groups of the state they need.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.processing.columns.codes import Codes
from strandline.processing.columns.values import hashes, numpy_of
from strandline.processing.operators.blobs import pack, unpack
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.keys import merge_keys
from strandline.processing.operators.row_hashes import SEEDS, mixed, positive
from strandline.processing.operators.segments import SegmentStore, Unused, unused_after
from strandline.processing.operators.windows import ClosedWindows, Rows, WindowOperator, WindowState

RECENT_ROWS_MAX = 4_096
"""More recent groups become a segment. They cross Spark's state store with every slice."""
FANOUT = 4
"""Number of segments of about the same size that become one."""
_SEGMENT_BYTES_MAX = 1 << 30
"""Segments aren't merged into larger ones. Arrow's arrays of strings have no room for 2 GiB."""
_LARGE_STEP = 4
"""Segments don't pay where one step brings more than a quarter of all open groups: then the state stays in one part."""
STATE_BYTES_MAX = 32 * 1024 * 1024
"""A larger state becomes a segment nevertheless. Spark's state store has several copies of it in the heap of the JVM."""

_KNOWN_MAX = 64
"""Number of segments of a stage that a process keeps open. The space of a removed file is free when the file is closed."""

_PANE, _HIGH, _LOW, _PARTITION, _FIRST_KEY = range(5)
"""Columns of a segment."""
_METADATA = b"segments"
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class GroupHashes:
    """Distinct places, as the hashes of pane, key and partition, in the order of the first hash."""

    high: Codes
    low: Codes

    def with_new(self, high: Codes, low: Codes) -> GroupHashes:
        """Return these places and new ones, which ascend."""
        at = np.searchsorted(self.high, high)
        return GroupHashes(np.insert(self.high, at, high), np.insert(self.low, at, low))

    def holds(self, high: Codes, low: Codes) -> Flags:
        """Return a mask of the places with these hashes: True for each that is one of `self`."""
        return _found(self.high, self.low, high, low) >= 0


_NO_HASHES = GroupHashes(np.zeros(0, np.int64), np.zeros(0, np.int64))


class SegmentHeading(msgspec.Struct, frozen=True, array_like=True):
    """Heading of one segment in a state."""

    name: str
    rows: int
    first_pane: int
    last_pane: int


class _Heading(msgspec.Struct, frozen=True, array_like=True):
    segments: tuple[SegmentHeading, ...]
    unused: Unused


@dataclass(frozen=True)
class Segment:
    """A segment that was read."""

    heading: SegmentHeading
    batch: pa.RecordBatch

    @cached_property
    def panes(self) -> Codes:
        return numpy_of(self.batch.column(_PANE))

    @cached_property
    def high(self) -> Codes:
        return numpy_of(self.batch.column(_HIGH))

    @cached_property
    def low(self) -> Codes:
        return numpy_of(self.batch.column(_LOW))

    def in_panes(self, first: int | None, end: int) -> slice:
        """Return the rows with the groups from pane `first` (None: from the oldest) to before pane `end`."""
        begins = 0 if first is None else int(np.searchsorted(self.panes, first))
        return slice(begins, int(np.searchsorted(self.panes, end)))

    def rows_at(self, panes: Codes, high: Codes, low: Codes) -> Codes:
        """Return the row of each place's group; -1 if the segment has none. `high`, `low`: hashes of the places."""
        first, last = self.heading.first_pane, self.heading.last_pane
        if first == last and (panes == first).all():
            return _found(self.high, self.low, high, low)
        rows = np.full(len(high), -1, np.int64)
        for pane in np.unique(panes).tolist():
            here = self.in_panes(pane, pane + 1)
            selected = np.flatnonzero(panes == pane)
            found = _found(self.high[here], self.low[here], high[selected], low[selected])
            rows[selected] = np.where(found < 0, -1, found + here.start)
        return rows


@dataclass(frozen=True)
class OpenGroups:
    """All open groups of one stage in one bucket."""

    recent: WindowState
    headings: tuple[SegmentHeading, ...] = ()
    """Headings of the segments, oldest first."""
    hashes: GroupHashes = _NO_HASHES
    """Places that belong to the recent groups, even if they have no group now. Groups of these places in segments are
    outdated."""
    unused: Unused = ()

    def packed(self) -> list[pa.RecordBatch]:
        """Return the open groups as batches of a state, for `unpacked`."""
        batches = [self.recent.keys, self.recent.groups]
        if self.headings or self.unused:
            heading = msgspec.msgpack.encode(_Heading(self.headings, self.unused))
            batches[1] = self.recent.groups.replace_schema_metadata({_METADATA: heading})
            batches.append(
                pa.RecordBatch.from_arrays([pa.array(self.hashes.high), pa.array(self.hashes.low)], ["high", "low"])
            )
        return batches

    @staticmethod
    def unpacked(batches: Iterator[pa.RecordBatch]) -> OpenGroups:
        """Return the open groups from the next batches of a state, as `packed` returned them."""
        keys, groups = next(batches), next(batches)
        metadata = (groups.schema.metadata or {}).get(_METADATA)
        if metadata is None:
            return OpenGroups(WindowState(keys, groups))
        places, heading = next(batches), _HEADINGS.decode(metadata)
        recent = WindowState(keys, groups.replace_schema_metadata(None))
        return OpenGroups(
            recent,
            heading.segments,
            GroupHashes(numpy_of(places.column(0)), numpy_of(places.column(1))),
            heading.unused,
        )


_HEADINGS = msgspec.msgpack.Decoder(_Heading)


class OpenGroupsOperator:
    """The operator of one window stage on its open groups. Contains only constants; the groups are arguments and results."""

    def __init__(self, operator: WindowOperator) -> None:
        self.operator = operator
        self._is_segmented = (
            type(operator).step_in_part is WindowOperator.step_in_part
            and bool(operator.stage.by)
            and not operator.stage.revise_ms
        )
        self._known: dict[str, Segment] = {}
        """Segments that were read last, by their names; the last one read is the last here."""
        self._key_end = _FIRST_KEY + len(operator.key_schema)
        partials = list(operator.state_schema)[len(operator.key_columns) :]
        self._schema = pa.schema(
            [
                *((name, pa.int64()) for name in ("pane", "high", "low")),
                ("partition", pa.int32()),
                *(pa.field(f"key_{at}", one.type) for at, one in enumerate(operator.key_schema)),
                *partials,
            ]
        )

    def read(self, groups: OpenGroups, store: SegmentStore | None) -> list[Segment]:
        """Return the segments, oldest first. Raises StrandlineError if one isn't in the store as it was added."""
        headings, known = groups.headings, self._known
        if all(one.name in known for one in headings):
            segments = [known[one.name] for one in headings]
        else:
            assert store is not None, "a state with segments has a store"
            blobs = store.read([one.name for one in headings])
            segments = [
                known.get(one.name) or Segment(one, unpack(blob)[0]) for one, blob in zip(headings, blobs, strict=True)
            ]
        for one in segments:
            known.pop(one.heading.name, None)
            known[one.heading.name] = one
        while len(known) > max(_KNOWN_MAX, len(segments)):
            del known[next(iter(known))]
        return segments

    def step(
        self, groups: OpenGroups, rows: Sequence[Rows], closing: Closing, store: SegmentStore | None
    ) -> tuple[OpenGroups, list[ClosedWindows]]:
        """Fold new rows in, and return the windows that become final. See `WindowOperator.step_in_part`.

        `store`: store of the segments. None: all groups stay in the state.

        1. Take the groups that the rows change from the segments, and fold the rows into them.
        2. Collect the groups of the windows that close, and close these windows.
        3. Leave out the panes that no window needs any more.
        4. Make a segment of the recent groups if there are many, and merge segments.

        Raises StrandlineError if a segment isn't in its store.
        """
        if store is None or not self._is_segmented:
            recent, closed = self.operator.step_in_part(groups.recent, rows, closing)
            return OpenGroups(recent), closed
        segments = self.read(groups, store)
        if segments:
            after, closed = self._step(groups, segments, rows, closing)
            rows_max = RECENT_ROWS_MAX
        else:
            recent, closed = self.operator.step_in_part(groups.recent, rows, closing)
            after = OpenGroups(recent)
            rows_max = max(RECENT_ROWS_MAX, _LARGE_STEP * sum(len(one.panes) for one in rows))
        if after.recent.groups.num_rows > rows_max or after.recent.nbytes > STATE_BYTES_MAX:
            needed = {one.name for one in after.headings}
            after = self._compacted(after, [one for one in segments if one.heading.name in needed], store)
        used = {one.name for one in after.headings}
        unused = unused_after(groups.unused, [one.name for one in groups.headings], used, store)
        return replace(after, unused=unused), closed

    def open_windows(
        self, groups: OpenGroups, segments: Sequence[Segment], closed_ms: int | None, rows_max: int
    ) -> list[ClosedWindows]:
        """Return the windows that are open. See `WindowOperator.open_windows`. `segments`: result of `read`."""
        operator = self.operator
        if not segments:
            return operator.open_windows(groups.recent, closed_ms, rows_max)
        first = None if closed_ms is None else operator.oldest_pane_needed(closed_ms)
        recent_panes = numpy_of(groups.recent.groups.column(0))
        last = _last_pane([recent_panes, *(one.panes for one in segments)], first, rows_max)
        if last is None:
            return []
        until_ms = operator.open_until_ms(last)
        held = self._in_panes(groups, segments, first, operator.pane_at(until_ms))
        return operator.first_windows(held, Closing(closed_ms, until_ms), rows_max)

    def _step(
        self, groups: OpenGroups, segments: Sequence[Segment], rows: Sequence[Rows], closing: Closing
    ) -> tuple[OpenGroups, list[ClosedWindows]]:
        operator = self.operator
        panes, high, low = self._new_hashes(groups.hashes, rows)
        recent = self._with_groups(groups.recent, _newest(segments, panes, high, low))
        recent, _ = operator.step_in_part(recent, rows, Closing(None, None))
        places = groups.hashes.with_new(high, low)
        after = replace(groups, recent=recent, hashes=places)
        if closing.up_to_ms is None:
            return after, []
        closed: list[ClosedWindows] = []
        if closing.gives_results:
            held = self._in_panes(after, segments, *operator.panes_closing(closing))
            closed = list(operator.closed_windows(held, closing))
        oldest = operator.oldest_pane_needed(closing.up_to_ms)
        headings = tuple(one for one in groups.headings if one.last_pane >= oldest)
        recent = operator.without_panes_before(recent, oldest)
        return OpenGroups(recent, headings, places if headings else _NO_HASHES), closed

    def _new_hashes(self, known: GroupHashes, rows: Sequence[Rows]) -> tuple[Codes, Codes, Codes]:
        """Return the distinct places of the rows that aren't known: their panes, and both hashes."""
        parts = []
        for one in rows:
            partitions = np.broadcast_to(np.asarray(one.partition, np.int64), len(one.panes))
            parts.append((one.panes, *self._hashed(one.key_table, one.keys, one.panes, partitions)))
        nothing = np.zeros(0, np.int64)
        panes, high, low = (np.concatenate(column) for column in zip((nothing,) * 3, *parts, strict=True))
        order, is_last = _in_order(high, low)
        firsts = order[is_last]
        firsts = firsts[~known.holds(high[firsts], low[firsts])]
        return panes[firsts], high[firsts], low[firsts]

    def _hashed(self, keys: pa.RecordBatch, numbers: Codes, panes: Codes, partitions: Codes) -> tuple[Codes, Codes]:
        """Return both hashes of each place. `numbers`: of its key in `keys`."""
        found = []
        for seed in SEEDS:
            state = np.full(keys.num_rows, seed, np.uint64)
            for column in keys.columns:
                one = hashes(column, seed)
                state = mixed(state, numpy_of(one.fill_null(-1) if one.null_count else one))
            found.append(positive(mixed(mixed(state[numbers], panes), partitions)))
        return found[0], found[1]

    def _with_groups(self, state: WindowState, added: pa.RecordBatch | None) -> WindowState:
        """Return the state with groups from segments whose places it doesn't have."""
        if added is None:
            return state
        keys = pa.RecordBatch.from_arrays(added.columns[_FIRST_KEY : self._key_end], schema=self.operator.key_schema)
        numbers = state.keys.num_rows + np.arange(added.num_rows)
        columns = [added.column(_PANE), pa.array(numbers), added.column(_PARTITION), *added.columns[self._key_end :]]
        groups = pa.RecordBatch.from_arrays(columns, schema=self.operator.state_schema)
        return WindowState(pa.concat_batches([state.keys, keys]), pa.concat_batches([state.groups, groups]))

    def _in_panes(self, groups: OpenGroups, segments: Sequence[Segment], first: int | None, end: int) -> WindowState:
        """Return the groups of these panes as one state, in the order of the panes."""
        panes = numpy_of(groups.recent.groups.column(0))
        begins = 0 if first is None else int(np.searchsorted(panes, first))
        rows = groups.recent.groups.slice(begins, max(0, int(np.searchsorted(panes, end)) - begins))
        of_segments = [one.batch[one.in_panes(first, end)] for one in segments if first is None or first < end]
        merged = _merged([one for one in of_segments if one.num_rows])
        if merged is None:
            return WindowState(groups.recent.keys, rows)
        is_current = ~groups.hashes.holds(numpy_of(merged.column(_HIGH)), numpy_of(merged.column(_LOW)))
        state = self._with_groups(WindowState(groups.recent.keys, rows), merged.filter(pa.array(is_current)))
        (numbers,), keys = merge_keys([state.keys], self.operator.key_schema)
        key_of_group = pa.array(numbers[numpy_of(state.groups.column(1))])
        renumbered = state.groups.set_column(1, state.groups.schema.field(1), key_of_group)
        order = np.argsort(numpy_of(renumbered.column(0)), kind="stable")
        return WindowState(keys, renumbered.take(pa.array(order)))

    def _compacted(self, groups: OpenGroups, segments: list[Segment], store: SegmentStore) -> OpenGroups:
        """Return the groups with the recent ones as a new segment, and with segments of about the same size merged.

        Merging keeps groups of closed windows. They are removed at the latest when the newest pane of their segment closes.
        """
        segments = [*segments, _unnamed(self._as_segment(groups.recent))]
        while (count := _merged_at_once(segments)) > 1:
            merged = _merged([one.batch for one in segments[-count:]])
            assert merged is not None, "no segment is empty"
            segments[-count:] = [_unnamed(merged)]
        # Only the last one is new. Segments that became part of it in this call were never stored.
        *kept, new = segments
        heading = msgspec.structs.replace(new.heading, name=store.add(pack([new.batch])))
        return OpenGroups(self.operator.empty_state(), (*(one.heading for one in kept), heading))

    def _as_segment(self, state: WindowState) -> pa.RecordBatch:
        groups = state.groups
        panes, numbers, partitions = (numpy_of(groups.column(at)) for at in range(3))
        high, low = self._hashed(state.keys, numbers, panes, partitions.astype(np.int64))
        keys = state.keys.take(groups.column(1))
        columns = [
            groups.column(0),
            pa.array(high),
            pa.array(low),
            groups.column(2),
            *keys.columns,
            *groups.columns[len(self.operator.key_columns) :],
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return batch.take(pa.array(np.lexsort((high, panes))))


def _unnamed(batch: pa.RecordBatch) -> Segment:
    """Return a segment that isn't stored yet."""
    panes = numpy_of(batch.column(_PANE))
    return Segment(SegmentHeading("", batch.num_rows, int(panes[0]), int(panes[-1])), batch)


def _merged_at_once(segments: Sequence[Segment]) -> int:
    """Return the number of the last segments that must be merged now. 1 if none must be."""
    tier = _tier(segments[-1])
    count, size = 0, 0
    for one in reversed(segments):
        size += one.batch.nbytes
        if _tier(one) > tier or size > _SEGMENT_BYTES_MAX:
            break
        count += 1
    return count if count >= FANOUT else 1


def _tier(segment: Segment) -> int:
    return max(0, int(math.log(segment.heading.rows / RECENT_ROWS_MAX, FANOUT)))


def _merged(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch | None:
    """Return the newest group of each place, in the order of a segment. `batches`: oldest segment first."""
    if not batches:
        return None
    if len(batches) == 1:
        return batches[0]
    both = pa.concat_batches(batches)
    panes, high, low = (numpy_of(both.column(at)) for at in (_PANE, _HIGH, _LOW))
    order, is_newest = _in_order(high, low, None if (panes == panes[0]).all() else panes)
    return both.take(pa.array(order[is_newest]))


def _in_order(high: Codes, low: Codes, panes: Codes | None = None) -> tuple[Codes, Flags]:
    """Return the indices of the rows in the order of a segment, and a mask of the rows that are the last of their place.

    Rows of one place keep their order. `panes`: pane of each row. None if all rows are in one pane.
    """
    order = np.argsort(high, kind="stable") if panes is None else np.lexsort((high, panes))
    is_last = _differs_from_next(high[order])
    is_last_low = _differs_from_next(low[order])
    if (is_last_low & ~is_last).any():  # the first hashes of two places are equal: next to never
        order = np.lexsort((low, high) if panes is None else (low, high, panes))
        is_last, is_last_low = _differs_from_next(high[order]), _differs_from_next(low[order])
    return order, is_last | is_last_low


def _differs_from_next(values: Codes) -> Flags:
    return np.append(values[1:] != values[:-1], np.ones(min(1, len(values)), np.bool_))


def _newest(segments: Sequence[Segment], panes: Codes, high: Codes, low: Codes) -> pa.RecordBatch | None:
    """Return the newest group of each of these places that is in a segment. None if no segment has one."""
    found = []
    for segment in reversed(segments):
        if not len(high):
            break
        rows = segment.rows_at(panes, high, low)
        is_here = rows >= 0
        if is_here.any():
            found.append(segment.batch.take(pa.array(rows[is_here])))
            panes, high, low = panes[~is_here], high[~is_here], low[~is_here]
    return pa.concat_batches(found) if found else None


def _found(sorted_high: Codes, known_low: Codes, high: Codes, low: Codes) -> Codes:
    """Return the index of each pair of hashes among the known pairs; -1 if it is none of them. `sorted_high` ascends."""
    if not len(sorted_high):
        return np.full(len(high), -1, np.int64)
    at = np.searchsorted(sorted_high, high)
    nearest = np.minimum(at, len(sorted_high) - 1)
    is_here = sorted_high[nearest] == high
    found = np.where(is_here & (known_low[nearest] == low), nearest, -1)
    pending = np.flatnonzero(is_here & (found < 0))  # the first hashes of two places are equal: next to never
    while len(pending):
        pending = pending[at[pending] < len(sorted_high)]
        pending = pending[sorted_high[at[pending]] == high[pending]]
        is_it = known_low[at[pending]] == low[pending]
        found[pending[is_it]] = at[pending[is_it]]
        pending = pending[~is_it]
        at[pending] += 1
    return found


def _last_pane(panes_of_sources: Sequence[Codes], first: int | None, rows_max: int) -> int | None:
    """Return the pane up to which the sources have about `rows_max` groups, from `first` on. None if they have none."""
    at = [0 if first is None else int(np.searchsorted(panes, first)) for panes in panes_of_sources]
    rows, last = 0, None
    while rows < rows_max:
        heads = [int(panes[place]) for panes, place in zip(panes_of_sources, at, strict=True) if place < len(panes)]
        if not heads:
            break
        last = min(heads)
        ends = [int(np.searchsorted(panes, last, "right")) for panes in panes_of_sources]
        rows += sum(max(0, end - place) for end, place in zip(ends, at, strict=True))
        at = [max(end, place) for end, place in zip(ends, at, strict=True)]
    return last
