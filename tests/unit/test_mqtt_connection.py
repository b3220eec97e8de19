"""The answers to a client, over a transport of lists and a scripted owner."""

import asyncio

import pytest

from strandline.ingest.mqtt.connection import (
    CONNECT_TIMEOUT_S,
    PACKET_TIMEOUT_S,
    RECEIVE_MAXIMUM,
    WRITE_TIMEOUT_S,
    Admission,
    Connection,
    ConnectRefused,
    Pause,
    State,
)
from strandline.ingest.mqtt.wire import PacketError, Reason
from tests.support import mqtt_client_packets as client
from tests.support.waiting import stretched


class Transport:
    def __init__(self):
        self.written = b""
        self.is_reading = True
        self.is_closed = self.is_aborted = False
        self.closed = asyncio.Event()
        self.aborted = asyncio.Event()
        self.unsent = 0

    def get_extra_info(self, name):
        return ("192.0.2.1", 1) if name == "peername" else None

    def get_write_buffer_size(self):
        return self.unsent

    def write(self, data):
        assert not self.is_closed
        self.written += data

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        assert not self.is_reading
        self.is_reading = True

    def close(self):
        self.is_closed = True
        self.closed.set()

    def abort(self):
        self.is_closed = self.is_aborted = True
        self.aborted.set()


class ConnectionOwner:
    packet_bytes_max = 100_000
    keep_alive_max_s = 600

    def __init__(self):
        self.published = []
        self.refused = []
        self.left = []
        self.answer = Reason.SUCCESS
        self.admission = Admission(False, 0)
        self.gate = asyncio.Event()
        self.gate.set()
        self.has_room = True

    def accept(self, connection):
        return True

    async def admit(self, connection, connect):
        await self.gate.wait()
        if isinstance(self.admission, ConnectRefused):
            raise self.admission
        return self.admission

    def publish(self, connection, publish):
        if isinstance(self.answer, PacketError):
            raise self.answer
        self.published.append(publish)
        return self.answer

    def hold(self, connection, bytes_held):
        return self.has_room or not bytes_held

    def refuse_packet(self, connection, error):
        self.refused.append(error.reason)

    def leave(self, connection, will):
        self.left.append(will)


class Bench:
    def __init__(self):
        self.owner, self.transport = ConnectionOwner(), Transport()
        self.connection = Connection(self.owner, asyncio.get_running_loop())
        self.connection.connection_made(self.transport)

    async def connect(self, version, **more):
        self.connection.data_received(client.connect(version, **more))
        await turns()
        assert self.connection.state is State.OPEN
        self.transport.written = b""

    def send(self, *packets):
        self.connection.data_received(b"".join(packets))


async def turns():
    for _ in range(5):
        await asyncio.sleep(0)


def run(test):
    async def all_of_it():
        async with asyncio.timeout(stretched(20)):
            await test(Bench())

    asyncio.run(all_of_it())


def test_what_follows_connect_waits_for_its_answer():
    async def test(bench):
        bench.owner.gate.clear()
        bench.send(client.connect(4), client.publish(4, "a", b"1"), client.PINGREQ)
        await turns()
        assert (bench.transport.written, bench.owner.published, bench.transport.is_reading) == (b"", [], False)
        bench.owner.gate.set()
        await turns()
        assert bench.transport.written == b"\x20\x02\x00\x00\xd0\x00"
        assert [publish.payload for publish in bench.owner.published] == [b"1"]
        assert bench.transport.is_reading
        bench.connection.acknowledge([1])
        assert bench.transport.written.endswith(b"\x40\x02\x00\x01")

    run(test)


def test_what_follows_a_refused_connect_is_not_heard():
    async def test(bench):
        bench.owner.admission = ConnectRefused(Reason.BAD_USER_NAME_OR_PASSWORD, "wrong")
        bench.send(client.connect(4), client.publish(4, "a", b"1"))
        await turns()
        assert bench.transport.written == b"\x20\x02\x00\x04"
        assert bench.transport.is_closed
        assert bench.owner.published == []
        assert bench.owner.left == [None]

    run(test)


def test_a_refused_connect_of_5_says_why():
    async def test(bench):
        bench.owner.admission = ConnectRefused(Reason.BAD_USER_NAME_OR_PASSWORD, "wrong")
        bench.send(client.connect(5, will=("a", b"gone", b"")))
        await turns()
        assert bench.transport.written == b"\x20\x0b\x00\x86\x08\x1f\x00\x05wrong"
        assert bench.owner.left == [None]  # a client that was refused leaves no will

    run(test)


@pytest.mark.parametrize("version", [4, 5])
def test_subscriptions_are_refused_and_the_connection_stays(version):
    async def test(bench):
        await bench.connect(version)
        bench.send(client.subscribe(version, 9, ["a/#", "b"]), client.unsubscribe(version, 10, ["b"]), client.PINGREQ)
        refused = b"\x90\x05\x00\x09\x00\x83\x83" if version == 5 else b"\x90\x04\x00\x09\x80\x80"
        gone = b"\xb0\x04\x00\x0a\x00\x11" if version == 5 else b"\xb0\x02\x00\x0a"
        assert bench.transport.written == refused + gone + b"\xd0\x00"
        assert not bench.transport.is_closed

    run(test)


@pytest.mark.parametrize(("version", "answer"), [(4, b""), (5, b"\x40\x03\x00\x05\x90")])
def test_a_refused_message(version, answer):
    async def test(bench):
        await bench.connect(version)
        bench.owner.answer = Reason.TOPIC_NAME_INVALID
        bench.send(client.publish(version, "a", packet_id=5))
        assert bench.transport.written == answer
        assert bench.transport.is_closed == (version == 4)

    run(test)


def test_a_refused_message_of_qos_0_ends_the_connection():
    async def test(bench):
        await bench.connect(5)
        bench.owner.answer = Reason.TOPIC_NAME_INVALID
        bench.send(client.publish(5, "a", qos=0))
        assert bench.transport.written[:1] + bench.transport.written[2:3] == b"\xe0\x90"
        assert bench.transport.is_closed

    run(test)


@pytest.mark.parametrize("version", [4, 5])
def test_qos_2_is_not_taken(version):
    async def test(bench):
        await bench.connect(version)
        bench.send(client.publish(version, "a", qos=2))
        assert bench.transport.written[2:3] == (b"\x9b" if version == 5 else b"")
        assert bench.transport.is_closed
        assert bench.owner.published == []

    run(test)


def test_what_came_before_an_error_is_taken():
    async def test(bench):
        await bench.connect(4)
        bench.send(client.publish(4, "a", b"1"), b"\x00\x00", client.publish(4, "a", b"2"))
        assert [publish.payload for publish in bench.owner.published] == [b"1"]
        assert bench.owner.refused == [Reason.MALFORMED_PACKET]
        bench.connection.acknowledge([1])  # too late to be said, and no error

    run(test)


def test_a_client_of_5_that_sends_more_than_it_may_is_closed():
    async def test(bench):
        await bench.connect(5)
        for number in range(RECEIVE_MAXIMUM):
            bench.send(client.publish(5, "a", packet_id=number + 1))
        assert not bench.transport.is_closed
        bench.send(client.publish(5, "a", packet_id=RECEIVE_MAXIMUM + 1))
        assert bench.transport.written[2:3] == b"\x93"
        assert len(bench.owner.published) == RECEIVE_MAXIMUM

    run(test)


def test_a_client_of_3_1_1_waits_unread():
    async def test(bench):
        await bench.connect(4)
        for number in range(RECEIVE_MAXIMUM + 1):
            bench.send(client.publish(4, "a", packet_id=number + 1))
        assert not bench.transport.is_reading
        bench.connection.acknowledge(list(range(1, RECEIVE_MAXIMUM // 2)))
        assert not bench.transport.is_reading
        bench.connection.acknowledge(list(range(RECEIVE_MAXIMUM // 2, RECEIVE_MAXIMUM + 2)))
        assert bench.transport.is_reading
        assert len(bench.transport.written) == 4 * (RECEIVE_MAXIMUM + 1)

    run(test)


def test_what_was_read_when_reading_is_paused_waits_its_turn():
    async def test(bench):
        await bench.connect(4)
        bench.connection.pause(Pause.BACKLOG)
        bench.send(client.publish(4, "a", b"1"), client.PINGREQ)
        bench.send(client.publish(4, "a", b"2"))
        assert (bench.owner.published, bench.transport.written) == ([], b"")
        bench.connection.pause(Pause.WRITING)
        bench.connection.resume(Pause.BACKLOG)
        assert bench.owner.published == []
        bench.connection.resume(Pause.WRITING)
        assert [publish.payload for publish in bench.owner.published] == [b"1", b"2"]
        assert bench.transport.is_reading

    run(test)


@pytest.mark.parametrize("version", [4, 5])
def test_a_withheld_message_ends_the_connection_after_a_while(version, monkeypatch):
    monkeypatch.setattr("strandline.ingest.mqtt.connection.WITHHELD_S", (0.05, 0.05))

    async def test(bench):
        await bench.connect(version)
        bench.send(client.publish(version, "a", packet_id=1), client.publish(version, "a", packet_id=2))
        bench.connection.withhold()
        assert not bench.transport.is_reading
        assert not bench.transport.is_closed
        bench.connection.acknowledge([2])
        assert bench.transport.written == b"\x40\x02\x00\x02"
        await asyncio.wait_for(bench.transport.closed.wait(), stretched(10))
        assert bench.transport.written[6:7] == (b"\x89" if version == 5 else b"")

    run(test)


def test_a_will_is_left_by_who_goes_without_a_word():
    async def test(bench):
        await bench.connect(4, will=("a", b"gone", b""))
        bench.connection.connection_lost(None)
        assert [will.payload for will in bench.owner.left] == [b"gone"]

    run(test)


@pytest.mark.parametrize(
    ("version", "reason", "does_leave"),
    [(4, 0, False), (5, 0, False), (5, 0x04, True), (5, 0x80, True), (5, 0x93, True)],
)
def test_only_a_normal_disconnection_takes_the_will_back(version, reason, does_leave):
    async def test(bench):
        await bench.connect(version, will=("a", b"gone", b""))
        bench.send(client.disconnect(version, reason), client.publish(version, "a", b"after"))
        assert (bench.owner.left[0] is not None) == does_leave
        assert bench.owner.published == []
        assert bench.transport.is_closed

    run(test)


@pytest.mark.guarantee("G177")
def test_silence_slowness_and_who_says_nothing_at_all():
    async def test(bench):
        now_s = asyncio.get_running_loop().time()
        silent = Bench()
        silent.send(client.connect(4)[:5])
        silent.connection.check_time(now_s + CONNECT_TIMEOUT_S - 1)
        assert not silent.transport.is_closed
        silent.connection.check_time(now_s + CONNECT_TIMEOUT_S + 1)
        assert silent.transport.is_closed

        await bench.connect(5, keep_alive_s=10)
        bench.connection.check_time(now_s + 14)
        assert not bench.transport.is_closed
        bench.connection.check_time(now_s + 16)
        assert bench.transport.written[2:3] == b"\x8d"

        for version, asked_s in ((4, 0), (5, 0), (4, 601), (5, 65_535)):
            patient = Bench()
            patient.connection.data_received(client.connect(version, keep_alive_s=asked_s))
            await turns()
            assert (b"\x13" + (600).to_bytes(2, "big") in patient.transport.written) == (version == 5)
            patient.connection.check_time(now_s + 1.5 * 600 - 1)
            assert not patient.transport.is_closed
            patient.connection.check_time(now_s + 1.5 * 600 + 60)
            assert patient.transport.is_closed

        content = Bench()
        content.connection.data_received(client.connect(5, keep_alive_s=600))
        await turns()
        assert b"\x13" + (600).to_bytes(2, "big") not in content.transport.written

        patient = Bench()
        await patient.connect(4, keep_alive_s=0)
        patient.send(client.publish(4, "a", b"x" * 1_000)[:-1])
        patient.connection.check_time(asyncio.get_running_loop().time() + PACKET_TIMEOUT_S + 1)
        assert patient.transport.is_closed

    run(test)


def test_who_is_not_read_is_not_silent():
    async def test(bench):
        await bench.connect(4, keep_alive_s=10)
        bench.connection.pause_writing()
        assert not bench.transport.is_reading
        bench.connection.check_time(asyncio.get_running_loop().time() + WRITE_TIMEOUT_S - 1)
        assert not bench.transport.is_closed
        bench.connection.resume_writing()
        assert bench.transport.is_reading
        bench.connection.pause_writing()
        bench.connection.close(Reason.SERVER_BUSY, "x")
        assert bench.transport.is_aborted  # its answers would stay in memory

    run(test)


@pytest.mark.guarantee("G177")
def test_who_never_reads_its_answers_is_cut_off(monkeypatch):
    async def test(bench):
        await bench.connect(4, keep_alive_s=10)
        bench.connection.pause(Pause.BACKLOG)
        bench.connection.pause_writing()
        bench.connection.check_time(asyncio.get_running_loop().time() + WRITE_TIMEOUT_S + 1)
        assert bench.transport.is_aborted

        monkeypatch.setattr("strandline.ingest.mqtt.connection.CLOSE_TIMEOUT_S", 0.01)
        quiet, slow = Bench(), Bench()
        for one in (quiet, slow):
            await one.connect(5)
        slow.transport.unsent = 10
        slow.connection.close(Reason.SERVER_BUSY, "x")
        quiet.connection.close(Reason.SERVER_BUSY, "x")
        await slow.transport.aborted.wait()
        assert quiet.transport.is_closed and not quiet.transport.is_aborted

    run(test)


def test_no_room_for_a_packet_that_is_not_whole():
    async def test(bench):
        await bench.connect(5)
        bench.owner.has_room = False
        bench.send(client.publish(5, "a", b"x" * 1_000)[:500])
        assert bench.transport.written[2:3] == b"\x97"

    run(test)
