"""A job reads what another one emits, together with a stream of measurements.

Each measurement gets the right results, through a kill and a backfill, for any progress of the other job. Real Kafka,
Elasticsearch, Spark and ledger. The expected results are computed here, and by the audit.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from strandline.ledger.states import BackfillState
from strandline.results.document import format_timestamp
from tests.support.audit_lab import AuditLab

NAME = "beside"
FEED, TENS = f"{NAME}-feed", f"{NAME}-tens"
BASE_MS = 1_790_000_000_000 // 3_600_000 * 3_600_000
SIZE_MS = 10_000
DOCUMENTS = f"""
stream: {FEED}
partitions: 2
schema: {{machine: string, ts: {{type: timestamp, unit: ms}}, celsius: double}}
key: machine
---
pipeline: {TENS}
input: {{stream: {FEED}}}
event_time: {{field: ts, delay: 5s, max_ahead: null}}
steps:
  - window: {{name: tens, tumbling: 10s, by: [machine], aggregate: {{peak: max(celsius)}}}}
    emit: [{{stream: {TENS}}}]
---
pipeline: {NAME}
inputs:
  - {{stream: {FEED}, event_time: {{field: ts, delay: 5s, max_ahead: null}}}}
  - {{stream: {TENS}, event_time: {{field: window_end, delay: 0s, max_ahead: null}}}}
steps:
  - join: {{name: latest, left: {FEED}, right: {TENS}, on: [machine], within: {{before: 30s}}, latest: true, type: left,
            add: {{at: left.ts, peak: right.peak}}}}
    emit: [{{elasticsearch: {NAME}-latest}}]
  - join: {{name: pairs, left: {FEED}, right: {TENS}, on: [machine], within: {{before: 15s}},
            add: {{at: left.ts, ended: right.window_end, peak: right.peak}}}}
    emit: [{{elasticsearch: {NAME}-pairs}}]
"""


def feed(first: int, last: int) -> list[dict[str, Any]]:
    """Two a second of three machines; of each fourth window of a machine none."""
    rows = [{"machine": f"m{n % 3}", "ts": BASE_MS + n * 500, "celsius": float(n * 7 % 50)} for n in range(first, last)]
    return [row for row in rows if (row["ts"] // SIZE_MS + int(row["machine"][1])) % 4]


def expected(rows: list[dict[str, Any]]) -> dict[str, Counter[tuple[Any, ...]]]:
    """Stage -> its results."""
    peaks: dict[tuple[str, int], float] = {}
    for row in rows:
        window = row["machine"], (row["ts"] // SIZE_MS + 1) * SIZE_MS
        peaks[window] = max(peaks.get(window, 0.0), row["celsius"])
    latest, pairs = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]]()
    for row in rows:
        machine, at = row["machine"], row["ts"]
        before = {
            at - end: (end, peak) for (of, end), peak in peaks.items() if of == machine and 0 <= at - end <= 30_000
        }
        latest[machine, text(at), before[min(before)][1] if before else None] += 1
        pairs.update((machine, text(at), text(end), peak) for age, (end, peak) in before.items() if age <= 15_000)
    return {"latest": latest, "pairs": pairs}


def text(time_ms: int) -> str:
    return format_timestamp(time_ms * 1_000)


def stored(lab: AuditLab) -> dict[str, Counter[tuple[Any, ...]]]:
    names = {"latest": ("machine", "at", "peak"), "pairs": ("machine", "at", "ended", "peak")}
    return {
        stage: Counter(tuple(one[name] for name in members) for one in lab.documents(f"{NAME}-{stage}").values())
        for stage, members in names.items()
    }


@pytest.mark.guarantee("G612")
@pytest.mark.long
def test_each_record_meets_the_results_before_it_through_a_kill_and_a_backfill(audit_lab: AuditLab) -> None:
    lab = audit_lab
    lab.apply(DOCUMENTS)
    rows = feed(0, 800)
    lines = [json.dumps(row).encode() for row in rows]
    lab.send(FEED, lines[:300])
    with lab.running(TENS, FEED):
        pass
    # The reader has records of the feed that the emitter does not know yet: they wait for its results.
    lab.send(FEED, lines[300:500])
    lab.run_killed_at(NAME, "slice.written")
    lab.send(FEED, lines[500:])
    lab.drain(TENS)
    lab.drain(NAME)
    wanted = expected(rows)
    assert stored(lab) == wanted
    counts = lab.require_clean(NAME)
    assert {stage: counts[f"{NAME}-{stage}"] for stage in wanted} == {
        stage: {"same": results.total()} for stage, results in wanted.items()
    }
    assert lab.ledger.totals(NAME).rejected == {}

    done = lab.backfill(lab.request_backfill(NAME, BASE_MS))
    assert done.state is BackfillState.COMPLETE, done.message
    assert stored(lab) == wanted
    assert lab.require_clean(NAME)[f"{NAME}-latest"] == {"same": wanted["latest"].total()}
