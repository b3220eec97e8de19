"""Windows while they are open, in an index near their results: real Kafka, Elasticsearch, Spark and ledger."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.audit_lab import AuditLab
from tests.support.waiting import wait_until

NAME = "gauges"
STREAM = f"{NAME}-readings"
BASE_MS = 1_790_000_000_000 // 60_000 * 60_000
DOCUMENTS = f"""
stream: {STREAM}
partitions: 2
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, temp: long}}
key: device
---
pipeline: {NAME}
input: {{stream: {STREAM}}}
event_time: {{field: ts, delay: 1s, watermark: newest, idle_timeout: null, max_ahead: null}}
steps:
  - window: {{name: minutes, tumbling: 1m, by: [device], aggregate: {{n: count(*), heat: sum(temp)}}}}
    emit: [{{elasticsearch: {{name: {NAME}-minute, updates: 5s}}}}]
  - window: {{name: everywhere, tumbling: 1m, aggregate: {{n: count(*), heat: sum(temp)}}}}
    from: {STREAM}
    emit: [{{elasticsearch: {{name: {NAME}-all, updates: 5s}}}}]
"""


def lines(minute: int, count: int) -> list[bytes]:
    return [
        json.dumps(
            {"device": f"d{number % 7}", "ts": BASE_MS + minute * 60_000 + 30_000 + number, "temp": number}
        ).encode()
        for number in range(count)
    ]


def shown(lab: AuditLab, name: str) -> dict[Any, tuple[int, int]]:
    """Return what is shown of each open window (minute, device)."""
    lab.index.post(f"/{name}.open/_refresh")
    hits = lab.index.post(f"/{name}.open/_search", json={"size": 100}).json().get("hits", {}).get("hits", [])
    sources = [hit["_source"] for hit in hits]
    assert all(one["strandline"]["open"] for one in sources)
    return {(one["window"]["start"][14:16], one.get("device")): (one["n"], one["heat"]) for one in sources}


@pytest.mark.guarantee("G530")
@pytest.mark.guarantee("G532")
@pytest.mark.long
def test_open_windows_are_shown_overwritten_and_deleted_when_they_close(audit_lab: AuditLab) -> None:
    lab = audit_lab
    lab.apply(DOCUMENTS)
    minute = f"{BASE_MS // 60_000 % 60:02d}"
    with lab.running(NAME, STREAM):
        for count in (700, 1_400):  # the second time as many again, in the same minute
            lab.send(STREAM, lines(0, 700))
            heat = count // 700 * sum(range(700))
            all_of_it = {(minute, None): (count, heat)}
            wait_until(lambda: shown(lab, f"{NAME}-all"), lambda found: found == all_of_it, "all shown", 120)  # noqa: B023
            wait_until(
                lambda: shown(lab, f"{NAME}-minute"),
                lambda found: len(found) == 7 and {one for one, _ in found.values()} == {count // 7},  # noqa: B023
                "each device shown",
                60,
            )
        lab.send(STREAM, lines(1, 7))
        wait_until(
            lambda: shown(lab, f"{NAME}-minute"),
            lambda found: len(found) == 7 and {one for one, _ in found.values()} == {1},
            "only those of the next minute shown",
            60,
        )
        lab.index.post(f"/{NAME}-minute/_refresh")
        assert lab.index.get(f"/{NAME}-minute/_count").json()["count"] == 7
    lab.drain(NAME)
    assert shown(lab, f"{NAME}-minute") == shown(lab, f"{NAME}-all") == {}
    assert sorted(one["n"] for one in lab.documents(f"{NAME}-minute").values()) == [1] * 7 + [200] * 7
    assert sorted(one["n"] for one in lab.documents(f"{NAME}-all").values()) == [7, 1_400]
    made = lab.index.get(f"/{NAME}-minute.open").json()[f"{NAME}-minute.open"]
    assert (made["mappings"]["_meta"], list(made["aliases"])) == (
        {"managed_by": "strandline"},
        [f"{NAME}-minute.open.write"],
    )
    assert f"{NAME}-minute.open" in lab.ledger.result_indices(NAME)
    report = lab.audit(NAME)
    assert report["outcome"] == "clean", report
