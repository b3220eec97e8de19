"""Reading exact ranges of a real log: transaction markers, aborted records, truncated logs, log times."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from strandline.core.errors import LogTruncated, NotFound
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


def read(reader: LogReader, *place) -> list[tuple[int, bytes]]:
    return [(m.offset(), m.value()) for messages in reader.read(OffsetRange(*place)) for m in messages]


def test_a_range_is_read_exactly(kafka, reader):
    make_topic(kafka, "range", 2)
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(100):
        producer.produce("range", str(number), partition=number % 2)
    producer.flush()
    assert read(reader, "range", 0, 10, 13) == [(10, b"20"), (11, b"22"), (12, b"24")]
    assert read(reader, "range", 1, 49, 50) == [(49, b"99")]
    assert read(reader, "range", 1, 50, 50) == []
    assert len(read(reader, "range", 0, 0, 50)) == 50


def test_transaction_markers_and_aborted_records_leave_holes_and_do_not_hang(kafka, reader):
    make_topic(kafka, "holes")
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": "holes"})
    producer.init_transactions()
    for number, commit in enumerate((True, False, True, False)):
        producer.begin_transaction()
        producer.produce("holes", f"{number}a")
        producer.produce("holes", f"{number}b")
        producer.flush()
        producer.commit_transaction() if commit else producer.abort_transaction()
    end = LogIndex(kafka).ends("holes")[0]
    assert end == 12  # eight records and four markers
    assert [value for _, value in read(reader, "holes", 0, 0, end)] == [b"0a", b"0b", b"2a", b"2b"]
    assert read(reader, "holes", 0, 2, 3) == []
    assert read(reader, "holes", 0, 9, 12) == []


def test_a_log_that_lost_the_range_says_so(kafka, reader):
    make_topic(kafka, "short")
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(10):
        producer.produce("short", str(number))
    producer.flush()
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.delete_records([TopicPartition("short", 0, 4)]).values():
        future.result()
    index = LogIndex(kafka)
    assert index.starts("short") == {0: 4}
    with pytest.raises(LogTruncated, match="stream short, partition 0 no longer holds"):
        read(reader, "short", 0, 3, 10)
    assert len(read(reader, "short", 0, 4, 10)) == 6


def test_where_a_log_time_falls(kafka, reader):
    make_topic(kafka, "times", 2)
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(3):
        producer.produce("times", str(number), partition=0)
        producer.flush()
    times = [m.timestamp()[1] for messages in reader.read(OffsetRange("times", 0, 0, 3)) for m in messages]
    index = LogIndex(kafka)
    ends = index.ends("times")
    assert ends == {0: 3, 1: 0}
    assert index.offsets_at("times", times[0], ends) == {0: 0, 1: 0}
    assert index.offsets_at("times", times[2] + 1, ends) == {0: 3, 1: 0}
    assert index.offsets_at("times", times[2] + 1, {0: 2, 1: 0}) == {0: 2, 1: 0}


def test_a_topic_that_is_not_there(kafka):
    with pytest.raises(NotFound, match="has no topic nowhere"):
        LogIndex(kafka).ends("nowhere")
