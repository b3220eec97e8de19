"""A pipeline over readings and over results that another job computes from them.

A union and a join give what plain Python computes, and no record is late: for any delay of the results, in any slices,
and after restarts.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.documents import read_documents
from strandline.processing.desk.desk import Desk, DeskResult
from strandline.processing.desk.desk_pipeline import pipeline_of
from strandline.processing.desk.records import DeskRecords
from tests.support.examples import examples

START_MS, TEN_MS, BEFORE_MS = 1_700_000_000_000, 10_000, 30_000
TEXT = """
stream: meters
schema: {meter: string, ts: timestamp, power: long}
key: meter
---
pipeline: tens
input: {stream: meters}
event_time: {field: ts, delay: 0s}
steps:
  - window: {name: tens, tumbling: 10s, by: [meter], aggregate: {power: sum(power)}}
    emit: [{stream: sums}]
---
pipeline: both
inputs:
  - {stream: meters, event_time: {field: ts, delay: 0s, idle_timeout: null}}
  - {stream: sums, event_time: {field: window_end, delay: 0s}}
steps:
  - from: [meters, sums]
    window: {name: all, tumbling: 20s, by: [meter], aggregate: {n: count(*), power: sum(power)}}
    emit: [{elasticsearch: all}]
  - join: {name: last, left: meters, right: sums, on: [meter], within: {before: 30s}, latest: true, type: left,
      add: {power: left.power, usual: right.power}}
  - emit: [{elasticsearch: last}]
"""
PIPELINE = pipeline_of(read_documents(TEXT, "both.yaml"), "both.yaml", "both")

Reading = tuple[int, str, int]
"""Event time, meter, power."""


def some_readings(random: Random, count: int) -> list[Reading]:
    at_ms, found = START_MS, []
    for _ in range(count):
        at_ms += random.choice([0, random.randrange(4_000), random.randrange(40_000)])
        found.append((at_ms, f"m{random.randrange(2)}", random.randrange(100)))
    return found


def results_of(readings: Sequence[Reading]) -> list[Reading]:
    """Return what the other job emits, by the ends of its windows."""
    sums: dict[tuple[int, str], int] = defaultdict(int)
    for at_ms, meter, power in readings:
        sums[at_ms // TEN_MS * TEN_MS + TEN_MS, meter] += power
    return [(end_ms, meter, power) for (end_ms, meter), power in sorted(sums.items())]


def in_one_log(random: Random, readings: list[Reading], results: list[Reading]) -> list[tuple[str, Reading]]:
    """Each stream in its order. A result comes after all readings of its window, and as much later as it likes."""
    log: list[tuple[str, Reading]] = [("meters", one) for one in readings]
    at = 0
    for one in results:
        known = [place for place, (_, read) in enumerate(log) if read[0] < one[0]]
        at = max(at, known[-1] + 1)
        at = random.choice([at, random.randrange(at, len(log) + 1), len(log)])
        log.insert(at, ("sums", one))
        at += 1
    return log


def record(stream: str, one: Reading) -> bytes:
    at_ms, meter, power = one
    times = {"ts": at_ms} if stream == "meters" else {"window_end": at_ms, "window_start": at_ms - TEN_MS}
    return json.dumps({"meter": meter, "power": power, **times}).encode()


def by_desk(log: list[tuple[str, Reading]], random: Random, slice_records: int | None) -> tuple[list[Any], Desk]:
    desk = Desk(PIPELINE, slice_records, restarts=True)
    found: list[Any] = []
    for stream, one in log:
        found += desk.feed(DeskRecords([record(stream, one)], [0], stream=stream))
        if random.random() < 0.05:
            desk.restart()
    return [*found, *desk.drain()], desk


def sums_of(readings: list[Reading]) -> list[tuple[int, str, int, int]]:
    windows: dict[tuple[int, str], list[int]] = defaultdict(list)
    for at_ms, meter, power in readings:
        windows[at_ms // 20_000 * 20_000, meter].append(power)
    return sorted((start, meter, len(some), sum(some)) for (start, meter), some in windows.items())


def pairs_of(readings: list[Reading], results: list[Reading]) -> list[tuple[str, int, int | None]]:
    found = []
    for at_ms, meter, power in readings:
        known = [(end, one) for end, of, one in results if of == meter and at_ms - BEFORE_MS <= end <= at_ms]
        found.append((meter, power, max(known)[1] if known else None))
    return sorted(found, key=repr)


@pytest.mark.guarantee(
    "G610",
    "A union and a join over records and results of another job equal plain Python, however late the results arrive, "
    "in any slices and after restarts.",
    promise="operators-compute-what-the-reference-describes",
)
@examples(12, deadline=None)
@given(seed=st.integers(0, 10**6), slice_records=st.sampled_from([None, 1, 7]))
def test_results_come_as_late_as_they_like_and_none_is_late(seed: int, slice_records: int | None) -> None:
    random = Random(seed)
    readings = some_readings(random, random.randrange(1, 20))
    results = results_of(readings)
    outcomes, desk = by_desk(in_one_log(random, readings, results), random, slice_records)
    assert not desk.counts.rejected
    documents = defaultdict(list)
    for one in outcomes:
        assert isinstance(one, DeskResult), one
        documents[one.stage].append(json.loads(one.document.source))
    united = [(_start_ms(one), one["meter"], one["n"], one["power"]) for one in documents["all"]]
    assert sorted(united) == sums_of([*readings, *results])
    joined = [(one["meter"], one["power"], one.get("usual")) for one in documents["last"]]
    assert sorted(joined, key=repr) == pairs_of(readings, results)


def _start_ms(document: dict[str, Any]) -> int:
    return round(datetime.fromisoformat(document["window"]["start"]).timestamp() * 1000)
