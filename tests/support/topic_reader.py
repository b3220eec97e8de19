"""Reads a topic to its present end with a plain consumer."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from strandline.log.index import LogIndex
from tests.support.waiting import Patience


def read_messages(
    kafka: str,
    topic: str,
    partitions: int | None = None,
    *,
    isolation: str = "read_uncommitted",
    within_s: float = 60,
    skips_open: bool = False,
) -> list[Message]:
    """Every record, in the order of each partition; of all partitions if no number is given.

    With `read_committed` it waits until no transaction is open before the present end: Kafka marks the end of one only
    after `commit_transaction` or `abort_transaction` has returned. `skips_open` stops at the first open one instead.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": "none",
            "log_level": 2,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    try:
        numbers = (
            range(partitions) if partitions else consumer.list_topics(topic, timeout=within_s).topics[topic].partitions
        )
        ends = {} if skips_open else _ends(kafka, topic, numbers, within_s)
        consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
        found: list[Message] = []
        missing = set(numbers)
        patience = Patience(f"read to the ends of all partitions of {topic}", within_s)
        while missing:
            patience.check((len(found), sorted(missing)))
            for message in consumer.consume(1_000, 0.1):
                error = message.error()
                if error is None:
                    found.append(message)
                    continue
                if error.code() != KafkaError._PARTITION_EOF:
                    assert error.retriable() or error.code() < 0, f"topic {topic} can't be read: {error}"
                elif message.offset() >= ends.get(message.partition(), 0):
                    missing.discard(message.partition())
        return sorted(found, key=lambda message: message.partition() or 0)
    finally:
        consumer.close()


def wait_until_readable(kafka: str, topic: str) -> None:
    """Return when readers of committed records see everything that was written to the topic before this call.

    Call it between a write in a transaction and a single read. Kafka marks the end of a transaction in each partition only after
    `commit_transaction` has returned.
    """
    with LogIndex(kafka) as index:
        index.settled_ends(topic)


def _ends(kafka: str, topic: str, numbers: Iterable[int], within_s: float) -> dict[int, int]:
    """The end of each partition, open transactions included."""
    consumer = Consumer(
        {"bootstrap.servers": kafka, "group.id": "none", "log_level": 2, "isolation.level": "read_uncommitted"}
    )
    try:
        return {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=within_s)[1]
            for number in numbers
        }
    finally:
        consumer.close()
