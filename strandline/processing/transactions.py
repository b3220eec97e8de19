"""Transactional producers: what the writers of dead letters and of streams of results have in common."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import Producer

_TRANSACTION_TIMEOUT_S = 15
"""Kafka ends a transaction that was left open for so long, looking every 10 s: before LogReader gives up waiting for that."""
_CONNECTED_S = 0.05

Headers = Sequence[tuple[str, str | bytes | None]]


def take_over_id(
    bootstrap: str, transactional_id: str, topic: str, timeout_s: float, settings: dict[str, str | int] | None = None
) -> Producer:
    """A producer that holds the transactional id: what its holder before left open is ended, and it commits nothing more.

    `settings` are the producer's beside those that every one has. Raises KafkaException.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": _TRANSACTION_TIMEOUT_S * 1000,
            "compression.type": "lz4",
            "linger.ms": 5,
            "log_level": 3,
            **(settings or {}),
        }
    )
    # Asked in its first moments, librdkafka often looks for the coordinator again only after half a second.
    producer.list_topics(topic, timeout=timeout_s)
    producer.poll(_CONNECTED_S)
    producer.init_transactions(timeout_s)
    return producer


def produce(producer: Producer, topic: str, value: bytes | None, key: bytes | None, headers: Headers) -> None:
    """Put one record into the open transaction, waiting while the producer's bounded queue is full."""
    while True:
        try:
            producer.produce(topic, value=value, key=key, headers=list(headers))
            return
        except BufferError:
            producer.poll(0.1)
