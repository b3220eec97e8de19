"""Real logs that have changed: cut off while a broker was down, recreated or extended under a running job."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from strandline.core.errors import Conflict
from strandline.ledger.states import Desired, JobState, SliceRow
from strandline.log.index import LogIndex
from strandline.log.range_reader import RangeReader
from strandline.log.reader import OffsetRange
from strandline.processing.run.exit_codes import EXIT_FAILED
from strandline.processing.run.runner import Runner
from strandline.processing.slices.continuity import LogContinuity
from tests.support.audit_lab import AuditLab
from tests.support.faults.kafka_cluster import KafkaCluster
from tests.support.ledgers import a_slice
from tests.support.waiting import stretched, wait_until

pytestmark = pytest.mark.timeout(600)
BASE_MS = 1_793_491_200_000
DOCUMENTS = """
stream: {name}-readings
partitions: 2
schema: {{device: string, ts: {{type: timestamp, unit: ms}}}}
---
pipeline: {name}
input: {{stream: {name}-readings}}
event_time: {{field: ts, delay: 10s, idle_timeout: 1h, max_ahead: null}}
steps:
  - window: {{name: tens, tumbling: 10s, by: [device], aggregate: {{n: count(*)}}}}
    emit: [{{elasticsearch: {name}-tens}}]
"""


def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def write(bootstrap: str, topic: str, partition: int, count: int, first: int = 0) -> None:
    """Batches of one record, a tenth of a second of event time apart."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(first, first + count):
        line = json.dumps({"device": f"d{partition}", "ts": BASE_MS + 100 * number})
        producer.produce(topic, line, partition=partition)
        assert producer.flush(60) == 0


def make_topic(bootstrap: str, topic: str, partitions: int) -> None:
    client = admin(bootstrap)
    order = NewTopic(topic, partitions, 1, config={"message.timestamp.type": "LogAppendTime"})
    client.create_topics([order])[topic].result(stretched(60))


@pytest.mark.guarantee("G35")
@pytest.mark.long
def test_a_log_that_lost_its_end_while_the_broker_was_down(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A power cut: the broker is killed, and what the disk had not stored is no longer in the file."""
    with closing(KafkaCluster(tmp_path)) as cluster:
        cluster.start()
        (broker,) = cluster.brokers
        make_topic(cluster.bootstrap, "cut", 2)
        for partition in (0, 1):
            write(cluster.bootstrap, "cut", partition, 20)
        segment = broker.storage / "cut-0" / "00000000000000000000.log"
        size = segment.stat().st_size
        write(cluster.bootstrap, "cut", 0, 10)
        index = LogIndex(cluster.bootstrap)
        request.addfinalizer(index.close)
        continuity = LogContinuity("j", "cut", index.topic_id("cut"), index)
        row = replace(a_slice(1), offsets_first={"cut": {0: 0, 1: 0}}, offsets={"cut": {0: 30, 1: 20}})

        def sealed(row: SliceRow, done: SliceRow | None) -> SliceRow | None:
            places = continuity.seal_places(row, done)
            new = index.checksums_at(places.new)
            return continuity.sealed(row, done, new, index.checksums_at(places.old))

        last = sealed(row, None)
        assert last is not None and last.checksums["cut"].keys() == {0, 1}

        broker.kill()
        cluster.start()
        continuity.require(last)

        broker.kill()
        with segment.open("r+b") as file:
            file.truncate(size)
        cluster.start()
        with pytest.raises(
            Conflict, match="stream cut, partition 0 ends at offset 20, but slices of job j go up to offset 30"
        ):
            continuity.require(last)
        write(cluster.bootstrap, "cut", 0, 15)
        longer = replace(last, number=2, offsets_first=last.offsets, offsets={"cut": {0: 35, 1: 20}})
        with pytest.raises(
            Conflict, match="stream cut, partition 0 holds another record at offset 29 than when slice 1"
        ):
            sealed(longer, last)
        with closing(RangeReader(cluster.bootstrap)) as reader:
            for partition, end in last.offsets["cut"].items():
                checksum = last.checksums["cut"][partition]
                one = reader.read([OffsetRange("cut", partition, 0, end, checksum)])
                if partition == 0:
                    with pytest.raises(
                        Conflict, match="partition 0: the record at offset 29 has changed since the slice"
                    ):
                        list(one)
                else:
                    assert sum(len(chunk.offsets) for chunk in one) == 20
        assert cluster.errors() == []


@contextmanager
def running(lab: AuditLab, job: str) -> Iterator[list[int]]:
    """The job runs inside, and is stopped afterwards. The list holds the runner's exit code once it has ended."""
    lab.ledger.set_desired(job, Desired.RUNNING)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(Runner(lab.settings, job, lab.spark).run()))
    thread.start()
    try:
        yield codes
    finally:
        lab.ledger.set_desired(job, Desired.STOPPED)
        thread.join()


def read(lab: AuditLab, job: str) -> dict[int, int]:
    """Up to where the job has read and committed."""
    last = lab.ledger.last_checkpoint(job)
    return lab.ledger.slices(job, last.slice, last.slice)[0].offsets[f"{job}-readings"] if last else {}


def wait_until_read(lab: AuditLab, job: str, ends: dict[int, int]) -> None:
    wait_until(lambda: read(lab, job), lambda offsets: offsets == ends, "read", 180)


def outcome(lab: AuditLab, job: str) -> tuple[JobState, Any]:
    row = lab.ledger.job(job)
    return row.state, row.message


@pytest.mark.long
@pytest.mark.guarantee("G36")
def test_a_partition_that_is_added_to_a_running_job_is_read_from_its_first_record(audit_lab: AuditLab) -> None:
    """The partition has records from before the job sees it, of the same time as those of the others."""
    lab, bootstrap, topic = audit_lab, audit_lab.settings.kafka_bootstrap, "grows-readings"
    lab.apply(DOCUMENTS.format(name="grows"))
    with running(lab, "grows") as codes:
        write(bootstrap, topic, 0, 200)
        write(bootstrap, topic, 1, 200)
        wait_until_read(lab, "grows", {0: 200, 1: 200})
        client = admin(bootstrap)
        client.create_partitions([NewPartitions(topic, 3)])[topic].result(stretched(60))
        write(bootstrap, topic, 2, 60, first=150)
        wait_until_read(lab, "grows", {0: 200, 1: 200, 2: 60})
        for partition in (0, 1, 2):
            write(bootstrap, topic, partition, 50, first=210)
        wait_until_read(lab, "grows", {0: 250, 1: 250, 2: 110})
    assert codes == [0]
    totals = lab.ledger.totals("grows")
    assert (totals.records, totals.rejected) == (610, {})
    lab.drain("grows")
    assert sum(document["n"] for document in lab.documents("grows-tens").values()) == 610


def test_a_topic_that_is_recreated_under_a_running_job_ends_it_for_good(audit_lab: AuditLab) -> None:
    """The new topic contains more than the old one, so no end has fallen when the job looks."""
    lab, bootstrap, topic = audit_lab, audit_lab.settings.kafka_bootstrap, "recreated-readings"
    lab.apply(DOCUMENTS.format(name="recreated"))
    with running(lab, "recreated") as codes:
        write(bootstrap, topic, 0, 20)
        wait_until_read(lab, "recreated", {0: 20, 1: 0})
        client = admin(bootstrap)
        client.delete_topics([topic])[topic].result(stretched(60))
        make_topic(bootstrap, topic, 2)
        write(bootstrap, topic, 0, 30)
        wait_until(lambda: codes, bool, "ended", 180)
    assert codes == [EXIT_FAILED]
    state, message = outcome(lab, "recreated")
    assert state is JobState.FAILED
    assert "stream under another name, and submit a pipeline of another name" in message
    assert read(lab, "recreated") == {0: 20, 1: 0}

    lab.ledger.set_desired("recreated", Desired.RUNNING)
    assert Runner(lab.settings, "recreated", lab.spark).run() == EXIT_FAILED
    state, message = outcome(lab, "recreated")
    assert state is JobState.FAILED
    assert "stream recreated-readings is another topic than the one that job recreated has read" in message
    assert read(lab, "recreated") == {0: 20, 1: 0}
