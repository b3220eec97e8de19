"""The checker's knowledge of the documents of the jobs (`work.py`, `more_jobs.py`): windows, event-time rule, and the
computation of results.

Doubles are added as described in `cascade.py`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from tests.support.chaos.checking.cascade import Hundredths, Key, Result, cascade, load_of, mean_of_doubles
from tests.support.chaos.checking.judging import ClassifiedRecord, Classifier, classify_reading
from tests.support.chaos.checking.pace import AGAIN, ALL, DELAY_MS, IDLE_MS, LONG, MAX_AHEAD_MS, SHORT, Pace, Windows
from tests.support.chaos.checking.versions import Version
from tests.support.chaos.dump import Record, Row

RULE = {
    "delay_ms": DELAY_MS,
    "idle_timeout_ms": IDLE_MS,
    "max_ahead_ms": MAX_AHEAD_MS,
    "watermark": "partitions",
    "bound": "log_time",
}
RULE_OF_RESULTS = RULE | {"delay_ms": 0, "idle_timeout_ms": None, "watermark": "newest"}


@dataclass(frozen=True)
class Pipeline:
    """A job's document."""

    windows: dict[str, Windows]
    """Windows of each stage."""
    rule: Row
    """How it treats event time, as each slice records it."""
    judge: Classifier
    results: Callable[[list[ClassifiedRecord], Version], dict[Key, Result]]
    """From the records, by partition and offset, every result as a version has it, closed or not."""
    reads_results: bool = False
    """True if its records are the results of another job."""
    to_stream: str = SHORT
    """The stage that emits to a stream, if one does."""
    lookup: str | None = None
    """Lookup that enriches its records. None if there is none."""
    records_stage: str | None = None
    """The stage that emits each used row. None if there is none."""
    columns: Callable[[ClassifiedRecord, Version], Row] | None = None
    """What a version emits of a row."""
    reached: Callable[[list[ClassifiedRecord]], Counter[str]] = lambda _: Counter()
    """How often something special occurred in the records, apart from reasons of dead letters and `noted`."""
    must_reach: tuple[str, ...] = ()
    """What has to occur in a run."""


def first(pace: Pace) -> Pipeline:
    """The job of `work.py`."""
    windows = {SHORT: Windows(pace.short_ms, pace.short_ms), LONG: Windows(pace.long_ms, pace.long_ms)}
    return Pipeline(windows, RULE, classify_reading, lambda judged, version: cascade(judged, pace, version))


def second(pace: Pace) -> Pipeline:
    """Reads what the first job's short windows give, and puts it into long windows by client."""
    windows = {AGAIN: Windows(pace.long_ms, pace.long_ms)}
    return Pipeline(
        windows,
        RULE_OF_RESULTS,
        classify_result,
        lambda judged, version: _again(judged, pace, version),
        reads_results=True,
    )


def third(pace: Pace) -> Pipeline:
    """Reads what the first job reads, and puts all of it into sliding windows without a key."""
    windows = {ALL: Windows(pace.long_ms, pace.short_ms)}
    return Pipeline(windows, RULE, classify_reading, lambda judged, version: _all(judged, windows[ALL], version))


def classify_result(record: Record, row: Row) -> ClassifiedRecord:
    """A result of the first job is a record of the second; `derive` fails where nothing was busy."""
    number = row["number"]
    try:
        parsed = json.loads(record.value)
        event_ms = round(datetime.fromisoformat(parsed["window_start"]).timestamp() * 1000)
        busy, n = parsed["busy"], parsed["n"]
    except (ValueError, KeyError, TypeError):
        return ClassifiedRecord(record, number, "schema")
    if event_ms - record.log_time_ms > MAX_AHEAD_MS:
        return ClassifiedRecord(record, number, "future_event", event_ms)
    if row["watermark_ms"] is not None and event_ms < row["watermark_ms"]:
        return ClassifiedRecord(record, number, "late", event_ms)
    if busy == 0:
        return ClassifiedRecord(record, number, "expression", event_ms)
    return ClassifiedRecord(record, number, None, event_ms, parsed | {"crowd": n / busy})


def _again(judged: list[ClassifiedRecord], pace: Pace, version: Version) -> dict[Key, Result]:
    windows: dict[tuple[int, str | None], list[ClassifiedRecord]] = defaultdict(list)
    for one in judged:
        if one.member is not None and one.event_ms is not None:
            windows[(one.event_ms // pace.long_ms + 1) * pace.long_ms, one.member.get("client")].append(one)
    results: dict[Key, Result] = {}
    for (end_ms, client), members in windows.items():
        rows = _rows(members)
        values = {
            "n": sum(row["n"] for row in rows),
            "parts": len(rows),
            "load": load_of(members, pace.long_ms) / len(rows),
            "peak": max(row["peak"] for row in rows),
            "crowd": max(row["crowd"] for row in rows),
            "total": sum(row["total"] * version.times for row in rows),
            "cost": sum((Decimal(row["cost"]) for row in rows), Decimal(0)),
        }
        results[AGAIN, end_ms, (client,)] = Result(end_ms, {"client": client}, values)
    return results


def _all(judged: list[ClassifiedRecord], shape: Windows, version: Version) -> dict[Key, Result]:
    windows: dict[int, list[ClassifiedRecord]] = defaultdict(list)
    for one in judged:
        if one.member is not None and one.event_ms is not None and one.member["load"] < version.load_below:
            first_end_ms = (one.event_ms // shape.every_ms + 1) * shape.every_ms
            for end_ms in range(first_end_ms, one.event_ms + shape.size_ms + 1, shape.every_ms):
                windows[end_ms].append(one)
    results: dict[Key, Result] = {}
    for end_ms, members in windows.items():
        rows = _rows(members)
        load = load_of(members, shape.every_ms) / len(rows)
        values = {
            "n": len(rows),
            "load": load,
            "mean": Hundredths(mean_of_doubles([row["load"] for row in rows]), load),
            "peak": max(float(row["power"]) for row in rows),
            "total": sum(row["count"] * version.times for row in rows),
            "cost": sum((Decimal(row["cost"]) for row in rows), Decimal(0)),
        }
        results[ALL, end_ms, ()] = Result(end_ms, {}, values)
    return results


def _rows(members: list[ClassifiedRecord]) -> list[Row]:
    return [one.member for one in members if one.member is not None]
