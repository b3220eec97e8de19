"""Dead letters are written once, whatever an attempt that was killed left open in the stream."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import KafkaException, Producer

from strandline.core.errors import Fenced
from strandline.log.index import LogIndex
from strandline.log.reader import LogReader, OffsetRange
from strandline.log.transactions import fence_producer, fence_producers
from strandline.processing.emission.dead_letters import DeadLetter, DeadLetterWriter
from tests.integration.test_log_reader import make_topic


def letter(number: int) -> DeadLetter:
    return DeadLetter.of_record("readings", 0, number, b"no record", "decode", "not JSON", "decode")


def dead_letter_id(job: str, slot: str) -> str:
    return f"{job}.dead-letter.{slot}"


def write(kafka: str, job: str, slot: str, *numbers: int, epoch: int = 1, present: int = 1) -> int:
    """As a task of run `epoch` while `present` is the present one."""

    def require_current(asked: int) -> None:
        if asked != present:
            raise Fenced(f"run {asked} is over")

    return DeadLetterWriter(kafka, job, dead_letter_id(job, slot), epoch, require_current).write(
        map(letter, numbers), {0: 0}
    )


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
    producer = fence_producer(kafka, dead_letter_id(job, slot), f"{job}.dead-letter")
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


@pytest.mark.long
def test_a_transaction_that_nobody_takes_over_ends_before_readers_give_up(kafka: str) -> None:
    """As when the killed attempt had more tasks than any later one."""
    topic = "abandoned.dead-letter"
    make_topic(kafka, topic)
    killed = killed_after(kafka, "abandoned", "record-7", 1, has_committed=False)
    assert write(kafka, "abandoned", "record-1", 2) == 1
    assert numbers_in(kafka, topic) == [2]
    del killed


def test_an_older_run_with_more_tasks_gets_nothing_in_once_a_new_one_has_shut_it_out(kafka: str) -> None:
    """Neither what it had begun in a slot that the new run doesn't use, nor anything by taking that slot over again."""
    topic = "older.dead-letter"
    make_topic(kafka, topic)
    paused = killed_after(kafka, "older", "record-7", 1, has_committed=False)
    fence_producers(kafka, [(dead_letter_id("older", f"record-{slot}"), topic) for slot in range(8)])
    assert write(kafka, "older", "record-0", 1, 2, epoch=2, present=2) == 2
    with pytest.raises(KafkaException):
        paused.commit_transaction(30)
    with pytest.raises(Fenced):
        write(kafka, "older", "record-7", 1, epoch=1, present=2)
    assert numbers_in(kafka, topic) == [1, 2]
