"""Writes records in transactions, one at a time, and reads the last record of each back.

Why transactions: unconfirmed records are in doubt and will be resent. Before that, it must be certain that the first
attempt can't arrive any more, however long a network delays it. A new producer with the same transactional id makes
Kafka refuse all records of the earlier producer (`init_transactions`). After that, the log itself shows which attempts
have arrived: a transaction is in the log completely or not at all.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from strandline.core.errors import LogUnavailable, RecordTooLarge
from strandline.ingest.append.kafka_clients import PARTITION_BY_KEY, KafkaClients
from strandline.ingest.append.limits import RECORDS_PER_TURN
from strandline.ingest.append.spool import SpooledRecord
from strandline.ingest.append.worker_thread import WorkerThread
from strandline.log.read_back import DeliveredRecord, ReadBack
from strandline.log.record_size import is_too_large

TRANSACTION_RECORDS_MAX = 10_000
TRANSACTION_BYTES_MAX = 8 * 1024 * 1024
SERVE_S = 0.001


class TransactionalWriter:
    """One transactional producer and its read-back, for one event loop. After any error both must be dropped."""

    def __init__(
        self,
        clients: KafkaClients,
        thread: WorkerThread,
        *,
        confirm_timeout_s: float,
        on_error: Callable[[KafkaError], None],
    ) -> None:
        self._clients = clients
        self._thread = thread
        self._confirm_timeout_s = confirm_timeout_s
        self._on_error = on_error
        self._producer: Producer | None = None
        self._read_back: ReadBack[None] | None = None

    @property
    def is_open(self) -> bool:
        return self._producer is not None

    async def open(self) -> None:
        """Open a producer, which fences all earlier ones. Raises KafkaException."""
        await self._thread.run(self._open_producer)
        self._read_back = self._clients.read_back(self._confirm_timeout_s)

    def _open_producer(self) -> None:
        producer = self._clients.transactional_producer(self._on_error)
        try:
            producer.init_transactions(max(2.0, self._confirm_timeout_s))
        except KafkaException:
            _close_producer(producer)
            raise
        self._producer = producer

    async def commit(self, records: Sequence[SpooledRecord]) -> None:
        """Write the records in one transaction and read the last one back. It proves the others, because a transaction
        is atomic.

        Raises LogUnavailable: The outcome is unknown. RecordTooLarge: A topic doesn't accept records of this size. In
        both cases the clients must be dropped.
        """
        producer = self._producer
        assert producer is not None
        reports: list[Message] = []

        def note(error: KafkaError | None, message: Message) -> None:
            if error is None:
                reports.append(message)

        last = records[-1]
        try:
            producer.begin_transaction()
            produce: Any = producer.produce
            for number, (topic, _, _, value, key, headers) in enumerate(records[:-1], 1):
                # Positional arguments: half as much work as keywords.
                produce(topic, value, key, PARTITION_BY_KEY, None, None, 0, headers)
                if number % RECORDS_PER_TURN == 0:
                    await asyncio.sleep(0)
            produce(last.topic, last.value, last.key, PARTITION_BY_KEY, note, None, 0, last.headers)
            await self._thread.run(producer.commit_transaction, self._confirm_timeout_s)
        except KafkaException as error:
            # An abort is no proof. Records that were sent before it can arrive after it, under the same producer epoch,
            # and become part of the next transaction. Only the fence of a new producer is a proof.
            reason = error.args[0].str()
            if is_too_large(error.args[0]):
                raise RecordTooLarge(
                    f"topic {last.topic} accepts smaller records than the gateway ({reason}). The records wait in the "
                    f"spool; apply the stream's document again, which raises the topic's max.message.bytes"
                ) from error
            raise LogUnavailable(f"Kafka did not commit records of topic {last.topic} ({reason})") from error
        if not reports:
            raise LogUnavailable(
                f"a transaction of topic {last.topic} was committed, but its last record was not reported"
            )
        await self._confirm(reports[0], last)

    async def _confirm(self, report: Message, record: SpooledRecord) -> None:
        assert self._read_back is not None
        number, offset = report.partition(), report.offset()
        assert number is not None
        topic, epoch, sequence, value, key, _ = record
        place = -1 if offset is None else offset
        self._read_back.expect(DeliveredRecord(topic, number, place, epoch, sequence, sequence, value, key), None)
        while self._read_back.is_busy:
            _, missed = self._read_back.serve(asyncio.get_running_loop().time())
            for miss, _ in missed:
                raise LogUnavailable(miss.reason)
            await asyncio.sleep(SERVE_S)

    def drop(self) -> None:
        """Drop the clients and close them in threads, because closing can take long.

        Their records can't be confirmed any more.
        """
        producer, self._producer = self._producer, None
        read_back, self._read_back = self._read_back, None
        if producer is not None:
            _close_producer(producer)
        if read_back is not None:
            threading.Thread(target=read_back.close, name="kafka-close", daemon=True).start()


def _close_producer(producer: Producer) -> None:
    """Close the producer in a thread: when its last reference is dropped there, the connections are closed."""

    def end() -> None:
        producer.purge()
        producer.flush(0.1)

    threading.Thread(target=end, name="kafka-close", daemon=True).start()
