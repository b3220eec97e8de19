"""The checker's knowledge of a job over a shape: its rows, and its windows of them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tests.support.chaos.checking.cascade import Key, Result
from tests.support.chaos.checking.documents import iso
from tests.support.chaos.checking.judging import ClassifiedRecord
from tests.support.chaos.checking.pace import MAX_AHEAD_MS, SHORT, Pace, Windows
from tests.support.chaos.checking.pipelines import RULE, Pipeline
from tests.support.chaos.checking.versions import Version
from tests.support.chaos.dump import Record, Row
from tests.support.chaos.shapes.shape import Reading, Shape

ROWS = "rows"
"""The stage that emits each row."""


def pipeline_of(pace: Pace, shape: Shape) -> Pipeline:
    return Pipeline(
        {SHORT: Windows(pace.short_ms, pace.short_ms)},
        RULE,
        lambda record, row: classify_rows(record, row, shape),
        lambda judged, version: _windows(judged, pace, version),
        records_stage=ROWS,
        columns=lambda one, version: columns_of(one, shape, version),
        must_reach=shape.must_reach,
    )


def classify_rows(record: Record, row: Row, shape: Shape, *, is_ever_late: bool = True) -> list[ClassifiedRecord]:
    """Return the outcome of each row of a record in a slice. `is_ever_late`: False for a job without windows."""
    found = shape.read(record)
    late_below_ms = row["watermark_ms"] if is_ever_late else None
    rows = [_classified(record, row["number"], late_below_ms, reading, shape) for reading in found.rows]
    for one in rows:
        one.noted = found.noted
    return rows


def _classified(
    record: Record, number: int, late_below_ms: int | None, reading: Reading, shape: Shape
) -> ClassifiedRecord:
    element = reading.element
    is_letter = None if element is None else lambda value: is_letter_of(value, record, reading, shape)
    if reading.reason is not None:
        return ClassifiedRecord(record, number, reading.reason, element=element, is_letter=is_letter)
    event_ms, reason = reading.values["ts"], None
    if event_ms - record.log_time_ms > MAX_AHEAD_MS:
        reason = "future_event"
    elif late_below_ms is not None and event_ms < late_below_ms:
        reason = "late"
    member = None if reason else reading.values | shape.derived(reading.values)
    return ClassifiedRecord(record, number, reason, event_ms, member, element=element, is_letter=is_letter)


def is_letter_of(value: bytes, record: Record, reading: Reading, shape: Shape) -> bool:
    """Return True if the bytes of a dead letter are a record with only this row. So a requeued letter repeats no other row."""
    rows = shape.read(
        Record(record.partition, record.offset, record.log_time_ms, record.key, value, record.headers)
    ).rows
    if len(rows) != 1 or rows[0].reason != reading.reason:
        return False
    values = [{name: one for name, one in row.values.items() if name != shape.renumbered} for row in (rows[0], reading)]
    return values[0] == values[1]


def columns_of(one: ClassifiedRecord, shape: Shape, version: Version) -> dict[str, Any]:
    """Return the columns of a row as a version emits them."""
    assert one.member is not None
    values = one.member["value"]
    scaled = {"scaled": None if values is None else values * version.times}
    return one.member | {"ts": iso(one.member["ts"])} | scaled


def _windows(judged: list[ClassifiedRecord], pace: Pace, version: Version) -> dict[Key, Result]:
    windows: dict[tuple[int, str], list[Row]] = defaultdict(list)
    for one in judged:
        if one.member is not None and one.event_ms is not None:
            windows[(one.event_ms // pace.short_ms + 1) * pace.short_ms, one.member["sensor"]].append(one.member)
    results: dict[Key, Result] = {}
    for (end_ms, sensor), rows in windows.items():
        known = [row["value"] for row in rows if row["value"] is not None]
        values = {
            "n": len(rows),
            "known": len(known),
            "total": sum(known) * version.times if known else None,
            "peak": max(known, default=None),
            "low": min(known, default=None),
        }
        results[SHORT, end_ms, (sensor,)] = Result(end_ms, {"sensor": sensor}, values)
    return results
