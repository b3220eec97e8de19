"""The open windows of a replayed job: those that are requested, in the order in which they close."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.lineage.record_rows import shown
from strandline.processing.lineage.views import WINDOWS_MAX, OpenWindow
from strandline.processing.pipelines.stages import Stage
from strandline.results.writer import PROBLEM, WINDOW_END, WINDOW_START


@dataclass
class ChosenWindows:
    """Requested windows of all stages."""

    stages: dict[str, int] = field(default_factory=dict)
    """Stage -> number of its open windows."""
    matches: int = 0
    windows: list[OpenWindow] = field(default_factory=list)


def chosen_windows(
    opened: Iterable[tuple[Stage, pa.RecordBatch, Sequence[int]]],
    emitted: Mapping[str, int],
    stage: str | None,
    key: str,
) -> ChosenWindows:
    """Return at most WINDOWS_MAX open windows, ordered by end, stage, and key.

    Args: opened: Stage, its open windows, and the number of records of each. emitted: Stage -> the end of the last window that
    was emitted. stage, key: See `Lives.open_windows`.
    """
    found = ChosenWindows()
    for one, all_rows, all_counts in opened:
        is_open = _later_than(all_rows, emitted.get(one.name))
        rows, counts = all_rows.filter(is_open), pa.array(all_counts, pa.int64()).filter(is_open)
        found.stages[one.name] = rows.num_rows
        if stage not in (None, one.name):
            continue
        matching = _contains(rows, one, key)
        rows, counts = rows.filter(matching), counts.filter(matching)
        found.matches += rows.num_rows
        first = np.argsort(rows.column(WINDOW_END).to_numpy(zero_copy_only=False), kind="stable")[:WINDOWS_MAX]
        found.windows += _views(one, rows.take(pa.array(first)), counts.take(pa.array(first)))
    found.windows = sorted(found.windows, key=lambda window: (window.end_ms, window.stage))[:WINDOWS_MAX]
    return found


def _later_than(rows: pa.RecordBatch, emitted_ms: int | None) -> pa.BooleanArray:
    if emitted_ms is None:
        return pa.array(np.ones(rows.num_rows, np.bool_))
    return pc.greater(rows.column(WINDOW_END), emitted_ms)


def _contains(rows: pa.RecordBatch, stage: Stage, text: str) -> pa.BooleanArray:
    """Return a mask of the windows with a key value that contains the text, regardless of case."""
    if not text:
        return pa.array(np.ones(rows.num_rows, np.bool_))
    masks = [
        pc.fill_null(pc.match_substring(_texts(rows.column(name)), text, ignore_case=True), False) for name in stage.by
    ]
    return reduce(pc.or_, masks, pa.array(np.zeros(rows.num_rows, np.bool_)))


def _texts(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type):
        return column
    values = (shown(value) for value in column)
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _views(stage: Stage, rows: pa.RecordBatch, counts: pa.Array) -> list[OpenWindow]:
    keys = [[shown(value) for value in rows.column(name)] for name in stage.by]
    columns = (rows.column(name).to_pylist() for name in (WINDOW_START, WINDOW_END, PROBLEM))
    return [
        OpenWindow(
            stage.name,
            {name: values[at] for name, values in zip(stage.by, keys, strict=True)},
            start_ms,
            end_ms,
            stage.windows.ends_move,
            records,
            problem or "",
        )
        for at, (start_ms, end_ms, problem, records) in enumerate(zip(*columns, counts.to_pylist(), strict=True))
    ]
