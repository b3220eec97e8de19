"""A job with branches: one reading of the log, several keys; through a kill, an upgrade that adds and removes branches, and a
backfill. Real Kafka, Elasticsearch, Spark and ledger. What must be there is worked out here, and by the audit."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import datetime
from typing import Any

import pytest

from strandline.ledger.states import BackfillState
from tests.support.audit_lab import AuditLab
from tests.support.topic_reader import read_messages

NAME = "forked"
STREAM = f"{NAME}-readings"
BASE_MS = 1_790_000_000_000 // 3_600_000 * 3_600_000
DOCUMENTS = f"""
stream: {STREAM}
partitions: 2
schema: {{device: string, site: string, ts: {{type: timestamp, unit: ms}}, temp: double}}
key: device
---
pipeline: {NAME}
input: {{stream: {STREAM}}}
event_time: {{field: ts, delay: 0s, max_ahead: null}}
steps:
  - derive: {{fahrenheit: temp * 9 / 5 + 32}}
    name: converted
  - emit: [{{elasticsearch: {NAME}-records}}]
    name: all_records
  - window: {{name: tens, tumbling: 10s, by: [device, site], aggregate: {{n: count(*), heat: sum(fahrenheit)}}}}
    emit: [{{elasticsearch: {NAME}-tens}}]
  - window: {{name: devices, tumbling: 1m, by: [device], aggregate: {{n: sum(n), heat: sum(heat)}}}}
    emit: [{{elasticsearch: {NAME}-devices}}, {{stream: {NAME}-devices}}]
  - window: {{name: sites, tumbling: 30s, by: [site], aggregate: {{n: sum(n)}}}}
    from: tens
    emit: [{{elasticsearch: {NAME}-sites}}]
  - derive: {{inverse: 1 / temp}}
    from: converted
  - window: {{name: inverse, tumbling: 20s, by: [], aggregate: {{n: count(*), most: max(inverse)}}}}
    emit: [{{elasticsearch: {NAME}-inverse}}]
"""
OTHERS = f"""
  - window: {{name: halves, tumbling: 30s, by: [site], aggregate: {{n: count(*)}}}}
    from: {STREAM}
    emit: [{{elasticsearch: {NAME}-halves}}]
"""
SHAPES = {"tens": (10, "device", "site"), "devices": (60, "device"), "sites": (30, "site"), "inverse": (20,)}


def readings(first: int, last: int) -> list[bytes]:
    """Four a second, of five devices at two sites; now and then one of no degrees, which has no inverse."""
    return [
        json.dumps(
            {
                "device": f"d{number % 5}",
                "site": "north" if number % 5 < 2 else "south",
                "ts": BASE_MS + number * 250,
                "temp": 0.0 if number % 17 == 0 else number % 40 + 1.0,
            }
        ).encode()
        for number in range(first, last)
    ]


def counted(lines: list[bytes], size_s: int, *by: str, without_zero: bool = False) -> Counter[tuple[Any, ...]]:
    """(window's start in ms, keys) -> records."""
    records = [json.loads(line) for line in lines]
    return Counter(
        (one["ts"] // (size_s * 1_000) * size_s * 1_000, *(one[name] for name in by))
        for one in records
        if one["temp"] or not without_zero
    )


def stored(lab: AuditLab, stage: str, *by: str) -> dict[tuple[Any, ...], int]:
    found: dict[tuple[Any, ...], int] = defaultdict(int)
    for one in lab.documents(f"{NAME}-{stage}").values():
        start_ms = round(datetime.fromisoformat(one["window"]["start"]).timestamp() * 1000)
        found[start_ms, *(one[name] for name in by)] += one["n"]
    return dict(found)


@pytest.mark.guarantee("G391")
@pytest.mark.long
def test_branches_give_each_result_once_through_a_kill_an_upgrade_and_a_backfill(audit_lab: AuditLab) -> None:
    lab = audit_lab
    lab.apply(DOCUMENTS)
    lines = readings(0, 1_200)
    lab.send(STREAM, lines[:700])
    lab.run_killed_at(NAME, "slice.written")
    lab.apply(DOCUMENTS + OTHERS)  # the version from before finishes its slice
    lab.send(STREAM, lines[700:])
    lab.drain(NAME)
    for stage, (size_s, *by) in SHAPES.items():
        assert stored(lab, stage, *by) == counted(lines, size_s, *by, without_zero=stage == "inverse"), stage
    halves = stored(lab, "halves", "site")
    assert halves
    assert halves.items() <= counted(lines, 30, "site").items(), "a new branch begins with whole windows"
    zeros = [number for number, line in enumerate(lines) if not json.loads(line)["temp"]]
    letters = read_messages(lab.settings.kafka_bootstrap, f"{NAME}.dead-letter", 1, isolation="read_committed")
    assert len(letters) == len(zeros), "one that fails in one branch has one dead letter, and is in the others"
    assert {dict(one.headers() or ())["step"] for one in letters} == {b"steps[5].derive.inverse"}
    assert lab.require_clean(NAME)[f"{NAME}-records"] == {"same": len(lines)}

    done = lab.backfill(lab.request_backfill(NAME, BASE_MS))
    assert done.state is BackfillState.COMPLETE, done.message
    assert stored(lab, "halves", "site") == counted(lines, 30, "site"), "a backfill makes the older ones"
    assert stored(lab, "sites", "site") == counted(lines, 30, "site")
    lab.require_clean(NAME)
