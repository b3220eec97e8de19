"""The event time of a pipeline for a sample: its field, and the delay that the order of the sample needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.times.durations import DURATION_MS_MAX, format_duration
from strandline.processing.formats.inference.field_types import CENTURY_S, are_most

_DELAY_MIN_MS = 10_000
_DAY_MS = 86_400_000
_RETENTION_MS = 7 * _DAY_MS
"""Default retention of a stream."""
_STEPS_MS = (10_000, 60_000, 3_600_000, _DAY_MS)
"""A delay is a multiple of the largest of these that is at most half of it."""


@dataclass(frozen=True)
class TimeField:
    """A field that is a time in the records that have it."""

    name: str
    steps: int
    """Number of steps of its path."""
    lacking: int
    """Number of records without it."""
    is_own: bool = True
    """False if it belongs to the whole record, and other values to its rows."""


def best_time(fields: Sequence[TimeField], rows: int) -> TimeField | None:
    """Return the field that is the event time: the first that nearly all records have. If some records lack it, a field that
    all records have is better, unless its path is longer. A time of each row is better than one of the whole record. None if
    there is no such field."""
    usual = [one for one in fields if are_most(rows - one.lacking, rows)]
    usual = [one for one in usual if one.is_own] or usual
    if not usual:
        return None
    return next((one for one in usual if not one.lacking and one.steps <= usual[0].steps), usual[0])


def event_time_of(schema: Mapping[str, Any]) -> str | None:
    """Return the first field that is a time in each record. None if there is none."""
    return next(times_of(schema), None)


def times_of(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields that are a time in each record."""
    for name, spec in schema.items():
        if spec == "timestamp" or (
            isinstance(spec, dict) and spec["type"] == "timestamp" and spec.get("required", True) is not False
        ):
            yield str(name)


def time_notes(field: str | None, columns: Mapping[str, Sequence[pa.Array]], document: dict[str, Any]) -> Iterator[str]:
    """Yield notes on the event time of a pipeline. Adds the retention that the delay needs to the document.

    Args:
        field: Field of the event time. None if there is none.
        columns: Values of the accepted rows, in their order.
    """
    if field is None:
        yield "no field is a time in every record; for a pipeline: event_time: {from: log}"
        return
    times, usual = _times_ms(columns[field]), usual_times_ms(columns[field])
    late_ms = _late_ms(usual)
    delay_ms = delay_for(late_ms)
    yield f"for a pipeline: event_time: {{field: {field}, delay: {format_duration(delay_ms)}}}"
    if len(usual) < len(times):
        yield (
            f"times of {field} that are not of 2000 to 2099: {len(times) - len(usual):,} of {len(times):,}; they are left out of "
            "the delay"
        )
    if late_ms <= _DELAY_MIN_MS:
        return
    group = _sorted_by(field, columns) if late_ms >= _DAY_MS else None
    order = f"the sample is sorted by {group} first, so" if group else "the times of the sample are not in order:"
    yield (
        f"{order} a row is up to {format_duration(late_ms)} older than a row before it; with a shorter delay, windows lose such "
        "rows"
    )
    if late_ms >= DURATION_MS_MAX:
        yield "a delay is at most ten years; send the rows in the order of their times, or check the times"
    if delay_ms >= _RETENTION_MS // 2 and "retention" not in document:
        schema = document.pop("schema")
        document |= {"retention": "forever", "schema": schema}


def delay_of(parts: Sequence[pa.Array]) -> str:
    """Return the delay that accepts each row, as a document writes it. `parts`: event times of the rows, in their order."""
    return format_duration(delay_for(_late_ms(usual_times_ms(parts))))


def delay_for(late_ms: int) -> int:
    """Return the delay in milliseconds that accepts rows that are this late: a round duration of at least 10 s.
    At most the longest duration that a document may have, although later rows are lost."""
    step = max((one for one in _STEPS_MS if 2 * one <= late_ms), default=_DELAY_MIN_MS)
    return min(DURATION_MS_MAX, max(_DELAY_MIN_MS, ceil((late_ms + 1) / step) * step))


def usual_times_ms(parts: Sequence[pa.Array | pa.ChunkedArray]) -> np.ndarray:
    """Return the times of 2000 to 2099 in milliseconds. Others are of clocks that were never set."""
    times = _times_ms(parts)
    return np.asarray(times[_are_of_century(times)])


def _times_ms(parts: Sequence[pa.Array | pa.ChunkedArray]) -> np.ndarray:
    if not parts:
        return np.empty(0, np.int64)
    chunks = [chunk for part in parts for chunk in (part.chunks if isinstance(part, pa.ChunkedArray) else [part])]
    times = pc.drop_null(pa.chunked_array(chunks, parts[0].type))
    return np.asarray(times.cast(pa.timestamp("ms"), safe=False).cast(pa.int64()).to_numpy())


def _are_of_century(times: np.ndarray) -> np.ndarray:
    first, end = (1_000 * one for one in CENTURY_S)
    return np.asarray((first <= times) & (times < end))


def _late_ms(times: np.ndarray) -> int:
    """Return how much older a row is than a row before it, at most, in milliseconds."""
    return int((np.maximum.accumulate(times) - times).max()) if len(times) else 0


def _sorted_by(field: str, columns: Mapping[str, Sequence[pa.Array]]) -> str | None:
    """Return a string field whose values each have their times in order. None if there is none."""
    times = _times_ms(columns[field])
    is_usual = _are_of_century(times)
    times = times[is_usual]
    for name, parts in columns.items():
        array = pa.chunked_array(parts)
        if not pa.types.is_string(array.type):
            continue
        codes = array.combine_chunks().dictionary_encode()
        codes = codes.combine_chunks() if isinstance(codes, pa.ChunkedArray) else codes
        keys = pc.fill_null(codes.indices, -1).to_numpy(zero_copy_only=False)[is_usual]
        if 1 < len(codes.dictionary) < len(keys):
            order = np.argsort(keys, kind="stable")
            same = keys[order][1:] == keys[order][:-1]
            if not np.any(same & (np.diff(times[order]) < -_DELAY_MIN_MS)):
                return name
    return None
