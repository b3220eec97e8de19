"""The operator of windows of a record and the record before it: (state, rows, what closes) -> (state, results).

The rows of a key are ordered by event time; rows of one time by partition, and then as in the log. A row is *settled* once the
watermark has passed its millisecond, because only then its position in this order is final. In this step, and only then, its
window closes. So results are the same to the last bit for all slicings of the log.

State. Rows that aren't settled, with their arguments. The last settled row of each key, for as long as a later row can be near
enough.
Rewind. A window depends on no row that is more than `within` before its record.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from strandline.processing.columns.codes import Codes
from strandline.processing.columns.values import numpy_of
from strandline.processing.kinds.previous.shape import PreviousShape
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.keys import key_ranks, merge_keys
from strandline.processing.operators.windows import ClosedWindows, Rows, WindowOperator, WindowState, rows_in_state
from strandline.processing.pipelines.stages import Stage
from strandline.results.names import WINDOW_NUMBER

_FAR_MS = 1 << 53


class PreviousOperator(WindowOperator):
    """One stage of windows of two records."""

    key_columns = (
        ("event_us", pa.int64()),
        ("key", pa.int64()),
        ("partition", pa.int32()),
        ("is_settled", pa.bool_()),
    )

    def __init__(self, stage: Stage, types: dict[str, str]) -> None:
        super().__init__(stage, types)
        assert isinstance(stage.windows, PreviousShape), "chosen by the kind of the windows"
        self._within_us = 1000 * stage.windows.within_ms
        self.pane_ms = stage.size_ms
        arguments = [pa.field(f"argument_{at}", kind) for at, kind in enumerate(self.aggregates.argument_types)]
        self.state_schema = pa.schema([*[pa.field(*place) for place in self.key_columns], *arguments])
        fields = list(self.result_schema)
        self.result_schema = pa.schema([*fields[:-1], pa.field(WINDOW_NUMBER, pa.int64()), fields[-1]])

    def _panes_of(self, event_us: Codes) -> Codes:
        return event_us

    def step_in_part(
        self, state: WindowState, rows: Sequence[Rows], closing: Closing
    ) -> tuple[WindowState, list[ClosedWindows]]:
        """Settle rows, and close their windows. See `WindowOperator.step_in_part`.

        1. Number the keys of the state and of the rows together.
        2. Order the settled rows, and close the window of each that wasn't settled before.
        3. Keep the last settled row of each key, and the rows that aren't settled.
        """
        numbers, keys = merge_keys([state.keys, *[one.key_table for one in rows]], self.key_schema)
        known = state.groups.set_column(
            1, self.state_schema.field(1), pa.array(numbers[0][numpy_of(state.groups.column(1))])
        )
        table = pa.concat_batches([known, *self._waiting(numbers[1:], rows)])
        if closing.up_to_ms is None or not table.num_rows:
            return self._without_unused_keys(keys, table), []
        is_ready = numpy_of(table.column(0)) // 1000 < closing.up_to_ms
        settled = self._in_order(table.filter(pa.array(is_ready)))
        closed = self._closed(settled, key_ranks(keys), closing) if closing.gives_results else settled.slice(0, 0)
        left = pa.concat_batches([self._last_rows(settled, closing.up_to_ms), table.filter(pa.array(~is_ready))])
        return self._without_unused_keys(keys, left), [ClosedWindows(keys, closed)] if closed.num_rows else []

    def open_windows(self, state: WindowState, closed_ms: int | None, rows_max: int) -> list[ClosedWindows]:
        """Return the windows that would close if no more rows arrived. See `WindowOperator.open_windows`."""
        return self.step_in_part(state, [], Closing(closed_ms, _FAR_MS))[1]

    def _finish(self, closed: ClosedWindows) -> pa.RecordBatch:
        groups = closed.groups
        values, problem = self.aggregates.finish(groups.columns[4:], groups.num_rows)
        by_fields = [column.take(groups.column(1)) for column in closed.keys.columns]
        columns = [groups.column(3), groups.column(0), *by_fields, *values, groups.column(2), problem]
        return pa.RecordBatch.from_arrays(columns, schema=self.result_schema)

    def _waiting(self, numbers: Sequence[Codes], rows: Sequence[Rows]) -> list[pa.RecordBatch]:
        """Return new rows as rows of the state."""
        return rows_in_state(self.state_schema, numbers, rows, lambda count: [pa.array(np.zeros(count, np.bool_))])

    def _in_order(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows by key, and in the order of each key. The sort is stable: rows of one partition and time stay in log order,
        because the state's rows are first."""
        is_new = ~numpy_of(rows.column(3))
        return rows.take(
            pa.array(np.lexsort((numpy_of(rows.column(2)), numpy_of(rows.column(0)), is_new, numpy_of(rows.column(1)))))
        )

    def _closed(self, settled: pa.RecordBatch, ranks: Codes, closing: Closing) -> pa.RecordBatch:
        """Return the windows of the rows that are settled now, by end, key, and number. Columns: end, key, number, start, partial
        results."""
        event_us, key = numpy_of(settled.column(0)), numpy_of(settled.column(1))
        count = len(key)
        has_previous = np.zeros(count, np.bool_)
        has_previous[1:] = (key[1:] == key[:-1]) & (event_us[1:] - event_us[:-1] <= self._within_us)
        event_ms = event_us // 1000
        is_shown = ~numpy_of(settled.column(3))
        if closing.after_ms is not None:
            is_shown &= event_ms >= closing.after_ms
        # The number of a row among those of its key and millisecond.
        begins = np.ones(count, np.bool_)
        begins[1:] = (key[1:] != key[:-1]) | (event_ms[1:] != event_ms[:-1])
        firsts = np.flatnonzero(begins)
        number = np.arange(count) - firsts[np.cumsum(begins) - 1]
        start_ms = event_ms.copy()
        start_ms[1:] = np.where(has_previous[1:], event_ms[:-1], event_ms[1:])
        shown = np.flatnonzero(is_shown)
        shown = shown[np.lexsort((number[shown], ranks[key[shown]], event_ms[shown]))]
        # Each window folds one or two rows: the previous one, if there is one, and its own.
        sizes = 1 + has_previous[shown].astype(np.int64)
        ends = np.cumsum(sizes)
        taken = np.empty(int(sizes.sum()), np.int64)
        taken[ends - 1] = shown
        taken[(ends - 2)[sizes == 2]] = shown[sizes == 2] - 1
        arguments = settled.take(pa.array(taken)).columns[len(self.key_columns) :]
        nothing = [pa.nulls(0, kind) for kind in self.aggregates.partial_types]
        codes = np.repeat(np.arange(len(shown)), sizes)
        partials = self.aggregates.fold(nothing, codes[:0], arguments, codes, len(shown))
        columns = [pa.array(one[shown]) for one in (event_ms + 1, key, number, start_ms)]
        names = [f"column_{at}" for at in range(4 + len(partials))]
        return pa.RecordBatch.from_arrays([*columns, *partials], names)

    def _last_rows(self, settled: pa.RecordBatch, up_to_ms: int) -> pa.RecordBatch:
        """Return the last settled row of each key that can be the previous one of a later row."""
        key = numpy_of(settled.column(1))
        is_last = np.append(key[1:] != key[:-1], np.ones(min(len(key), 1), np.bool_))
        is_last &= numpy_of(settled.column(0)) + self._within_us >= 1000 * up_to_ms
        kept = settled.filter(pa.array(is_last))
        return kept.set_column(3, self.state_schema.field(3), pa.array(np.ones(kept.num_rows, np.bool_)))


operator_of = PreviousOperator
