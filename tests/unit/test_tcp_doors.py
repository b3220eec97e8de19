"""Attacks of a sender on the TCP gateway and its other senders, over real sockets and a scripted writer."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
import uvloop

from strandline.core.errors import LogUnavailable
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.limits import RECORD_OVERHEAD_BYTES
from strandline.ingest.append.outcome import Accepted
from strandline.ingest.gateway.health_pages import HostNames
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.ingest.gateway.process import FILES_BESIDE_CONNECTIONS, GatewayResources
from strandline.ingest.tcp import connection as tcp_connection
from strandline.ingest.tcp import gateway as tcp_gateway
from strandline.ingest.tcp.gateway import TcpGateway
from strandline.ingest.tcp.settings import TcpSettings
from strandline.log.record_key import Record
from strandline.services.certificates import DevCertificates, make_dev_certificates
from tests.support.ports import free_port
from tests.support.waiting import Patience, stretched, wait_until_async

RECORD_BYTES_MAX = 2_000
HOG = b"h"
"""The record that waits until the writer may go on."""
READ_COST = tcp_connection.READ_BYTES // 2 * (RECORD_OVERHEAD_BYTES + 1)
"""What the shortest lines of one read take."""


class HoldingWriter:
    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()
        self.appended: list[bytes] = []
        self.fails_with: bytes | None = None

    async def append(self, topic: str, records: Sequence[Record], **about: Any) -> Accepted:
        values = [value for value, _ in records]
        if HOG in values:
            await self.may_go_on.wait()
        if self.fails_with in values:
            raise LogUnavailable("Kafka confirms nothing")
        self.appended += values
        return Accepted.LOG


class NoStreams:
    async def follow(self, _: Any) -> None:
        await asyncio.Event().wait()


class Door:
    """A gateway with one port; with certificates, behind TLS."""

    def __init__(self, made: DevCertificates | None = None, **settings: Any) -> None:
        self.tls = None
        if made is not None:
            self.tls = ssl.create_default_context(cafile=made.ca)
            settings |= {"tcp_tls_certificate": made.server, "tcp_tls_key": made.server_key}
        self.writer = HoldingWriter()
        self.senders: list[asyncio.StreamWriter] = []
        resources = GatewayResources(
            self.writer,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            IngestMetrics("tcp"),
            HostNames(),
            RECORD_BYTES_MAX,
            asyncio.Event(),
        )
        self.gateway = TcpGateway(TcpSettings(**settings), resources)
        self.budget = self.gateway.budget
        self.port = free_port()
        document = {"stream": "readings", "schema": {"n": "long"}, "tcp": {"port": self.port, "ack": True}}
        self.gateway.update_streams([StreamSpec.from_document(document)])

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        patience = Patience("connected", poll_s=0.001)
        while True:
            with contextlib.suppress(ConnectionRefusedError):  # it begins to listen in a task
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls)
                self.senders.append(writer)
                return reader, writer
            patience.check()
            await patience.pause_async()

    async def until(self, is_so: Callable[[], bool]) -> None:
        await wait_until_async(is_so, poll_s=0.001)


Script = Callable[[Door], Awaitable[None]]


@contextlib.asynccontextmanager
async def opened(**settings: Any) -> AsyncIterator[Door]:
    door = Door(**settings)
    try:
        yield door
    finally:
        door.writer.may_go_on.set()
        for sender in door.senders:
            sender.transport.abort()
        await door.gateway.close()


def play(script: Script, **settings: Any) -> None:
    async def run() -> None:
        async with opened(**settings) as door, asyncio.timeout(stretched(30)):
            await script(door)
        assert (door.budget.queued_bytes, door.budget.line_bytes) == (0, 0)

    uvloop.run(run())


LONG = b"x" * (2 * RECORD_BYTES_MAX)


@pytest.mark.guarantee("G163")
@pytest.mark.parametrize(
    "request_bytes",
    [
        b'POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n\r\n{"n":1}\n{"n":2}\n',
        b"OPTIONS * HTTP/1.0\n\n",
        b"GET /" + LONG + b' HTTP/1.1\r\nHost: localhost\r\n\r\n{"n":1}\n',
    ],
)
@pytest.mark.parametrize("piece_bytes", [1, 7, 1_000_000])
def test_an_http_request_is_hung_up_on_and_nothing_of_it_is_a_record(request_bytes: bytes, piece_bytes: int) -> None:
    async def script(door: Door) -> None:
        reader, writer = await door.connect()
        writer.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(request_bytes), piece_bytes):
            writer.write(request_bytes[start : start + piece_bytes])
            if start % 50 == 0:
                await asyncio.sleep(0)
        assert (await reader.read()).startswith(b"error http ")
        writer.close()
        assert door.writer.appended == []

    play(script)


def test_records_that_look_like_requests_are_records() -> None:
    async def script(door: Door) -> None:
        records = [b'GET / HTTP/1.1" 200', b"POST / HTTP/1.1", b"Host: x"]
        reader, writer = await door.connect()
        writer.write(b"".join(record + b"\n" for record in records))
        writer.write_eof()
        assert (await reader.read()).endswith(b"ok 3\n")
        assert door.writer.appended == records
        writer.close()

    play(script)


@pytest.mark.guarantee(
    "G164",
    "The queued records of TCP senders are bounded by their cost in memory, for each connection and in total. Greedy "
    "senders are paused, and well-behaved senders are read.",
    promise="no-client-can-exhaust-a-service",
)
def test_a_connection_is_read_no_further_than_its_records_may_cost() -> None:
    async def script(door: Door) -> None:
        hogs = [await door.connect() for _ in range(3)]
        for _, writer in hogs:
            writer.write(b"h\n" * 100_000)
        bound = tcp_connection.QUEUE_BYTES_MAX
        await door.until(lambda: door.budget.queued_bytes >= 3 * bound)
        reader, writer = await door.connect()
        for number in range(1, 101):  # a well-behaved sender at the same time
            writer.write(b'{"n":1}\n')
            assert await reader.readline() == b"ok %d\n" % number
        assert door.budget.queued_bytes <= 3 * (bound + READ_COST)
        door.writer.may_go_on.set()
        for hog, _ in hogs:
            while await hog.readline() != b"ok 100000\n":
                pass
        assert len(door.writer.appended) == 300_100
        for _, one in (*hogs, (reader, writer)):
            one.close()

    play(script)


@pytest.mark.guarantee("G22")
def test_ok_counts_no_refused_line_behind_records_that_are_still_queued() -> None:
    async def script(door: Door) -> None:
        door.writer.fails_with = b"last"
        reader, writer = await door.connect()
        writer.write(b"h\n")
        await door.until(lambda: any(one._settling is not None for one in door.budget.connections))
        writer.write(b"a\n" * 10_004 + b"last\n" + (LONG + b"\n") * 3)  # in appends of 10,000 and of 5
        await door.until(lambda: any(one._counted == 10_009 for one in door.budget.connections))
        door.writer.may_go_on.set()
        answers = (await reader.read()).split(b"\n")
        assert [answer for answer in answers if answer.startswith(b"ok")] == [b"ok 1", b"ok 10001"]
        assert answers[-2].startswith(b"error log_unavailable")
        assert len(door.writer.appended) == 10_001

    play(script)


@pytest.mark.guarantee("G164")
def test_some_greedy_connections_leave_room_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_connection, "QUEUED_BYTES_MAX", 12_000_000)

    async def script(door: Door) -> None:
        for _ in range(2):
            (await door.connect())[1].write(b"h\n" * 100_000)
        await door.until(lambda: door.budget.queued_bytes >= 9_000_000)
        reader, writer = await door.connect()
        for number in range(1, 101):
            writer.write(b'{"n":1}\n')
            assert await reader.readline() == b"ok %d\n" % number
        assert not door.budget.is_full

    play(script)


@pytest.mark.guarantee("G164")
def test_all_connections_together_are_read_no_further_than_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = 10_000_000
    monkeypatch.setattr(tcp_connection, "QUEUED_BYTES_MAX", bound)

    async def script(door: Door) -> None:
        hogs = [await door.connect() for _ in range(20)]
        for _, writer in hogs:
            writer.write(b"h\n" * 10_000)
        await door.until(lambda: door.budget.is_full)
        late = await door.connect()
        late[1].write(b"late\n")
        for _ in range(100):
            await asyncio.sleep(0)
        assert door.budget.queued_bytes <= bound + READ_COST
        assert b"late" not in door.writer.appended
        door.writer.may_go_on.set()
        for hog, _ in hogs:
            while await hog.readline() != b"ok 10000\n":
                pass
        assert await late[0].readline() == b"ok 1\n"
        for _, one in (*hogs, late):
            one.close()

    play(script)


@pytest.mark.guarantee("G165")
def test_a_sender_that_does_not_read_its_answers_is_not_read_and_cut_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tcp_connection, "WRITE_TIMEOUT_S", 0.0)

    async def script(door: Door) -> None:
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        one.setblocking(False)
        loop = asyncio.get_running_loop()
        (await door.connect())[1].close()
        await loop.sock_connect(one, ("127.0.0.1", door.port))
        sending = asyncio.ensure_future(loop.sock_sendall(one, (LONG + b"\n") * 100_000))
        await door.until(lambda: any(c._unread_since_s is not None for c in door.budget.connections))
        (stuck,) = [c for c in door.budget.connections if c._unread_since_s is not None]
        before = stuck._counted
        for _ in range(100):
            await asyncio.sleep(0)
        assert stuck._counted == before
        stuck.end_if_stuck(loop.time() + 1)
        await door.until(lambda: stuck not in door.budget.connections)
        with pytest.raises(OSError):
            await sending
        one.close()

    play(script)


@pytest.mark.guarantee(
    "G165",
    "A TCP connection without data, or whose sender doesn't read its answers, is closed, also with TLS. There are "
    "never more connections than the process may have files.",
    promise="no-client-can-exhaust-a-service",
)
def test_a_connection_on_which_nothing_comes_is_ended() -> None:
    async def script(door: Door) -> None:
        reader, writer = await door.connect()
        writer.write(b"a\n")
        assert await reader.readline() == b"ok 1\n"
        (one,) = door.budget.connections
        one.end_if_stuck(asyncio.get_running_loop().time() + 59)
        assert not one._is_ending
        one.end_if_stuck(asyncio.get_running_loop().time() + 61)
        assert (await reader.read()).startswith(b"error idle ")
        writer.close()

    play(script, tcp_idle_s=60)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> DevCertificates:
    return make_dev_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.mark.guarantee("G165")
@pytest.mark.parametrize(
    ("sent", "after_s", "says"),
    [
        (b"", 61, b"error idle "),
        (b"unfinished", 31, b"error timeout "),
        (b"unfinished" * 100, 0, b"error log_busy "),
        (b"GET / HTTP/1.1\n", 0, b"error http "),
        (b"fails\n", 0, b"error log_unavailable "),
        (b"a\nunfinished", None, b"ok 1\n"),
    ],
    ids=["idle", "unfinished", "full", "http", "not confirmed", "port closed"],
)
@pytest.mark.parametrize("is_deaf", [False, True])
def test_whatever_ends_a_connection_ends_it_over_tls_too(
    made: DevCertificates,
    monkeypatch: pytest.MonkeyPatch,
    sent: bytes,
    after_s: float | None,
    says: bytes,
    is_deaf: bool,
) -> None:
    """Also one whose sender never reads on. `after_s`: how late it is when the gateway looks; None: the stream is gone."""
    monkeypatch.setattr(tcp_connection, "LINES_HELD_BYTES_MAX", 500)
    monkeypatch.setattr(tcp_connection, "LINGER_S", 0.05 if is_deaf else 1e6)

    async def script(door: Door) -> None:
        door.writer.fails_with = b"fails"
        reader, writer = await door.connect()
        await door.until(lambda: len(door.budget.connections) == 1)
        (one,) = door.budget.connections
        if is_deaf:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(sent)
        await door.until(lambda: not sent or one._counted or one._splitter.bytes_held or one._is_ending)
        if after_s is None:
            await door.until(lambda: one._settling is None)
            door.gateway.update_streams([])
        elif not one._is_ending:
            one.end_if_stuck(asyncio.get_running_loop().time() + after_s)
        if not is_deaf:
            assert (await reader.read()).startswith(says)
        await door.until(lambda: not door.budget.connections)

    play(script, made=made, tcp_idle_s=60)


def test_a_connection_that_can_not_be_ended_is_cut_and_the_others_are_watched_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tcp_gateway, "SWEEP_EVERY_S", 0.01)

    async def script(door: Door) -> None:
        await door.connect()
        await door.until(lambda: len(door.budget.connections) == 1)
        (broken,) = door.budget.connections
        broken.end_if_stuck = lambda now_s: 1 / 0  # type: ignore[method-assign,assignment]
        sweeping = asyncio.create_task(door.gateway.sweep())
        await door.until(lambda: broken not in door.budget.connections)
        door.budget.idle_s = 0
        reader, _ = await door.connect()
        assert (await reader.read()).startswith(b"error idle ")
        sweeping.cancel()

    play(script)


def test_the_process_ends_with_what_ended_its_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.asynccontextmanager
    async def opened_resources(*_: Any) -> AsyncIterator[GatewayResources]:
        yield GatewayResources(
            HoldingWriter(),  # type: ignore[arg-type]
            NoStreams(),  # type: ignore[arg-type]
            IngestMetrics("tcp"),
            HostNames(),
            RECORD_BYTES_MAX,
            asyncio.Event(),
        )

    async def broken(_: TcpGateway) -> None:
        raise RuntimeError("no watch")

    monkeypatch.setattr(tcp_gateway, "open_resources", opened_resources)
    monkeypatch.setattr(tcp_gateway, "serve_health_pages", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(TcpGateway, "sweep", broken)

    async def run() -> None:
        serving = asyncio.create_task(tcp_gateway.serve(TcpSettings()))
        await asyncio.wait((serving,), timeout=stretched(20))
        assert serving.done()
        serving.result()

    with pytest.raises(RuntimeError, match="no watch"):
        asyncio.run(run())


@pytest.mark.guarantee("G165")
def test_a_connection_over_the_bound_keeps_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_connection, "LINGER_S", 1e6)

    async def script(door: Door) -> None:
        kept = [await door.connect() for _ in range(3)]
        await door.until(lambda: len(door.budget.connections) == 3)
        refused = [await door.connect() for _ in range(20)]
        for reader, _ in refused:
            assert (await reader.read()).startswith(b"error too_many ")
        await door.until(lambda: len(door.budget.connections) == 3)  # though the senders have closed nothing
        for _, writer in (*kept, *refused):
            writer.close()

    play(script, tcp_connections_max=3)


@pytest.mark.guarantee("G165")
def test_no_more_connections_than_the_process_may_have_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 500))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)

    async def script(door: Door) -> None:
        assert door.budget.connections_max == 500 - FILES_BESIDE_CONNECTIONS

    play(script)
