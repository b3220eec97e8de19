"""Collects MQTT messages into batches, appends them to the log, and acknowledges them to their clients.

The path of a message:

1. `add` puts it into its stream's batch. The messages of one stream that arrive in one turn of the event loop, from all
   connections, are one append. A new append begins if the content type or the durability changes.
2. When the append returns, every QoS 1 message of the batch is acknowledged to its client.
3. On LogBusy nothing was sent. No connection is read, and the batch is tried again for a while, before the stream's
   later messages.
4. On LogUnavailable or RecordTooLarge the outcome is unknown. The batch is not resent, because the first attempt can
   still arrive. Its clients get no PUBACK and resend their messages. QoS 0 messages may be lost, and are counted.

Invariants:

- A stream's batches are appended in the order in which they were filled, so a client's messages keep their order. After
  the writer refuses a batch, it accepts no later batch of the topic until this module knows of the refusal.
- Each message counts once as received, and once as confirmed, spooled, or refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from strandline.ingest.append.limits import RECORD_OVERHEAD_BYTES, RECORDS_PER_TURN
from strandline.ingest.append.outcome import NOT_CONFIRMED, LogBusy
from strandline.ingest.append.writer import LogWriter
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.ingest.gateway.stream_appender import Headers
from strandline.ingest.mqtt.decoder import Publish
from strandline.ingest.mqtt.headers import bytes_beside_payload, headers_of
from strandline.ingest.mqtt.topics import Route
from strandline.log.record_key import Record

logger = structlog.get_logger()

BYTES_WAITING_MAX = 32 * 1024 * 1024
"""Maximum size of all messages that were read and are not confirmed yet.
Over it no connection is read until half is confirmed. It is below the writer's own limit, so that the writer seldom
refuses.
"""
BUSY_RETRY_S = 0.1


class Sender(Protocol):
    """The connection that waits for PUBACK."""

    def acknowledge(self, packet_ids: list[int]) -> None: ...
    def withhold(self) -> None: ...


class _StreamBatch:
    """The messages of one append."""

    __slots__ = (
        "began_s",
        "bytes_waiting",
        "content_type",
        "headers_each",
        "may_spool",
        "number",
        "records",
        "waiting",
    )

    def __init__(self, number: int, content_type: bytes, may_spool: bool) -> None:
        self.number = number
        """Number of the batch in its stream, in the order in which the batches were filled."""
        self.content_type = content_type
        self.may_spool = may_spool
        self.began_s = 0.0
        """Time of the first attempt. 0 before that."""
        self.records: list[Record] = []
        self.headers_each: list[Headers] = []
        self.waiting: dict[Sender, list[int]] = {}
        """Sender -> the packet identifiers of its QoS 1 messages."""
        self.bytes_waiting = 0


class _StreamQueue:
    """The batches of one stream, in order."""

    __slots__ = ("batches", "filled", "held", "is_blocked", "stream")

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.batches: list[_StreamBatch] = []
        """Batches that are not handed to the writer yet. The last one is being filled."""
        self.held: list[_StreamBatch] = []
        """Batches that the writer refused without sending records, in the order of the refusals."""
        self.filled = 0
        """Number of batches that were begun."""
        self.is_blocked = False
        """True while the held batches wait for their next attempt."""


class Batches:
    """All messages between the connections and the log. For one event loop.

    `set_reading(False)` stops the reading of all connections; `set_reading(True)` resumes it. Waiting messages of a
    resumed connection are added immediately, so `set_reading(False)` may be called before `set_reading(True)` returns.
    """

    def __init__(
        self,
        writer: LogWriter,
        metrics: IngestMetrics,
        set_reading: Callable[[bool], None],
        *,
        busy_patience_s: float,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._writer = writer
        self._metrics = metrics
        self._set_reading = set_reading
        self._busy_patience_s = busy_patience_s
        self._clock_ms = clock_ms
        self._loop = asyncio.get_running_loop()
        self._queues: dict[str, _StreamQueue] = {}
        self._appending: set[asyncio.Task[None]] = set()
        self._is_flushing = False
        self._is_reading = True
        self._is_settling = False
        self._blocked = 0
        self._is_confirming = True
        self.bytes_waiting = 0

    def add(self, sender: Sender | None, publish: Publish, route: Route) -> None:
        """Queue a message. The sender of a QoS 1 message will get `acknowledge` or `withhold`.

        Args: sender: None if the client has disconnected; then the QoS is 0.
        """
        batch = self._batch_for(publish, route)
        payload = publish.payload
        batch.records.append((payload, route.find_key(payload)))
        batch.headers_each.append(headers_of(publish, route.headers))
        if publish.qos:
            assert sender is not None
            packet_ids = batch.waiting.get(sender)
            if packet_ids is None:
                batch.waiting[sender] = [publish.packet_id]
            else:
                packet_ids.append(publish.packet_id)
        bytes_new = len(payload) + bytes_beside_payload(publish) + RECORD_OVERHEAD_BYTES
        batch.bytes_waiting += bytes_new
        self.bytes_waiting += bytes_new
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)
        if self.bytes_waiting > BYTES_WAITING_MAX:
            self._stop_reading()

    async def settle(self) -> None:
        """Return when every message has its outcome.

        Reading isn't resumed any more, and no message may be added in the meantime.
        """
        self._is_settling = True
        self._flush()
        while self.bytes_waiting:
            # A batch that waits for its next attempt has no task.
            await asyncio.wait(self._appending, timeout=BUSY_RETRY_S) if self._appending else await asyncio.sleep(
                BUSY_RETRY_S
            )

    def _batch_for(self, publish: Publish, route: Route) -> _StreamBatch:
        """Return the stream's last batch, or a new one if that is full or needs another append than the message."""
        properties = publish.properties
        said = properties.content_type if properties else None
        content_type = said.encode() if said else route.content_type
        queue = self._queues.get(route.stream)
        if queue is None:
            queue = self._queues[route.stream] = _StreamQueue(route.stream)
        if queue.batches:
            last = queue.batches[-1]
            is_alike = last.content_type == content_type and last.may_spool == route.may_spool
            if is_alike and len(last.records) < RECORDS_PER_TURN:
                return last
        queue.filled += 1
        batch = _StreamBatch(queue.filled, content_type, route.may_spool)
        queue.batches.append(batch)
        return batch

    def _flush(self) -> None:
        self._is_flushing = False
        for queue in self._queues.values():
            if queue.batches and not queue.is_blocked:
                batches, queue.batches = queue.batches, []
                for batch in batches:
                    task = self._loop.create_task(self._append(queue, batch))
                    self._appending.add(task)
                    task.add_done_callback(self._appending.discard)

    async def _append(self, queue: _StreamQueue, batch: _StreamBatch) -> None:
        if queue.is_blocked:
            queue.held.append(batch)
            return
        stream, count = queue.stream, len(batch.records)
        metrics = self._metrics.of(stream)
        if not batch.began_s:
            batch.began_s = self._loop.time()
            metrics.received.inc(count)
            metrics.in_flight.inc(count)
        try:
            accepted = await self._writer.append(
                stream,
                batch.records,
                received_ms=self._clock_ms(),
                source=None,
                content_type=batch.content_type,
                headers_each=batch.headers_each,
                may_spool=batch.may_spool,
            )
        except NOT_CONFIRMED as error:
            if isinstance(error, LogBusy) and self._loop.time() - batch.began_s < self._busy_patience_s:
                self._block(queue, batch)
                return
            metrics.refuse(error.code, count)
            if self._is_confirming:
                self._is_confirming = False
                logger.warning("messages are withheld", action="mqtt_withheld", stream=stream, reason=str(error))
            for sender in batch.waiting:
                sender.withhold()
        else:
            metrics.accept(accepted, count)
            metrics.ack_latency.observe(self._loop.time() - batch.began_s)
            self._is_confirming = True
            for sender, packet_ids in batch.waiting.items():
                sender.acknowledge(packet_ids)
        metrics.in_flight.dec(count)
        self.bytes_waiting -= batch.bytes_waiting
        self._read_on()

    def _block(self, queue: _StreamQueue, batch: _StreamBatch) -> None:
        """Try the batch again soon, and then the other batches of its queue: nothing of the batch was sent."""
        queue.held.append(batch)
        if queue.is_blocked:
            return
        queue.is_blocked = True
        self._blocked += 1
        self._stop_reading()
        self._loop.call_later(BUSY_RETRY_S, self._unblock, queue)

    def _unblock(self, queue: _StreamQueue) -> None:
        # A refusal at the call can arrive earlier than a refusal on the way to the disk of an older batch.
        held = sorted(queue.held, key=lambda batch: batch.number)
        queue.batches, queue.held = held + queue.batches, []
        queue.is_blocked = False
        self._blocked -= 1
        self._flush()  # reading resumes when one of these batches has its outcome

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._set_reading(False)

    def _read_on(self) -> None:
        if self._is_reading or self._is_settling or self._blocked:
            return
        if self.bytes_waiting <= BYTES_WAITING_MAX // 2:
            self._is_reading = True
            self._set_reading(True)
