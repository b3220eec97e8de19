"""The reports of a real log: the offset of a log time, added partitions, checksums, and a missing topic."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from strandline.core.errors import NotFound
from strandline.log.index import PARTITIONS_AGE_MAX_S, LogIndex
from strandline.log.messages import LogReader
from strandline.log.reader import OffsetRange
from tests.support.waiting import wait_until


def make_topic(kafka: str, name: str, partitions: int = 1) -> None:
    config = {"message.timestamp.type": "LogAppendTime"}
    admin = AdminClient({"bootstrap.servers": kafka})  # kept: its futures die with it
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result()


@pytest.fixture
def reader(kafka):
    reader = LogReader(kafka, timeout_s=20)
    yield reader
    reader.close()


def test_where_a_log_time_falls(kafka, reader):
    make_topic(kafka, "times", 2)
    assert LogIndex(kafka).newest_log_time("times") == 0
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True})
    for number in range(3):
        producer.produce("times", str(number), partition=0)
        producer.flush()
    times = [m.timestamp()[1] for messages in reader.read(OffsetRange("times", 0, 0, 3)) for m in messages]
    index = LogIndex(kafka)
    ends = index.ends("times")
    assert ends == {0: 3, 1: 0}
    assert index.newest_log_time("times") == times[2]
    assert index.offsets_at("times", times[0], ends) == {0: 0, 1: 0}
    assert index.offsets_at("times", times[2] + 1, ends) == {0: 3, 1: 0}
    assert index.offsets_at("times", times[2] + 1, {0: 2, 1: 0}) == {0: 2, 1: 0}


def test_a_topic_that_is_not_there(kafka):
    with pytest.raises(NotFound, match="has no topic nowhere"):
        LogIndex(kafka).ends("nowhere")


@pytest.mark.guarantee("G36")
def test_a_partition_that_is_added_is_seen_without_a_new_run(kafka):
    assert PARTITIONS_AGE_MAX_S <= 5
    make_topic(kafka, "grows", 2)
    index = LogIndex(kafka)
    assert index.ends("grows") == {0: 0, 1: 0}
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_partitions([NewPartitions("grows", 3)])["grows"].result()
    wait_until(lambda: index.ends("grows"), lambda ends: ends == {0: 0, 1: 0, 2: 0}, "seen")


def test_checksums_tell_whether_an_offset_still_holds_the_same_record(kafka):
    """Tested with small batches, one larger than a request, markers of transactions, and no records."""
    make_topic(kafka, "sums", 3)
    producer = Producer(
        {"bootstrap.servers": kafka, "linger.ms": 50, "batch.size": 900_000, "transactional.id": "sums"}
    )
    producer.init_transactions()
    for size in (10, 800_000, 10):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce("sums", "x" * size, partition=partition)
        producer.commit_transaction()
    index = LogIndex(kafka)
    assert index.settled_ends("sums") == {0: 6, 1: 6, 2: 0}
    assert index.checksums("sums", {0: 6, 1: 100, 2: 0}) == {}
    assert index.checksums("sums", {}) == {}
    of_offset = [index.checksums("sums", {0: offset, 1: offset, 2: 0}) for offset in range(6)]
    assert all(found.keys() == {0, 1} for found in of_offset)
    index.close()
    with LogIndex(kafka) as other:
        assert [other.checksums("sums", {1: offset, 0: offset}) for offset in range(6)] == of_offset
    assert len({found[0] for found in of_offset}) == 6, "records of equal bytes differ by their time and number"
