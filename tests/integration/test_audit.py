"""The audit against real servers: clean where the platform did its work, and each planted difference found and named.

One job with a cascade of two stages, 5 % late and some broken records, and a second version of its pipeline in the middle.
"""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from datetime import datetime
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.audit_lab import AuditLab
from tests.support.topic_reader import read_messages
from tests.support.waiting import stretched

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.in_order]
NAME = "audited"
STREAM = "audited-readings"
MONTH_MS = 1_793_491_200_000
"""2026-11-01 00:00 UTC."""
BASE_MS = MONTH_MS - 600_000
"""The records run over the end of a month, so the results lie in two indices."""
STEP_MS = 60


def stream_text(name: str) -> str:
    return f"""
stream: {name}-readings
partitions: 2
schema:
  device: string
  ts: {{type: timestamp, unit: ms}}
  temp: double
  rated: {{type: double, required: false}}
  cost: decimal(10,2)
key: device
"""


def pipeline_text(name: str, *, below: int = 1_000, more: str = "") -> str:
    return f"""
pipeline: {name}
input: {{stream: {name}-readings}}
event_time: {{field: ts, delay: 10s, max_ahead: null, idle_timeout: null}}
steps:
  - derive: {{load: temp / rated}}
  - where: temp < {below}
  - window:
      name: tens
      tumbling: 10s
      by: [device]
      aggregate: {{n: count(*), mean: avg(temp), total: sum(temp), cost: sum(cost), closed: last(temp), mid: median(temp),
                  about: "approx_percentile(temp, 0.9)", dear: "max_by(temp, cost) filter (where temp > 0)",
                  costs: count(distinct cost), temps: approx_count_distinct(temp), spread: stddev(cost){more}}}
    emit: [{{elasticsearch: {name}-tens}}, {{stream: {name}-tens}}]
  - where: n > 1
  - window: {{name: minute, tumbling: 1m, by: [device],
              aggregate: {{n: sum(n), peak: max(mean), opened: first(closed), busy: "max_by(mid, n)"}}}}
    emit: [{{elasticsearch: {name}-minute}}]
"""


def records(count: int, first: int = 0) -> list[bytes]:
    """Return readings in order of time, with 3 s of disorder.

    Of 100, five are late, one is without load, two are broken.
    """
    chance = random.Random(first)
    lines = []
    for number in range(first, first + count):
        is_late = number > 3_000 and chance.random() < 0.05
        reading = {
            "device": f"d{number % 20}",
            "ts": BASE_MS + number * STEP_MS - chance.randrange(3_000) - (100_000 if is_late else 0),
            "temp": round(chance.uniform(-10, 1_010), 3),
            "rated": 0 if chance.random() < 0.01 else 2.5,
            "cost": str(chance.randrange(1_000) / 100),
        }
        line = json.dumps(reading).encode()
        lines.append(line[:-3] if chance.random() < 0.02 else line)
    return lines


def found(report: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {(one["kind"], one["store"], one["id"]) for one in report["sample"]}


@pytest.fixture(scope="module")
def job(audit_lab: AuditLab) -> str:
    """The job, with slices of two versions and open windows."""
    audit_lab.apply(stream_text(NAME) + "---" + pipeline_text(NAME))
    audit_lab.send(STREAM, records(8_000))
    with audit_lab.running(NAME, STREAM):
        pass
    audit_lab.apply(pipeline_text(NAME, below=900, more=", high: max(temp)"))
    audit_lab.send(STREAM, records(8_000, 8_000))
    with audit_lab.running(NAME, STREAM):
        pass
    assert len(audit_lab.slices(NAME)) > 6
    return NAME


@pytest.mark.guarantee("G61")
@pytest.mark.guarantee("G402")
def test_a_running_job_of_two_versions_is_clean(audit_lab: AuditLab, job: str) -> None:
    """While records come in: what the job does meanwhile is neither missing nor extra. And the account closes."""
    audit_lab.send(STREAM, records(4_000, 16_000))
    with audit_lab.running(job, STREAM):
        report = audit_lab.audit(job)
    assert (report["outcome"], report["differences"], report["sample"]) == ("clean", 0, []), report
    assert report["event_time_differences"] == []
    computed, ledger = report["computed"], report["ledger"]
    assert computed == ledger
    assert computed["records"] >= 16_000
    assert computed["records"] == computed["accepted"] + sum(computed["rejected"].values())
    assert min(computed["rejected"][reason] for reason in ("late", "decode", "expression")) > 50
    same = {one["store"]: one["counts"]["same"] for one in report["stores"]}
    assert same[f"{job}-tens"] == same[f"stream:{job}-tens"] == computed["results"]["tens"] > 1_000
    assert same[f"{job}-minute"] == computed["results"]["minute"] > 100
    assert same["(dead letters)"] == sum(computed["rejected"].values())


@pytest.mark.guarantee("G151")
def test_a_watermark_and_a_close_that_the_log_does_not_give_are_found(audit_lab: AuditLab, job: str) -> None:
    """Raised by an hour in the ledger: by it records are late, and windows closed, that the log says nothing of."""
    middle = audit_lab.ledger.slice_count(job) // 2
    raised = {"slices": ("watermark_ms", "number"), "checkpoints": ("closes_ms", "slice")}
    for table, (column, number) in raised.items():
        execute(
            audit_lab, f"UPDATE {table} SET {column} = {column} + 3600000 WHERE job = '{job}' AND {number} = {middle}"
        )
    report = audit_lab.audit(job)
    for table, (column, number) in raised.items():
        execute(
            audit_lab, f"UPDATE {table} SET {column} = {column} - 3600000 WHERE job = '{job}' AND {number} = {middle}"
        )
    assert report["outcome"] == "differences"
    sentences = report["event_time_differences"]
    assert any(one.startswith(f"slice {middle}: watermark ") for one in sentences), sentences
    assert any(one.startswith(f"slice {middle}: windows closed up to ") for one in sentences), sentences


def execute(audit_lab: AuditLab, statement: str) -> None:
    with closing(sqlite3.connect(audit_lab.settings.ledger_url.removeprefix("sqlite:///"))) as ledger, ledger:
        assert ledger.execute(statement).rowcount == 1


@pytest.mark.guarantee("G60")
def test_each_planted_difference_is_found_and_named(audit_lab: AuditLab, job: str) -> None:
    """The audit finds each planted difference, and nothing else.

    In the index: documents that were deleted, added, changed by one count or in the last digits of a double, and
    copied and moved to another month. Also an additional dead letter. In the stream of results: a repeated result, an
    additional one, and no result.
    """
    documents = audit_lab.documents(f"{job}-tens")
    by_end = sorted((one["@timestamp"], identity) for identity, one in documents.items())
    before = [identity for end, identity in by_end if end < "2026-10-31T23:58"]
    after = [identity for end, identity in by_end if end > "2026-11-01T00:02"]
    ids = before[:4] + after[:4]
    gone, counted, near, off, copied, moved, typed, decimal = ids
    old, new = f"{job}-tens-2026.10", f"{job}-tens-2026.11"

    def put(index: str, identity: str, *, like: str = "", **changed: Any) -> None:
        document = {**documents[like or identity], **changed}
        answer = audit_lab.index.put(f"/{index}/_doc/{identity}", json=document)
        assert answer.status_code in (200, 201), answer.text

    def delete(index: str, identity: str) -> None:
        assert audit_lab.index.delete(f"/{index}/_doc/{identity}").status_code == 200

    delete(old, gone)
    put(old, counted, n=documents[counted]["n"] + 1)
    put(old, near, mean=documents[near]["mean"] * (1 + 2e-10))
    put(old, off, mean=documents[off]["mean"] * (1 + 2e-9))
    put(old, copied)
    delete(new, moved)
    put(old, moved)
    put(new, typed, total=None)
    put(new, decimal, cost=documents[decimal]["cost"] + "0")
    put(new, "added-by-hand-00000000", like=typed, device="d99")
    window = {"start": "2026-11-01T05:00:00.000Z", "end": "2026-11-01T05:00:10.000Z"}
    put(new, "of-an-open-window-0000", like=typed, window=window, **{"@timestamp": window["end"]})
    results = read_messages(audit_lab.settings.kafka_bootstrap, f"{job}-tens", 4, isolation="read_committed")
    again, foreign = results[0], {**documents[typed], "device": "d99"}
    audit_lab.producer.produce(f"{job}-tens", again.value(), again.key(), headers=again.headers())
    audit_lab.producer.produce(f"{job}-tens", json.dumps(foreign), headers={"strandline-id": b"by-hand"})
    audit_lab.producer.produce(f"{job}-tens", b"no result", partition=0)
    audit_lab.producer.produce(f"{job}.dead-letter", b"{}", f"{STREAM}/0/0", headers={"reason": b"decode"})
    assert audit_lab.producer.flush(30) == 0

    report = audit_lab.audit(job)
    assert (report["outcome"], report["differences"]) == ("differences", 13)
    tens = f"{job}-tens"
    assert found(report) == {
        ("missing", tens, gone),
        ("different", tens, counted),
        ("different", tens, off),
        ("duplicate", tens, copied),
        ("misplaced", tens, moved),
        ("different", tens, typed),
        ("different", tens, decimal),
        ("extra", tens, "added-by-hand-00000000"),
        ("extra", tens, "of-an-open-window-0000"),
        ("extra", "(dead letters)", f"{STREAM}/0/0"),
        ("duplicate", f"stream:{tens}", dict(again.headers() or ())["strandline-id"].decode()),
        ("extra", f"stream:{tens}", "by-hand"),
        next(one for one in found(report) if one[2].startswith("0/")),
    }
    details = {one["id"]: one["detail"] for one in report["sample"]}
    n = documents[counted]["n"]
    assert details[counted] == f"n is {n + 1} in the index, this run computed {n}"
    assert details[copied] == f"is in {old} and {new}; it belongs in {new}"
    assert details[moved] == f"is in {old}; it belongs in {new}"
    assert report["totals_differences"] == []

    assert {one[:2] for one in found(report) if one[2].startswith("0/")} == {("extra", f"stream:{tens}")}

    in_between = audit_lab.audit(job, MONTH_MS - 120_000, MONTH_MS + 60_000)
    assert in_between["outcome"] == "clean", in_between
    assert {one["after_ms"] for one in in_between["stores"] if one["stage"]} == {MONTH_MS - 120_000}
    assert all(0 < one["counts"]["same"] < 800 for one in in_between["stores"] if one["stage"])
    assert in_between["computed"]["records"] == in_between["ledger"]["records"] < 16_000


@pytest.mark.guarantee("G62")
def test_a_log_without_its_beginning_is_incomplete_and_never_a_false_alarm(audit_lab: AuditLab) -> None:
    """The part of the log that retention deleted can't be audited.

    The audit says so, says which windows it can audit, and finds no difference there.
    """
    name, stream = "forgetful", "forgetful-readings"
    audit_lab.apply(stream_text(name) + "---" + pipeline_text(name))
    audit_lab.send(stream, records(12_000))
    audit_lab.drain(name)
    assert audit_lab.audit(name)["outcome"] == "clean"
    ends = next(row.offsets[stream] for row in audit_lab.slices(name) if sum(row.offsets[stream].values()) >= 4_000)
    admin = AdminClient({"bootstrap.servers": audit_lab.settings.kafka_bootstrap})
    places = [TopicPartition(stream, partition, offset - 1) for partition, offset in ends.items()]
    for future in admin.delete_records(places).values():
        future.result(stretched(30))
    whole = audit_lab.audit(name)
    assert (whole["outcome"], whole["differences"]) == ("incomplete", 0), whole
    from_time = whole["incomplete"].rpartition("--from ")[2]
    rest = audit_lab.audit(name, int(datetime.fromisoformat(from_time).timestamp() * 1_000))
    assert rest["outcome"] == "clean", rest
    assert rest["stores"][1]["counts"]["same"] > 300
    some = audit_lab.ledger.checkpoint(name, audit_lab.ledger.slice_count(name) * 2 // 3).result_offsets[f"{name}-tens"]
    places = [TopicPartition(f"{name}-tens", partition, offset) for partition, offset in some.items()]
    for future in admin.delete_records(places).values():
        future.result(stretched(30))
    whole = audit_lab.audit(name)
    assert (whole["outcome"], whole["differences"]) == ("incomplete", 0), whole
    assert whole["incomplete"].rpartition("--from ")[2] > from_time


@pytest.mark.guarantee("G62")
def test_results_that_cannot_be_used_are_accounted_for(audit_lab: AuditLab) -> None:
    """A sum that does not fit has a dead letter and no document; a result that the next window can't use has both. Clean."""
    name = "unusable"
    fields = "{device: string, ts: {type: timestamp, unit: ms}, big: long}"
    text = f"""
stream: {name}-readings
partitions: 2
schema: {fields}
key: device
---
pipeline: {name}
input: {{stream: {name}-readings}}
event_time: {{field: ts, delay: 0s, max_ahead: null, idle_timeout: null}}
steps:
  - window: {{name: tens, tumbling: 10s, by: [device], aggregate: {{n: count(*), total: sum(big)}}}}
    emit: [{{elasticsearch: {name}-tens}}, {{stream: {name}-tens}}]
  - derive: {{each: 1 / (n - 1)}}
  - window: {{name: minute, tumbling: 1m, by: [device], aggregate: {{n: sum(n), most: sum(total)}}}}
    emit: [{{elasticsearch: {name}-minute}}]
"""
    audit_lab.apply(text)
    big = {"fits": [1, 2], "alone": [1], "large": [2**63 - 1, 1]}
    readings = [{"device": device, "ts": BASE_MS, "big": value} for device, values in big.items() for value in values]
    audit_lab.send(f"{name}-readings", [json.dumps(one).encode() for one in readings])
    audit_lab.drain(name)
    report = audit_lab.audit(name)
    assert report["outcome"] == "clean", report
    counts = {one["store"]: one["counts"] for one in report["stores"]}
    assert counts[f"{name}-tens"] == counts[f"stream:{name}-tens"] == {"same": 2, "refused": 1}
    assert counts[f"{name}-minute"] == {"same": 1}
    reasons = [
        dict(one.headers() or ())["reason"]
        for one in read_messages(
            audit_lab.settings.kafka_bootstrap, f"{name}.dead-letter", 1, isolation="read_committed"
        )
    ]
    assert sorted(reasons) == [b"expression", b"expression"]
    audit_lab.apply(text.replace(f", {{stream: {name}-tens}}", ""))
    audit_lab.lifecycle.delete_stream(f"{name}-tens", keep_topic=False)
    report = audit_lab.audit(name)
    assert (report["outcome"], report["differences"]) == ("incomplete", 0), report
    assert f"stream:{name}-tens does not exist" in report["incomplete"]
