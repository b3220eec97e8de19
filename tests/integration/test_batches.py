"""A batch through kills between emission and checkpoint: real Kafka, Elasticsearch, Spark and ledger. A plain loop says what must
be there, and the audit agrees."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import datetime
from typing import Any

import pytest

from strandline.ledger.states import Desired, JobState, SliceKind
from strandline.processing.run.runner import Runner
from tests.support.audit_lab import AuditLab

NAME = "october"
STREAM = f"{NAME}-readings"
BASE_MS = 1_790_000_000_000 // 60_000 * 60_000
DOCUMENTS = f"""
stream: {STREAM}
partitions: 2
schema: {{meter: string, id: string, ts: {{type: timestamp, unit: ms}}, kwh: double}}
key: meter
---
pipeline: {NAME}
input: {{stream: {STREAM}, end: latest}}
event_time: {{field: ts, delay: 10s, max_ahead: null}}
steps:
  - distinct: {{by: [meter, id]}}
  - window: {{name: minutes, tumbling: 1m, by: [meter], aggregate: {{n: count(*), kwh: sum(kwh)}}}}
    emit: [{{elasticsearch: {NAME}-minutes}}]
checkpoint: {{records: 1000}}
"""


def readings(first: int, count: int) -> list[dict[str, Any]]:
    """In order of time; each seventh has the id of one long before it in its partition, that of every second line."""
    return [
        {
            "meter": f"m{number % 4}",
            "id": f"i{number - 2_000 if number % 7 == 0 and number >= 2_000 else number}",
            "ts": BASE_MS + number * 100,
            "kwh": number % 97 / 7,
        }
        for number in range(first, first + count)
    ]


@pytest.mark.guarantee("G550")
@pytest.mark.guarantee("G552")
@pytest.mark.guarantee("G554")
@pytest.mark.long
def test_a_batch_reads_its_range_once_through_kills_and_ends(audit_lab: AuditLab) -> None:
    lab, records = audit_lab, readings(0, 6_000)
    lab.apply(DOCUMENTS)
    lab.send(STREAM, [json.dumps(one).encode() for one in records])
    lab.run_killed_at(NAME, "slice.written")
    lab.send(STREAM, [json.dumps(one).encode() for one in readings(6_000, 2_000)])  # comes after it has begun
    lab.run_killed_at(NAME, "commit.before_checkpoint")
    assert Runner(lab.settings, NAME, lab.spark).run() == 0, "it ends by itself"

    job = lab.ledger.job(NAME)
    assert (job.state, job.desired, job.has_completed) == (JobState.DRAINED, Desired.DRAINED, True)
    assert job.ends == {STREAM: {0: 3_000, 1: 3_000}} and lab.ledger.totals(NAME).records == 6_000
    slices = lab.slices(NAME)
    assert slices[-1].kind is SliceKind.DRAIN and len(slices) > 4
    found = lab.documents(f"{NAME}-minutes")
    assert found_in(found) == wanted(records)
    report = lab.audit(NAME)
    assert report["outcome"] == "clean", report

    assert Runner(lab.settings, NAME, lab.spark).run() == 0, "a second run ends at once"
    assert lab.documents(f"{NAME}-minutes") == found
    assert lab.slices(NAME) == slices and lab.ledger.job(NAME).has_completed


def wanted(records: list[dict[str, Any]]) -> Counter[tuple[str, int, int]]:
    """(meter, minute, how many), by a loop over the log."""
    seen: set[tuple[str, str]] = set()
    minutes: defaultdict[tuple[str, int], int] = defaultdict(int)
    for one in records:
        if (one["meter"], one["id"]) not in seen:
            seen.add((one["meter"], one["id"]))
            minutes[one["meter"], one["ts"] // 60_000] += 1
    assert len(seen) < len(records)
    return Counter((meter, minute, n) for (meter, minute), n in minutes.items())


def found_in(documents: dict[str, dict[str, Any]]) -> Counter[tuple[str, int, int]]:
    return Counter(
        (one["meter"], int(datetime.fromisoformat(one["window"]["start"]).timestamp()) // 60, one["n"])
        for one in documents.values()
    )
