"""The guarantees of both readers of the log: exact ranges of committed records, for any log."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from strandline.core.errors import LogTruncated, LogUnavailable
from strandline.core.record_headers import unpack_header_values
from strandline.log.index import LogIndex
from strandline.log.messages import LogReader
from strandline.log.range_reader import RangeReader
from strandline.log.reader import OffsetRange
from tests.support.waiting import stretched, wait_until

HEADER = "strandline-source"
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


class Record(NamedTuple):
    offset: int
    log_time_ms: int
    value: bytes | None
    source: bytes | None


Read = Callable[..., list[Record]]


def read_messages(reader: LogReader, *ranges: OffsetRange) -> list[Record]:
    return [
        Record(m.offset(), m.timestamp()[1], m.value(), dict(m.headers() or []).get(HEADER))
        for one in ranges
        for messages in reader.read(one)
        for m in messages
    ]


def read_columns(reader: RangeReader, *ranges: OffsetRange) -> list[Record]:
    found = []
    for chunk in reader.read(ranges, [HEADER]):
        columns = (chunk.offsets, chunk.log_times_ms, chunk.values, chunk.header_values or [None] * len(chunk.values))
        found += [Record(*record) for record in zip(*columns, strict=True)]
    without = [(chunk.offsets, chunk.log_times_ms, chunk.values) for chunk in reader.read(ranges)]
    flat = [record for columns in without for record in zip(*columns, strict=True)]
    assert flat == [record[:3] for record in found]
    return found


READERS = {"messages": (LogReader, read_messages), "columns": (RangeReader, read_columns)}


@pytest.fixture(params=READERS)
def read(request: pytest.FixtureRequest, kafka: str):
    make, read = READERS[request.param]
    reader = make(kafka, timeout_s=20)
    yield lambda *ranges: read(reader, *ranges)
    reader.close()


@pytest.fixture(params=READERS)
def read_impatiently(request: pytest.FixtureRequest, kafka: str):
    make, read = READERS[request.param]
    reader = make(kafka, timeout_s=1.5)
    yield lambda *ranges: read(reader, *ranges)
    reader.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest, kafka: str) -> Callable[..., str]:
    def make(partitions: int = 1, **config: str) -> str:
        name = f"{request.node.name}".translate({ord("["): "-", ord("]"): None})
        settings = {"message.timestamp.type": "LogAppendTime"} | {k.replace("_", "."): v for k, v in config.items()}
        admin = AdminClient({"bootstrap.servers": kafka})
        admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result()
        return name

    return make


def producer_of(kafka: str, **settings: object) -> Producer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": kafka, "enable.idempotence": True, **named})


def transactional(kafka: str, name: str) -> Producer:
    producer = producer_of(kafka, transactional_id=name)
    producer.init_transactions()
    return producer


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def test_ranges_that_begin_and_end_inside_batches(kafka, topic, read):
    name = topic(2)
    producer = producer_of(kafka, linger_ms=50)
    for number in range(3_000):
        producer.produce(name, str(number), partition=number % 2)
    producer.flush()
    for first, end in [(0, 1), (10, 13), (700, 1_300), (1_499, 1_500), (0, 1_500), (20, 20)]:
        found = read(OffsetRange(name, 1, first, end))
        assert [(r.offset, r.value) for r in found] == [(n, str(2 * n + 1).encode()) for n in range(first, end)]
    ranges = [OffsetRange(name, 0, 5, 700), OffsetRange(name, 1, 0, 1_500), OffsetRange(name, 0, 900, 901)]
    expected = [*range(10, 1_400, 2), *range(1, 3_000, 2), 1_800]
    assert values(read(*ranges)) == [str(number).encode() for number in expected]


def test_aborted_records_between_committed_ones(kafka, topic, read):
    """Two producers' transactions overlap, and a third writes without one: only aborted records are missing."""
    name = topic()
    one, two, plain = transactional(kafka, f"{name}-1"), transactional(kafka, f"{name}-2"), producer_of(kafka)

    def write(producer: Producer, value: str) -> None:
        producer.produce(name, value)
        producer.flush()

    for turn in range(3):
        one.begin_transaction()
        two.begin_transaction()
        write(one, f"one-{turn}-a")
        write(two, f"two-{turn}-a")
        write(plain, f"plain-{turn}")
        write(two, f"two-{turn}-b")
        write(one, f"one-{turn}-b")
        one.commit_transaction() if turn == 1 else one.abort_transaction()
        write(two, f"two-{turn}-c")
        two.abort_transaction() if turn == 1 else two.commit_transaction()
    end = LogIndex(kafka).settled_ends(name)[0]
    assert end == 24  # 18 records and 6 markers
    expected = {
        0: "two-0-a plain-0 two-0-b two-0-c",
        1: "one-1-a plain-1 one-1-b",
        2: "two-2-a plain-2 two-2-b two-2-c",
    }
    assert b" ".join(values(read(OffsetRange(name, 0, 0, end)))).decode() == " ".join(expected.values())
    every = {record.offset: record for record in read(OffsetRange(name, 0, 0, end))}
    for first in range(end):  # also from inside an aborted transaction, and from its marker
        for last in (first, first + 2, end - 1):
            wanted = [every[offset] for offset in range(first, min(last + 1, end)) if offset in every]
            assert read(OffsetRange(name, 0, first, min(last + 1, end))) == wanted


def test_a_range_of_markers_alone_is_empty_at_once(kafka, topic, read):
    name = topic()
    producer = transactional(kafka, name)
    for _ in range(3):
        producer.begin_transaction()
        producer.produce(name, "a")
        producer.commit_transaction()
    assert LogIndex(kafka).settled_ends(name) == {0: 6}
    began_s = time.monotonic()
    assert read(OffsetRange(name, 0, 1, 2)) == []
    assert read(OffsetRange(name, 0, 5, 6)) == []
    assert time.monotonic() - began_s < stretched(5)


def test_an_open_transaction_is_waited_for(kafka, topic, read_impatiently):
    name = topic(2)
    producer, plain = transactional(kafka, name), producer_of(kafka)
    producer.begin_transaction()
    producer.produce(name, "open", partition=0)
    producer.flush()
    for number in range(2):
        plain.produce(name, "plain", partition=number)
    plain.flush()
    with pytest.raises(LogUnavailable, match=f"stream {name}, partition 0"):
        read_impatiently(OffsetRange(name, 0, 0, 2), OffsetRange(name, 1, 0, 1))
    producer.commit_transaction()
    assert values(read_impatiently(OffsetRange(name, 0, 0, 2), OffsetRange(name, 1, 0, 1))) == [
        b"open",
        b"plain",
        b"plain",
    ]


@pytest.mark.long
@pytest.mark.guarantee("G751")
def test_holes_of_compaction(kafka, topic):
    """Ranges that begin in a hole, end in one, or are one: an error, unless the reader allows holes."""
    name = topic(
        cleanup_policy="compact", segment_ms="50", min_cleanable_dirty_ratio="0.01", max_compaction_lag_ms="50"
    )
    producer = producer_of(kafka, linger_ms=50)
    for number in range(
        60
    ):  # keys "kept" stay, of "gone" only the last; batches of one, and of seven with both in them
        producer.produce(name, str(number), "gone" if 10 <= number < 50 else f"kept-{number}")
        if number % 7 == 0 or 20 < number < 40:
            producer.flush()
    producer.flush()
    time.sleep(0.1)  # sleeps: longer than segment.ms
    producer.produce(name, "60", "active")  # the segment before it is closed by this, and may be cleaned
    producer.flush()
    kept = [*range(10), *range(49, 61)]
    with closing(RangeReader(kafka, timeout_s=2)) as reader:

        def read(first: int, end: int, *, allow_holes: bool) -> list[int]:
            chunks = reader.read([OffsetRange(name, 0, first, end)], allow_holes=allow_holes)
            return [offset for chunk in chunks for offset in chunk.offsets]

        wait_until(lambda: read(0, 61, allow_holes=True), lambda offsets: offsets == kept, "compacted", 60, poll_s=0.5)
        for first, end in [(0, 20), (5, 49), (12, 40), (20, 50), (30, 61), (48, 49), (49, 50)]:
            found = read(first, end, allow_holes=True)
            assert found == [offset for offset in kept if first <= offset < end]
        for first, end in [(0, 20), (12, 40), (30, 61)]:
            with pytest.raises(
                LogTruncated, match=rf"stream {name}, partition 0 lacks records of offsets \d+ to \d+: "
            ):
                read(first, end, allow_holes=False)
        assert read(0, 8, allow_holes=False) == kept[:8]


@pytest.mark.parametrize("broker_codec", ["producer", "broker"])
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(kafka, topic, read, codec, broker_codec):
    """Records are compressed by librdkafka, and by Kafka itself."""
    by_broker = broker_codec == "broker"
    name = topic(compression_type=("uncompressed" if codec == "none" else codec) if by_broker else "producer")
    producer = producer_of(kafka, compression_type="none" if by_broker else codec, linger_ms=50)
    texts = [f"{number % 7}-{'x' * (number % 300)}".encode() for number in range(2_000)]
    for text in texts:
        producer.produce(name, text)
    producer.flush()
    assert values(read(OffsetRange(name, 0, 3, 2_000))) == texts[3:]


def test_null_and_empty_values_keys_and_headers(kafka, topic, read):
    name = topic()
    producer = producer_of(kafka)
    producer.produce(name, None, None, headers=[(HEADER, None)])
    producer.produce(name, b"", b"", headers=[(HEADER, b"")])
    producer.produce(name, b"v", b"k", headers=[("a", b"1"), (HEADER, b"first"), ("b", None), (HEADER, b"last")])
    producer.produce(name, None, b"k")
    producer.flush()
    found = read(OffsetRange(name, 0, 0, 4))
    assert values(found) == [None, b"", b"v", None]
    assert [record.source for record in found] == [None, b"", b"last", None]


def test_the_time_is_the_logs_or_the_senders(kafka, topic, read):
    name = topic(message_timestamp_type="CreateTime")
    producer = producer_of(kafka)
    now_ms = int(time.time() * 1_000)
    times_ms = [now_ms - 5, now_ms - 70_000, now_ms]
    for time_ms in times_ms:
        producer.produce(name, "a", timestamp=time_ms)
    producer.flush()
    assert [record.log_time_ms for record in read(OffsetRange(name, 0, 0, 3))] == times_ms


def test_large_records(kafka, topic, read):
    """Larger than what is fetched at once, and small ones in between."""
    name = topic(max_message_bytes="2097152")
    producer = producer_of(kafka, message_max_bytes=2_000_000)
    texts = [bytes([65 + number]) * (1_900_000 if number % 2 else 10) for number in range(6)]
    for text in texts:
        producer.produce(name, text)
        producer.flush()
    assert values(read(OffsetRange(name, 0, 0, 6))) == texts
    assert values(read(OffsetRange(name, 0, 3, 4))) == texts[3:4]


@pytest.mark.guarantee("G12")
def test_a_log_that_lost_the_range_says_so(kafka, topic, read):
    name = topic()
    producer = producer_of(kafka)
    for number in range(10):
        producer.produce(name, str(number))
    producer.flush()
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.delete_records([TopicPartition(name, 0, 4)]).values():
        future.result()
    with pytest.raises(
        LogTruncated, match=f"stream {name}, partition 0: offset 3, which the job needs, no longer exists"
    ):
        read(OffsetRange(name, 0, 3, 10))
    with pytest.raises(
        LogTruncated, match=f"stream {name}, partition 0: offset 11, which the job needs, no longer exists"
    ):
        read(OffsetRange(name, 0, 11, 12))
    assert len(read(OffsetRange(name, 0, 4, 10))) == 6


def test_a_topic_that_is_not_there(read_impatiently):
    with pytest.raises(LogUnavailable, match="stream nowhere, partition 0"):
        read_impatiently(OffsetRange("nowhere", 0, 0, 1))


def test_what_is_left_unread_disturbs_nothing(kafka, topic):
    """A caller may stop in the middle, and read something else with the same reader."""
    name = topic()
    producer = producer_of(kafka)
    for number in range(30_000):
        producer.produce(name, f"{number}-{'x' * 100}")
    producer.flush()
    with closing(RangeReader(kafka, timeout_s=20)) as reader:
        for first in (0, 10_000, 5):
            chunks = reader.read([OffsetRange(name, 0, first, 30_000)])
            assert next(chunks).offsets[0] == first
            chunks.close()
        assert sum(len(chunk.offsets) for chunk in reader.read([OffsetRange(name, 0, 0, 30_000)])) == 30_000


@pytest.mark.guarantee("G302")
def test_headers_beside_the_first_come_packed_with_it(kafka, topic):
    name = topic(1)
    producer = producer_of(kafka)
    own = [("ce_id", b"1"), (HEADER, b"s"), ("http-x", b"2"), ("other", b"3")]
    for headers in (own, own[:1], [(HEADER, b"alone")], [(HEADER, b"\0 is no mark of ours")], []):
        producer.produce(name, b"v", headers=headers)
    producer.flush()
    with closing(RangeReader(kafka)) as reader:
        chunks = list(reader.read([OffsetRange(name, 0, 0, 5)], [HEADER], ["ce_id", "http-x"]))
    found = [unpack_header_values(value) for chunk in chunks for value in chunk.header_values]
    assert found == [
        (b"s", {"ce_id": b"1", "http-x": b"2"}),
        (None, {"ce_id": b"1"}),
        (b"alone", {}),
        (b"\0 is no mark of ours", {}),
        (None, {}),
    ]
