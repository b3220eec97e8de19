"""Rows of a stage as they are handed to a result writer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from strandline.results.writer import WINDOW_END, WINDOW_START

_MOMENT = pa.timestamp("us", "UTC")
_ARROW = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": _MOMENT,
    "decimal(10,2)": pa.decimal128(10, 2),
    "decimal(38,20)": pa.decimal128(38, 20),
}

MAY_1_NOON_MS = 1_714_564_800_000
"""2024-05-01T12:00:00Z."""
MINUTE_MS = 60_000


def stage_batch(
    fields: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[Any]],
    *,
    starts_ms: Sequence[int] | None = None,
    size_ms: int = MINUTE_MS,
) -> pa.RecordBatch:
    """Return a batch of the rows (values in the order of the fields; a timestamp is given in microseconds).

    All windows start at MAY_1_NOON_MS unless each row's start is given.
    """
    starts = pa.array(starts_ms or [MAY_1_NOON_MS] * len(rows), pa.int64())
    windows = [starts, pa.array([start + size_ms for start in starts.to_pylist()], pa.int64())]
    columns = [
        pa.array([row[position] for row in rows], pa.int64()).cast(_MOMENT)
        if type_name == "timestamp"
        else pa.array([row[position] for row in rows], _ARROW[type_name])
        for position, (_, type_name) in enumerate(fields)
    ]
    return pa.RecordBatch.from_arrays([*windows, *columns], [WINDOW_START, WINDOW_END, *(name for name, _ in fields)])
