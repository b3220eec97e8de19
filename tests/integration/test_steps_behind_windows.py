"""Steps behind windows that have no value for some results: each such result has one dead letter and no place in a further
window, through kills, restarts and a backfill. Real Kafka, Elasticsearch, Spark and ledger; the audit tells."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from strandline.ledger.states import BackfillState
from tests.support.audit_lab import AuditLab
from tests.support.topic_reader import read_messages

NAME = "steps"
STREAM = f"{NAME}-readings"
BASE_MS = 1_790_000_000_000 // 3_600_000 * 3_600_000
DOCUMENTS = f"""
stream: {STREAM}
partitions: 2
schema: {{device: string, site: string, ts: {{type: timestamp, unit: ms}}, temp: double, big: long}}
key: device
---
pipeline: {NAME}
input: {{stream: {STREAM}}}
event_time: {{field: ts, delay: 0s, max_ahead: null}}
steps:
  - window: {{name: tens, tumbling: 10s, by: [device, site],
              aggregate: {{n: count(*), mean: "round(avg(temp), 2)", total: sum(big)}}}}
    emit: [{{elasticsearch: {NAME}-tens}}, {{elasticsearch: {NAME}-copies}}, {{stream: {NAME}-tens}}]
  - derive: {{rate: mean / (n - 2)}}
  - where: rate < 1000 and mean / (n - 3) < 1000
  - window: {{name: minutes, tumbling: 1m, by: [site], aggregate: {{n: sum(n), mean: "round(avg(mean), 2)"}}}}
  - where: mean / (n - 60) < 1000
  - window: {{name: all, tumbling: 5m, by: [], aggregate: {{n: sum(n), mean: "round(avg(mean), 2)"}}}}
    emit: [{{elasticsearch: {NAME}-all}}]
"""
SIZES = {"d1": 1, "d2": 2, "d3": 3, "d4": 4, "large": 2}
"""Device -> its records in ten seconds.

The `derive` fails for two records, the `where` for three, a sum for the large device. The north site has ten records
left in ten seconds, so the second `where` fails for each of its minutes too.
"""
TENS = 60
KILLED_AT = ("slice.written", "commit.before_checkpoint", "checkpoint.committed")


def readings(first: int, last: int) -> list[bytes]:
    """Return the records of some ten-second windows: four and four records of the north, and the rest of the south."""
    found = []
    for ten in range(first, last):
        devices = [(device, "south", count) for device, count in SIZES.items()]
        devices += [("n5", "north", 5), ("n6", "north", 5)]
        for device, site, count in devices:
            for number in range(count):
                big = 2**63 - 1 if device == "large" else number
                ts_ms = BASE_MS + ten * 10_000 + number * 1_000
                one = {"device": device, "site": site, "ts": ts_ms, "temp": ten / 7 + number / 3, "big": big}
                found.append(json.dumps(one).encode())
    return found


def letters(lab: AuditLab) -> Counter[tuple[str, str]]:
    """Return (step, start of the document's id) of each dead letter. Each is there once."""
    bootstrap = lab.settings.kafka_bootstrap
    messages = read_messages(bootstrap, f"{NAME}.dead-letter", 1, isolation="read_committed")
    keys = [message.key() for message in messages]
    assert len(set(keys)) == len(keys)
    headers: list[dict[str, Any]] = [dict(message.headers() or ()) for message in messages]
    assert {one["reason"] for one in headers} == {b"expression"}
    return Counter((one["step"].decode(), one["index"].decode().partition("-2")[0]) for one in headers)


@pytest.mark.guarantee("G142")
@pytest.mark.long
def test_each_result_without_a_value_has_one_dead_letter_through_kills_and_a_backfill(audit_lab: AuditLab) -> None:
    lab = audit_lab
    lab.apply(DOCUMENTS)
    share = TENS // (len(KILLED_AT) + 1)
    for number, failpoint in enumerate(KILLED_AT):
        lab.send(STREAM, readings(number * share, (number + 1) * share))
        lab.run_killed_at(NAME, failpoint)
    lab.send(STREAM, readings(len(KILLED_AT) * share, TENS))
    lab.drain(NAME)
    own = {
        ("steps[1].derive.rate", f"{NAME}-tens"): TENS,
        ("steps[2].where", f"{NAME}-tens"): TENS,
        ("tens.total", f"{NAME}-tens"): TENS,
        ("steps[4].where", "minutes"): TENS // 6,
    }
    assert letters(lab) == own
    report = lab.audit(NAME)
    assert report["outcome"] == "clean", report
    counts = {one["store"]: one["counts"] for one in report["stores"]}
    assert counts["letters:tens"] == {"same": 3 * TENS}
    assert counts["letters:minutes"] == {"same": TENS // 6}
    for store in (f"{NAME}-tens", f"{NAME}-copies", f"stream:{NAME}-tens"):
        assert counts[store] == {"same": TENS * (len(SIZES) + 1), "refused": TENS}

    done = lab.backfill(lab.request_backfill(NAME, BASE_MS))
    assert done.state is BackfillState.COMPLETE, done.message
    again = {(step, f"{NAME}-tens.g2"): count for (step, place), count in own.items() if place == f"{NAME}-tens"}
    assert letters(lab) == own | again
    report = lab.audit(NAME)
    assert report["outcome"] == "clean", report
    counts = {one["store"]: one["counts"] for one in report["stores"]}
    assert counts["letters:tens"]["same"] == 3 * TENS
    assert counts[f"{NAME}-copies"]["refused"] == TENS
