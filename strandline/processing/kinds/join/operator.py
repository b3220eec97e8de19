"""Joins: (state, rows, closing) -> (state, results), for rows of two sides that have one key. See `operators/windows.py`.

- `IntervalJoinOperator`: a row on the left at `t` matches rows on the right from `before` before it to `after` after it. A pair
  is final when its later row is final, that is, when the watermark has passed it. A row without a partner is final when the
  watermark has passed the last time at which a partner could arrive.
- `LatestJoinOperator`: of these rows on the right, only the latest matches that isn't later than the row on the left.
- `WindowJoinOperator`: rows match if they are in one tumbling window, or are results with the same window. All results of a
  window are final when it ends.

A row is *settled* in the step that closes its millisecond. Only then is it counted, and paired with all earlier rows of the other
side. So each pair is made once, and no result depends on how the log was sliced.

Contracts:
- Identity. Each row contains its log position. A row that is a result of another stage contains the identity of this result
  instead. The identities of its rows identify a joined row. Results are ordered by end, key, and these identities as strings, so
  later stages add them in one order, whatever the slices and buckets.
- Nulls. A key with a null equals no other key. Such a row is a result if its side is kept without partners; otherwise it is
  dropped.
- Bound. At most `max_rows` rows of one key and side within reach of each other are joined. Rows are counted by event time, then
  log position. If the state still has `max_rows` earlier rows when another row comes, this row is joined with none, and is a
  result with a problem. Which rows these are depends only on the log.
- State. Settled rows until no partner can arrive any more, and rows that aren't settled. Of rows beyond the bound, only those
  that are needed for counting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.errors import PermanentError
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.codes import Codes, ranges
from strandline.processing.kinds.join.step import JoinStage
from strandline.processing.operators.arithmetic import valid_in
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.dedupe.candidates import DuplicateRecords
from strandline.processing.operators.functions.zones import FIRST_US, LAST_US
from strandline.processing.operators.keys import encode_keys, key_ranks, merge_keys
from strandline.processing.operators.windows import ClosedWindows, Rows, WindowOperator, WindowState
from strandline.processing.pipelines.stages import LEFT, RIGHT, Stage
from strandline.results.names import ROWS_JOINED
from strandline.results.records.partition_labels import partition_of, stream_index_of
from strandline.results.writer import ELEMENT, OFFSET, PROBLEM, WINDOW_END, WINDOW_START

Flags = npt.NDArray[np.bool_]
_PLACES = (
    ("event_us", pa.int64()),
    ("key", pa.int64()),
    ("partition", pa.int32()),
    ("side", pa.int8()),
    ("offset", pa.int64()),
    ("element", pa.int32()),
    ("mark", pa.int8()),
)
"""First columns of the state. The values of both sides follow; those of the other side are null. `partition` is the label of the
partition, which identifies its stream too. `element` is -1 if the row is a complete record."""
_RESULT = ("result", pa.string())
"""Additional column if a side consists of results of a stage: the identity of such a row. Null for a record."""
_MATCHED, _BEYOND = 1, 2
"""Marks of settled rows: the row has a partner; the row is beyond the bound."""
_WHOLE = -1
_NONE = -1
"""Replaces the index of a row: there is no row."""
_RESULTS_AT_ONCE = 500_000


class IntervalJoinOperator(WindowOperator):
    """One join within an interval of event time."""

    needs_positions = True

    def __init__(self, stage: JoinStage) -> None:
        super().__init__(stage, {})
        self.join = stage
        sides = [{one.column: one.type for one in stage.columns if one.side == side} for side in (LEFT, RIGHT)]
        self._columns = [sorted(columns) for columns in sides]
        values = [
            pa.field(f"{side}_{name}", arrow_type(columns[name]))
            for side, columns in enumerate(sides)
            for name in self._columns[side]
        ]
        self._value_types = [one.type for one in values]
        self._places_held = (*_PLACES, _RESULT) if stage.reads_results else _PLACES
        self.state_schema = pa.schema([*[pa.field(*place) for place in self._places_held], *values])
        self.result_schema = pa.schema(
            [
                pa.field(WINDOW_START, pa.int64()),
                pa.field(WINDOW_END, pa.int64()),
                *self.key_schema,
                *[pa.field(one.name, arrow_type(one.type)) for one in stage.columns],
                pa.field(ROWS_JOINED, pa.string()),
                pa.field(PROBLEM, pa.string()),
            ]
        )

    def rows_of_records(self, side: int, partition: int, event_us: Codes, columns: dict[str, pa.Array]) -> Rows:
        stands = [columns[OFFSET], columns[ELEMENT].cast(pa.int32()).fill_null(_WHOLE)]
        if self.join.reads_results:
            stands.append(pa.nulls(len(event_us), pa.string()))
        return self._rows_of(side, partition, event_us, columns, stands)

    def rows_of_results(
        self,
        side: int,
        before: Stage,
        labels: Callable[[], int | Codes],
        event_us: Codes,
        columns: dict[str, pa.Array],
    ) -> Rows:
        count = len(event_us)
        nowhere = [pa.array(np.zeros(count, np.int64)), pa.array(np.full(count, _WHOLE, np.int32))]
        return self._rows_of(side, 0, event_us, columns, [*nowhere, result_places(before, columns)])

    def _rows_of(
        self, side: int, partition: int, event_us: Codes, columns: dict[str, pa.Array], stands: list[pa.Array]
    ) -> Rows:
        """Return rows of one partition as rows of a side, without null keys if these have no result. `stands`: columns offset,
        element, and `_RESULT` if the state has it."""
        if not self.join.keeps(side):
            has_key = valid_in(*[columns[name] for name in self.stage.by])
            if not has_key.all():
                chosen = pa.array(np.flatnonzero(has_key))
                columns = {name: column.take(chosen) for name, column in columns.items()}
                stands = [column.take(chosen) for column in stands]
                event_us = event_us[has_key]
        count = len(event_us)
        encoded = encode_keys([columns[name] for name in self.stage.by], self.key_schema, count)
        values = [columns[name] for name in self._columns[side]]
        before = [pa.nulls(count, kind) for kind in self._value_types[: len(self._columns[LEFT]) * side]]
        after = [pa.nulls(count, kind) for kind in self._value_types[len(before) + len(values) :]]
        arguments = [pa.array(np.full(count, side, np.int8)), *stands, *before, *values, *after]
        return Rows(partition, event_us, encoded.codes, encoded.table, arguments)

    def without_duplicates(
        self, rows: Sequence[Rows], partitions: Sequence[int], duplicates: Mapping[int, tuple[pa.RecordBatch, Flags]]
    ) -> dict[int, Flags]:
        found: dict[int, list[tuple[int, pa.RecordBatch, Flags]]] = {}
        for at, of_chunk in duplicates.items():
            found.setdefault(partitions[at], []).append((partitions[at], *of_chunk))
        repeated = {partition: DuplicateRecords.of(parts) for partition, parts in found.items()}
        return {
            at: ~self._are_duplicates(rows[at], repeated[partition])
            for at, partition in enumerate(partitions)
            if partition in repeated
        }

    def _are_duplicates(self, rows: Rows, repeated: DuplicateRecords) -> Flags:
        """Return a mask of the rows that come after the `dedupe` of their side and are duplicates for it."""
        side, offset, element = (one.to_numpy(zero_copy_only=False) for one in rows.arguments[:3])
        is_behind: Flags = np.isin(side, self.join.deduped_sides)
        return is_behind & repeated.hold(np.full(len(side), rows.partition), offset, element)

    def step_in_part(
        self, state: WindowState, rows: Sequence[Rows], closing: Closing
    ) -> tuple[WindowState, list[ClosedWindows]]:
        """See `WindowOperator.step_in_part`.

        1. Number the keys of the state and of the rows together, and append the rows to those of the state.
        2. Settle the rows that the step closes: mark rows beyond the bound, and pair the others.
        3. Take out final results: pairs, rows without a partner, and rows beyond the bound.
        4. Keep the rows that a later row can match, or that are needed for counting.
        """
        numbers, keys = merge_keys([state.keys, *[one.key_table for one in rows]], self.key_schema)
        table = self._table(state.groups, numbers, rows)
        if closing.up_to_ms is None or not table.num_rows:
            return self._without_unused_keys(keys, table), []
        held = _Held.of(table, ~valid_in(*keys.columns))
        is_settled, settles = self._settled(held, closing)
        self._mark_beyond(held, is_settled, settles)
        pairs = self._pairs(held, is_settled, settles)
        held.mark[np.unique(np.concatenate(pairs))] |= _MATCHED
        closed: list[ClosedWindows] = []
        if closing.gives_results:
            results = self._results(held, pairs, is_settled, settles, closing.up_to_ms)
            closed = self._made(table, held, keys, results)
        kept = pa.array(np.flatnonzero(self._is_needed(held, is_settled, closing.up_to_ms)))
        marked = table.set_column(6, self.state_schema.field(6), pa.array(held.mark))
        return self._without_unused_keys(keys, marked.take(kept)), closed

    def finish(self, closed: Sequence[ClosedWindows]) -> pa.RecordBatch:
        batches = [one.groups for one in closed]
        return pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema=self.result_schema)

    def _table(self, state: pa.RecordBatch, numbers: list[Codes], rows: Sequence[Rows]) -> pa.RecordBatch:
        """Return the rows of the state with their new keys, and the new rows. Raises PermanentError if an array is too large."""
        old = state.set_column(
            1, self.state_schema.field(1), pa.array(numbers[0][state.column(1).to_numpy()], pa.int64())
        )
        new = [
            pa.RecordBatch.from_arrays(
                [
                    pa.array(one.panes, pa.int64()),
                    pa.array(number[one.keys], pa.int64()),
                    pa.array(np.full(len(one.panes), one.partition, np.int32)),
                    *one.arguments[:3],
                    pa.array(np.zeros(len(one.panes), np.int8)),
                    *one.arguments[3:],
                ],
                schema=self.state_schema,
            )
            for one, number in zip(rows, numbers[1:], strict=True)
        ]
        try:
            return pa.concat_batches([old, *new])
        except pa.ArrowInvalid as error:
            raise PermanentError(
                f"{self.stage.path}: the rows in one bucket have more than 2 GiB of strings in one field. Shorten the time "
                "for which rows are kept, add fewer or shorter fields, or filter rows before the join"
            ) from error

    def _settled(self, held: _Held, closing: Closing) -> tuple[Flags, Flags]:
        """Return a mask of the rows that are settled after the step, and a mask of those that the step settles."""
        assert closing.up_to_ms is not None
        is_settled = held.event_ms < closing.up_to_ms
        return is_settled, is_settled if closing.after_ms is None else is_settled & (held.event_ms >= closing.after_ms)

    def _mark_beyond(self, held: _Held, is_settled: Flags, settles: Flags) -> None:
        """Mark the rows that the step settles, and that are more than `max_rows` for their key and side."""
        for side in (LEFT, RIGHT):
            if not self._may_be_beyond(held, is_settled, side):
                continue
            rows, _ = self._counted(held, is_settled, side)
            before = rows[: -self.join.max_rows]
            here = rows[self.join.max_rows :]
            is_beyond = (held.key[before] == held.key[here]) & self._is_within(held, before, here, side)
            held.mark[here[is_beyond & settles[here]]] |= _BEYOND

    def _may_be_beyond(self, held: _Held, is_settled: Flags, side: int) -> bool:
        """Return True if a key has more rows on this side than the bound. For most steps, this cheap test is all."""
        counts = np.bincount(held.key[is_settled & (held.side == side)])
        return bool(len(counts)) and int(counts.max()) > self.join.max_rows

    def _counted(self, held: _Held, is_settled: Flags, side: int) -> tuple[Codes, Codes]:
        """Return the settled rows of a side whose key has no null, in counting order, and for each row the
        number of later rows with its key."""
        rows = np.flatnonzero(is_settled & (held.side == side) & ~held.has_null)
        rows = rows[np.lexsort((held.place[rows], held.event_us[rows], held.key[rows]))]
        ends = np.searchsorted(held.key[rows], held.key[rows], "right")
        return rows, ends - 1 - np.arange(len(rows))

    def _is_within(self, held: _Held, before: Codes, here: Codes, side: int) -> Flags:
        """Return True for each row `before` that the state still contains when the row `here` comes."""
        within: Flags = held.event_us[before] >= held.event_us[here] - 1000 * self.join.hold_ms(side)
        return within

    def _pairs(self, held: _Held, is_settled: Flags, settles: Flags) -> tuple[Codes, Codes]:
        """Return the pairs that become final in this step, as the indices of their left and right rows.

        `is_settled`: rows whose time the watermark has passed. `settles`: those of them that it passes in this step. A pair
        becomes final with its later row."""
        joins = is_settled & ~held.has_null & (held.mark & _BEYOND == 0)
        # Only rows with the key of a row that settles are sorted: these are few of all rows.
        has_key = np.zeros(int(held.key.max()) + 1, np.bool_)
        has_key[held.key[joins & settles]] = True
        joins &= has_key[held.key]
        times = np.unique(held.event_us[joins])
        before_us, after_us = 1000 * self.join.before_ms, 1000 * self.join.after_ms

        def between(rows: Codes, others: Codes, first_us: Codes, end_us: Codes) -> tuple[Codes, Codes]:
            """Return all pairs of `rows` with `others` of the same key whose time is in [`first_us`, `end_us`)."""
            spread = len(times) + 1
            codes = held.key[others] * spread + np.searchsorted(times, held.event_us[others])
            order = np.argsort(codes, kind="stable")
            codes, base = codes[order], held.key[rows] * spread
            firsts = np.searchsorted(codes, base + np.searchsorted(times, first_us))
            counts = np.searchsorted(codes, base + np.searchsorted(times, end_us)) - firsts
            return np.repeat(rows, counts), others[order[ranges(firsts, counts)]]

        lefts, rights = (np.flatnonzero(joins & (held.side == side)) for side in (LEFT, RIGHT))
        later = lefts[settles[lefts]]
        at_us = held.event_us[later]
        left, right = between(later, rights, at_us - before_us, at_us + 1)
        later = rights[settles[rights]]
        at_us = held.event_us[later]
        right_2, left_2 = between(later, lefts, at_us - after_us, at_us)
        return np.concatenate([left, left_2]), np.concatenate([right, right_2])

    def _results(
        self, held: _Held, pairs: tuple[Codes, Codes], is_settled: Flags, settles: Flags, up_to_ms: int
    ) -> _Results:
        """Return pairs, rows without a partner, and rows beyond the bound."""
        left, right = pairs
        start_us = np.minimum(held.event_us[left], held.event_us[right])
        end_us = np.maximum(held.event_us[left], held.event_us[right])
        parts = [_Results(left, right, start_us // 1000, end_us // 1000 + 1, np.zeros(len(left), np.bool_))]
        for side in (LEFT, RIGHT):
            of_side = is_settled & (held.side == side)
            beyond = np.flatnonzero(of_side & settles & (held.mark & _BEYOND != 0))
            parts.append(
                _Results.of_side(side, beyond, held.event_ms[beyond], held.event_ms[beyond] + 1, is_beyond=True)
            )
            if self.join.keeps(side):
                hold_ms = self.join.hold_ms(side)
                alone = np.flatnonzero(of_side & (held.mark == 0) & (held.event_ms + hold_ms < up_to_ms))
                at_ms = held.event_ms[alone]
                parts.append(_Results.of_side(side, alone, at_ms, at_ms + hold_ms + 1, is_beyond=False))
        return _Results.together(parts)

    def _made(self, table: pa.RecordBatch, held: _Held, keys: pa.RecordBatch, results: _Results) -> list[ClosedWindows]:
        """Return the results in their order, in batches of bounded size."""
        keys_of = held.key[np.where(results.left == _NONE, results.right, results.left)]
        sides = [pa.array(rows, mask=rows == _NONE) for rows in (results.left, results.right)]
        places = pc.binary_join_element_wise(*[self._places(table, rows) for rows in sides], "|")
        ranks = pa.array(key_ranks(keys)[keys_of])
        sortable = pa.table([pa.array(results.end_ms), ranks, places], names=["end", "key", "places"])
        order = pc.sort_indices(sortable, sort_keys=[(name, "ascending") for name in sortable.column_names])
        made = []
        for first in range(0, len(order), _RESULTS_AT_ONCE):
            chosen = order.slice(first, _RESULTS_AT_ONCE)
            batch = self._batch(table, held, keys, results.taken(chosen.to_numpy()), places.take(chosen))
            made.append(ClosedWindows(keys, batch))
        return made

    def _batch(
        self, table: pa.RecordBatch, held: _Held, keys: pa.RecordBatch, results: _Results, places: pa.Array
    ) -> pa.RecordBatch:
        sides = [pa.array(rows, mask=rows == _NONE) for rows in (results.left, results.right)]
        key_rows = pa.array(held.key[np.where(results.left == _NONE, results.right, results.left)])
        values = []
        for one in self.join.columns:
            column = table.column(self.state_schema.get_field_index(f"{one.side}_{one.column}"))
            values.append(column.take(sides[one.side]))
        bound = (
            f"{self.stage.path}: more than {self.join.max_rows:,} rows of one key on one side within reach of each other; "
            "raise 'max_rows', or leave rows out before the join"
        )
        return pa.RecordBatch.from_arrays(
            [
                pa.array(results.start_ms),
                pa.array(results.end_ms),
                *[column.take(key_rows) for column in keys.columns],
                *values,
                places,
                pc.if_else(pa.array(results.is_beyond), bound, pa.scalar(None, pa.string())),
            ],
            schema=self.result_schema,
        )

    def _places(self, table: pa.RecordBatch, rows: pa.Array) -> pa.Array:
        """Return the log positions of these rows as strings."""
        labels = table.column(2).to_numpy().astype(np.int64)
        stream = pa.array(self.join.streams_joined).take(pa.array(stream_index_of(labels)).take(rows))
        partition, offset, element = (
            column.take(rows).cast(pa.string())
            for column in (pa.array(partition_of(labels)), table.column(4), table.column(5))
        )
        whole = pc.binary_join_element_wise(stream, partition, offset, "/")
        exploded = pc.binary_join_element_wise(whole, element, "/")
        is_whole = pc.equal(table.column(5).take(rows), _WHOLE)
        in_log = pc.if_else(is_whole, whole, exploded)
        if self.join.reads_results:
            in_log = pc.coalesce(table.column(len(_PLACES)).take(rows), in_log)
        return in_log.fill_null("-")

    def _is_needed(self, held: _Held, is_settled: Flags, up_to_ms: int) -> Flags:
        """Return a mask of the rows that stay: those that aren't settled, and those that a later row can match or be counted
        with."""
        needed = ~is_settled
        for side in (LEFT, RIGHT):
            needed |= (held.side == side) & (held.event_us + 1000 * self.join.hold_ms(side) >= 1000 * up_to_ms)
            if not (held.mark & _BEYOND).any():
                continue
            rows, behind = self._counted(held, is_settled, side)
            too_old = rows[(behind >= self.join.max_rows) & (held.mark[rows] & _BEYOND != 0)]
            needed[too_old] = False
        return needed


class WindowJoinOperator(IntervalJoinOperator):
    """A join of rows in one tumbling window, or of results with the same window."""

    def _settled(self, held: _Held, closing: Closing) -> tuple[Flags, Flags]:
        assert closing.up_to_ms is not None
        end_ms = self._end_ms(held)
        is_settled = end_ms <= closing.up_to_ms
        return is_settled, is_settled if closing.after_ms is None else is_settled & (end_ms > closing.after_ms)

    def _start_ms(self, end_ms: Codes) -> Codes:
        if not self.join.has_same_windows:
            return end_ms - self.stage.size_ms
        ends, of = np.unique(end_ms, return_inverse=True)
        windows = self.join.windows.result_windows
        starts = [windows.first_start(end - 1) for end in ends.tolist()]
        return np.array(starts, np.int64)[of]

    def _end_ms(self, held: _Held) -> Codes:
        if self.join.has_same_windows:  # the event time of a result is the last moment of its window
            return held.event_ms + 1
        end_ms: Codes = (held.event_ms // self.stage.size_ms + 1) * self.stage.size_ms
        return end_ms

    def _is_within(self, held: _Held, before: Codes, here: Codes, side: int) -> Flags:
        ends = self._end_ms(held)
        within: Flags = ends[before] == ends[here]
        return within

    def _pairs(self, held: _Held, is_settled: Flags, settles: Flags) -> tuple[Codes, Codes]:
        joins = settles & ~held.has_null & (held.mark & _BEYOND == 0)
        ends, numbers = np.unique(self._end_ms(held), return_inverse=True)
        codes = held.key * len(ends) + numbers
        lefts, rights = (np.flatnonzero(joins & (held.side == side)) for side in (LEFT, RIGHT))
        rights = rights[np.argsort(codes[rights], kind="stable")]
        firsts = np.searchsorted(codes[rights], codes[lefts])
        counts = np.searchsorted(codes[rights], codes[lefts], "right") - firsts
        return np.repeat(lefts, counts), rights[ranges(firsts, counts)]

    def _results(
        self, held: _Held, pairs: tuple[Codes, Codes], is_settled: Flags, settles: Flags, up_to_ms: int
    ) -> _Results:
        ends = self._end_ms(held)
        starts = self._start_ms(ends)
        left, right = pairs
        parts = [_Results(left, right, starts[left], ends[left], np.zeros(len(left), np.bool_))]
        for side in (LEFT, RIGHT):
            of_side = settles & (held.side == side)
            beyond = np.flatnonzero(of_side & (held.mark & _BEYOND != 0))
            parts.append(_Results.of_side(side, beyond, starts[beyond], ends[beyond], is_beyond=True))
            if self.join.keeps(side):
                alone = np.flatnonzero(of_side & (held.mark == 0))
                parts.append(_Results.of_side(side, alone, starts[alone], ends[alone], is_beyond=False))
        return _Results.together(parts)

    def _is_needed(self, held: _Held, is_settled: Flags, up_to_ms: int) -> Flags:
        return ~is_settled


class LatestJoinOperator(IntervalJoinOperator):
    """A join of each row on the left with the latest row on the right that isn't later and isn't too old.

    A row is *settled* when the watermark has passed its time, so no earlier row can arrive. For each key, the state contains the
    last settled row of the right, and the rows that aren't settled. So `max_rows` doesn't apply.
    """

    def _mark_beyond(self, held: _Held, is_settled: Flags, settles: Flags) -> None:
        """Mark no row, because a row has at most one partner."""

    def _pairs(self, held: _Held, is_settled: Flags, settles: Flags) -> tuple[Codes, Codes]:
        lefts = np.flatnonzero(settles & (held.side == LEFT) & ~held.has_null)
        rights = self._in_order(held, is_settled)
        times = np.unique(held.event_us)
        codes = held.key * (len(times) + 1) + np.searchsorted(times, held.event_us)
        last = np.searchsorted(codes[rights], codes[lefts], "right") - 1
        lefts, found = lefts[last >= 0], rights[last[last >= 0]]
        age_us = held.event_us[lefts] - held.event_us[found]
        is_near = (held.key[lefts] == held.key[found]) & (age_us <= 1000 * self.join.before_ms)
        return lefts[is_near], found[is_near]

    def _in_order(self, held: _Held, is_settled: Flags) -> Codes:
        """Return the settled rows on the right whose key has no null, by key, event time, and log position."""
        rows = np.flatnonzero(is_settled & (held.side == RIGHT) & ~held.has_null)
        return rows[np.lexsort((held.place[rows], held.event_us[rows], held.key[rows]))]

    def _is_needed(self, held: _Held, is_settled: Flags, up_to_ms: int) -> Flags:
        """Return a mask of the rows that stay: those that aren't settled, and the last settled row on the right of each key. All
        new rows are later than that row, so they match none before it."""
        rows = self._in_order(held, is_settled)
        is_last = np.append(held.key[rows[1:]] != held.key[rows[:-1]], np.ones(min(len(rows), 1), np.bool_))
        needed = ~is_settled
        needed[rows[is_last]] = held.event_us[rows[is_last]] + 1000 * self.join.before_ms >= 1000 * up_to_ms
        return needed


def result_places(stage: Stage, columns: Mapping[str, pa.Array]) -> pa.Array:
    """Return a string for each result that identifies it among all results of the stage, as its document id does."""
    keys = [_key_text(columns[name]) for name in stage.identifying]
    for plain, escaped in (("%", "%25"), ("/", "%2F"), ("|", "%7C")):
        keys = [pc.replace_substring(key, plain, escaped) for key in keys]
    times = [columns[name].cast(pa.string()) for name in (WINDOW_START, WINDOW_END)]
    parts = [pa.repeat(stage.name, len(times[0])), *times, *(key.fill_null("%0") for key in keys)]
    return pc.binary_join_element_wise(*parts, "/")


def _key_text(column: pa.Array) -> pa.Array:
    """Return a different string for each different value. Times that Arrow can't format correctly are microseconds."""
    if not pa.types.is_timestamp(column.type):
        return column.cast(pa.string())
    micros = column.cast(pa.int64())
    is_written = pc.and_(pc.greater_equal(micros, FIRST_US), pc.less_equal(micros, LAST_US))
    written = pc.if_else(is_written, micros, 0).cast(column.type).cast(pa.string())
    return pc.if_else(is_written, written, micros.cast(pa.string()))


@dataclass(frozen=True)
class _Held:
    """The rows of one step, as arrays."""

    event_us: Codes
    event_ms: Codes
    key: Codes
    side: npt.NDArray[np.int8]
    mark: npt.NDArray[np.int8]
    """Flags of the row, such as `_BEYOND`. The step changes them."""
    has_null: Flags
    """True if the key of the row contains a null."""
    stands: tuple[Codes, Codes, Codes]
    """Partition, offset, element."""
    of_result: pa.Array | None = None
    """Identity of each row that is a result; null for records. None if no row is a result."""

    @cached_property
    def place(self) -> Codes:
        """Rank of each row in log order: by side, partition, offset, element. Results are ordered by their identities."""
        place = np.empty(len(self.key), np.int64)
        partition, offset, element = self.stands
        columns: list[npt.NDArray[Any]] = [element, offset, partition, self.side]
        if self.of_result is not None:
            columns.insert(0, pc.rank(self.of_result, sort_keys="ascending", tiebreaker="dense").to_numpy())
        place[np.lexsort(columns)] = np.arange(len(self.key))
        return place

    @staticmethod
    def of(table: pa.RecordBatch, has_null: Flags) -> _Held:
        event_us, key, partition, side, offset, element, mark = (
            column.to_numpy(zero_copy_only=False) for column in table.columns[: len(_PLACES)]
        )
        stands = partition, offset, element
        of_result = table.column(len(_PLACES)) if _RESULT[0] in table.schema.names else None
        return _Held(event_us, event_us // 1000, key, side, mark.copy(), has_null[key], stands, of_result)


@dataclass(frozen=True)
class _Results:
    """Results, as indices of rows in the table of the step."""

    left: Codes
    """`_NONE` if there is no such row."""
    right: Codes
    start_ms: Codes
    end_ms: Codes
    is_beyond: Flags

    @staticmethod
    def of_side(side: int, rows: Codes, start_ms: Codes, end_ms: Codes, *, is_beyond: bool) -> _Results:
        """Return the results of rows of one side without a row of the other side."""
        none = np.full(len(rows), _NONE, np.int64)
        left, right = (rows, none) if side == LEFT else (none, rows)
        return _Results(left, right, start_ms, end_ms, np.full(len(rows), is_beyond, np.bool_))

    @staticmethod
    def together(parts: Sequence[_Results]) -> _Results:
        left, right, start_ms, end_ms, is_beyond = (
            np.concatenate(column) for column in zip(*[vars(one).values() for one in parts], strict=True)
        )
        return _Results(left, right, start_ms, end_ms, is_beyond)

    def taken(self, rows: Codes) -> _Results:
        return _Results(*[column[rows] for column in vars(self).values()])


def operator_of(stage: JoinStage, types: Mapping[str, str]) -> IntervalJoinOperator:
    """Return the operator of a join. `types`: not needed, because a join computes no expressions."""
    if stage.is_latest:
        return LatestJoinOperator(stage)
    return WindowJoinOperator(stage) if stage.in_windows else IntervalJoinOperator(stage)
