"""Dead letters are written once, whatever an attempt that was killed left open in the stream."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Producer

from strandline.processing.dead_letters import DeadLetter, DeadLetterWriter
from strandline.processing.log_reader import LogReader, OffsetRange
from tests.integration.test_log_reader import make_topic
from tests.support.waiting import wait_until


def letter(number: int) -> DeadLetter:
    return DeadLetter.of_record("readings", 0, number, b"no record", "decode", "not JSON", "decode")


def write(kafka: str, job: str, slot: str, *numbers: int) -> int:
    return DeadLetterWriter(kafka, job, slot).write(map(letter, numbers), {0: 0})


def numbers_in(kafka: str, topic: str, offset_next: int) -> list[int]:
    reader = LogReader(kafka)
    try:
        ranges = reader.read(OffsetRange(topic, 0, 0, offset_next))
        return sorted(int((m.key() or b"").rpartition(b"/")[2]) for messages in ranges for m in messages)
    finally:
        reader.close()


def test_what_stands_behind_another_slots_open_transaction_is_not_written_again(kafka: str) -> None:
    """A kill can leave one task's transaction open, and another task's committed behind it: there readers of committed
    records see nothing until the open one is ended. The next attempt waits for that, and ends it as it goes."""
    topic = "behind.dead-letter"
    make_topic(kafka, topic)
    killed = Producer({"bootstrap.servers": kafka, "transactional.id": f"{topic}.record-0"})
    killed.init_transactions()
    killed.begin_transaction()
    killed.produce(topic, b"no record", key=b"readings/0/1")
    assert killed.flush(30) == 0
    assert write(kafka, "behind", "record-1", 2) == 1

    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(write, kafka, "behind", "record-1", 2, 3)
        assert write(kafka, "behind", "record-0", 1) == 1
        assert again.result(60) == 2
    # Two markers, an aborted record, and three letters with their markers.
    assert wait_until(lambda: numbers_in(kafka, topic, 9), lambda found: len(found) >= 3, "all written") == [1, 2, 3]


def test_a_transaction_that_nobody_takes_over_ends_before_readers_give_up(kafka: str) -> None:
    """As when the killed attempt had more tasks than any later one."""
    topic = "abandoned.dead-letter"
    make_topic(kafka, topic)
    killed = DeadLetterWriter(kafka, "abandoned", "record-7")._take_over()
    killed.begin_transaction()
    killed.produce(topic, b"no record", key=b"readings/0/1")
    assert killed.flush(30) == 0
    assert write(kafka, "abandoned", "record-1", 2) == 1
    assert numbers_in(kafka, topic, 3) == [2]
