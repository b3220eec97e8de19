"""The dedupe operator: (state, rows, closing) -> (state, mask of the duplicates), on columns and without Spark.

Two records are *equal* if the columns of the step's `by` are equal, they are in one partition, and their event times are less
than the horizon apart. A record is a *duplicate* if an equal one is before it in the log. So this depends on two records only.
It doesn't depend on slices, buckets, or records farther away in time than the horizon. A record without a value in one of the
columns equals no other record, and isn't passed to the operator.

Contracts:
- Order. Rows of one partition are in log order: by offset, then by element. Rows of several partitions can be mixed.
- State. One row for each record that can have duplicates later: a hash of partition and values, and the event time. Equal rows
  occur once. The rows are in segments (`state.py`). Only the division into segments depends on the slices. A duplicate
  counts as a record, so it can have duplicates too.
- Rewind. The records that determine a record with event time t are later than t minus the horizon.
- Late rows. The caller has left them out, so records older than the watermark minus the horizon can be forgotten.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from strandline.processing.columns.codes import Codes
from strandline.processing.columns.values import hashes, numpy_of
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.dedupe.dedupe_state import SPANS, DedupeState, Flags, RecordHashes
from strandline.processing.operators.row_hashes import SEEDS, mixed, positive
from strandline.processing.operators.segments import SegmentStore
from strandline.processing.pipelines.row_step import DuplicateFilter

REMEMBERED_BYTES = 24
"""Size in bytes of a record in the state."""


def record_hashes(
    dedupe: DuplicateFilter, partition: int, columns: Mapping[str, pa.Array], event_us: Codes
) -> RecordHashes:
    """Return records of one partition in the form in which a `dedupe` compares them. No value may be null."""
    found = []
    for seed in SEEDS:
        state = np.full(len(event_us), partition + 1, np.uint64)
        for name in dedupe.by:
            state = mixed(state, numpy_of(hashes(columns[name], seed)))
        found.append(positive(state))
    return RecordHashes(found[0], found[1], event_us)


class DuplicatesOperator:
    """One `dedupe`. Contains only constants; state and rows are arguments and results."""

    def __init__(self, dedupe: DuplicateFilter) -> None:
        self.dedupe = dedupe
        self._within_us = dedupe.within_ms * 1000

    def step(
        self, state: DedupeState, rows: RecordHashes, closing: Closing, store: SegmentStore | None = None
    ) -> tuple[DedupeState, Flags]:
        """Return the state after these rows, and a mask of the duplicates.

        1. Sort the rows by their values, and find the state's records with these values.
        2. If all times of a value are close together, which is usual, all rows are duplicates of the first one.
        3. Check the other rows one by one.
        4. Add the rows to the state, and forget records that can't have duplicates any more.

        `closing`: no later row is older than `up_to_ms`, and none of these rows is older than `after_ms`. `store`: store for
        large segments. None if all are in the state.

        Raises StrandlineError.
        """
        before = state.read(store)
        up_to_ms = closing.after_ms if closing.up_to_ms is None else closing.up_to_ms
        span = 0 if up_to_ms is None else up_to_ms * 1000 // max(1, self._within_us // SPANS)
        new, duplicates = self._duplicates(before, rows, self._forgotten_us(closing.after_ms))
        after = before.with_rows(new, span, self._forgotten_us(up_to_ms))
        return after.kept(before, store), duplicates

    def _duplicates(
        self, state: DedupeState, rows: RecordHashes, forgotten_us: int | None
    ) -> tuple[RecordHashes, Flags]:
        """Return the rows that must be added to the state, in order, and a mask of the duplicates."""
        if not len(rows):
            return rows, np.zeros(0, np.bool_)
        by_value = np.lexsort((np.arange(len(rows)), rows.low, rows.high))
        ordered = rows.taken(by_value)
        firsts = np.flatnonzero(ordered.begins())
        old = state.of_values(np.unique(ordered.high[firsts]), forgotten_us)
        known = _Known.of(old, ordered.taken(firsts))
        counts = np.diff(np.append(firsts, len(rows)))
        oldest = np.minimum(np.minimum.reduceat(ordered.event_us, firsts), known.oldest_us)
        newest = np.maximum(np.maximum.reduceat(ordered.event_us, firsts), known.newest_us)
        found = np.ones(len(rows), np.bool_)
        found[firsts] = known.ends > known.begins
        for at in np.flatnonzero(newest - oldest >= self._within_us).tolist():
            here = slice(int(firsts[at]), int(firsts[at] + counts[at]))
            before = old.taken(np.arange(known.begins[at], known.ends[at]))
            of_value = before.event_us[before.low == ordered.low[firsts[at]]]
            found[here] = self._flags(of_value.tolist(), ordered.event_us[here].tolist())
        duplicates = np.empty(len(rows), np.bool_)
        duplicates[by_value] = found
        return _new(old, ordered), duplicates

    def _flags(self, before: list[int], here: list[int]) -> list[bool]:
        """Return the duplicates among these rows of one value, in log order. `before`: event times of the value in the state,
        ascending."""
        found = []
        for time_us in here:
            place = bisect_left(before, time_us)
            nearest = before[max(0, place - 1) : place + 1]
            found.append(any(abs(time_us - one) < self._within_us for one in nearest))
            before.insert(place, time_us)
        return found

    def _forgotten_us(self, up_to_ms: int | None) -> int | None:
        """Return the time at or before which no record can have a duplicate that isn't older than `up_to_ms`."""
        return None if up_to_ms is None else up_to_ms * 1000 - self._within_us


@dataclass(frozen=True)
class _Known:
    """For each value, ascending, the range of rows in the state that can have it, and their earliest and latest time."""

    begins: Codes
    ends: Codes
    oldest_us: Codes
    newest_us: Codes

    @staticmethod
    def of(state: RecordHashes, values: RecordHashes) -> _Known:
        """Find the values in the state. If two values have equal first hashes, which almost never happens, the times are set so
        far apart that each row is checked."""
        begins = np.searchsorted(state.high, values.high, "left")
        ends = np.searchsorted(state.high, values.high, "right")
        never = np.iinfo(np.int64).max >> 1
        oldest, newest = np.full(len(values), never), np.full(len(values), -never)
        at = np.flatnonzero(ends > begins)
        first, last = begins[at], ends[at] - 1
        is_one = (state.low[first] == values.low[at]) & (state.low[last] == values.low[at])
        oldest[at] = np.where(is_one, state.event_us[first], -never)
        newest[at] = np.where(is_one, state.event_us[last], never)
        return _Known(begins, ends, oldest, newest)


def _new(state: RecordHashes, rows: RecordHashes) -> RecordHashes:
    """Return the rows that the state doesn't contain with the same time, each once, in order."""
    both = RecordHashes.joined([state, rows])
    is_row = np.arange(len(both)) >= len(state)
    order = np.lexsort((is_row, both.event_us, both.low, both.high))
    both, is_row = both.taken(order), is_row[order]
    is_first = both.begins()
    is_first[1:] |= both.event_us[1:] != both.event_us[:-1]
    return both.taken(is_first & is_row)
