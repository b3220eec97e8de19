"""The writer over a real Kafka: what is confirmed can be read, by its number; what can't be confirmed is said so in time."""

import asyncio
import os
import signal
import time
import uuid

import pytest
from confluent_kafka import Producer

from strandline.core.errors import LogUnavailable
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.delivery import PATIENCE_TIMEOUTS
from strandline.ingest.append.outcome import LogAway
from strandline.ingest.append.writer import LogWriter
from strandline.log.topics import Topics
from strandline.services.processes.pids import PidFile
from tests.support.topic_reader import read_messages
from tests.support.waiting import Patience, stretched

DEADLINE_S = 60
PARTITIONS = 4
AWAY_S = 2.0
"""Within this a sender hears that Kafka is away, and with `BACK_S` records flow again."""
BACK_S = 5.0


@pytest.fixture
def topic(kafka):
    name = f"written-{uuid.uuid4().hex[:12]}"
    spec = StreamSpec.from_document({"stream": name, "partitions": PARTITIONS, "schema": {"n": "long"}})
    Topics(kafka, replication=1, record_bytes_max=1_000_000).ensure_stream_topic(spec)
    return name


@pytest.fixture
def kafka_pid(servers, kafka):
    pid = PidFile(servers.data_dir).alive()["kafka"]
    yield pid
    os.kill(pid, signal.SIGCONT)


def open_writer(kafka, name="test", confirm_timeout_s=1.5):
    return LogWriter(kafka, writer_id=name, epoch=7, record_bytes_max=1_000_000, confirm_timeout_s=confirm_timeout_s)


async def append(writer, topic, *values, key=None):
    records = [(value, key(value) if key else None) for value in values]
    await writer.append(topic, records, received_ms=1, source=b"test", content_type=b"text/plain", message_id=b"id-1")


async def append_until_confirmed(writer, topic, value):
    """A broker that is just starting may need longer than one confirmation timeout."""
    patience = Patience("confirmed", DEADLINE_S, poll_s=0.05)
    while True:
        try:
            return await append(writer, topic, value)
        except LogUnavailable as error:
            patience.check(last=error)
            await patience.pause_async()


def read(kafka, topic, isolation="read_uncommitted", *, skips_open=False):
    """Every record, in the order of each partition: (partition, value, headers)."""
    messages = read_messages(kafka, topic, PARTITIONS, isolation=isolation, within_s=DEADLINE_S, skips_open=skips_open)
    return [(message.partition(), message.value(), dict(message.headers() or ())) for message in messages]


@pytest.mark.guarantee("G40")
def test_what_is_confirmed_can_be_read_and_its_numbers_rise_in_each_partition(kafka, topic):
    async def story():
        async with open_writer(kafka, "one", stretched(10)) as one, open_writer(kafka, "two", stretched(10)) as two:
            await asyncio.gather(
                *[append(one, topic, *[b"one-%d-%d" % (n, i) for i in range(n)], key=lambda v: v) for n in range(40)],
                *[append(two, topic, *[b"two-%d-%d" % (n, i) for i in range(n)]) for n in range(40)],
                append(one, topic, *[b"long-%d" % n for n in range(3_500)], key=lambda v: v),
            )

    asyncio.run(story())
    found = read(kafka, topic)
    assert len(found) == len({value for _, value, _ in found}) == 2 * sum(range(40)) + 3_500
    for writer in (b"one", b"two"):
        seen = set()
        for partition in range(PARTITIONS):
            numbers = [
                int(headers["strandline-sequence"])
                for number, _, headers in found
                if number == partition and headers["strandline-writer"] == writer
            ]
            assert numbers == sorted(numbers)
            assert seen.isdisjoint(numbers)
            seen.update(numbers)
        assert len(seen) == max(seen)
    _, _, headers = found[0]
    assert headers["strandline-epoch"] == b"7"
    assert headers["message-id"] == b"id-1"


@pytest.mark.guarantee(
    "G42",
    "An open transaction of another producer delays no acknowledgement.",
    promise="acknowledged-records-are-stored",
)
def test_an_open_transaction_of_someone_else_delays_nobody(kafka, topic):
    other = Producer({"bootstrap.servers": kafka, "transactional.id": f"other-{topic}"})
    other.init_transactions(DEADLINE_S)
    other.begin_transaction()
    for number in range(PARTITIONS):
        other.produce(topic, b"open", partition=number)
    other.flush(DEADLINE_S)

    async def story():
        async with open_writer(kafka, confirm_timeout_s=stretched(5)) as writer:
            await append_until_confirmed(writer, topic, b"first")
            await append(writer, topic, *[b"%d" % n for n in range(100)], key=lambda v: v)

    asyncio.run(story())
    assert (
        read(kafka, topic, "read_committed", skips_open=True) == []
    )  # the transaction hides them from others, not from the log
    other.abort_transaction(DEADLINE_S)
    assert {value for _, value, _ in read(kafka, topic, "read_committed")} >= {b"%d" % n for n in range(100)}


@pytest.mark.long
@pytest.mark.guarantee(
    "G41",
    "While Kafka is down, every sender gets a refusal within 2 s. Within 5 s of its return, records flow again.",
    promise="acknowledged-records-are-stored",
)
def test_while_kafka_is_away_everybody_hears_so_in_time_and_afterwards_records_flow(kafka, topic, kafka_pid):
    async def send(writer, number, outcomes):
        began_s = time.monotonic()
        try:
            await append(writer, topic, b"%d" % number)
            outcome = "confirmed"
        except LogAway:
            outcome = "away"
        except LogUnavailable:
            outcome = "unknown"
        outcomes.append((outcome, number, began_s, time.monotonic()))

    async def story():
        outcomes = []
        async with open_writer(kafka) as writer:
            await append_until_confirmed(writer, topic, b"-1")
            sending = []
            gone_s = back_s = limit_s = 0.0
            for number in range(1_600):
                limit_s = max(limit_s, stretched(AWAY_S))  # of the busiest moment
                if number == 200:
                    os.kill(kafka_pid, signal.SIGSTOP)
                    gone_s = time.monotonic()
                if number == 1_000:
                    os.kill(kafka_pid, signal.SIGCONT)
                    back_s = time.monotonic()
                sending.append(asyncio.create_task(send(writer, number, outcomes)))
                await asyncio.sleep(0.005)  # sleeps: the pace of this sender
            await asyncio.gather(*sending)
            await append_until_confirmed(writer, topic, b"-2")
        return outcomes, gone_s, back_s, limit_s

    outcomes, gone_s, back_s, limit_s = asyncio.run(story())
    # A Kafka that confirms slowly, as on a busy machine, is waited for longer than a silent one.
    assert max(min(ended_s, back_s) - max(began_s, gone_s) for _, _, began_s, ended_s in outcomes) < limit_s
    assert max(ended_s - began_s for _, _, began_s, ended_s in outcomes) < PATIENCE_TIMEOUTS * limit_s
    away = [ended_s - began_s for outcome, _, began_s, ended_s in outcomes if outcome == "away"]
    assert len(away) > 100
    assert sorted(away)[len(away) // 2] < stretched(0.05)
    first_back_s = min(
        ended_s for outcome, _, began_s, ended_s in outcomes if outcome == "confirmed" and began_s > back_s
    )
    assert first_back_s - back_s < stretched(BACK_S)
    in_log = [int(value) for _, value, _ in read(kafka, topic)]
    assert {number for outcome, number, *_ in outcomes if outcome == "confirmed"} <= set(in_log)
    assert not {number for outcome, number, *_ in outcomes if outcome == "away"} & set(in_log)
    sent_once = [number for number in in_log if number >= 0]
    assert len(sent_once) == len(set(sent_once))


@pytest.mark.long
def test_a_topic_that_is_not_there_is_named_and_harms_no_other(kafka, topic):
    async def story():
        async with open_writer(kafka, confirm_timeout_s=stretched(10)) as writer:
            await append_until_confirmed(writer, topic, b"before")
            with pytest.raises(LogUnavailable, match="no topic never-made; apply the stream's document again"):
                await append(writer, "never-made", b"x")
            await append(writer, topic, b"after")

    asyncio.run(story())
