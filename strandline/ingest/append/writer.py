"""Appends records to the log and reports when they are safe. Every gateway process has one writer.

The path of a batch:

1. `append` counts its bytes, including the senders' headers. If they exceed the limit, nothing is sent (LogBusy).
2. If a stream may be acknowledged only from the log, its batches go to the `IdempotentWriter`. It confirms a batch when
   Kafka has reported every record and the last ones are read back. While Kafka is known to be unavailable, nothing is
   sent (LogAway), except one batch per topic: its confirmation shows that Kafka is back.
3. If a stream may be acknowledged from the spool, its batches go to the `SpoolingWriter`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from strandline.core.errors import LogUnavailable
from strandline.core.record_headers import (
    HEADER_CONTENT_TYPE,
    HEADER_EPOCH,
    HEADER_MESSAGE_ID,
    HEADER_RECEIVED,
    HEADER_SEQUENCE,
    HEADER_SOURCE,
    HEADER_WRITER,
)
from strandline.ingest.append.idempotent_writer import Headers, IdempotentWriter
from strandline.ingest.append.kafka_clients import KafkaClients
from strandline.ingest.append.limits import BYTES_IN_FLIGHT_MAX, BytesInFlight, bytes_of
from strandline.ingest.append.outcome import Accepted, LogBusy
from strandline.ingest.append.spool import Spool, SpooledRecord
from strandline.ingest.append.spooling_writer import SpoolingWriter
from strandline.log.record_key import Record


class LogWriter:
    """The only path of a gateway's records into the log, for one event loop. Use it with `async with`."""

    def __init__(
        self,
        kafka_bootstrap: str,
        *,
        writer_id: str,
        epoch: int,
        record_bytes_max: int,
        confirm_timeout_s: float,
        bytes_in_flight_max: int = BYTES_IN_FLIGHT_MAX,
        spool: Spool | None = None,
        make_producer: Callable[[dict[str, Any]], Producer] = Producer,
        make_consumer: Callable[[dict[str, Any]], Consumer] = Consumer,
        make_admin: Callable[[dict[str, Any]], AdminClient] = AdminClient,
    ) -> None:
        """Open the clients. Without a spool, a stream that may be spooled is treated like every other.

        Args: writer_id, epoch: From a `WriterIdentity`: no other process has or had the same pair. confirm_timeout_s:
        Seconds that Kafka may be silent about a topic. A batch may take PATIENCE_TIMEOUTS times as long.
        """
        clients = KafkaClients(
            kafka_bootstrap,
            writer_id=writer_id,
            record_bytes_max=record_bytes_max,
            confirm_timeout_s=confirm_timeout_s,
            make_producer=make_producer,
            make_consumer=make_consumer,
            make_admin=make_admin,
        )
        self._writer_id = writer_id.encode()
        self._epoch = epoch
        self._confirm_timeout_s = confirm_timeout_s
        self._in_flight = BytesInFlight(bytes_in_flight_max)
        self._sequences: dict[str, int] = {}
        """Topic -> sequence number of its last record."""
        self._is_closing = False
        self._direct = IdempotentWriter(
            clients,
            epoch=epoch,
            confirm_timeout_s=confirm_timeout_s,
            in_flight=self._in_flight,
            sequences=self._sequences,
        )
        self._spooling: SpoolingWriter | None = None
        if spool is not None:
            self._spooling = SpoolingWriter(
                clients, confirm_timeout_s=confirm_timeout_s, spool=spool, on_error=self._direct.note_refusal
            )

    @property
    def bytes_in_flight(self) -> int:
        """Size of all records that were handed over and are neither confirmed nor failed, with their overhead."""
        return self._in_flight.now

    async def __aenter__(self) -> LogWriter:
        self._direct.start()
        if self._spooling is not None:
            self._spooling.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Wait until all appended records are confirmed, but no longer than the confirmation timeout."""
        self._is_closing = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._in_flight.wait_until_empty(), self._confirm_timeout_s)
        await self._direct.close()
        if self._spooling is not None:
            await self._spooling.close()

    async def append(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        received_ms: int,
        source: bytes | None,
        content_type: bytes,
        message_id: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        headers_each: Sequence[Sequence[tuple[str, bytes]]] | None = None,
        may_spool: bool = False,
    ) -> Accepted:
        """Append the records in order, and return when every record is confirmed and read back.

        A caller that is cancelled only stops waiting: its records may still reach the log.

        Args:
        - source: None if each record has its own source, in its `headers_each`.
        - message_id: Added to each record, like `headers`.
        - headers_each: Extra headers of each single record.
        - may_spool: Also return, with Accepted.SPOOL, when the records are on disk because Kafka can't confirm. Set it
          for all batches of a stream or for none, because the two paths don't keep the order between them.

        Raises:
        - LogBusy, LogAway: Too many bytes are in flight, or Kafka is away. Nothing was sent.
        - LogUnavailable: Kafka didn't confirm in time or refused a record. All, some, or none of the batch may be in
          the log.
        - RecordTooLarge: The topic accepts smaller records than this gateway. Part of the batch may be in the log.
        """
        if not records:
            return Accepted.LOG
        if self._is_closing:
            raise LogBusy("the gateway is stopping; nothing of this request was persisted: send it again")
        if message_id is not None:
            headers = (*headers, (HEADER_MESSAGE_ID, message_id))
        bytes_new = bytes_of(records, headers, headers_each)
        self._in_flight.require_budget(bytes_new)
        common: Headers = [
            (HEADER_WRITER, self._writer_id),
            (HEADER_EPOCH, b"%d" % self._epoch),
            (HEADER_RECEIVED, b"%d" % received_ms),
            (HEADER_CONTENT_TYPE, content_type),
            *headers,
        ]
        if source is not None:
            common.append((HEADER_SOURCE, source))
        each = headers_each or repeat((), len(records))
        if may_spool and self._spooling is not None:
            return await self._append_or_spool(self._spooling, topic, records, common, each, bytes_new)
        await self._direct.append(topic, records, common, each, bytes_new)
        return Accepted.LOG

    async def _append_or_spool(
        self,
        spooling: SpoolingWriter,
        topic: str,
        records: Sequence[Record],
        common: Headers,
        headers_each: Iterable[Sequence[tuple[str, bytes]]],
        bytes_new: int,
    ) -> Accepted:
        first = self._sequences.get(topic, 0) + 1
        self._sequences[topic] = first + len(records) - 1
        numbered = [
            SpooledRecord(
                topic, self._epoch, sequence, value, key, [*common, *own, (HEADER_SEQUENCE, b"%d" % sequence)]
            )
            for sequence, ((value, key), own) in enumerate(zip(records, headers_each, strict=True), first)
        ]
        accepted = spooling.append(topic, numbered)
        self._in_flight.take(bytes_new)
        accepted.add_done_callback(lambda _: self._in_flight.give_back(bytes_new))
        with spooling.caller_of(topic):
            return await asyncio.shield(accepted)

    async def check(self, timeout_s: float) -> None:
        """Return when Kafka answers. Raises LogUnavailable."""
        if self._spooling is not None and self._spooling.failure is not None:
            raise LogUnavailable(f"the spooling writer failed ({self._spooling.failure}); restart the gateway")
        if self._is_closing:
            raise LogUnavailable("the writer is not running; restart the gateway")
        await self._direct.check(timeout_s)
