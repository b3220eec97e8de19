"""Dead letters are written once, whatever an attempt that was killed left open in the stream."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import pytest
from confluent_kafka import KafkaException, Producer

from strandline.core.errors import Fenced
from strandline.log.index import LogIndex
from strandline.log.messages import LogReader
from strandline.log.reader import OffsetRange
from strandline.log.topics import Topics
from strandline.log.transactions import fence_producer, fence_producers
from strandline.processing.emission.dead_letters import DeadLetter, DeadLetterWriter
from tests.integration.test_log_reader import make_topic
from tests.support.topic_reader import read_messages
from tests.support.waiting import stretched

RECORD_BYTES_MAX = 1_000_000


def letter(number: int) -> DeadLetter:
    return DeadLetter.of_record("readings", 0, number, b"no record", "decode", "not JSON", "decode")


def dead_letter_id(job: str, slot: str) -> str:
    return f"{job}.dead-letter.{slot}"


def write(kafka: str, job: str, slot: str, *numbers: int, epoch: int = 1, present: int = 1) -> int:
    """Write as a task of run `epoch` while `present` is the current run."""

    def require_current(asked: int) -> None:
        if asked != present:
            raise Fenced(f"run {asked} is over")

    return writer_of(kafka, job, slot, epoch, require_current).write(map(letter, numbers), {0: 0})


def writer_of(kafka: str, job: str, slot: str, epoch: int, require_current: Callable[[int], None]) -> DeadLetterWriter:
    transactional_id = dead_letter_id(job, slot)
    return DeadLetterWriter(kafka, job, transactional_id, epoch, require_current, record_bytes_max=RECORD_BYTES_MAX)


def write_values(kafka: str, job: str, *values: bytes) -> None:
    """Write dead letters of records with these values at offsets 0, 1, ...; no two messages are equal."""
    letters = (
        DeadLetter.of_record("readings", 0, offset, value, "decode", f"not JSON: {offset}", "decode")
        for offset, value in enumerate(values)
    )
    assert writer_of(kafka, job, "record-0", 1, lambda _: None).write(letters, {0: 0}) == len(values)


def letters_in(kafka: str, topic: str) -> list[tuple[bytes | None, dict[str, bytes]]]:
    """Value and headers of each, by the record's offset."""
    found = [(m.value(), dict(m.headers() or ())) for m in read_messages(kafka, topic, 1, isolation="read_committed")]
    return sorted(found, key=lambda one: int(one[1]["offset"]))


def numbers_in(kafka: str, topic: str) -> list[int]:
    reader = LogReader(kafka)
    try:
        ranges = reader.read(OffsetRange(topic, 0, 0, LogIndex(kafka).ends_with_open(topic)[0]))
        return sorted(int((m.key() or b"").rpartition(b"/")[2]) for messages in ranges for m in messages)
    finally:
        reader.close()


def killed_after(kafka: str, job: str, slot: str, number: int, *, has_committed: bool) -> Producer:
    """Return the producer of an attempt that was killed before or after the end of its transaction.

    Keep it: if it is garbage-collected, its transaction ends now.
    """
    producer = fence_producer(kafka, dead_letter_id(job, slot), f"{job}.dead-letter")
    producer.begin_transaction()
    producer.produce(f"{job}.dead-letter", b"no record", key=letter(number).identity.encode())
    assert producer.flush(30) == 0
    if has_committed:
        producer.commit_transaction(30)
    return producer


@pytest.mark.guarantee(
    "G71",
    "A dead letter is written once, even if a killed attempt left one task's transaction open and another's "
    "committed, or if an older run with more tasks still writes.",
    promise="each-rejected-record-is-one-dead-letter",
)
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
            again.result(3)  # it waits, because its own writes are not known yet
        assert write(kafka, "behind", "record-0", 1) == 1
        assert again.result(stretched(60)) == 2
    assert numbers_in(kafka, topic) == [1, 2, 3]
    killed.clear()


@pytest.mark.long
def test_a_transaction_that_nobody_takes_over_ends_before_readers_give_up(kafka: str) -> None:
    """This occurs if the killed attempt had more tasks than any later one."""
    topic = "abandoned.dead-letter"
    make_topic(kafka, topic)
    killed = killed_after(kafka, "abandoned", "record-7", 1, has_committed=False)
    assert write(kafka, "abandoned", "record-1", 2) == 1
    assert numbers_in(kafka, topic) == [2]
    del killed


@pytest.mark.guarantee("G71")
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


@pytest.mark.guarantee("G76")
def test_the_largest_record_that_a_gateway_takes_is_in_its_dead_letter_whole(kafka: str) -> None:
    """The bytes can't be compressed. Also tested with several of them in one transaction."""
    job = "largest"
    Topics(kafka, replication=1, record_bytes_max=RECORD_BYTES_MAX).ensure_dead_letter_topic(job)
    values = [
        random.Random(n).randbytes(size) for n, size in enumerate((999_993, RECORD_BYTES_MAX, 10, RECORD_BYTES_MAX))
    ]
    write_values(kafka, job, *values)
    found = letters_in(kafka, f"{job}.dead-letter")
    assert [value for value, _ in found] == values
    assert all("payload-bytes" not in headers for _, headers in found)


@pytest.mark.guarantee("G7")
@pytest.mark.guarantee(
    "G76",
    "A record that is too large for a dead letter gets one with its size and SHA-256 instead of its bytes. Only a "
    "direct producer of Kafka can write such a record.",
    promise="each-rejected-record-is-one-dead-letter",
)
def test_what_the_stream_can_not_hold_is_a_dead_letter_without_its_bytes(kafka: str) -> None:
    """The dead-letter stream contains such records without their bytes, and repeating the write adds nothing.

    Tested with a record of 3 MB that was written to Kafka directly. If the dead-letter stream accepts less than the
    setting says, also with each record that is too large for it, and no other.
    """
    Topics(kafka, replication=1, record_bytes_max=RECORD_BYTES_MAX).ensure_dead_letter_topic("direct")
    Topics(kafka, replication=1, record_bytes_max=400_000).ensure_dead_letter_topic("narrow")
    large, small = random.Random(1).randbytes(3_000_000), random.Random(2).randbytes(700_000)
    middle = random.Random(3).randbytes(1_500_000)
    for job, values, kept in (
        ("direct", [small, large, small], [small, None, small]),
        ("narrow", [b"a", small, middle, small, large, b"b"], [b"a", small, None, small, None, b"b"]),
    ):
        for _ in range(2):
            write_values(kafka, job, *values)
            found = letters_in(kafka, f"{job}.dead-letter")
            assert [value for value, _ in found] == kept
            for (value, headers), whole in zip(found, values, strict=True):
                assert (headers["stream"], headers["partition"]) == (b"readings", b"0")
                told = (headers.get("payload-bytes"), headers.get("payload-sha256"))
                sum_of_it = (b"%d" % len(whole), sha256(whole).hexdigest().encode())
                assert told == ((None, None) if value is not None else sum_of_it)
