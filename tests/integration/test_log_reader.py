"""Where a log time falls in a real log, and a topic that is not there."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from strandline.core.errors import NotFound
from strandline.log.index import LogIndex
from strandline.log.reader import LogReader, OffsetRange


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
    producer = Producer({"bootstrap.servers": kafka})
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
