"""The dedupe operator: (state, rows, what is forgotten) -> (state, which rows are repeats), on columns and without Spark.

Two records are *the same* when the columns of the step's `by` are equal, they are in one partition, and their event times are
less than the horizon apart. A record is a *repeat* when one that is the same stands before it in the log. So whether it is
follows from two records alone: from no slice, no bucket, and from no record further away than the horizon. A record that has no
value in one of the columns is the same as none, and doesn't come here.

Contracts:
- Order. Rows of one partition come in their order in the log: by offset, then by element. Partitions may alternate.
- State. A row for each record that may have repeats yet: a hash of partition and values, and the event time; those that are equal
  once. It stands in the order of these. A repeat counts as a record, too, so it may have repeats of its own.
- Rewind. What decides about a record with event time t is later than t less the horizon.
- Late rows. The caller has left them out: so what is older than the watermark less the horizon can be forgotten.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.processing.operators.aggregation.values import hashes
from strandline.processing.operators.keys import Codes
from strandline.processing.pipelines.stages import Dedupe

Flags = npt.NDArray[np.bool_]
_SEEDS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
"""Of two hashes of 63 bits. Together they tell values apart: among a thousand million that are kept at once two would have the
same with a probability of 1 : 10**20."""
REMEMBERED_BYTES = 24
"""What the state keeps of a record."""
_FACTOR = np.uint64(0x9FB21C651E98DF25)
_POSITIVE = np.uint64((1 << 63) - 1)


@dataclass(frozen=True)
class Seen:
    """Records that came to a `dedupe`, or that it remembers."""

    high: Codes
    low: Codes
    event_us: Codes

    def __len__(self) -> int:
        return len(self.high)

    def taken(self, places: Codes | Flags) -> Seen:
        return Seen(self.high[places], self.low[places], self.event_us[places])

    @staticmethod
    def joined(parts: Sequence[Seen]) -> Seen:
        nothing = np.zeros(0, np.int64)
        columns = zip(*(vars(one).values() for one in [Seen(nothing, nothing, nothing), *parts]), strict=True)
        return Seen(*(np.concatenate(column) for column in columns))

    def in_order(self) -> Seen:
        return self.taken(np.lexsort((self.event_us, self.low, self.high)))

    def begins(self) -> Flags:
        """Of rows that stand in the order of their hashes: where other ones begin."""
        found = np.ones(len(self), np.bool_)
        found[1:] = (self.high[1:] != self.high[:-1]) | (self.low[1:] != self.low[:-1])
        return found


def seen_of(dedupe: Dedupe, partition: int, columns: Mapping[str, pa.Array], event_us: Codes) -> Seen:
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

    def __init__(self, dedupe: Dedupe) -> None:
        self.dedupe = dedupe
        self._within_us = dedupe.within_ms * 1000

    def step(self, state: Seen, rows: Seen, up_to_ms: int | None) -> tuple[Seen, Flags]:
        """What is remembered after these rows, and which of them are repeats. `up_to_ms`: no row that is still to come is older;
        None: it isn't known.

        1. Put the rows in the order of their values, and find what the state knows of each value.
        2. Where all times of a value are close together, all are repeats of the first one: so it is nearly everywhere.
        3. Judge the others row by row.
        4. Remember the rows, and forget what nothing can repeat any more.
        """
        if not len(rows):
            return self._without_forgotten(state, up_to_ms), np.zeros(0, np.bool_)
        by_value = np.lexsort((np.arange(len(rows)), rows.low, rows.high))
        ordered = rows.taken(by_value)
        firsts = np.flatnonzero(ordered.begins())
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
        return self._without_forgotten(_remembered(state, ordered, known), up_to_ms), repeats

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

    def _without_forgotten(self, state: Seen, up_to_ms: int | None) -> Seen:
        if up_to_ms is None:
            return state
        return state.taken(state.event_us > up_to_ms * 1000 - self._within_us)


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


def _remembered(state: Seen, rows: Seen, known: _Known) -> Seen:
    """The state with these rows, which stand in the order of their values. Where a value is known, all its times are put in
    order; other rows go to their place."""
    marks = np.zeros(len(state) + 1, np.int64)
    np.add.at(marks, known.begins, 1)
    np.subtract.at(marks, known.ends, 1)
    together = np.cumsum(marks)[:-1] > 0
    more = Seen.joined([state.taken(together), rows]).in_order()
    is_new = more.begins()
    is_new[1:] |= more.event_us[1:] != more.event_us[:-1]
    more, rest = more.taken(is_new), state.taken(~together)
    places = np.searchsorted(rest.high, more.high)
    columns = zip(vars(rest).values(), vars(more).values(), strict=True)
    return Seen(*(np.insert(old, places, new) for old, new in columns))
