"""A job joins windows of two streams, and each record with the latest setting and the latest window before it.

Each joined row exists once, through a kill and a backfill. Real Kafka, Elasticsearch, Spark and ledger. The expected
results are computed here, and by the audit.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from strandline.ledger.states import BackfillState
from strandline.results.document import format_timestamp
from tests.support.audit_lab import AuditLab

NAME = "sides"
HEAT, METERS = f"{NAME}-heat", f"{NAME}-meters"
BASE_MS = 1_790_000_000_000 // 3_600_000 * 3_600_000
SIZE_MS = 10_000
DOCUMENTS = f"""
stream: {HEAT}
partitions: 2
schema: {{machine: string, ts: {{type: timestamp, unit: ms}}, celsius: double}}
key: machine
---
stream: {METERS}
partitions: 3
schema: {{machine: string, read: {{type: timestamp, unit: ms}}, wh: double, limit: "double?"}}
key: machine
---
pipeline: {NAME}
inputs:
  - {{stream: {HEAT}, event_time: {{field: ts, delay: 2s, max_ahead: null}}}}
  - {{stream: {METERS}, event_time: {{field: read, delay: 5s, max_ahead: null}}}}
steps:
  - window: {{name: heat, tumbling: 10s, by: [machine], aggregate: {{peak: max(celsius)}}}}
    from: {HEAT}
  - window: {{name: energy, tumbling: 10s, by: [machine], aggregate: {{wh: max(wh), n: count(*)}}}}
    from: {METERS}
  - where: n > 1
    name: measured
  - join: {{name: both, left: heat, right: measured, on: [machine], same_window: true, type: full,
            add: {{peak: left.peak, wh: right.wh}}}}
    emit: [{{elasticsearch: {NAME}-both}}, {{stream: {NAME}-both}}]
  - window: {{name: minutes, tumbling: 1m, by: [machine], aggregate: {{n: count(*), top: max(peak)}}}}
    emit: [{{elasticsearch: {NAME}-minutes}}]
  - join: {{name: compared, left: both, right: minutes, on: [machine], tumbling: 1m, add: {{peak: left.peak, top: right.top}}}}
    emit: [{{elasticsearch: {NAME}-compared}}]
  - where: limit is not null
    from: {METERS}
    name: limits
  - join: {{name: limited, left: {HEAT}, right: limits, on: [machine], within: {{before: 15s}}, latest: true, type: left,
            add: {{at: left.ts, limit: right.limit}}}}
    emit: [{{elasticsearch: {NAME}-limited}}]
  - join: {{name: lagged, left: {HEAT}, right: heat, on: [machine], within: {{before: 30s}}, latest: true,
            add: {{at: left.ts, before: right.peak}}}}
    emit: [{{elasticsearch: {NAME}-lagged}}]
"""


def heat(first: int, last: int) -> list[dict[str, Any]]:
    """One a second, of one machine after the other; of each third window of a machine none."""
    rows = [
        {"machine": f"m{n % 3}", "ts": BASE_MS + n * 1_000, "celsius": float(n * 7 % 50)} for n in range(first, last)
    ]
    return [row for row in rows if (row["ts"] // SIZE_MS + int(row["machine"][1])) % 3]


def meters(first: int, last: int) -> list[dict[str, Any]]:
    """Two a second of three machines; now and then with a new limit."""
    return [
        {
            "machine": f"m{n % 4}",
            "read": BASE_MS + n * 500,
            "wh": n * 11 % 90 / 2,
            "limit": n / 4 if n % 23 == 0 else None,
        }
        for n in range(2 * first, 2 * last)
        if n % 20 < 12 or n % 4 == 0
    ]


def windows(rows: list[dict[str, Any]], time: str, value: str) -> dict[tuple[str, int], list[float]]:
    """(machine, end) -> values."""
    found: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        found.setdefault((row["machine"], (row[time] // SIZE_MS + 1) * SIZE_MS), []).append(row[value])
    return found


def expected(rows: list[dict[str, Any]], read: list[dict[str, Any]]) -> dict[str, Counter[tuple[Any, ...]]]:
    """Stage -> its results."""
    left = {one: max(values) for one, values in windows(rows, "ts", "celsius").items()}
    right = {one: max(values) for one, values in windows(read, "read", "wh").items() if len(values) > 1}
    found: dict[str, Counter[tuple[Any, ...]]] = {name: Counter() for name in ("both", "compared", "limited", "lagged")}
    tops: dict[tuple[str, int], list[float]] = {}
    for machine, end_ms in left.keys() | right.keys():
        peak = left.get((machine, end_ms))
        found["both"][machine, end_ms - SIZE_MS, end_ms, peak, right.get((machine, end_ms))] += 1
        tops.setdefault((machine, (end_ms - 1) // 60_000), []).extend([] if peak is None else [peak])
    for (machine, _, end_ms, peak, _), count in found["both"].items():
        found["compared"][machine, peak, max(tops[machine, (end_ms - 1) // 60_000], default=None)] += count
    for row in rows:
        limits = [
            (one["read"], one["limit"])
            for one in read
            if one["limit"] is not None and one["machine"] == row["machine"] and 0 <= row["ts"] - one["read"] <= 15_000
        ]
        found["limited"][row["machine"], row["ts"], max(limits, default=(0, None))[1]] += 1
        ends = [end_ms for machine, end_ms in left if machine == row["machine"] and -1 <= row["ts"] - end_ms < 30_000]
        ends = [end_ms for end_ms in ends if end_ms <= row["ts"]]
        if ends:
            found["lagged"][row["machine"], row["ts"], left[row["machine"], max(ends)]] += 1
    return found


def stored(lab: AuditLab) -> dict[str, Counter[tuple[Any, ...]]]:
    def times(one: dict[str, Any]) -> tuple[str, str]:
        return one["window"]["start"], one["window"]["end"]

    def documents(name: str) -> list[dict[str, Any]]:
        return list(lab.documents(f"{NAME}-{name}").values())

    return {
        "both": Counter((one["machine"], *times(one), one["peak"], one["wh"]) for one in documents("both")),
        "compared": Counter((one["machine"], one["peak"], one["top"]) for one in documents("compared")),
        "limited": Counter((one["machine"], one["at"], one["limit"]) for one in documents("limited")),
        "lagged": Counter((one["machine"], one["at"], one["before"]) for one in documents("lagged")),
    }


def shown(found: dict[str, Counter[tuple[Any, ...]]]) -> dict[str, Counter[tuple[Any, ...]]]:
    """With times as documents have them."""
    return {
        stage: Counter(
            {
                tuple(format_timestamp(one * 1000) if isinstance(one, int) else one for one in row): count
                for row, count in results.items()
            }
        )
        for stage, results in found.items()
    }


@pytest.mark.guarantee("G592")
@pytest.mark.long
def test_results_are_joined_once_through_a_kill_and_a_backfill(audit_lab: AuditLab) -> None:
    lab = audit_lab
    lab.apply(DOCUMENTS)
    rows, read = heat(0, 400), meters(0, 400)
    lab.send(HEAT, [json.dumps(row).encode() for row in rows[:150]])
    lab.send(METERS, [json.dumps(row).encode() for row in read[:250]])
    lab.run_killed_at(NAME, "slice.written")
    lab.send(HEAT, [json.dumps(row).encode() for row in rows[150:]])
    lab.send(METERS, [json.dumps(row).encode() for row in read[250:]])
    lab.drain(NAME)
    wanted = shown(expected(rows, read))
    assert stored(lab) == wanted
    counts = lab.require_clean(NAME)
    assert {stage: counts[f"{NAME}-{stage}"] for stage in wanted} == {
        stage: {"same": results.total()} for stage, results in wanted.items()
    }

    done = lab.backfill(lab.request_backfill(NAME, BASE_MS))
    assert done.state is BackfillState.COMPLETE, done.message
    assert stored(lab) == wanted
    assert lab.require_clean(NAME)[f"{NAME}-both"] == {"same": wanted["both"].total()}
