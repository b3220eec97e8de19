"""Sessions, and hours of sessions, through a kill between emission and checkpoint, and in a backfill: real Kafka, Elasticsearch,
Spark and ledger. A plain loop says what must be there, and the audit agrees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from random import Random

import pytest

from strandline.ledger.states import BackfillState
from tests.support.audit_lab import AuditLab

NAME = "visits"
STREAM = f"{NAME}-readings"
HOUR_MS = 3_600_000
BASE_MS = 1_790_000_000_000 // HOUR_MS * HOUR_MS
GAP_MS, MAX_MS = 30_000, 600_000
DOCUMENTS = f"""
stream: {STREAM}
partitions: 2
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, temp: double}}
key: device
---
pipeline: {NAME}
input: {{stream: {STREAM}}}
event_time: {{field: ts, delay: 20s, max_ahead: null}}
steps:
  - window: {{name: visits, session: {{gap: 30s, max: 10m}}, by: [device], aggregate: {{n: count(*), heat: sum(temp)}}}}
    emit: [{{elasticsearch: {NAME}-all}}]
  - window: {{name: hours, tumbling: 1h, by: [device], aggregate: {{visits: count(*), n: sum(n)}}}}
    emit: [{{elasticsearch: {NAME}-hours}}]
"""


def times(random: Random) -> dict[str, list[int]]:
    """Two hours of three devices: one that never pauses, one that pauses now and then, one that hardly ever says anything."""
    pauses_ms = {"busy": [1_000, 20_000], "visited": [5_000, 20_000, 29_999, 30_000], "quiet": [200_000, 700_000]}
    found: dict[str, list[int]] = {}
    for device, steps_ms in pauses_ms.items():
        at_ms = BASE_MS + random.randrange(60_000)
        while at_ms < BASE_MS + 2 * HOUR_MS:
            found.setdefault(device, []).append(at_ms)
            at_ms += random.choice(steps_ms)
    return found


def sessions(times_ms: list[int]) -> Iterator[tuple[int, int, int]]:
    """(start, end, records) of each session of one device."""
    chains: list[list[int]] = []
    for at_ms in times_ms:
        if not chains or at_ms - chains[-1][-1] >= GAP_MS:
            chains.append([])
        chains[-1].append(at_ms)
    for chain in chains:
        cut = chain[0] // GAP_MS * GAP_MS + MAX_MS
        while chain:
            inside = [at_ms for at_ms in chain if at_ms < cut]
            if inside:
                yield inside[0], min(inside[-1] + GAP_MS, cut), len(inside)
            chain = chain[len(inside) :]
            cut = (cut // MAX_MS + 1) * MAX_MS


@pytest.mark.guarantee("G381")
@pytest.mark.long
def test_sessions_are_there_once_through_a_kill_and_in_a_backfill(audit_lab: AuditLab) -> None:
    lab, random = audit_lab, Random(7)
    times_ms = times(random)
    in_time = sorted((at_ms, device) for device, each in times_ms.items() for at_ms in each)
    disordered = sorted(in_time, key=lambda one: one[0] + random.randrange(20_000))
    lines = [
        json.dumps({"device": device, "ts": at_ms, "temp": at_ms % 97 / 7}).encode() for at_ms, device in disordered
    ]
    lab.apply(DOCUMENTS)
    lab.send(STREAM, lines[: len(lines) * 2 // 3])
    lab.run_killed_at(NAME, "commit.before_checkpoint")
    lab.send(STREAM, lines[len(lines) * 2 // 3 :])
    lab.drain(NAME)

    expected = {(device, *one) for device, each in times_ms.items() for one in sessions(each)}
    assert len(expected) > 60
    found = lab.documents(f"{NAME}-all")
    assert {
        (one["device"], ms(one["window"]["start"]), ms(one["window"]["end"]), one["n"]) for one in found.values()
    } == expected
    hours = lab.documents(f"{NAME}-hours").values()
    assert sum(one["visits"] for one in hours) == len(expected)
    assert sum(one["n"] for one in hours) == len(lines)
    report = lab.audit(NAME)
    assert report["outcome"] == "clean", report

    from_ms = BASE_MS + HOUR_MS
    done = lab.backfill(lab.request_backfill(NAME, from_ms))
    assert done.state is BackfillState.COMPLETE, done.message
    again = lab.documents(f"{NAME}-all")
    assert again.keys() == found.keys()
    assert all(again[key]["heat"] == found[key]["heat"] for key in found), "to the last bit"
    report = lab.audit(NAME)
    assert report["outcome"] == "clean", report


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)
