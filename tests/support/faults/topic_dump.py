"""Everything a topic holds, read by a consumer of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.support.faults.checker import Logged

STALLED_S = 60.0
"""Seconds without a record or the end of a partition after which reading has failed."""


def dump_topic(bootstrap: str, topic: str) -> Iterator[Logged]:
    """Yield each committed record, up to the end of each partition as its leader has it when it is reached.

    Raises AssertionError when the broker stops answering: half a dump would make records look lost.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "topic-dump",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "check.crcs": True,
            "log_level": 2,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=STALLED_S).topics[topic].partitions
        assert partitions, f"topic {topic} has no partitions"
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        ended: set[int] = set()
        progress_s = time.monotonic()
        while len(ended) < len(partitions):
            for message in consumer.consume(10_000, 0.1):
                error = message.error()
                if error is None:
                    yield Logged(message.partition(), message.offset(), message.value() or b"")
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    assert error.retriable() or error.code() < 0, f"topic {topic} can't be read: {error}"
                    continue
                progress_s = time.monotonic()
            stalled_s = time.monotonic() - progress_s
            assert stalled_s < STALLED_S, f"partitions {sorted(set(partitions) - ended)} of {topic} can't be read"
    finally:
        consumer.close()
