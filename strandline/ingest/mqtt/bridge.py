"""The MQTT bridge: accepts records from an MQTT broker. `python -m strandline.ingest.mqtt.bridge` runs one.

The streams' documents contain the topics: `mqtt: {topics: ["farm/+/turbine/+"]}`. The bridge subscribes with QoS 1, in
a session that the broker keeps while the bridge is away, and acknowledges a message when its record is confirmed.

The broker acknowledges the message to the sensor before that, so Strandline's promise begins when the broker delivers a
message. The broker keeps the message until the bridge acknowledges it, and resends it on the next connection. Then the
record may be in the log twice. `bridge_page.md` lists the settings of a broker that lose messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import structlog
from prometheus_client import Counter, Gauge

from strandline.core.errors import TransientError
from strandline.core.streams.stream import StreamSpec
from strandline.core.urls import without_credentials
from strandline.ingest.append.limits import RECORDS_PER_TURN
from strandline.ingest.append.outcome import NOT_CONFIRMED
from strandline.ingest.gateway.process import GatewayResources, open_resources, run_gateway, serve_health_pages
from strandline.ingest.gateway.stream_appender import Headers, StreamAppender
from strandline.ingest.gateway.tasks import Tasks
from strandline.ingest.mqtt.bridge_entry import GATEWAY
from strandline.ingest.mqtt.bridge_settings import MqttBridgeSettings, client_options
from strandline.ingest.mqtt.client import BrokerUnavailable, Message, MqttClient
from strandline.ingest.mqtt.headers import (
    TOPIC_BYTES_MAX,
    bytes_beside_payload,
    headers_of,
    properties_fit,
)
from strandline.ingest.mqtt.topics import TopicRoutes
from strandline.log.record_key import Record

logger = structlog.get_logger()

HELD_BYTES_MAX = 32 * 1024 * 1024
HELD_MESSAGES_MAX = 20_000
"""Limits of the payloads, topics, and properties that wait for confirmation. Over either limit the connection isn't
read.
The window of messages in flight limits QoS 1 messages anyway.
"""
RECONNECT_S_MIN, RECONNECT_S_MAX = 0.1, 1.0
REFUSED_AGAIN_S = 60.0
"""Seconds until the broker is asked again for filters that it has refused."""
UNKNOWN_STREAM = "(unknown)"
"""Stream name in the metrics for messages that match no stream or are malformed."""


@dataclass
class _Turn:
    """The messages that one connection delivered in one turn of the event loop."""

    connection: MqttClient
    messages: list[Message]
    bytes_held: int
    is_settled: bool = False


class MqttBridge:
    """Keeps a connection to the broker, and appends its messages to the log.

    Invariants:

    - A message is acknowledged on the connection that delivered it, after its record is confirmed or was refused
      permanently, in the order of delivery, as MQTT requires.
    - When an append fails, the connection isn't read any more. It is closed when the running appends are done. Once the
      log can confirm again, the broker resends the messages that were not acknowledged.
    """

    def __init__(self, settings: MqttBridgeSettings, resources: GatewayResources) -> None:
        self._settings = settings
        self._resources = resources
        self._options = client_options(settings)
        self._specs: list[StreamSpec] | None = None
        self._routes = TopicRoutes([])
        self._appenders: dict[str, StreamAppender] = {}
        self._open: set[str] = set()
        """The streams whose topics are subscribed."""
        self._changed = asyncio.Event()
        """Set when the streams have changed."""
        self._is_failing = asyncio.Event()
        """Set when the connection must end, for example after a failed append. It is not read any more."""
        self._subscribed: set[str] = set()
        """Filters that the broker has granted to the session, as far as this process knows."""
        self._refused: dict[str, str] = {}
        """Filter -> logged reason why the broker refuses it."""
        self._was_connected = False
        """True if the last attempt to connect succeeded."""
        self._turns: deque[_Turn] = deque()
        self._tasks = Tasks()
        self._held_bytes = self._held_messages = 0
        registry = resources.metrics.registry
        self._redelivered = Counter(
            "strandline_mqtt_redelivered", "Messages that the broker had sent before (DUP)", registry=registry
        )
        self._connected = Gauge("strandline_mqtt_connected", "1 while connected to the broker", registry=registry)

    def update_streams(self, streams: list[StreamSpec]) -> None:
        """Route messages by these documents from now on."""
        specs = [spec for spec in streams if spec.mqtt is not None]
        if specs == self._specs:
            return
        self._specs = specs
        self._routes = TopicRoutes(specs)
        for topic_filter, stream, other in self._routes.ambiguous:
            logger.warning(
                "two streams have the same topic filter; only the first one gets its messages",
                action="filter_ambiguous", filter=topic_filter, stream=stream, without=other,
            )  # fmt: skip
        self._appenders = {
            spec.stream: self._resources.appender(spec, may_spool=spec.durability == "spool") for spec in specs
        }
        self._changed.set()

    async def run(self) -> None:
        """Connect repeatedly, until cancelled. Then wait for the running appends."""
        pause_s, trouble = RECONNECT_S_MIN, ""
        while True:
            try:
                await self._changed.wait()  # without routes the session's first messages would be refused
                await self._resources.check_log()
                await self._serve_connection()
                trouble = ""
            except TransientError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    logger.warning("the MQTT broker is unavailable", action="broker_lost", reason=trouble)
            pause_s = RECONNECT_S_MIN if self._was_connected else min(RECONNECT_S_MAX, pause_s * 2)
            self._was_connected = False
            await asyncio.sleep(pause_s)

    async def _serve_connection(self) -> None:
        """Serve one connection to the broker until it ends.

        1. Connect, with the session that the broker has kept. Its messages arrive immediately.
        2. Subscribe. Repeat this whenever streams have changed, or after a while if the broker has refused a filter.
        3. End when the connection is lost, an append has failed, or the bridge stops: stop reading, wait for the
           running appends, acknowledge the confirmed messages, and close.

        Raises BrokerUnavailable.
        """
        self._is_failing.clear()
        connection = await MqttClient.open(self._options, self._take)
        if not connection.has_session:
            self._subscribed = set()
            logger.warning("the broker had no session for this bridge: it is new, or was lost", action="session_new")
        try:
            self._connected.set(1)
            self._was_connected = True
            while not connection.lost.done() and not self._is_failing.is_set():
                self._changed.clear()
                appenders = self._appenders
                taken = await self._subscribe(connection)
                self._show_open({stream: one for stream, one in appenders.items() if stream in taken})
                again_s = REFUSED_AGAIN_S if self._refused else None
                await _first_of(connection.lost, self._changed, self._is_failing, timeout_s=again_s)
            if connection.lost.done():
                raise BrokerUnavailable(f"the connection to the MQTT broker was lost: {connection.lost.result()}")
        finally:
            self._connected.set(0)
            self._show_open({})
            self._changed.set()
            self._is_failing.set()  # so that a batch that is confirmed now does not resume reading
            connection.pause()
            await self._tasks.settle(2 * self._settings.mqtt_confirm_timeout_s + 2)
            connection.close()

    async def _subscribe(self, connection: MqttClient) -> set[str]:
        """Subscribe and unsubscribe until the session has the streams' filters, as far as the broker grants them.

        Returns the streams that have all of their filters. An existing subscription isn't repeated: with MQTT 3.1.1
        every retained message would be sent again. If a refused filter covers others, those are subscribed separately.
        """
        group = self._settings.mqtt_share_group
        prefix = f"$share/{group}/" if group else ""
        topics = {spec.stream: spec.mqtt.topics for spec in self._specs or [] if spec.mqtt is not None}
        filters_requested = {one for filters in topics.values() for one in filters}
        refused: dict[str, str] = {}
        while added := sorted((wanted := widest(filters_requested - refused.keys())) - self._subscribed):
            answers = await connection.subscribe([prefix + one for one in added])
            refused |= {one.removeprefix(prefix): reason for one, reason in answers.items()}
            if granted := [one for one in added if one not in refused]:
                self._subscribed.update(granted)
                logger.info("subscribed", action="subscribed", filters=granted)
        self._note_refused(refused, topics)
        if removed := sorted(self._subscribed - wanted):
            await connection.unsubscribe([prefix + one for one in removed])
            self._subscribed = wanted
            logger.info("unsubscribed", action="unsubscribed", filters=removed)
        return {
            stream
            for stream, filters in topics.items()
            if all(any(covers(wide, one) for wide in wanted) for one in filters)
        }

    def _note_refused(self, refused: dict[str, str], topics: dict[str, list[str]]) -> None:
        """Log each refusal once."""
        for topic_filter, reason in refused.items():
            if self._refused.get(topic_filter) != reason:
                logger.error(
                    "the broker refuses a topic filter, so its stream gets none of these messages; allow it to the bridge's user",
                    action="filter_refused", filter=topic_filter,
                    streams=[stream for stream, filters in topics.items() if topic_filter in filters], reason=reason,
                )  # fmt: skip
        self._refused = refused

    def _show_open(self, appenders: dict[str, StreamAppender]) -> None:
        for stream in self._open - appenders.keys():
            self._resources.metrics.of(stream).is_open.set(0)
        for appender in appenders.values():
            appender.metrics.is_open.set(1)
        self._open = set(appenders)

    def _take(self, connection: MqttClient, messages: list[Message]) -> None:
        """Begin to append the messages of one turn. `_settle` does the rest."""
        publishes = [message.publish for message in messages]
        size = sum(len(publish.payload) + bytes_beside_payload(publish) for publish in publishes)
        turn = _Turn(connection, messages, size)
        self._turns.append(turn)
        self._held_bytes += turn.bytes_held
        self._held_messages += len(messages)
        if self._held_bytes > HELD_BYTES_MAX or self._held_messages > HELD_MESSAGES_MAX:
            connection.pause()
        self._tasks.start(self._settle(turn))

    async def _settle(self, turn: _Turn) -> None:
        """Append a turn's records, and acknowledge its messages after those of earlier turns.

        1. Sort the messages by stream.
        2. Append the records of all streams at the same time.
        3. If an append failed, acknowledge only the other messages, and let the connection end.
        """
        failed = await self._append_all(turn.messages)
        self._held_bytes -= turn.bytes_held
        self._held_messages -= len(turn.messages)
        turn.is_settled = True
        if failed:
            turn.messages = [message for message in turn.messages if id(message) not in failed]
            turn.connection.pause()
            self._is_failing.set()
        elif self._held_bytes <= HELD_BYTES_MAX // 2 and not self._is_failing.is_set():
            turn.connection.resume()
        while self._turns and self._turns[0].is_settled:
            first = self._turns.popleft()
            first.connection.ack([message for message in first.messages if message.publish.qos])

    async def _append_all(self, messages: list[Message]) -> set[int]:
        """Append the records of all streams. Return the messages (by `id`) that must not be acknowledged."""
        try:
            batches = self._batches(messages)
            results = await asyncio.gather(*(self._append(batch) for batch in batches))
        except Exception:  # a bug of this program: the broker keeps the messages, and each attempt is in the log
            logger.exception(
                "an error of the bridge: its messages are not acknowledged, and are tried again", action="append_failed"
            )
            return {id(message) for message in messages}
        return {
            id(message)
            for batch, is_done in zip(batches, results, strict=True)
            if not is_done
            for message in batch.messages
        }

    async def _append(self, batch: _StreamBatch) -> bool:
        """Append a batch's records. Return True if its messages may be acknowledged."""
        try:
            await batch.appender.append(
                batch.records,
                headers_each=batch.headers_each,
                patience_s=self._settings.mqtt_confirm_timeout_s,
                in_turn=True,
            )
        except NOT_CONFIRMED as error:
            if not self._is_failing.is_set():
                logger.warning(
                    "messages are not acknowledged",
                    action="append_failed",
                    stream=batch.appender.spec.stream,
                    reason=str(error),
                )
            return False
        return True

    def _batches(self, messages: list[Message]) -> list[_StreamBatch]:
        """Sort messages by stream, in order, into batches of at most RECORDS_PER_TURN records.

        Messages that match no stream, are too large, or are malformed are refused and counted here. They are
        acknowledged with the others, because the broker would only resend them.
        """
        batches: dict[str, _StreamBatch] = {}
        found: list[_StreamBatch] = []
        for message in messages:
            publish = message.publish
            if message.is_redelivered:
                self._redelivered.inc()
            if message.malformed is not None:
                self._refuse_malformed(message)
                continue
            route = self._routes.find(publish.topic)
            if route is None:
                self._refuse_unknown(message)
                continue
            batch = batches.get(route.stream)
            if batch is None or len(batch.records) >= RECORDS_PER_TURN:
                batch = batches[route.stream] = _StreamBatch(self._appenders[route.stream])
                found.append(batch)
            if publish.retain and route.skips_retained:
                batch.appender.refuse("retained")
                continue
            payload = publish.payload
            is_small = len(publish.topic) <= TOPIC_BYTES_MAX and properties_fit(publish)
            if not is_small or len(payload) > batch.appender.record_bytes_max:
                self._refuse_too_large(batch.appender, message)
                continue
            batch.messages.append(message)
            batch.records.append((payload, route.find_key(payload)))
            batch.headers_each.append(headers_of(publish, route.headers, message.is_redelivered))
        return [batch for batch in found if batch.records]

    def _refuse_too_large(self, appender: StreamAppender, message: Message) -> None:
        appender.refuse("too_large")
        logger.error(
            "a message was not persisted, because the message, its topic, or its properties exceed the limit",
            action="message_refused",
            stream=appender.spec.stream,
            topic=shown(message),
            bytes=len(message.publish.payload),
        )

    def _refuse_malformed(self, message: Message) -> None:
        self._count_refused("malformed")
        logger.error(
            "a malformed message was not persisted; check its publisher",
            action="message_refused", topic=shown(message), reason=message.malformed,
        )  # fmt: skip

    def _refuse_unknown(self, message: Message) -> None:
        self._count_refused("unknown_stream")
        logger.error(
            "this topic matches no stream; the broker's session may have a subscription from an earlier document",
            action="message_refused", topic=shown(message),
        )  # fmt: skip

    def _count_refused(self, reason: str) -> None:
        metrics = self._resources.metrics.of(UNKNOWN_STREAM)
        metrics.received.inc()
        metrics.refuse(reason, 1)


class _StreamBatch:
    """Messages of one stream."""

    __slots__ = ("appender", "headers_each", "messages", "records")

    def __init__(self, appender: StreamAppender) -> None:
        self.appender = appender
        self.messages: list[Message] = []
        self.records: list[Record] = []
        self.headers_each: list[Headers] = []


def shown(message: Message) -> str:
    """Return the topic for a log line."""
    return message.publish.topic.decode(errors="backslashreplace")[:200]


def widest(filters: Iterable[str]) -> set[str]:
    """Return the filters without those that another one covers.

    For overlapping filters some brokers deliver a message twice.
    """
    found = set(filters)
    return {one for one in found if not any(other != one and covers(other, one) for other in found)}


def covers(wide: str, narrow: str) -> bool:
    """Return True if every topic that matches the filter `narrow` matches `wide` too (MQTT 5.0, section 4.7)."""
    levels = narrow.split("/")
    if narrow.startswith("$") and wide.startswith(("+", "#")):
        return False
    for depth, level in enumerate(wide.split("/")):
        if level == "#":
            return True
        if depth == len(levels) or levels[depth] == "#" or (level != "+" and level != levels[depth]):
            return False
    return wide.count("/") == narrow.count("/")


async def _first_of(lost: asyncio.Future[str], *events: asyncio.Event, timeout_s: float | None) -> None:
    """Return when the future is done, an event is set, or the time is up."""
    waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait([lost, *waits], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()


async def serve(settings: MqttBridgeSettings) -> None:
    """Run a bridge until SIGTERM or SIGINT. Then stop reading, acknowledge the confirmed messages, and return.

    Raises StackError if the port of the health endpoints is in use, InvalidSettings, and the errors of opening the
    ledger. Kafka and the broker may start later.
    """
    opening = open_resources(settings, GATEWAY, settings.mqtt_confirm_timeout_s)
    async with opening as resources, serve_health_pages(settings, GATEWAY, resources):
        bridge = MqttBridge(settings, resources)
        running = asyncio.create_task(bridge.run())
        running.add_done_callback(lambda _: resources.stopping.set())
        logger.info("the MQTT bridge runs", action="gateway_started", broker=without_credentials(settings.mqtt_url))
        try:
            await resources.follow_streams(bridge.update_streams)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running  # raises the error that ended it, if it wasn't cancelled


if __name__ == "__main__":
    sys.exit(run_gateway(MqttBridgeSettings, serve))
