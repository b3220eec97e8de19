"""The operator of windows that count records: (state, rows, closing) -> (state, results). See `operators/windows.py`.

A *period* lasts from one multiple of `size_ms` since 1970 to the next. The records of a key in one period are ordered by event
time. Records with the same event time are ordered by partition, then by their order in the log. In this order, each `count`
records are a window. So a window depends neither on records after its last one, nor on records of earlier periods.

The order of a row is known when the watermark has passed its millisecond: then the row is *settled*, and is folded into its
window in that order. So the bits don't depend on how the log was sliced. A full window is final immediately. A window that isn't
full ends with its period.

The state contains:

- rows that aren't settled, with their arguments;
- the window that is being filled, for each key and each period that isn't over. It can be empty: it determines where counting
  continues.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from strandline.processing.columns.codes import Codes
from strandline.processing.kinds.count.shape import CountShape
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.keys import key_ranks, merge_keys
from strandline.processing.operators.windows import ClosedWindows, Rows, WindowOperator, WindowState, rows_in_state
from strandline.processing.pipelines.stages import Stage
from strandline.results.names import WINDOW_NUMBER
from strandline.results.writer import PROBLEM, WINDOW_END, WINDOW_START

_WAITING = -1
"""Replaces the number of a window: the row isn't settled."""
_FAR_MS = 1 << 53


class CountOperator(WindowOperator):
    """One stage of windows that count records."""

    key_columns = (
        ("event_us", pa.int64()),
        ("key", pa.int64()),
        ("partition", pa.int32()),
        ("number", pa.int64()),
        ("rows", pa.int64()),
        ("start_ms", pa.int64()),
    )
    """State of a window that is being filled: time of its last row, its number in the period, its number of rows, and the time of
    its first row. If the window is empty, the times are those of the window before it."""

    def __init__(self, stage: Stage, types: dict[str, str]) -> None:
        super().__init__(stage, types)
        assert isinstance(stage.windows, CountShape), "chosen by the kind of the windows"
        self._count = stage.windows.count
        self.pane_ms = stage.size_ms
        arguments = [pa.field(f"argument_{at}", kind) for at, kind in enumerate(self.aggregates.argument_types)]
        self.state_schema = pa.schema([*self.state_schema, *arguments])
        fields = list(self.result_schema)
        self.result_schema = pa.schema([*fields[:-1], pa.field(WINDOW_NUMBER, pa.int64()), fields[-1]])
        assert self.result_schema.names[:2] == [WINDOW_START, WINDOW_END] and fields[-1].name == PROBLEM

    def _panes_of(self, event_us: Codes) -> Codes:
        return event_us

    def step_in_part(
        self, state: WindowState, rows: Sequence[Rows], closing: Closing
    ) -> tuple[WindowState, list[ClosedWindows]]:
        """See `WindowOperator.step_in_part`.

        1. Number the keys of the state and of the rows together.
        2. Order the settled rows, and fold each row into its window.
        3. Take out the windows that are full, or whose period is over.
        4. Keep the other windows, the positions from which counting continues, and the rows that aren't settled.
        """
        numbers, keys = merge_keys([state.keys, *[one.key_table for one in rows]], self.key_schema)
        known = state.groups.set_column(1, self.state_schema.field(1), pa.array(numbers[0][_of(state.groups, 1)]))
        is_waiting = _of(known, 3) == _WAITING
        filling = known.filter(pa.array(~is_waiting))
        waiting = pa.concat_batches([known.filter(pa.array(is_waiting)), *self._waiting(numbers[1:], rows)])
        if closing.up_to_ms is None:
            return self._without_unused_keys(keys, pa.concat_batches([filling, waiting])), []
        is_settled = _of(waiting, 0) // 1000 < closing.up_to_ms
        windows = self._folded(filling, waiting.filter(pa.array(is_settled)))
        ends_ms = self._ends_ms(windows)
        is_closed = ends_ms <= closing.up_to_ms
        is_shown = is_closed & (_of(windows, 4) > 0) & closing.gives_results
        if closing.after_ms is not None:
            is_shown &= ends_ms > closing.after_ms
        closed = self._closed(windows, ends_ms, key_ranks(keys), np.flatnonzero(is_shown))
        kept = [windows.filter(pa.array(~is_closed)), self._gone_on(windows, is_closed, closing.up_to_ms)]
        left = pa.concat_batches([*kept, waiting.filter(pa.array(~is_settled))])
        return self._without_unused_keys(keys, left), [ClosedWindows(keys, closed)] if closed.num_rows else []

    def open_windows(self, state: WindowState, closed_ms: int | None, rows_max: int) -> list[ClosedWindows]:
        """Return the windows that would close if no more rows arrived. See `WindowOperator.open_windows`."""
        return self.step_in_part(state, [], Closing(closed_ms, _FAR_MS))[1]

    def _finish(self, closed: ClosedWindows) -> pa.RecordBatch:
        groups, count = closed.groups, closed.groups.num_rows
        partials = groups.columns[len(self.key_columns) :]
        values, problem = self.aggregates.finish(partials, count)
        key_rows = groups.column(1)
        by_fields = [column.take(key_rows) for column in closed.keys.columns]
        columns = [groups.column(5), groups.column(0), *by_fields, *values, groups.column(3), problem]
        return pa.RecordBatch.from_arrays(columns, schema=self.result_schema)

    def _waiting(self, numbers: Sequence[Codes], rows: Sequence[Rows]) -> list[pa.RecordBatch]:
        """Return new rows in the form of the state."""

        def nothing(count: int) -> list[pa.Array]:
            places = [pa.array(np.full(count, _WAITING)), *[pa.array(np.zeros(count, np.int64))] * 2]
            return [*places, *[pa.nulls(count, kind) for kind in self.aggregates.partial_types]]

        return rows_in_state(self.state_schema, numbers, rows, nothing)

    def _folded(self, filling: pa.RecordBatch, settled: pa.RecordBatch) -> pa.RecordBatch:
        """Return the windows that contain these rows, by key, period, and number: those being filled, and those that follow."""
        before = filling.num_rows
        columns = [np.concatenate([_of(filling, at), _of(settled, at)]) for at in range(len(self.key_columns))]
        event_us, key, partition, number, rows, start_ms = columns
        rows[before:], start_ms[before:] = 1, event_us[before:] // 1000
        period = event_us // (self.stage.size_ms * 1000)
        is_new = np.arange(len(key)) >= before
        # The sort is stable: rows of one partition and time stay in the order of the log.
        order = np.lexsort((partition, event_us, is_new, period, key))
        event_us, key, period, number, rows, start_ms = (
            one[order] for one in (event_us, key, period, number, rows, start_ms)
        )
        # Number of rows of the key and period before each row. The window being filled determines where counting continues.
        begins = np.ones(len(key), np.bool_)
        begins[1:] = (key[1:] != key[:-1]) | (period[1:] != period[:-1])
        of_group = np.cumsum(begins) - 1
        firsts = np.flatnonzero(begins)
        weight = np.where(is_new[order], 1, np.maximum(number, 0) * self._count + rows)
        total = np.cumsum(weight)
        counted = total - (total - weight)[firsts][of_group]
        window = np.where(is_new[order], (counted - 1) // self._count, number)
        differs = begins.copy()
        differs[1:] |= window[1:] != window[:-1]
        code = np.cumsum(differs) - 1
        at, count = np.flatnonzero(differs), int(differs.sum())
        last = np.append(at[1:], len(key))[:count] - 1
        places = np.empty(len(order), np.int64)
        places[order] = code
        # The fold is in order: first the existing partial results, then the new rows.
        in_order = order[is_new[order]] - before
        taken = settled.take(pa.array(in_order))
        partials, arguments = len(self.key_columns), len(self.key_columns) + len(self.aggregates.partial_types)
        has_rows = _of(filling, 4) > 0
        folded = self.aggregates.fold(
            filling.filter(pa.array(has_rows)).columns[partials:arguments],
            places[:before][has_rows],
            taken.columns[arguments:],
            places[before:][in_order],
            count,
        )
        has_none = rows[at] == 0  # a window that was empty begins with its first new row
        first = np.where(has_none & (last > at), at + 1, at)
        of_window = [
            event_us[last],
            key[at],
            np.zeros(count, np.int32),
            window[at],
            np.add.reduceat(rows, at) if count else rows[:0],
            start_ms[first],
        ]
        nothing = [pa.nulls(count, kind) for kind in self.aggregates.argument_types]
        return pa.RecordBatch.from_arrays([*map(pa.array, of_window), *folded, *nothing], schema=self.state_schema)

    def _ends_ms(self, windows: pa.RecordBatch) -> Codes:
        """Return the end of each window, if no more rows are settled."""
        last_ms, size_ms = _of(windows, 0) // 1000, self.stage.size_ms
        ends: Codes = np.where(_of(windows, 4) == self._count, last_ms + 1, (last_ms // size_ms + 1) * size_ms)
        return ends

    def _closed(self, windows: pa.RecordBatch, ends_ms: Codes, ranks: Codes, rows: Codes) -> pa.RecordBatch:
        """Return these windows by end, then key, then number. Their ends replace the times of their last rows."""
        order = rows[np.lexsort((_of(windows, 3)[rows], ranks[_of(windows, 1)[rows]], ends_ms[rows]))]
        return windows.take(pa.array(order)).set_column(0, "end_ms", pa.array(ends_ms[order]))

    def _gone_on(self, windows: pa.RecordBatch, is_closed: np.ndarray, up_to_ms: int) -> pa.RecordBatch:
        """Return the next window of each key and period whose last window is full while the period isn't over."""
        size_us = self.stage.size_ms * 1000
        key, period = _of(windows, 1), _of(windows, 0) // size_us
        is_last = np.ones(len(key), np.bool_)
        is_last[:-1] = (key[1:] != key[:-1]) | (period[1:] != period[:-1])
        rows = np.flatnonzero(is_last & is_closed & ((period + 1) * self.stage.size_ms > up_to_ms))
        found = windows.take(pa.array(rows))
        nothing = np.zeros(len(rows), np.int64)
        columns = [*found.columns[:3], pa.array(_of(found, 3) + 1), pa.array(nothing), found.column(5)]
        columns += [pa.nulls(len(rows), one.type) for one in list(self.state_schema)[len(self.key_columns) :]]
        return pa.RecordBatch.from_arrays(columns, schema=self.state_schema)


def _of(batch: pa.RecordBatch, at: int) -> Codes:
    values: Codes = batch.column(at).to_numpy(zero_copy_only=False)
    return values


operator_of = CountOperator
