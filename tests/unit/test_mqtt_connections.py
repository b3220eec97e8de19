"""All connections of the MQTT server together: with its batches and sessions, over transports of lists and a log that waits."""

import asyncio
import threading
from contextlib import closing

import pytest

from strandline.access.authenticator import Authenticator
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.outcome import LogBusy
from strandline.ingest.gateway.health_pages import HostNames
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.ingest.gateway.process import GatewayResources
from strandline.ingest.mqtt import batches, sessions
from strandline.ingest.mqtt.connection import State
from strandline.ingest.mqtt.connections import MqttConnections
from strandline.ingest.mqtt.logins import Logins
from strandline.ingest.mqtt.sessions import Sessions
from tests.support import mqtt_client_packets as client
from tests.support.tokens import ToldBook
from tests.support.waiting import stretched, wait_until_async
from tests.unit.test_doorkeeper import ROW, TOKEN
from tests.unit.test_mqtt_batches import SlowLog, turns
from tests.unit.test_mqtt_connection import Transport

SENSORS = 20


class Server:
    def __init__(self, path, logins=None):
        self.log = SlowLog()
        self.metrics = IngestMetrics("mqtt-listener")
        self.sessions = Sessions(path / "sessions")
        resources = GatewayResources(self.log, None, self.metrics, HostNames(), 10_000, asyncio.Event())
        self.all = MqttConnections(
            resources, logins or Logins(None, None, None), self.sessions, record_bytes_max=10_000, connections_max=100,
            connections_per_address_max=100, keep_alive_max_s=600, confirm_timeout_s=5,
        )  # fmt: skip
        self.all.update_streams(
            [StreamSpec.from_document({"stream": "readings", "schema": {"n": "long"}, "mqtt": {"topics": ["a"]}})]
        )

    def arrive(self):
        one = self.all.connection()
        one.connection_made(Transport())
        return one

    async def connect(self, version=4, client_id="c", **more):
        one = self.arrive()
        one.data_received(client.connect(version, client_id, **more))
        await wait_until_async(lambda: one.state is State.OPEN)
        return one

    async def connect_all(self):
        return [await self.connect(client_id=f"c{number}") for number in range(SENSORS)]


@pytest.fixture
def play(tmp_path):
    def run(test, **more):
        async def all_of_it():
            server = Server(tmp_path, **more)
            async with asyncio.timeout(stretched(20)):
                await test(server)
            server.sessions.close()

        asyncio.run(all_of_it())

    return run


def is_reading(connection):
    return connection._transport.is_reading


@pytest.mark.guarantee("G33")
def test_who_leaves_after_a_backlog_leaves_nobody_unread(play):
    async def test(server):
        sensors = await server.connect_all()
        server.log.refusals = [LogBusy("full")]
        sensors[0].data_received(client.publish(4, "a", b"1"))
        await wait_until_async(lambda: not any(map(is_reading, sensors)))
        for one in sensors[1::2]:  # read before the backlog, handled after it
            one.data_received(client.disconnect(4))
        await wait_until_async(lambda: server.log.waiting)
        server.log.confirm()
        await turns()
        assert [is_reading(one) for one in sensors[::2]] == [True] * (SENSORS // 2)
        assert [one._transport.is_closed for one in sensors] == [False, True] * (SENSORS // 2)

    play(test)


@pytest.mark.guarantee("G31")
def test_what_waits_after_a_backlog_fills_the_room_only_once(play, monkeypatch):
    monkeypatch.setattr(batches, "BYTES_WAITING_MAX", 4_500)  # the fourth message is over it

    async def test(server):
        sensors = await server.connect_all()
        for number, one in enumerate(sensors):
            one.data_received(client.publish(4, "a", b"x" * 1_000, packet_id=number + 1))
        await turns()
        while server.log.waiting:
            server.log.confirm()
            await turns()
        assert [len(values) for _, values, _ in server.log.appended] == [4] * (SENSORS // 4)
        assert all(map(is_reading, sensors))
        assert all(one._transport.written.endswith(b"\x40\x02\x00%c" % (n + 1)) for n, one in enumerate(sensors))

    play(test)


def test_who_waits_after_a_backlog_is_not_read_while_the_server_stops(play, monkeypatch):
    monkeypatch.setattr(batches, "BYTES_WAITING_MAX", 500)

    async def test(server):
        sensors = await server.connect_all()
        for one in sensors:
            one.data_received(client.publish(4, "a", b"x" * 1_000))
        await turns()
        assert len(server.log.waiting) == 1
        stopping = asyncio.create_task(server.all.stop())
        await turns()
        server.log.confirm()
        await stopping
        assert len(server.log.values()) == 1
        assert not any(map(is_reading, sensors))
        assert all(one._transport.is_closed for one in sensors)

    play(test)


class SlowDisk:
    """Writes when, and if, the test lets it."""

    def __init__(self):
        self.write = sessions._append
        self.may_write = threading.Event()
        self.is_full = False

    def append(self, path, lines):
        assert self.may_write.wait(stretched(20))
        if self.is_full:
            raise OSError("no space left")
        self.write(path, lines)


@pytest.mark.parametrize("fault", ["lost", "taken over", "no space"])
def test_a_session_outlives_a_connection_that_ends_before_its_connack(play, monkeypatch, fault):
    async def test(server):
        connect = client.connect(5, flags=0, content=b"\x11" + (60).to_bytes(4, "big"))
        first, second, third = (server.arrive() for _ in range(3))
        first.data_received(connect)
        await wait_until_async(lambda: first.state is State.OPEN)
        first.connection_lost(None)
        disk = SlowDisk()
        monkeypatch.setattr(sessions, "_append", disk.append)
        second.data_received(connect)
        await turns()
        assert second.state is State.ADMITTING
        if fault == "lost":
            second.connection_lost(None)
        elif fault == "no space":
            disk.is_full = True
            disk.may_write.set()
            await wait_until_async(lambda: second.state is State.CLOSED)
            disk.is_full = False
        third.data_received(connect)
        await turns()
        disk.may_write.set()
        await wait_until_async(lambda: third.state is State.OPEN)
        assert second.state is State.CLOSED
        assert third._transport.written[2] == 1  # the session is present

    play(test)


@pytest.mark.guarantee("G325")
@pytest.mark.parametrize("is_revoked", [False, True])
@pytest.mark.parametrize("has_delay", [False, True])
def test_a_revoked_token_leaves_no_will(play, is_revoked, has_delay):
    async def test(server):
        book.add(ROW)
        await door.look()
        password, later = TOKEN.removeprefix(b"Bearer "), Later()
        will = ("a", b"gone", b"\x18\0\0\0\x01" if has_delay else b"")
        content = b"\x11\0\0\0\x3c"
        sensor = await server.connect(5, flags=0, content=content, user=ROW.name, password=password, will=will)
        if has_delay:
            sensor.connection_lost(None)
        if is_revoked:
            book.revoke(ROW.id)
            await door.look()
        sensor.connection_lost(None)
        await later.at(2)
        assert server.log.values() == ([] if is_revoked else [b"gone"])
        labels = {"protocol": "mqtt-listener", "stream": "(unknown)", "reason": "forbidden"}
        refused = server.metrics.registry.get_sample_value("strandline_ingest_refused_total", labels)
        assert refused == (1 if is_revoked else None)

    book = ToldBook()
    with closing(Authenticator(book, look_s=1, kept_s=10)) as door:
        play(test, logins=Logins(None, door, None))


def test_what_follows_a_disconnect_in_the_same_bytes_is_not_held(play):
    async def test(server):
        sensor = await server.connect()
        sensor.data_received(client.disconnect(4) + client.publish(4, "a", b"x" * 1_000)[:-1])
        assert sensor._transport.is_closed
        assert (server.all._bytes_held, server.all._held) == (0, {})

    play(test)


class Later:
    """Advances the loop's clock, so that no task waits."""

    def __init__(self):
        self.loop = asyncio.get_running_loop()
        self.now_s, self.ahead_s = self.loop.time, 0.0
        self.loop.time = lambda: self.now_s() + self.ahead_s

    async def at(self, seconds):
        self.ahead_s = seconds
        await turns(10)


def with_will(server, delay_s, *, session_s=3_600, flags=0):
    """A client of 5.0 that has connected, with a will that says so."""
    session, will = ((number).to_bytes(4, "big") for number in (session_s, delay_s))
    return server.connect(5, flags=flags, content=b"\x11" + session, will=("a", b"gone", b"\x18" + will))


@pytest.mark.guarantee("G654")
def test_a_will_waits_for_its_delay(play):
    async def test(server):
        later, sensor = Later(), await with_will(server, 5)
        sensor.connection_lost(None)
        await later.at(4)
        assert server.log.values() == []
        await later.at(6)
        await later.at(15)
        assert server.log.values() == [b"gone"]

    play(test)


@pytest.mark.guarantee(
    "G654",
    "If an MQTT 5 client returns to its session within the delay of its will, the will isn't published. A will whose "
    "delay or session ends is published once.",
    promise="records-are-stored-once-and-unchanged",
)
@pytest.mark.parametrize("is_taken_over", [False, True])
def test_who_comes_back_to_the_session_in_time_leaves_no_will(play, is_taken_over):
    async def test(server):
        later, sensor = Later(), await with_will(server, 5)
        if not is_taken_over:
            sensor.connection_lost(None)
            await later.at(4)
        again = await with_will(server, 5)
        await later.at(10)
        assert server.log.values() == []
        again.connection_lost(None)  # its own will waits again
        await later.at(14)
        assert server.log.values() == []
        await later.at(16)
        assert server.log.values() == [b"gone"]

    play(test)


@pytest.mark.parametrize("is_taken_over", [False, True])
def test_a_clean_start_ends_the_session_and_with_it_the_delay(play, is_taken_over):
    async def test(server):
        sensor = await with_will(server, 500)
        if not is_taken_over:
            sensor.connection_lost(None)
        again = await with_will(server, 500, flags=0x02)
        await turns()
        assert server.log.values() == [b"gone"]
        assert again.state is State.OPEN

    play(test)


@pytest.mark.guarantee("G654")
@pytest.mark.parametrize(("session_s", "after_s"), [(0, 0), (3, 4)])
def test_a_will_waits_no_longer_than_its_session(play, session_s, after_s):
    async def test(server):
        later, sensor = Later(), await with_will(server, 500, session_s=session_s)
        sensor.connection_lost(None)
        await later.at(after_s / 2)
        assert server.log.values() == ([] if session_s else [b"gone"])
        await later.at(after_s)
        assert server.log.values() == [b"gone"]

    play(test)


@pytest.mark.parametrize("session_s", [0, 60])
def test_a_disconnect_may_end_the_session_and_with_it_the_delay(play, session_s):
    async def test(server):
        sensor = await with_will(server, 500)
        sensor.data_received(client.disconnect(5, 4, b"\x11" + session_s.to_bytes(4, "big")))
        await turns()
        assert server.log.values() == ([] if session_s else [b"gone"])

    play(test)


def test_wills_that_wait_are_published_when_the_server_stops(play):
    async def test(server):
        away = await with_will(server, 500)
        away.connection_lost(None)
        await server.connect(5, "d", flags=0, content=b"\x11\0\0\0\x3c", will=("a", b"gone too", b"\x18\0\0\0\x3c"))
        stopping = asyncio.create_task(server.all.stop())
        await wait_until_async(lambda: server.log.waiting)
        assert not stopping.done()
        server.log.confirm()
        await stopping
        assert server.log.values() == [b"gone", b"gone too"]

    play(test)


def test_with_too_many_wills_that_wait_the_first_waits_no_longer(play, monkeypatch):
    monkeypatch.setattr(sessions, "WILLS_BYTES_MAX", 1_000)

    async def test(server):
        for name in ("c1", "c2", "c3"):
            sensor = await server.connect(
                5, name, flags=0, content=b"\x11\0\0\0\x3c", will=("a", name.encode(), b"\x18\0\0\0\x3c")
            )
            sensor.connection_lost(None)
        await turns()
        assert server.log.values() == [b"c1"]

    play(test)
