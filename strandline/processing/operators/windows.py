"""The window operator: (state, rows, closing) -> (state, results), on columns and without Spark.

Rows are folded into *panes*: intervals of event time that no window border divides. A tumbling window is one pane. A sliding
window is merged from several panes when it closes, so the cost of folding a record doesn't depend on the length of the window.

Contracts:
- Order. Each row has a partition. In a first stage, it is that of the input. In a later stage, whose rows are results of the
  stage before, it is its virtual bucket if the buckets of the job share the stage's keys (`cascade.py`), else 0. The rows of
  one partition are passed in their order (in a first stage: by offset). A pane keeps one partial result for each key and
  partition. When a window closes, its panes are merged in time order for each partition, then the partitions in their order.
  Folding continues row after row from the existing partial result (`aggregates.py`). Neither panes nor this order depend on
  slices. So a result is the same to the last bit, however the log was sliced, merged, bucketed, or restarted.
- State. A table of keys, and a table with a row for each (pane, key, partition), whose schema is `state_schema`. It contains only
  panes of windows that are open or can be revised.
- Rewind. The rows determine everything in the state. To rebuild it, read from the start of the oldest of these windows.
- Late rows. The caller has left them out, except those that revise results. Windows that can be revised stay in the state, and
  each one with new rows is returned again, with its new result. A rewind also passes rows of windows that an earlier run has
  closed. These windows close here again, and the emission leaves their results out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.processing.aggregates.registry import require_packages
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.codes import Codes, ranges
from strandline.processing.operators.aggregates import StageAggregates
from strandline.processing.operators.blobs import parts_of
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.dedupe.candidates import kept_rows
from strandline.processing.operators.dedupe.dedupe_state import Flags
from strandline.processing.operators.keys import encode_keys, key_ranks, merge_keys, no_columns
from strandline.processing.operators.panes import EqualPanes, Panes
from strandline.processing.pipelines.stages import Stage
from strandline.results.writer import PROBLEM, WINDOW_END, WINDOW_START

_MERGED_ROWS_MAX = 4_000_000
"""Maximum number of pane rows merged in one step. A drain can close thousands of sliding windows in one step."""
_ROW_BYTES = 256
"""Average size of a row above which fewer rows are merged in one step, for example rows with lists."""

_FOLD_BYTES = 1 << 30
"""Maximum number of bytes of the arguments of rows that are folded in one step."""

_GROUPS_MAX = 2**62
"""Maximum number of groups whose numbers fit into 64 bits."""


def merged_rows_max(groups: pa.RecordBatch) -> int:
    """Return the maximum number of these rows to merge in one step. `groups`: at least one row."""
    expected_bytes = _ROW_BYTES * int(groups.num_rows)
    return _MERGED_ROWS_MAX // max(1, int(groups.nbytes) // expected_bytes)


@dataclass(frozen=True)
class Rows:
    """New rows of one input partition, in their order."""

    partition: int | Codes
    """One number for all rows, or one for each row."""
    panes: Codes
    """Result of the operator's `_panes_of` for each row: the number of its pane. If records make the windows, its event time: in
    ms for sessions, and in microseconds for operators whose rows wait until their order is final."""
    keys: Codes
    """Number of each row's key in `key_table`."""
    key_table: pa.RecordBatch
    arguments: list[pa.Array]
    """Values of the aggregates' arguments, in the order of `AggregateCalls.argument_types`."""


@dataclass(frozen=True)
class WindowState:
    """Open windows: the table of keys, and a row of partial results for each (pane, key, partition), in that order."""

    keys: pa.RecordBatch
    groups: pa.RecordBatch

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(self.keys.nbytes + self.groups.nbytes)


@dataclass(frozen=True)
class ClosedWindows:
    """Final windows: the table of keys, and a row of partial results for each (window, key, partition), ordered by
    window, the key's values, and partition."""

    keys: pa.RecordBatch
    groups: pa.RecordBatch
    """Columns of `WindowState.groups`, but the first one, `pane`, contains the number of the window."""
    is_revision: bool = False
    """True if the windows were final before, and late rows have changed them."""


class WindowOperator:
    """One window stage. Contains only constants; state and rows are arguments and results."""

    key_columns: tuple[tuple[str, pa.DataType], ...] = (
        ("pane", pa.int64()),
        ("key", pa.int64()),
        ("partition", pa.int32()),
    )
    """First columns of the state. The partial results follow."""
    needs_positions: ClassVar[bool] = False
    """True if records need OFFSET and ELEMENT, their log positions."""

    def __init__(self, stage: Stage, types: dict[str, str]) -> None:
        """`types`: columns that the stage's aggregates and `by` fields can read."""
        self.stage = stage
        require_packages(dict(stage.packages))
        self.aggregates = StageAggregates(stage.name, stage.aggregates, types)
        shape = stage.shape
        self.pane_ms = math.gcd(shape.size_ms, shape.every_ms)
        """Length of a pane, except for days, whose lengths differ."""
        self._size_panes, self._every_panes = shape.size_ms // self.pane_ms, shape.every_ms // self.pane_ms
        self._panes: Panes = EqualPanes(self.pane_ms, shape.offset_ms)
        self.key_schema = pa.schema(
            [(name, arrow_type(kind)) for name, kind in zip(stage.by, stage.by_types, strict=True)]
        )
        self.state_schema = pa.schema(
            [
                *[pa.field(*place) for place in self.key_columns],
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

    def empty_state(self) -> WindowState:
        """Return the state without open windows."""
        keys = pa.RecordBatch.from_pylist([], schema=self.key_schema) if len(self.key_schema) else no_columns(0)
        return WindowState(keys, pa.RecordBatch.from_pylist([], schema=self.state_schema))

    def rows_of_records(self, side: int, partition: int, event_us: Codes, columns: dict[str, pa.Array]) -> Rows:
        """Return records of one partition as rows of an input of this stage. `columns` have OFFSET and ELEMENT if the operator
        needs log positions."""
        return self.rows(partition, event_us, columns)

    def rows_of_results(
        self,
        side: int,
        before: Stage,
        labels: Callable[[], int | Codes],
        event_us: Codes,
        columns: dict[str, pa.Array],
    ) -> Rows:
        """Return results of the stage `before` as rows of an input of this stage. `columns` have its times and its identifying
        columns. `labels`: returns the partition of each."""
        return self.rows(labels(), event_us, columns)

    def without_duplicates(
        self, rows: Sequence[Rows], partitions: Sequence[int], duplicates: Mapping[int, tuple[pa.RecordBatch, Flags]]
    ) -> dict[int, Flags]:
        """Return index of a chunk -> mask of its rows that aren't duplicates, for the chunks that can have some.

        - `rows`: rows of each chunk.
        - `partitions`: partition of each chunk.
        - `duplicates`: index of a chunk -> records in it that reached the duplicate filter, and a mask of the duplicates.
        """
        return {at: kept_rows(*found, len(rows[at].panes)) for at, found in duplicates.items()}

    def rows(self, partition: int | Codes, event_us: Codes, columns: dict[str, pa.Array]) -> Rows:
        """Return records or results of one partition as rows of this stage: their panes, keys, and arguments."""
        count = len(event_us)
        encoded = encode_keys([columns[name] for name in self.stage.by], self.key_schema, count)
        arguments = self.aggregates.evaluate_arguments(columns, pa.array(event_us, pa.int64()))
        return Rows(partition, self._panes_of(event_us), encoded.codes, encoded.table, arguments)

    def _panes_of(self, event_us: Codes) -> Codes:
        return self._panes.of(event_us)

    def step(self, state: WindowState, rows: Sequence[Rows], closing: Closing) -> tuple[WindowState, pa.RecordBatch]:
        """Fold new rows, and take out the windows that become final.

        The rows of each partition must be in their order in `rows`; rows of several partitions can be mixed. Results are
        ordered by window, then key. Results that revise earlier ones are last, in the same order.
        """
        kept, closed = self.step_in_part(state, rows, closing)
        return kept, self.finish(closed)

    def step_in_part(
        self, state: WindowState, rows: Sequence[Rows], closing: Closing
    ) -> tuple[WindowState, list[ClosedWindows]]:
        """Do the work of `step` without computing the results. `finish` computes them, or `finish_parts` if other buckets
        contain partitions of the same keys.

        1. Number the keys of the state and of the rows together.
        2. Fold the rows into their groups.
        3. Take out the windows that become final, and final windows with new rows, if `closing` has results.
        4. Keep the panes that a later window or a revision needs, and their keys.
        """
        numbers, keys = merge_keys([state.keys, *[one.key_table for one in rows]], self.key_schema)
        groups = self._fold(state.groups, numbers, rows, keys.num_rows)
        closed = list(self.closed_windows(WindowState(keys, groups), closing)) if closing.gives_results else []
        if self.stage.revise_ms and closing.emitted_ms is not None and closing.gives_results:
            closed += self._revised_windows(groups, keys, numbers[1:], rows, closing.emitted_ms)
        kept = WindowState(keys, groups)
        if closing.up_to_ms is not None:
            oldest = self.oldest_pane_needed(closing.up_to_ms - self.stage.revise_ms)
            return self.without_panes_before(kept, oldest), closed
        return self._without_unused_keys(keys, groups), closed

    def without_panes_before(self, state: WindowState, oldest: int) -> WindowState:
        """Return the state from this pane on, with the keys that have groups there."""
        # Groups are in the order of their panes, so groups that aren't needed any more are the first ones.
        unneeded = int(np.searchsorted(_column(state.groups, 0), oldest))
        return self._without_unused_keys(state.keys, state.groups.slice(unneeded))

    def open_windows(self, state: WindowState, closed_ms: int | None, rows_max: int) -> list[ClosedWindows]:
        """Return the windows that end after `closed_ms`, with their current content: those that end first, with at most about
        `rows_max` rows. Overlapping windows are included if they have content."""
        if not state.groups.num_rows:
            return []
        until_ms = self.open_until_ms(int(_column(state.groups, 0)[-1]))
        return self.first_windows(state, Closing(closed_ms, until_ms), rows_max)

    def first_windows(self, state: WindowState, closing: Closing, rows_max: int) -> list[ClosedWindows]:
        """Return the windows in `closing` that end first, with at most about `rows_max` rows."""
        found: list[ClosedWindows] = []
        rows = 0
        for one in self.closed_windows(state, closing):
            found.append(one)
            rows += one.groups.num_rows
            if rows >= rows_max:
                break
        return found

    def open_until_ms(self, pane: int) -> int:
        """Return the time in ms at which the last window ends that contains this pane."""
        return self.stage.shape.last_end_holding(int(self._panes.starts_ms(np.array([pane]))[0]))

    def pane_at(self, at_ms: int) -> int:
        """Return the pane that contains this instant."""
        return self._panes.at(at_ms)

    def panes_closing(self, closing: Closing) -> tuple[int | None, int]:
        """Return the first pane of the windows that close (None: all older ones belong to them), and the pane after the last one.

        If no window closes, the first isn't before the other. `closing.up_to_ms` must not be None.
        """
        assert closing.up_to_ms is not None, "only called if windows close"
        last = self._last_window_closed(closing.up_to_ms)
        first = None if closing.after_ms is None else self._last_window_closed(closing.after_ms) + 1
        if first is not None and first > last:
            return 0, 0
        firsts, ends = self._borders(np.array([last if first is None else first, last]))
        return None if first is None else int(firsts[0]), int(ends[1])

    def finish(self, closed: Sequence[ClosedWindows]) -> pa.RecordBatch:
        """Return the results of windows that are completely in this bucket. The results of each item of `closed` are ordered by
        window, then key. The items keep their order."""
        batches = [self._finish(one) for one in closed]
        if not batches:
            return pa.RecordBatch.from_pylist([], schema=self.result_schema)
        return pa.concat_batches(batches) if len(batches) > 1 else batches[0]

    def finish_parts(self, parts: Sequence[ClosedWindows]) -> pa.RecordBatch:
        """Return the results of windows that several buckets share. Each item of `parts` has some of their partitions. No
        partition is in two items, and together they have all. Ordered by window, then key."""
        if not parts:
            return self.finish([])
        numbers, keys = merge_keys([one.keys for one in parts], self.key_schema)
        columns = [pa.concat_arrays([one.groups.column(at) for one in parts]) for at in range(len(self.state_schema))]
        local = [number[_column(one.groups, 1)] for number, one in zip(numbers, parts, strict=True)]
        columns[1] = pa.array(np.concatenate(local))
        groups = pa.RecordBatch.from_arrays(columns, schema=self.state_schema)
        ranks = key_ranks(keys)
        places = GroupIndex.of(
            _column(groups, 0), ranks[_column(groups, 1)], _column(groups, 2).astype(np.int64), len(ranks)
        )
        return self._finish(ClosedWindows(keys, groups.take(pa.array(places.order()))))

    def oldest_pane_needed(self, closed_ms: int) -> int:
        """Return the first pane of the first window that ends after `closed_ms`."""
        return int(self._borders(np.array([self._last_window_closed(closed_ms) + 1]))[0][0])

    def _last_window_closed(self, closed_ms: int) -> int:
        """Return the number of the last window that ends at or before `closed_ms`."""
        return (self._panes.at(closed_ms) - self._size_panes) // self._every_panes

    def _fold(
        self, state: pa.RecordBatch, numbers: list[Codes], rows: Sequence[Rows], key_count: int
    ) -> pa.RecordBatch:
        places, partials = self._fold_into_groups(state, numbers, [one.panes for one in rows], rows, key_count)
        columns = [
            pa.array(places.panes),
            pa.array(places.keys),
            pa.array(places.partitions.astype(np.int32)),
            *partials,
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.state_schema)

    def _fold_into_groups(
        self,
        state: pa.RecordBatch,
        numbers: list[Codes],
        panes_of_rows: Sequence[Codes],
        rows: Sequence[Rows],
        key_count: int,
    ) -> tuple[GroupIndex, list[pa.Array]]:
        """Return each (pane, key, partition) of the state and of the rows, and the partial results for it."""
        panes = np.concatenate([_column(state, 0), *panes_of_rows])
        of_rows = [number[one.keys] for number, one in zip(numbers[1:], rows, strict=True)]
        keys = np.concatenate([numbers[0][_column(state, 1)], *of_rows])
        partitions = np.concatenate(
            [
                _column(state, 2).astype(np.int64),
                *[np.broadcast_to(np.asarray(one.partition, np.int64), len(one.panes)) for one in rows],
            ]
        )
        places = GroupIndex.of(panes, keys, partitions, key_count)
        known, new = np.split(places.codes, [state.num_rows])
        partials = state.columns[len(self.key_columns) :]
        for part in parts_of(rows, _argument_bytes, _FOLD_BYTES):
            arguments = [
                _joined([one.arguments[at] for one in part]) if part else pa.nulls(0, kind)
                for at, kind in enumerate(self.aggregates.argument_types)
            ]
            codes, new = np.split(new, [sum(len(one.panes) for one in part)])
            # Only groups that have rows already: the others have no partial results yet.
            with_rows, local = _dense_codes(np.concatenate([known, codes]))
            at_known, at_new = np.split(local, [len(known)])
            partials = self.aggregates.fold(partials, at_known, arguments, at_new, len(with_rows))
            known = with_rows
        return places, partials

    def closed_windows(self, state: WindowState, closing: Closing) -> Iterator[ClosedWindows]:
        """Yield the windows that become final, in pieces of bounded size, by window and key.

        `state`: all groups of these windows, in the order of their panes.
        """
        keys, groups = state.keys, state.groups
        if closing.up_to_ms is None or not groups.num_rows:
            return
        panes = _column(groups, 0)
        first = None if closing.after_ms is None else self._last_window_closed(closing.after_ms) + 1
        windows = self._windows_holding(panes, first, self._last_window_closed(closing.up_to_ms))
        if not len(windows):
            return
        ranks = key_ranks(keys)
        for piece in self._pieces(groups, windows):
            yield self._merged(groups, keys, ranks, *self._rows_in(panes, piece))

    def _borders(self, windows: Codes) -> tuple[Codes, Codes]:
        """Return the first pane of each of these windows, and the first pane after it."""
        first_panes = windows * self._every_panes
        return first_panes, first_panes + self._size_panes

    def _first_and_last_window(self, panes: Codes) -> tuple[Codes, Codes]:
        """Return the first and the last window that contain each of these panes. If none does, the last is before the first."""
        return (panes - self._size_panes) // self._every_panes + 1, panes // self._every_panes

    def _windows_holding(self, panes: Codes, first: int | None, last: int) -> Codes:
        """Return the windows from `first` (None for no lower limit) to `last` that contain one of these panes, which ascend."""
        borders = np.searchsorted(panes, self._borders(np.array([last if first is None else first, last])))
        panes = panes[0 if first is None else borders[0, 0] : borders[1, 1]]
        firsts, lasts = self._first_and_last_window(panes)
        if first is not None:
            firsts = np.maximum(firsts, first)
        # Each window is returned once: those of the pane before are already included. For example, with windows of 2 panes that
        # begin with each pane, pane 5 is in windows 4 and 5, and pane 6 in windows 5 and 6. So only window 6 is new for pane 6.
        firsts = np.maximum(firsts, np.concatenate([firsts[:1], lasts[:-1] + 1]))
        return ranges(firsts, np.maximum(np.minimum(lasts, last) - firsts + 1, 0))

    def _pieces(self, groups: pa.RecordBatch, windows: Codes) -> list[Codes]:
        """Divide these windows into parts of at least one window, which merge about the maximum number of rows of one step."""
        begins, ends = np.searchsorted(_column(groups, 0), self._borders(windows))
        rows = np.cumsum(ends - begins)
        return np.split(windows, np.flatnonzero(np.diff(rows // merged_rows_max(groups))) + 1)

    def _rows_in(self, panes: Codes, windows: Codes) -> tuple[Codes, Codes]:
        """Return the indices of the panes that each of these windows contains, in time order, and the number of the window for
        each index. `panes` ascend. The cost depends on the existing panes of the windows, not on the possible ones."""
        begins, ends = np.searchsorted(panes, self._borders(windows))
        return ranges(begins, ends - begins), np.repeat(windows, ends - begins)

    def _revised_windows(
        self, groups: pa.RecordBatch, keys: pa.RecordBatch, numbers: list[Codes], rows: Sequence[Rows], emitted_ms: int
    ) -> Iterator[ClosedWindows]:
        """Yield the windows that end at or before `emitted_ms`, for keys with new rows in them, in parts of bounded size.
        `numbers`: numbers of the rows' keys."""
        open_pane, key_count = self._panes.at(emitted_ms), max(1, keys.num_rows)
        old = [np.flatnonzero(one.panes <= open_pane) for one in rows]  # no other rows are in a closed window
        if not sum(map(len, old)):
            return
        new_panes = np.concatenate([one.panes[places] for one, places in zip(rows, old, strict=True)])
        of_rows = zip(numbers, rows, old, strict=True)
        new_keys = np.concatenate([number[one.keys[places]] for number, one, places in of_rows])
        new = GroupIndex.of(new_panes, new_keys, np.zeros(len(new_panes), np.int64), key_count)
        windows = self._windows_holding(new.panes, None, self._last_window_closed(emitted_ms))
        if not len(windows):
            return
        panes, key_of_group, ranks = _column(groups, 0), _column(groups, 1), key_ranks(keys)
        for piece in self._pieces(groups, windows):
            new_rows, changed = self._rows_in(new.panes, piece)
            taken, window = self._rows_in(panes, piece)
            first = int(piece[0])
            fits = np.isin(
                (window - first) * key_count + key_of_group[taken], (changed - first) * key_count + new.keys[new_rows]
            )
            yield replace(self._merged(groups, keys, ranks, taken[fits], window[fits]), is_revision=True)

    def _merged(
        self, groups: pa.RecordBatch, keys: pa.RecordBatch, ranks: Codes, rows: Codes, window: Codes
    ) -> ClosedWindows:
        """Merge these rows of groups to windows. `window`: number of the window of each row."""
        part = groups.take(pa.array(rows))
        # The rank of a key is its index among all keys in the order of their values. Results are in this order.
        places = GroupIndex.of(window, ranks[_column(part, 1)], _column(part, 2).astype(np.int64), len(ranks))
        partials = part.columns[len(self.key_columns) :]
        if self._size_panes > 1:
            partials = self.aggregates.merge(partials, places.codes, places.count)
        else:
            order = pa.array(places.order())
            partials = [column.take(order) for column in partials]
        key_of_rank = np.empty(len(ranks), np.int64)
        key_of_rank[ranks] = np.arange(len(ranks))
        columns = [places.panes, key_of_rank[places.keys], places.partitions.astype(np.int32)]
        return ClosedWindows(
            keys, pa.RecordBatch.from_arrays([*map(pa.array, columns), *partials], schema=self.state_schema)
        )

    def _finish(self, closed: ClosedWindows) -> pa.RecordBatch:
        """Return the results of complete windows: partitions are merged in their order."""
        keys, groups = closed.keys, closed.groups
        windows, numbers, partials = _column(groups, 0), _column(groups, 1), groups.columns[len(self.key_columns) :]
        is_first = np.ones(len(windows), np.bool_)
        is_first[1:] = (windows[1:] != windows[:-1]) | (numbers[1:] != numbers[:-1])
        firsts = np.flatnonzero(is_first)
        if len(firsts) < len(windows):
            partials = self.aggregates.merge(partials, np.cumsum(is_first) - 1, len(firsts))
        values, problem = self.aggregates.finish(partials, len(firsts))
        key_rows = pa.array(numbers[firsts])
        columns = [
            *map(pa.array, self._times(groups, firsts)),
            *[column.take(key_rows) for column in keys.columns],
        ]
        return pa.RecordBatch.from_arrays([*columns, *values, problem], schema=self.result_schema)

    def _times(self, groups: pa.RecordBatch, rows: Codes) -> tuple[Codes, Codes]:
        """Return the beginnings and the ends of the windows of these rows."""
        begins, ends = self._borders(_column(groups, 0)[rows])
        return self._panes.starts_ms(begins), self._panes.starts_ms(ends)

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
class GroupIndex:
    """The distinct (pane, key, partition) in ascending order, and the index of each row among them. When windows are merged,
    the number of the window replaces the pane, and the rank of the key replaces the key."""

    codes: Codes
    panes: Codes
    keys: Codes
    partitions: Codes

    @property
    def count(self) -> int:
        return len(self.panes)

    def order(self) -> Codes:
        """Return the rows in the order of their indices. No two rows have the same index."""
        order = np.empty(self.count, np.int64)
        order[self.codes] = np.arange(self.count)
        return order

    @staticmethod
    def of(panes: Codes, keys: Codes, partitions: Codes, key_count: int) -> GroupIndex:
        if not len(panes):
            nothing = np.zeros(0, np.int64)
            return GroupIndex(nothing, nothing, nothing, nothing)
        base, spread = int(panes.min()), int(partitions.max()) + 1
        width = max(1, key_count) * spread
        if (int(panes.max()) - base + 1) * width > _GROUPS_MAX:
            # Far apart, for example with one record of 1970: only existing values are numbered.
            (known, pane_numbers), (labels, label_numbers) = _distinct(panes), _distinct(partitions)
            dense = GroupIndex.of(pane_numbers, keys, label_numbers, key_count)
            return GroupIndex(dense.codes, known[dense.panes], dense.keys, labels[dense.partitions])
        distinct, codes = _dense_codes((panes - base) * width + keys * spread + partitions)
        pane, rest = np.divmod(distinct, width)
        key, partition = np.divmod(rest, spread)
        return GroupIndex(codes, pane + base, key, partition)


def rows_in_state(
    schema: pa.Schema, numbers: Sequence[Codes], rows: Sequence[Rows], between: Callable[[int], list[pa.Array]]
) -> list[pa.RecordBatch]:
    """Return new rows in the form of a state in which rows wait: time, key, partition, other columns, arguments.

    Args:
        numbers: Number of each key, for each item of `rows`.
        between: Returns the columns between partition and arguments, for a number of rows.
    """
    found = []
    for number, one in zip(numbers, rows, strict=True):
        count = len(one.panes)
        columns = [
            pa.array(one.panes, pa.int64()),
            pa.array(number[one.keys], pa.int64()),
            pa.array(np.broadcast_to(np.asarray(one.partition, np.int32), count)),
            *between(count),
            *one.arguments,
        ]
        found.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    return found


def _argument_bytes(rows: Rows) -> int:
    return sum(argument.nbytes for argument in rows.arguments)


def _joined(arrays: Sequence[pa.Array]) -> pa.Array:
    """Return one array of all. A single array isn't copied."""
    return pa.concat_arrays(arrays) if len(arrays) > 1 else arrays[0]


def _dense_codes(values: Codes) -> tuple[Codes, Codes]:
    """Return the distinct values in ascending order, and the index of each value among them. Sorts only if a table with an
    entry for every number up to the maximum would be too large."""
    top = int(values.max(initial=-1)) + 1
    if top > 8 * len(values) + 65_536:
        return _distinct(values)
    present: npt.NDArray[np.bool_] = np.zeros(top, np.bool_)
    present[values] = True
    return np.flatnonzero(present), (np.cumsum(present) - 1)[values]


def _distinct(values: Codes) -> tuple[Codes, Codes]:
    """Return the result of `_dense_codes`, always by sorting."""
    distinct, codes = np.unique(values, return_inverse=True)
    return distinct, codes.astype(np.int64)


def _column(batch: pa.RecordBatch, at: int) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = batch.column(at).to_numpy(zero_copy_only=False)
    return values
