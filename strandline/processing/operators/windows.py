"""The window operator: (state, rows, time) -> (state, results), on columns and without Spark.

Rows are folded into *panes*: pieces of event time, each of which lies wholly inside or outside any window. A tumbling window is
one pane; a sliding one is merged from several when it closes, so a record costs the same however long the window is.

Contracts:
- Order. Rows come with the partition of their input; per partition in offset order. Each pane keeps a partial result a key and
  partition. When a window closes, its panes are merged in time order per partition, then the partitions in their order. So a
  result is the same to the last bit however the log was sliced, merged, bucketed or restarted.
- State. A key table and one row for each open (pane, key, partition); `state_schema` is the latter's. It holds no window that has
  closed, and no pane that no open window needs.
- Reach. A window's size: nothing older than that before the oldest open window's end is needed to rebuild the state.
- Late rows. The caller has left them out: a row that gets here belongs to open windows only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.processing.operators.aggregates import StageAggregates
from strandline.processing.operators.casting import arrow_type
from strandline.processing.operators.keys import Codes, encode_keys, key_ranks, merge_keys, no_columns
from strandline.processing.pipelines.stages import Stage
from strandline.results.writer import PROBLEM, WINDOW_END, WINDOW_START

_MERGED_ROWS_MAX = 4_000_000
"""So many rows of panes are merged into windows at once: a drain may close thousands of sliding windows together."""


@dataclass(frozen=True)
class Rows:
    """New rows of one input partition, in their order."""

    partition: int | Codes
    """Of all rows, or of each."""
    panes: Codes
    """The number of each row's pane."""
    keys: Codes
    """The number of each row's key in `key_table`."""
    key_table: pa.RecordBatch
    arguments: list[pa.Array]
    """The values of the aggregates' arguments, in the order of `AggregateCalls.argument_types`."""


@dataclass(frozen=True)
class WindowState:
    """What is open: the key table, and a row a (pane, key, partition) in that order with its partial results."""

    keys: pa.RecordBatch
    groups: pa.RecordBatch


@dataclass(frozen=True)
class ClosedWindows:
    """Windows with their partial results: a row a (window, key, partition), ordered by window, the key's values and partition."""

    keys: pa.RecordBatch
    groups: pa.RecordBatch
    """As in the state, with the window's number in place of the pane's."""


@dataclass(frozen=True)
class Time:
    """Which windows become final in one step: those that end after `from_ms` and at or before `to_ms`."""

    from_ms: int | None
    """None in a job's first slices, before there is a watermark."""
    to_ms: int | None


class WindowOperator:
    """One window stage. Holds what is fixed; all that changes is passed in and out."""

    def __init__(self, stage: Stage, types: dict[str, str]) -> None:
        """`types`: the columns in sight of the stage's aggregates and `by` fields."""
        self.stage = stage
        self.aggregates = StageAggregates(stage.name, stage.aggregates, types)
        self.size_ms = stage.size_ms
        self.every_ms = stage.every_ms
        self.pane_ms = math.gcd(self.size_ms, self.every_ms)
        self.key_schema = pa.schema(
            [(name, arrow_type(kind)) for name, kind in zip(stage.by, stage.by_types, strict=True)]
        )
        self.state_schema = pa.schema(
            [
                pa.field("pane", pa.int64()),
                pa.field("key", pa.int64()),
                pa.field("partition", pa.int32()),
                *[pa.field(f"partial_{at}", kind) for at, kind in enumerate(self.aggregates.partial_types)],
            ]
        )
        self.result_schema = pa.schema(
            [
                pa.field(WINDOW_START, pa.int64()),
                pa.field(WINDOW_END, pa.int64()),
                *self.key_schema,
                *[pa.field(column.name, arrow_type(column.type)) for column in stage.aggregates],
                pa.field(PROBLEM, pa.string()),
            ]
        )

    @property
    def reach_ms(self) -> int:
        """How far back in event time open state can go."""
        return self.size_ms

    def empty_state(self) -> WindowState:
        """Nothing is open."""
        keys = pa.RecordBatch.from_pylist([], schema=self.key_schema) if len(self.key_schema) else no_columns(0)
        return WindowState(keys, pa.RecordBatch.from_pylist([], schema=self.state_schema))

    def rows(self, partition: int | Codes, event_us: Codes, columns: dict[str, pa.Array]) -> Rows:
        """Records or results of one partition as rows of this stage: their panes, keys and arguments."""
        count = len(event_us)
        encoded = encode_keys([columns[name] for name in self.stage.by], self.key_schema, count)
        arguments = self.aggregates.evaluate_arguments(columns, count)
        return Rows(partition, event_us // (1000 * self.pane_ms), encoded.codes, encoded.table, arguments)

    def step(self, state: WindowState, rows: Sequence[Rows], time: Time) -> tuple[WindowState, pa.RecordBatch]:
        """Fold new rows in, and take out the windows that become final.

        Each partition's rows stand in their order in `rows`; partitions may alternate. Results are ordered by window, then key.
        """
        kept, closed = self.step_in_part(state, rows, time)
        return kept, self.finish(closed)

    def step_in_part(
        self, state: WindowState, rows: Sequence[Rows], time: Time
    ) -> tuple[WindowState, list[ClosedWindows]]:
        """As `step`, where other buckets hold other partitions of the same keys: `finish` makes results of what all buckets give.

        1. Number the keys of the state and of the rows together.
        2. Fold the rows into their groups.
        3. Take out the windows that end in `time`.
        4. Keep the panes that a later window needs, and their keys.
        """
        numbers, keys = merge_keys([state.keys, *[one.key_table for one in rows]], self.key_schema)
        groups = self._fold(state.groups, numbers, rows, keys.num_rows)
        closed = list(self._closed_windows(groups, keys, time))
        kept = groups
        if time.to_ms is not None:
            # Groups stand in the order of their panes, so what is over is the beginning.
            over = int(np.searchsorted(_column(groups, 0), self._oldest_pane_needed(time.to_ms)))
            kept = groups.slice(over)
        return self._without_unused_keys(keys, kept), closed

    def finish(self, closed: Sequence[ClosedWindows]) -> pa.RecordBatch:
        """The results of windows, each whole in one item. Ordered by window, then key, if the items are."""
        batches = [self._finish(one) for one in closed]
        if not batches:
            return pa.RecordBatch.from_pylist([], schema=self.result_schema)
        return pa.concat_batches(batches) if len(batches) > 1 else batches[0]

    def finish_parts(self, parts: Sequence[ClosedWindows]) -> pa.RecordBatch:
        """The results of windows of which each item may hold some partitions. Ordered by window, then key."""
        if not parts:
            return self.finish([])
        numbers, keys = merge_keys([one.keys for one in parts], self.key_schema)
        columns = [pa.concat_arrays([one.groups.column(at) for one in parts]) for at in range(len(self.state_schema))]
        local = [number[_column(one.groups, 1)] for number, one in zip(numbers, parts, strict=True)]
        columns[1] = pa.array(np.concatenate(local))
        groups = pa.RecordBatch.from_arrays(columns, schema=self.state_schema)
        ranks = key_ranks(keys)
        places = _Places.of(
            _column(groups, 0), ranks[_column(groups, 1)], _column(groups, 2).astype(np.int64), len(ranks)
        )
        order = np.empty(places.count, np.int64)
        order[places.codes] = np.arange(places.count)
        return self._finish(ClosedWindows(keys, groups.take(pa.array(order))))

    def _oldest_pane_needed(self, closed_ms: int) -> int:
        """The first pane of the first window that ends after `closed_ms`."""
        start_ms = ((closed_ms - self.size_ms) // self.every_ms + 1) * self.every_ms
        return start_ms // self.pane_ms

    def _fold(
        self, state: pa.RecordBatch, numbers: list[Codes], rows: Sequence[Rows], key_count: int
    ) -> pa.RecordBatch:
        panes = np.concatenate([_column(state, 0), *[one.panes for one in rows]])
        of_rows = [number[one.keys] for number, one in zip(numbers[1:], rows, strict=True)]
        keys = np.concatenate([numbers[0][_column(state, 1)], *of_rows])
        partitions = np.concatenate(
            [
                _column(state, 2).astype(np.int64),
                *[np.broadcast_to(np.asarray(one.partition, np.int64), len(one.panes)) for one in rows],
            ]
        )
        places = _Places.of(panes, keys, partitions, key_count)
        arguments = [
            pa.concat_arrays([one.arguments[at] for one in rows]) if rows else pa.nulls(0, kind)
            for at, kind in enumerate(self.aggregates.argument_types)
        ]
        before = state.num_rows
        partials = self.aggregates.fold(
            state.columns[3:], places.codes[:before], arguments, places.codes[before:], places.count
        )
        columns = [
            pa.array(places.panes),
            pa.array(places.keys),
            pa.array(places.partitions.astype(np.int32)),
            *partials,
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.state_schema)

    def _closed_windows(self, groups: pa.RecordBatch, keys: pa.RecordBatch, time: Time) -> Iterator[ClosedWindows]:
        """The windows that end in `time`, in pieces of bounded size, by window and key."""
        if time.to_ms is None or not groups.num_rows:
            return
        panes = _column(groups, 0)
        first_start = (int(panes[0]) * self.pane_ms - self.size_ms) // self.every_ms + 1
        if time.from_ms is not None:
            first_start = max(first_start, (time.from_ms - self.size_ms) // self.every_ms + 1)
        last_start = min((time.to_ms - self.size_ms) // self.every_ms, int(panes[-1]) * self.pane_ms // self.every_ms)
        over, step = self.size_ms // self.pane_ms, self.every_ms // self.pane_ms
        ranks = key_ranks(keys)
        start = first_start
        while start <= last_start:
            low = int(np.searchsorted(panes, start * step))
            if low == len(panes):
                return
            if step * start + over <= panes[low]:  # nothing is in this window, nor in those before the next pane
                start = max(start + 1, (int(panes[low]) - over) // step + 1)
                continue
            end = self._end_of_piece(panes, start, last_start, step, over)
            yield self._merge_windows(groups, keys, ranks, (start, end), (step, over))
            start = end

    def _end_of_piece(self, panes: Codes, start: int, last_start: int, step: int, over: int) -> int:
        """After how many windows the panes to merge are enough for one piece: at least one."""
        low, high = start + 1, last_start + 1
        first = int(np.searchsorted(panes, start * step))
        while low < high:
            middle = (low + high + 1) // 2
            rows = int(np.searchsorted(panes, (middle - 1) * step + over)) - first
            if rows * math.ceil(over / step) <= _MERGED_ROWS_MAX:
                low = middle
            else:
                high = middle - 1
        return low

    def _merge_windows(
        self,
        groups: pa.RecordBatch,
        keys: pa.RecordBatch,
        ranks: Codes,
        starts: tuple[int, int],
        shape: tuple[int, int],
    ) -> ClosedWindows:
        """The windows numbered from `starts[0]` to before `starts[1]`, their panes merged in the order of time."""
        step, over = shape
        panes = _column(groups, 0)
        taken, windows = [], []
        for offset in range(over):  # the first pane of every window, then the second ...: so panes stay in their order
            number = panes - offset
            fits = (number % step == 0) & (number >= starts[0] * step) & (number < starts[1] * step)
            rows = np.flatnonzero(fits)
            taken.append(rows)
            windows.append(number[rows] // step)
        rows, window = np.concatenate(taken), np.concatenate(windows)
        part = groups.take(pa.array(rows))
        # By rank, so that results leave in the order of the keys' values.
        places = _Places.of(window, ranks[_column(part, 1)], _column(part, 2).astype(np.int64), len(ranks))
        partials = part.columns[3:]
        if over > 1:
            partials = self.aggregates.merge(partials, places.codes, places.count)
        else:
            order = np.empty(places.count, np.int64)
            order[places.codes] = np.arange(places.count)
            partials = [column.take(pa.array(order)) for column in partials]
        by_rank = np.empty(len(ranks), np.int64)
        by_rank[ranks] = np.arange(len(ranks))
        columns = [places.panes, by_rank[places.keys], places.partitions.astype(np.int32)]
        return ClosedWindows(
            keys, pa.RecordBatch.from_arrays([*map(pa.array, columns), *partials], schema=self.state_schema)
        )

    def _finish(self, closed: ClosedWindows) -> pa.RecordBatch:
        """The results of windows that are whole: partitions are merged in their order."""
        keys, groups = closed.keys, closed.groups
        windows, numbers, partials = _column(groups, 0), _column(groups, 1), groups.columns[3:]
        is_first = np.ones(len(windows), np.bool_)
        is_first[1:] = (windows[1:] != windows[:-1]) | (numbers[1:] != numbers[:-1])
        firsts = np.flatnonzero(is_first)
        if len(firsts) < len(windows):
            partials = self.aggregates.merge(partials, np.cumsum(is_first) - 1, len(firsts))
        values, problem = self.aggregates.finish(partials, len(firsts))
        key_rows = pa.array(numbers[firsts])
        starts = windows[firsts] * self.every_ms
        columns = [
            pa.array(starts),
            pa.array(starts + self.size_ms),
            *[column.take(key_rows) for column in keys.columns],
        ]
        return pa.RecordBatch.from_arrays([*columns, *values, problem], schema=self.result_schema)

    def _without_unused_keys(self, keys: pa.RecordBatch, groups: pa.RecordBatch) -> WindowState:
        used = np.zeros(keys.num_rows, np.bool_)
        numbers = _column(groups, 1)
        used[numbers] = True
        if used.all():
            return WindowState(keys, groups)
        new = np.cumsum(used) - 1
        kept = groups.set_column(1, self.state_schema.field(1), pa.array(new[numbers]))
        rows = pa.array(np.flatnonzero(used))
        return WindowState(keys.take(rows) if keys.num_columns else no_columns(len(rows)), kept)


@dataclass(frozen=True)
class _Places:
    """Distinct (pane, key, partition) in ascending order, and for each row the place of its own."""

    codes: Codes
    panes: Codes
    keys: Codes
    partitions: Codes

    @property
    def count(self) -> int:
        return len(self.panes)

    @staticmethod
    def of(panes: Codes, keys: Codes, partitions: Codes, key_count: int) -> _Places:
        if not len(panes):
            nothing = np.zeros(0, np.int64)
            return _Places(nothing, nothing, nothing, nothing)
        base, spread = int(panes.min()), int(partitions.max()) + 1
        width = max(1, key_count) * spread
        distinct, codes = _number((panes - base) * width + keys * spread + partitions)
        pane, rest = np.divmod(distinct, width)
        key, partition = np.divmod(rest, spread)
        return _Places(codes, pane + base, key, partition)


def _number(values: Codes) -> tuple[Codes, Codes]:
    """The distinct values in ascending order, and the place of each. Sorts only where a table of all would be too large."""
    top = int(values.max()) + 1
    if top > 8 * len(values) + 65_536:
        distinct, codes = np.unique(values, return_inverse=True)
        return distinct, codes.astype(np.int64)
    present: npt.NDArray[np.bool_] = np.zeros(top, np.bool_)
    present[values] = True
    return np.flatnonzero(present), (np.cumsum(present) - 1)[values]


def _column(batch: pa.RecordBatch, at: int) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = batch.column(at).to_numpy(zero_copy_only=False)
    return values
