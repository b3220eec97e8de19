"""A first pipeline for a stream that was proposed from a sample: means by sender and window. It is a beginning for its user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.times.durations import format_duration
from strandline.processing.formats.inference.time_order import delay_of, usual_times_ms

Columns = Mapping[str, pa.Array | pa.ChunkedArray]

_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000
_WINDOWS = (
    (_MINUTE_MS, "per_minute"),
    (5 * _MINUTE_MS, "five_minutes"),
    (15 * _MINUTE_MS, "quarter_hour"),
    (_HOUR_MS, "hourly"),
    (_DAY_MS, "daily"),
)
_WINDOWS_WANTED = 40
"""Maximum number of windows into which the sample is divided, if a size allows it."""
_RECORDS_WANTED = 4
"""Mean number of records in a window, if a size allows it."""
_MEANS_MAX = 4
_FEW_RECORDS = 5
_NUMBERS = frozenset({"double", "float", "long", "int", "short", "byte"})
_COUNTS = ("n", "records", "row_count", "records_of_window")
_NAME_LENGTH_MAX = 40
"""Maximum length of the stream's name in the names of the job and its results."""


def first_pipeline(document: Mapping[str, Any], columns: Columns, *, event_time: str | None) -> dict[str, Any]:
    """Return the document of a pipeline: the mean of each number by sender, in windows that divide the sample.

    Args:
        document: Document of the stream.
        columns: Values of the accepted rows, in their order.
        event_time: Field of the event time. None for the log time.
    """
    size_ms, window = _window(columns, event_time)
    sender = sender_of(document, columns)
    by = [] if sender is None else [sender]
    count = next(name for name in _COUNTS if name not in document["schema"])
    aggregate = {count: "count(*)"} | {name: f"avg({name})" for name in _numbers(document, by)}
    rule: dict[str, Any] = (
        {"from": "log"} if event_time is None else {"field": event_time, "delay": delay_of([columns[event_time]])}
    )
    name = f"{str(document['stream'])[:_NAME_LENGTH_MAX]}-{window.replace('_', '-')}".lower()
    shape: dict[str, Any] = {"name": window, "tumbling": format_duration(size_ms)}
    if by:
        shape["by"] = by
    step = {"window": shape | {"aggregate": aggregate}, "emit": [{"elasticsearch": name}]}
    return {"pipeline": name, "input": {"stream": document["stream"]}, "event_time": rule, "steps": [step]}


def sender_of(document: Mapping[str, Any], columns: Columns) -> str | None:
    """Return the string field that probably names the sender: each value occurs in several records, and it has the most values.
    In a sample of few records, values need not be repeated. None if there is no such field."""
    schema = document["schema"].items()
    texts: list[str] = [name for name, spec in schema if _type_of(spec) == "string" and _is_required(spec)]
    values = {name: len(pc.unique(columns[name])) for name in texts}
    repeated = [name for name in texts if 0 < 2 * values[name] <= len(columns[name])]
    if repeated:
        return max(repeated, key=lambda name: values[name])
    return next((name for name in texts if values[name] and len(columns[name]) <= _FEW_RECORDS), None)


def _numbers(document: Mapping[str, Any], by: Sequence[str]) -> list[str]:
    fields = document["schema"].items()
    return [name for name, spec in fields if _type_of(spec) in _NUMBERS and name not in by][:_MEANS_MAX]


def _type_of(spec: Any) -> str:
    return str(spec["type"] if isinstance(spec, Mapping) else spec).removesuffix("?")


def _is_required(spec: Any) -> bool:
    return spec.get("required", True) is not False if isinstance(spec, Mapping) else not str(spec).endswith("?")


def _window(columns: Columns, field: str | None) -> tuple[int, str]:
    """Return the size and the name of the smallest window that divides the sample into few windows."""
    if field is None or not len(columns[field]):
        return _WINDOWS[0]
    times = usual_times_ms([columns[field]])
    span_ms = int(np.max(times) - np.min(times)) if len(times) else 0
    fitting = (one for one in _WINDOWS if span_ms <= one[0] * min(_WINDOWS_WANTED, len(times) / _RECORDS_WANTED))
    return next(fitting, _WINDOWS[-1])
