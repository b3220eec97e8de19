"""Dead letters are written once, whatever an attempt that was killed left open in the stream."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer

from strandline.processing.dead_letters import DeadLetter, DeadLetterWriter
from strandline.processing.log_reader import LogIndex, LogReader, OffsetRange
from tests.integration.test_log_reader import make_topic


def letter(number: int) -> DeadLetter:
    return DeadLetter.of_record("readings", 0, number, b"no record", "decode", "not JSON", "decode")


def write(kafka: str, job: str, slot: str, *numbers: int) -> int:
    return DeadLetterWriter(kafka, job, slot).write(map(letter, numbers), {0: 0})


def numbers_in(kafka: str, topic: str) -> list[int]:
    reader = LogReader(kafka)
    try:
        ranges = reader.read(OffsetRange(topic, 0, 0, LogIndex(kafka).ends_with_open(topic)[0]))
        return sorted(int((m.key() or b"").rpartition(b"/")[2]) for messages in ranges for m in messages)
    finally:
        reader.close()


def killed_after(kafka: str, job: str, slot: str, number: int, *, has_committed: bool) -> Producer:
    """What an attempt wrote that then was killed, before or after the end of its transaction. Keep it: it must not end
    its transaction now by being forgotten."""
    producer = DeadLetterWriter(kafka, job, slot)._take_over()
    producer.begin_transaction()
    producer.produce(f"{job}.dead-letter", b"no record", key=letter(number).identity.encode())
    assert producer.flush(30) == 0
    if has_committed:
        producer.commit_transaction(30)
    return producer


def test_what_stands_behind_another_slots_open_transaction_is_not_written_again(kafka: str) -> None:
    """A kill can leave one task's transaction open, and another task's committed behind it: there readers of committed
    records see nothing until the open one is ended. The next attempt waits for that, and ends it as it goes."""
    topic = "behind.dead-letter"
    make_topic(kafka, topic)
    killed = [
        killed_after(kafka, "behind", "record-0", 1, has_committed=False),
        killed_after(kafka, "behind", "record-1", 2, has_committed=True),
    ]
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(write, kafka, "behind", "record-1", 2, 3)
        with pytest.raises(TimeoutError):
            again.result(3)  # it waits, since it can't know yet what it has written
        assert write(kafka, "behind", "record-0", 1) == 1
        assert again.result(60) == 2
    assert numbers_in(kafka, topic) == [1, 2, 3]
    killed.clear()


def test_a_transaction_that_nobody_takes_over_ends_before_readers_give_up(kafka: str) -> None:
    """As when the killed attempt had more tasks than any later one."""
    topic = "abandoned.dead-letter"
    make_topic(kafka, topic)
    killed = killed_after(kafka, "abandoned", "record-7", 1, has_committed=False)
    assert write(kafka, "abandoned", "record-1", 2) == 1
    assert numbers_in(kafka, topic) == [2]
    del killed
