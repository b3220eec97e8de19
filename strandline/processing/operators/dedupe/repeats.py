"""The dedupe operator: (state, rows, what is forgotten) -> (state, which rows are repeats), on columns and without Spark.

Two records are *the same* when the columns of the step's `by` are equal, they are in one partition, and their event times are
less than the horizon apart. A record is a *repeat* when one that is the same stands before it in the log. So whether it is
follows from two records alone: from no slice, no bucket, and from no record farther away than the horizon. A record that has no
value in one of the columns is the same as none, and doesn't come here.

Contracts:
- Order. Rows of one partition come in their order in the log: by offset, then by element. Partitions may alternate.
- State. A row for each record that may have repeats yet: a hash of partition and values, and the event time; those that are equal
  once. They lie in segments (`remembered.py`); how they are cut into these depends on the slices, and nothing else does. A repeat
  counts as a record, too, so it may have repeats of its own.
- Rewind. What decides about a record with event time t is later than t less the horizon.
- Late rows. The caller has left them out: so what is older than the watermark less the horizon can be forgotten.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from strandline.processing.columns.codes import Codes
from strandline.processing.columns.values import hashes
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.dedupe.remembered import SPANS, Flags, Remembered, Seen
from strandline.processing.operators.segments import SegmentStore
from strandline.processing.pipelines.row_step import DuplicateFilter

_SEEDS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
"""Of two hashes of 63 bits. Together they tell values apart: among a thousand million that are kept at once two would have the
same with a probability of 1 : 10**20."""
REMEMBERED_BYTES = 24
"""What the state keeps of a record."""
_FACTOR = np.uint64(0x9FB21C651E98DF25)
_POSITIVE = np.uint64((1 << 63) - 1)


def seen_of(dedupe: DuplicateFilter, partition: int, columns: Mapping[str, pa.Array], event_us: Codes) -> Seen:
    """Records of one partition as a `dedupe` compares them. None of the values may be null."""
    found = []
    for seed in _SEEDS:
        mixed = np.full(len(event_us), partition + 1, np.uint64)
        for name in dedupe.by:
            one = hashes(columns[name], seed).to_numpy(zero_copy_only=False).view(np.uint64)
            mixed = (mixed ^ one) * _FACTOR
            mixed ^= mixed >> np.uint64(29)
        found.append((mixed & _POSITIVE).view(np.int64))
    return Seen(found[0], found[1], event_us)


class RepeatsOperator:
    """One `dedupe`. Holds what is fixed; all that changes is passed in and out."""

    def __init__(self, dedupe: DuplicateFilter) -> None:
        self.dedupe = dedupe
        self._within_us = dedupe.within_ms * 1000

    def step(
        self, state: Remembered, rows: Seen, closing: Closing, store: SegmentStore | None = None
    ) -> tuple[Remembered, Flags]:
        """What is remembered after these rows, and which of them are repeats. `closing`: no row that is still to come is older
        than `up_to_ms`, and none of these is older than `after_ms`. `store`: where large segments lie; None: in the state.

        1. Put the rows in the order of their values, and find what the state knows of these values.
        2. Where all times of a value are close together, all are repeats of the first one: so it is nearly everywhere.
        3. Judge the others row by row.
        4. Remember the rows, and forget what nothing can repeat any more.

        Raises StrandlineError.
        """
        before = state.read(store)
        up_to_ms = closing.after_ms if closing.up_to_ms is None else closing.up_to_ms
        span = 0 if up_to_ms is None else up_to_ms * 1000 // max(1, self._within_us // SPANS)
        new, repeats = self._repeats(before, rows, self._forgotten_us(closing.after_ms))
        after = before.with_rows(new, span, self._forgotten_us(up_to_ms))
        return after.kept(before, store), repeats

    def _repeats(self, remembered: Remembered, rows: Seen, forgotten_us: int | None) -> tuple[Seen, Flags]:
        """What is to be remembered of these rows that isn't yet, in order, and which are repeats."""
        if not len(rows):
            return rows, np.zeros(0, np.bool_)
        by_value = np.lexsort((np.arange(len(rows)), rows.low, rows.high))
        ordered = rows.taken(by_value)
        firsts = np.flatnonzero(ordered.begins())
        state = remembered.of_values(np.unique(ordered.high[firsts]), forgotten_us)
        known = _Known.of(state, ordered.taken(firsts))
        counts = np.diff(np.append(firsts, len(rows)))
        oldest = np.minimum(np.minimum.reduceat(ordered.event_us, firsts), known.oldest_us)
        newest = np.maximum(np.maximum.reduceat(ordered.event_us, firsts), known.newest_us)
        found = np.ones(len(rows), np.bool_)
        found[firsts] = known.ends > known.begins
        for at in np.flatnonzero(newest - oldest >= self._within_us).tolist():
            here = slice(int(firsts[at]), int(firsts[at] + counts[at]))
            before = state.taken(np.arange(known.begins[at], known.ends[at]))
            of_value = before.event_us[before.low == ordered.low[firsts[at]]]
            found[here] = self._judged(of_value.tolist(), ordered.event_us[here].tolist())
        repeats = np.empty(len(rows), np.bool_)
        repeats[by_value] = found
        return _new(state, ordered), repeats

    def _judged(self, before: list[int], here: list[int]) -> list[bool]:
        """Which of these rows of one value, in the order of the log, are repeats. `before`: the times that are remembered of it,
        ascending."""
        found = []
        for time_us in here:
            place = bisect_left(before, time_us)
            nearest = before[max(0, place - 1) : place + 1]
            found.append(any(abs(time_us - one) < self._within_us for one in nearest))
            before.insert(place, time_us)
        return found

    def _forgotten_us(self, up_to_ms: int | None) -> int | None:
        """What isn't later than this, no row can repeat that isn't older than `up_to_ms`."""
        return None if up_to_ms is None else up_to_ms * 1000 - self._within_us


@dataclass(frozen=True)
class _Known:
    """For each value, ascending, where the state has rows that may be of it, and their least and greatest time."""

    begins: Codes
    ends: Codes
    oldest_us: Codes
    newest_us: Codes

    @staticmethod
    def of(state: Seen, values: Seen) -> _Known:
        """Of two values whose first hashes are equal, which is next to never, the times are so far apart that each row is looked
        at."""
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


def _new(state: Seen, rows: Seen) -> Seen:
    """The rows that the state doesn't have with the same time, each once, in order."""
    both = Seen.joined([state, rows])
    is_row = np.arange(len(both)) >= len(state)
    order = np.lexsort((is_row, both.event_us, both.low, both.high))
    both, is_row = both.taken(order), is_row[order]
    is_first = both.begins()
    is_first[1:] |= both.event_us[1:] != both.event_us[:-1]
    return both.taken(is_first & is_row)
