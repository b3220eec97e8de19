"""The Kafka clients of one writer and their settings.

All clients in `append` are created here; tests pass their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient

from strandline.log.admin import KafkaAdmin
from strandline.log.kafka_connection import librdkafka
from strandline.log.messages import LogReader
from strandline.log.read_back import ReadBack
from strandline.log.record_size import record_batch_bytes_max

LINGER_MS = 2
"""Time in ms that the first record of a batch waits for others."""
TRANSACTION_TIMEOUT_S = 10
"""Time in seconds after which Kafka aborts a transaction whose writer crashed. Then readers of the stream can continue.
"""
PARTITION_BY_KEY = -1
"""Argument of `produce` that leaves the choice of the partition to the partitioner."""

Ticket = TypeVar("Ticket")


class KafkaClients:
    """Creates Kafka clients for one writer id."""

    def __init__(
        self,
        bootstrap: str,
        *,
        writer_id: str,
        record_bytes_max: int,
        confirm_timeout_s: float,
        make_producer: Callable[[dict[str, Any]], Producer],
        make_consumer: Callable[[dict[str, Any]], Consumer],
        make_admin: Callable[[dict[str, Any]], AdminClient],
    ) -> None:
        self.bootstrap = bootstrap
        self.writer_id = writer_id
        self._confirm_timeout_s = confirm_timeout_s
        self._make_producer = make_producer
        self._make_consumer = make_consumer
        self._make_admin = make_admin
        self._settings = {
            "client.id": writer_id,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500,
            "socket.nagle.disable": True,
            "log_level": 2,  # errors are reported by the error callback
        }
        self._producer_settings = self._settings | {
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": 0,  # never; a timer of this writer answers waiting callers
            # A topic that no broker knows by then is refused by its name. The brokers know each topic that was applied.
            "topic.metadata.propagation.max.ms": max(100, int(confirm_timeout_s * 500)),
            "message.max.bytes": record_batch_bytes_max(record_bytes_max),
            "partitioner": "murmur2_random",  # same partition for a key as Kafka's own clients
            "linger.ms": LINGER_MS,
            "compression.type": "lz4",
            # This gateway limits the bytes in flight itself: it refuses a batch before it sends the first record.
            "queue.buffering.max.messages": 0,
            "queue.buffering.max.kbytes": 2_147_483_647,
        }

    def producer(self, on_error: Callable[[KafkaError], None]) -> Producer:
        """Return an idempotent producer that never gives up a record.

        `on_error` receives the producer's own errors, inside `poll`.
        """
        return self._make_producer(librdkafka(self.bootstrap, self._producer_settings | {"error_cb": on_error}))

    def transactional_producer(self, on_error: Callable[[KafkaError], None]) -> Producer:
        """Return a transactional producer. Its `init_transactions` fences every earlier producer of this writer id."""
        return self._make_producer(
            librdkafka(
                self.bootstrap,
                self._producer_settings
                | {
                    "error_cb": on_error,
                    "transactional.id": f"strandline-{self.writer_id}",
                    "transaction.timeout.ms": TRANSACTION_TIMEOUT_S * 1_000,
                    # A record in doubt may be given up: its transaction is fenced before it is resent.
                    "message.timeout.ms": TRANSACTION_TIMEOUT_S * 1_000,
                },
            )
        )

    def read_back(self, timeout_s: float) -> ReadBack[Ticket]:
        """Return a read-back for the records of this writer."""
        writer_id = self.writer_id.encode()
        settings = librdkafka(self.bootstrap, self._settings)
        return ReadBack(settings, writer_id=writer_id, timeout_s=timeout_s, make_consumer=self._make_consumer)

    def admin(self) -> KafkaAdmin:
        """Return an admin client that answers within the confirmation timeout."""
        return KafkaAdmin(self.bootstrap, timeout_s=self._confirm_timeout_s, make_client=self._make_admin)

    def log_reader(self, timeout_s: float) -> LogReader:
        """Return a reader of committed records."""
        return LogReader(self.bootstrap, timeout_s)
