"""The bridge and a broker that does what the test says: what it sends that MQTT forbids, and what it doesn't grant."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.outcome import Accepted
from strandline.ingest.gateway.health_pages import HostNames
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.ingest.gateway.process import GatewayResources
from strandline.ingest.mqtt import bridge, client
from strandline.ingest.mqtt.bridge import HELD_BYTES_MAX, MqttBridge
from strandline.ingest.mqtt.bridge_settings import MqttBridgeSettings, client_options
from strandline.ingest.mqtt.client import BrokerUnavailable, Message, MqttClient
from strandline.ingest.mqtt.decoder import Publish
from strandline.ingest.mqtt.wire import PublishProperties
from strandline.log.record_key import Record
from tests.support import mqtt_client_packets as packets
from tests.support.waiting import stretched, wait_until_async


class ListWriter:
    def __init__(self) -> None:
        self.appended: list[tuple[str, bytes]] = []

    async def check(self, timeout_s: float) -> None:
        pass

    async def append(self, topic: str, records: Sequence[Record], **about: Any) -> Accepted:
        self.appended += [(topic, value) for value, _ in records]
        return Accepted.LOG


class Broker:
    """Has a session, whose messages it sends on each connection until they are acknowledged, and refuses some filters."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.messages: dict[int, bytes] = {}
        """Packet identifier -> PUBLISH."""
        self.refused: set[str] = set()
        self.acknowledged: list[int] = []
        self.connections = self.open = 0
        self.asked: list[list[str]] = []
        """The filters of each SUBSCRIBE."""
        self.given_up: list[str] = []
        """The filters of each UNSUBSCRIBE."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                kind, body = await self._packet(reader)
                if kind == 1:
                    writer.write(packets.packet(0x20, b"\1\0" + packets.properties(self.version)))
                    writer.write(b"".join(self.messages.values()))
                elif kind in (8, 10):
                    self._answer(kind, body, writer)
                elif kind == 4:
                    number = int.from_bytes(body[:2], "big")
                    self.acknowledged.append(number)
                    del self.messages[number]
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self.open -= 1

    def _answer(self, kind: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        filters, at = [], 2 + len(packets.properties(self.version))
        while at < len(body):
            end = at + 2 + int.from_bytes(body[at : at + 2], "big")
            filters.append(body[at + 2 : end].decode())
            at = end + (kind == 8)
        head = body[:2] + packets.properties(self.version)
        if kind == 10:
            self.given_up += filters
            writer.write(packets.packet(0xB0, head + (b"\0" * len(filters) if self.version == 5 else b"")))
            return
        self.asked.append(filters)
        no = 0x87 if self.version == 5 else 0x80
        writer.write(packets.packet(0x90, head + bytes(no if one in self.refused else 1 for one in filters)))

    @staticmethod
    async def _packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
        first = (await reader.readexactly(1))[0]
        length = shift = 0
        while True:
            (byte,) = await reader.readexactly(1)
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return first >> 4, await reader.readexactly(length)


class Bench:
    """A bridge that is connected to its broker."""

    def __init__(self, broker: Broker, port: int) -> None:
        self.broker = broker
        self.writer = ListWriter()
        self.metrics = IngestMetrics("mqtt")
        resources = GatewayResources(
            self.writer,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            self.metrics,
            HostNames(),
            1_000,
            asyncio.Event(),
        )
        version = "5" if broker.version == 5 else "3.1.1"
        self.bridge = MqttBridge(
            MqttBridgeSettings(mqtt_url=f"mqtt://127.0.0.1:{port}", mqtt_version=version),  # type: ignore[arg-type]
            resources,
        )

    def follow(self, **topics: list[str]) -> None:
        self.bridge.update_streams(
            [
                StreamSpec.from_document({"stream": name, "schema": {"n": "long"}, "mqtt": {"topics": filters}})
                for name, filters in topics.items()
            ]
        )

    def is_open(self, stream: str) -> bool:
        return self.metrics.of(stream).is_open.value == 1

    async def until(self, is_so: Callable[[], object]) -> None:
        await wait_until_async(is_so, poll_s=0.001)


@contextlib.asynccontextmanager
async def running(version: int) -> AsyncIterator[Bench]:
    broker = Broker(version)
    async with await asyncio.start_server(broker.serve, "127.0.0.1", 0) as server:
        bench = Bench(broker, server.sockets[0].getsockname()[1])
        task = asyncio.create_task(bench.bridge.run())
        try:
            yield bench
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await bench.until(lambda: not broker.open)


def play(version: int, script: Callable[[Bench], Awaitable[None]]) -> None:
    async def run() -> None:
        async with running(version) as bench:
            await script(bench)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("version", "bad", "topic"),
    [
        (5, {"topic": b"a/\xff"}, "a/\\xff"),
        (4, {"topic": b"a/\xff"}, "a/\\xff"),
        (5, {"topic": "a/b", "content": b"\x03" + packets.text(b"\xff")}, "a/b"),
        (5, {"topic": "a/b", "content": b"\x26" + packets.text("unit") + packets.text(b"\xff")}, "a/b"),
    ],
)
def test_a_malformed_message_is_refused_by_name_and_the_rest_goes_on(
    version: int, bad: dict[str, Any], topic: str
) -> None:
    async def script(bench: Bench) -> None:
        bench.broker.messages = {
            1: packets.publish(version, "a/b", b"1", packet_id=1),
            2: packets.publish(version, **bad, payload=b"2", packet_id=2),
            3: packets.publish(version, "a/b", b"3", packet_id=3),
        }
        with capture_logs() as logs:
            bench.follow(s=["a/+"])
            await bench.until(lambda: len(bench.broker.acknowledged) == 3)
        assert bench.broker.acknowledged == [1, 2, 3]
        assert bench.broker.connections == 1
        assert bench.writer.appended == [("s", b"1"), ("s", b"3")]
        (refused,) = [line for line in logs if line["action"] == "message_refused"]
        assert (refused["topic"], "is not UTF-8" in refused["reason"]) == (topic, True)
        labels = {"protocol": "mqtt", "stream": "(unknown)", "reason": "malformed"}
        assert bench.metrics.registry.get_sample_value("strandline_ingest_refused_total", labels) == 1

    play(version, script)


@pytest.mark.parametrize("version", [5, 4])
def test_a_retained_message_is_left_out_if_the_stream_says_so(version: int) -> None:
    async def script(bench: Bench) -> None:
        bench.broker.messages = {
            number: packets.publish(version, topic, payload, retain=retain, packet_id=number)
            for number, topic, payload, retain in [
                (1, "a/1", b"1", True),
                (2, "a/1", b"2", False),
                (3, "b/1", b"3", True),
            ]
        }
        document = {"schema": {"n": "long"}}
        bench.bridge.update_streams(
            [
                StreamSpec.from_document({"stream": "a", **document, "mqtt": {"topics": ["a/+"], "retained": "skip"}}),
                StreamSpec.from_document({"stream": "b", **document, "mqtt": {"topics": ["b/+"]}}),
            ]
        )
        await bench.until(lambda: len(bench.broker.acknowledged) == 3)
        assert bench.writer.appended == [("a", b"2"), ("b", b"3")]
        labels = {"protocol": "mqtt", "stream": "a", "reason": "retained"}
        assert bench.metrics.registry.get_sample_value("strandline_ingest_refused_total", labels) == 1

    play(version, script)


@pytest.mark.parametrize("version", [5, 4])
def test_a_refused_filter_is_logged_once_and_the_others_are_open(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "REFUSED_AGAIN_S", 0.01)

    async def script(bench: Bench) -> None:
        broker = bench.broker
        broker.refused = {"a/#", "d"}
        broker.messages = {1: packets.publish(version, "b/1", b"1")}
        with capture_logs() as logs:
            bench.follow(all_of_a=["a/#"], one_of_a=["a/1"], b=["b/+"], half=["c", "d"])
            await bench.until(lambda: len(broker.asked) >= 4 and broker.acknowledged)
        assert [bench.is_open(stream) for stream in ("all_of_a", "one_of_a", "b", "half")] == [False, True, True, False]
        assert broker.asked[:4] == [["a/#", "b/+", "c", "d"], ["a/1"], ["a/#", "d"], ["a/#", "d"]]
        assert (broker.connections, broker.given_up) == (1, [])
        assert bench.writer.appended == [("b", b"1")]
        refusals = {line["filter"]: line["streams"] for line in logs if line["action"] == "filter_refused"}
        assert refusals == {"a/#": ["all_of_a"], "d": ["half"]}
        assert len([line for line in logs if line["action"] == "filter_refused"]) == 2
        broker.refused = set()
        await bench.until(lambda: all(bench.is_open(stream) for stream in ("all_of_a", "one_of_a", "b", "half")))
        await bench.until(lambda: broker.given_up == ["a/1"])

    play(version, script)


def test_a_fault_of_the_bridge_itself_leaves_messages_with_the_broker_and_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "CONNECT_TIMEOUT_S", 1.0)  # it reads no more, and so waits in vain for its SUBACK

    async def script(bench: Bench) -> None:
        bench.broker.messages = {1: packets.publish(5, "a/b", b"1", packet_id=1)}
        real, calls = bench.writer.append, 0

        async def append(topic: str, records: Sequence[Record], **about: Any) -> Accepted:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise KeyError("an unexpected key")
            return await real(topic, records, **about)

        bench.writer.append = append  # type: ignore[method-assign]
        with capture_logs() as logs:
            bench.follow(s=["a/+"])
            await bench.until(lambda: bench.broker.acknowledged)
        assert bench.writer.appended == [("s", b"1")]
        assert (bench.broker.acknowledged, bench.broker.connections) == ([1], 2)
        (fault,) = [line for line in logs if line["action"] == "append_failed"]
        assert (fault["log_level"], fault["exc_info"]) == ("error", True)

    play(5, script)


class NoStreams:
    async def follow(self, on_read: Callable[[list[StreamSpec]], None]) -> None:
        on_read([])
        await asyncio.Event().wait()


def test_the_process_ends_with_what_ended_its_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.asynccontextmanager
    async def opened_resources(*_: Any) -> AsyncIterator[GatewayResources]:
        yield GatewayResources(
            ListWriter(),  # type: ignore[arg-type]
            NoStreams(),  # type: ignore[arg-type]
            IngestMetrics("mqtt"),
            HostNames(),
            1_000,
            asyncio.Event(),
        )

    def broken(*_: Any) -> None:
        raise RuntimeError("no bridge")

    monkeypatch.setattr(bridge, "open_resources", opened_resources)
    monkeypatch.setattr(bridge, "serve_health_pages", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(MqttClient, "open", broken)

    async def run() -> None:
        serving = asyncio.create_task(bridge.serve(MqttBridgeSettings()))
        await asyncio.wait((serving,), timeout=stretched(20))
        assert serving.done()
        serving.result()

    with pytest.raises(RuntimeError, match="no bridge"):
        asyncio.run(run())


def test_a_name_that_no_host_can_have_is_a_broker_that_is_away() -> None:
    options = client_options(MqttBridgeSettings(mqtt_url="mqtt://broker..example"))
    with pytest.raises(
        BrokerUnavailable, match=r"broker\.\.example:1883 can't be reached: .*; check STRANDLINE_MQTT_URL"
    ):
        asyncio.run(MqttClient.open(options, lambda *_: None))


def test_topics_and_properties_count_as_what_is_held() -> None:
    class Connection:
        is_paused = False

        def pause(self) -> None:
            self.is_paused = True

        def resume(self) -> None:
            self.is_paused = False

        def ack(self, messages: list[Message]) -> None:
            pass

    async def run() -> None:
        bench, connection = Bench(Broker(5), 1), Connection()
        bench.follow(s=["a/#"])
        publish = Publish(b"a/" + b"t" * 16_000, b"1", 0, False, 0, PublishProperties(None, (("unit", "u" * 16_000),)))
        bench.bridge._take(connection, [Message(publish, False)] * (HELD_BYTES_MAX // 32_000))  # type: ignore[arg-type]
        assert connection.is_paused
        await bench.until(lambda: not connection.is_paused)
        assert bench.bridge._held_bytes == 0

    asyncio.run(run())
