"""Reads a topic to its present end with a plain consumer."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, Message, TopicPartition


def read_messages(
    kafka: str, topic: str, partitions: int, *, isolation: str = "read_uncommitted", within_s: float = 60
) -> list[Message]:
    """Every record, in the order of each partition."""
    consumer = Consumer(
        {"bootstrap.servers": kafka, "group.id": "none", "isolation.level": isolation, "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[Message] = []
    ended: set[int | None] = set()
    deadline_s = time.monotonic() + within_s
    try:
        while len(ended) < partitions:
            assert time.monotonic() < deadline_s, f"{topic} was not read to its end within {within_s:g} s"
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():
                ended.add(message.partition())
            else:
                found.append(message)
        return found
    finally:
        consumer.close()
