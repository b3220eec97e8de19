"""A job ends before it emits anything where its log or stream is not what it has read. Real Kafka, Elasticsearch and Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strandline.ledger.states import BackfillState, Desired, JobState
from strandline.log.admin import KafkaAdmin
from strandline.log.index import LogIndex
from strandline.processing.run.exit_codes import EXIT_FAILED
from strandline.processing.run.runner import Runner
from tests.support.audit_lab import AuditLab
from tests.support.ledgers import run_sql

NAME = "reread"
STREAM = f"{NAME}-readings"
BASE_MS = 1_790_000_000_000
DOCUMENTS = f"""
stream: {STREAM}
partitions: 2
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, temp: double}}
key: device
---
pipeline: {NAME}
input: {{stream: {STREAM}}}
event_time: {{field: ts, delay: 0s, max_ahead: null}}
steps:
  - window: {{name: tens, tumbling: 10s, by: [device], aggregate: {{n: count(*), most: max(temp)}}}}
    emit: [{{elasticsearch: {NAME}-tens}}, {{stream: {NAME}-tens}}]
  - window: {{name: hour, tumbling: 1h, by: [device], aggregate: {{n: sum(n)}}}}
    emit: [{{elasticsearch: {NAME}-hour}}]
"""


def readings(first: int, last: int) -> list[bytes]:
    """One every tenth of a second; one of a hundred is broken."""
    whole = [
        {"device": f"d{number % 3}", "ts": BASE_MS + number * 100, "temp": number} for number in range(first, last)
    ]
    return [b"{" if number % 100 == 7 else json.dumps(one).encode() for number, one in enumerate(whole)]


@pytest.fixture(scope="module")
def job(audit_lab: AuditLab) -> str:
    """A job that has read 3,000 records, and has open windows."""
    audit_lab.apply(DOCUMENTS)
    audit_lab.send(STREAM, readings(0, 3_000))
    with audit_lab.running(NAME, STREAM):
        pass
    return NAME


def fails(lab: AuditLab, job: str) -> str:
    """A start of the job fails for good; return what its status says."""
    lab.ledger.set_desired(job, Desired.RUNNING)
    assert Runner(lab.settings, job, lab.spark).run() == EXIT_FAILED
    row = lab.ledger.job(job)
    assert row.state is JobState.FAILED
    return row.message


def outside(lab: AuditLab) -> list[Any]:
    """All that the job has emitted."""
    index = LogIndex(lab.settings.kafka_bootstrap)
    streams = [index.settled_ends(name) for name in (f"{NAME}-tens", f"{NAME}.dead-letter")]
    return [lab.documents(f"{NAME}-tens"), lab.documents(f"{NAME}-hour"), *streams]


def test_a_topic_that_became_compacted_is_found_at_the_start(audit_lab: AuditLab, job: str) -> None:
    admin = KafkaAdmin(audit_lab.settings.kafka_bootstrap, timeout_s=30, changes_topics=True)
    admin.change_config(STREAM, {"cleanup.policy": "compact"})
    try:
        assert "cleanup.policy=compact" in fails(audit_lab, job)
    finally:
        admin.change_config(STREAM, {"cleanup.policy": "delete"})


@pytest.mark.long
def test_what_is_read_again_and_differs_ends_run_and_backfill_before_they_emit(audit_lab: AuditLab, job: str) -> None:
    """The ledger says one record more than there is. When that is put right, the job goes on and audits clean."""
    lab, last = audit_lab, audit_lab.ledger.last_checkpoint(job)
    assert last is not None
    one_more = "UPDATE checkpoints SET records_total = records_total + :more WHERE job = :job AND slice = :slice"
    lab.send(STREAM, readings(3_000, 4_000))
    before = outside(lab)
    run_sql(lab.settings.ledger_url, one_more, more=1, job=job, slice=last.slice)
    try:
        assert "are not what they were: " in fails(lab, job)
        assert lab.ledger.last_checkpoint(job) == last
        done = lab.backfill(lab.request_backfill(job, BASE_MS))
        assert (done.state, done.results) == (BackfillState.FAILED, {})
        assert "are not what they were: " in done.message
        assert outside(lab) == before
        assert lab.index.get(f"/_cat/indices/{NAME}-*.g2-*?format=json&expand_wildcards=all").json() == []
    finally:
        run_sql(lab.settings.ledger_url, one_more, more=-1, job=job, slice=last.slice)
    lab.drain(job)
    report = lab.audit(job)
    assert (report["outcome"], report["computed"]["records"]) == ("clean", 4_000), report
