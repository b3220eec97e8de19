"""The Kafka clients of one writer and their settings. Nothing else in `append` makes a client; tests hand in their own."""

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
"""How long the first record of a batch waits for others."""
TRANSACTION_TIMEOUT_S = 10
"""After this Kafka aborts a transaction whose writer died, and the readers of the stream get past it."""
PARTITION_BY_KEY = -1
"""Given to `produce`, it leaves the choice of the partition to the partitioner."""

Ticket = TypeVar("Ticket")


class KafkaClients:
    """Makes clients for the writer with this id."""

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
            "log_level": 2,  # what is wrong comes through the error callback
        }
        self._producer_settings = self._settings | {
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": 0,  # never; what waits is answered by a clock of our own
            # A topic that no broker knows by then is refused by its name; the brokers know each one that was applied.
            "topic.metadata.propagation.max.ms": max(100, int(confirm_timeout_s * 500)),
            "message.max.bytes": record_batch_bytes_max(record_bytes_max),
            "partitioner": "murmur2_random",  # where Kafka's own clients put the same key
            "linger.ms": LINGER_MS,
            "compression.type": "lz4",
            # The bound on what is in flight is ours: it refuses a batch before the first record of it is sent.
            "queue.buffering.max.messages": 0,
            "queue.buffering.max.kbytes": 2_147_483_647,
        }

    def producer(self, on_error: Callable[[KafkaError], None]) -> Producer:
        """An idempotent producer that never gives a record up. `on_error` hears of its own troubles, inside `poll`."""
        return self._make_producer(librdkafka(self.bootstrap, self._producer_settings | {"error_cb": on_error}))

    def transactional_producer(self, on_error: Callable[[KafkaError], None]) -> Producer:
        """A producer of transactions; its `init_transactions` fences every earlier one of this writer id."""
        return self._make_producer(
            librdkafka(
                self.bootstrap,
                self._producer_settings
                | {
                    "error_cb": on_error,
                    "transactional.id": f"strandline-{self.writer_id}",
                    "transaction.timeout.ms": TRANSACTION_TIMEOUT_S * 1_000,
                    # A record in doubt may be given up: its transaction is fenced before anything is sent again.
                    "message.timeout.ms": TRANSACTION_TIMEOUT_S * 1_000,
                },
            )
        )

    def read_back(self, timeout_s: float) -> ReadBack[Ticket]:
        """A read-back of this writer's records."""
        writer_id = self.writer_id.encode()
        settings = librdkafka(self.bootstrap, self._settings)
        return ReadBack(settings, writer_id=writer_id, timeout_s=timeout_s, make_consumer=self._make_consumer)

    def admin(self) -> KafkaAdmin:
        """An admin that answers within the confirmation timeout."""
        return KafkaAdmin(self.bootstrap, timeout_s=self._confirm_timeout_s, make_client=self._make_admin)

    def log_reader(self, timeout_s: float) -> LogReader:
        """A reader of committed records."""
        return LogReader(self.bootstrap, timeout_s)
