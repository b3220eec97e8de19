"""A job ends before it emits anything if its log or stream has changed. Real Kafka, Elasticsearch and Spark."""

from __future__ import annotations

import json
import re
from contextlib import closing
from datetime import datetime
from typing import Any

import pytest

from strandline.ledger.states import BackfillState, Desired, JobState
from strandline.log.admin import KafkaAdmin
from strandline.log.index import LogIndex
from strandline.log.range_reader import RangeReader
from strandline.log.reader import OffsetRange
from strandline.processing.run.exit_codes import EXIT_FAILED
from strandline.processing.run.runner import Runner
from tests.support.audit_lab import AuditLab
from tests.support.ledgers import run_sql
from tests.support.waiting import wait_until

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


@pytest.mark.long
@pytest.mark.guarantee("G141")
def test_a_topic_that_became_compacted_is_found_at_the_start(audit_lab: AuditLab, job: str) -> None:
    admin = KafkaAdmin(audit_lab.settings.kafka_bootstrap, timeout_s=30, changes_topics=True)
    admin.change_config(STREAM, {"cleanup.policy": "compact"})
    try:
        assert "cleanup.policy=compact" in fails(audit_lab, job)
    finally:
        admin.change_config(STREAM, {"cleanup.policy": "delete"})


@pytest.mark.guarantee("G140")
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
        assert "have changed since their commit: " in fails(lab, job)
        assert lab.ledger.last_checkpoint(job) == last
        done = lab.backfill(lab.request_backfill(job, BASE_MS))
        assert (done.state, done.results) == (BackfillState.FAILED, {})
        assert "have changed since their commit: " in done.message
        assert outside(lab) == before
        assert lab.index.get(f"/_cat/indices/{NAME}-*.g2-*?format=json&expand_wildcards=all").json() == []
    finally:
        run_sql(lab.settings.ledger_url, one_more, more=-1, job=job, slice=last.slice)
    lab.drain(job)
    report = lab.audit(job)
    assert (report["outcome"], report["computed"]["records"]) == ("clean", 4_000), report


HOLED = "holed"
HOLED_DOCUMENTS = f"""
stream: {HOLED}-readings
partitions: 2
retention: 7d
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, temp: double}}
key: device
---
pipeline: {HOLED}
input: {{stream: {HOLED}-readings}}
event_time: {{field: ts, delay: 0s, max_ahead: null}}
steps:
  - window: {{name: tens, tumbling: 10s, by: [device], aggregate: {{n: count(*), least: min(temp)}}}}
    emit: [{{elasticsearch: {HOLED}-tens}}]
"""


@pytest.mark.guarantee("G751")
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_job_that_meets_a_hole_fails_and_goes_on_as_the_error_says(audit_lab: AuditLab) -> None:
    """The topic was compacted before it became a stream. No result that the hole would falsify exists."""
    lab, topic = audit_lab, f"{HOLED}-readings"
    admin = KafkaAdmin(lab.settings.kafka_bootstrap, timeout_s=30, changes_topics=True)
    compaction = {"cleanup.policy": "compact", "segment.ms": "50", "min.cleanable.dirty.ratio": "0.01"}
    config = {**compaction, "max.compaction.lag.ms": "50", "message.timestamp.type": "LogAppendTime"}
    assert admin.create(topic, 2, 1, {**config, "retention.ms": str(7 * 86_400_000)})
    lines = [json.dumps({"device": "d", "ts": BASE_MS + n * 100, "temp": n}) for n in range(400)]
    for number, line in enumerate(lines):
        lab.producer.produce(topic, line, key="gone" if 100 <= number < 200 else str(number), partition=0)
        if number % 20 == 19:
            assert lab.producer.flush(60) == 0
    kept = [*range(100), *range(199, 400)]
    with closing(RangeReader(lab.settings.kafka_bootstrap)) as reader:

        def offsets() -> list[int]:
            chunks = reader.read([OffsetRange(topic, 0, 0, 400)], allow_holes=True)
            return [offset for chunk in chunks for offset in chunk.offsets]

        wait_until(offsets, lambda found: found == kept, "compacted", 90, poll_s=0.5)
    admin.change_config(topic, {"cleanup.policy": "delete"})
    lab.apply(HOLED_DOCUMENTS)
    said = fails(lab, HOLED)
    assert f"stream {topic}, partition 0 lacks records of offsets " in said
    assert lab.ledger.last_checkpoint(HOLED) is None
    found = re.search(r"--to TIME, with a time later than (\S+);", said)
    assert found is not None, said
    lab.ledger.set_desired(HOLED, Desired.STOPPED)
    lab.lifecycle.reset(HOLED, int(datetime.fromisoformat(found[1]).timestamp() * 1_000) + 1)
    lab.drain(HOLED)
    lab.require_clean(HOLED)
    documents = sorted(lab.documents(f"{HOLED}-tens").values(), key=lambda one: str(one["@timestamp"]))
    assert sum(one["n"] for one in documents) == 400 - documents[0]["least"]
    assert 200 <= documents[0]["least"] <= 220, "it begins with the batch after that of the first record after the hole"
