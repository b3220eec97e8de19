"""Attacks of a sender on the REST API, over uvicorn as the control service runs it, and a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from strandline.services.rest.guards import bounded_http
from strandline.services.rest.guards.bounded_http import BoundedHttp
from strandline.services.rest.guards.host_guard import HostGuard
from tests.support.waiting import stretched, wait_until_async

GET = b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"
CHUNKED = b"POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"


class Door:
    """The port of a service that answers with the body, and to which no half body may come."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.port = 0
        self.answers = asyncio.Semaphore(1_000)
        """Number of answers that are permitted."""

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        self.bodies.append(body)
        await self.answers.acquire()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    async def until_asked(self, times: int = 1) -> None:
        await wait_until_async(lambda: len(self.bodies) >= times, "asked", poll_s=0.001)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


async def until_cut(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        await reader.read()


def play(script: Callable[[Door], Awaitable[None]]) -> None:
    async def run() -> None:
        door = Door()
        listener = socket.create_server(("127.0.0.1", 0))
        door.port = listener.getsockname()[1]
        config = uvicorn.Config(HostGuard(door.app, ()), http=BoundedHttp, lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve([listener]))
        try:
            async with asyncio.timeout(stretched(30)):
                await script(door)
        finally:
            for _ in range(10):
                door.answers.release()
            server.should_exit = server.force_exit = True
            await serving

    asyncio.run(run())


@pytest.mark.guarantee(
    "G166",
    "A request to the REST API has a deadline, its head has a maximum size, and the number of connections is limited. "
    "Half of a body never counts as complete.",
    promise="no-client-can-exhaust-a-service",
)
@pytest.mark.parametrize("start", [b"", b"GET", GET[:-2], POST, POST + b"half", CHUNKED, CHUNKED + b"0\r\n"])
def test_a_request_that_is_not_whole_in_time_ends_its_connection(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "REQUEST_TIMEOUT_S", 0.3)

    async def script(door: Door) -> None:
        reader, writer = await door.connect()
        writer.write(GET)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.write(start)
        await until_cut(reader)
        writer.close()
        assert door.bodies == [b""]

    play(script)


def test_an_answer_may_take_longer_than_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "REQUEST_TIMEOUT_S", 0.1)

    async def script(door: Door) -> None:
        door.answers = asyncio.Semaphore(0)
        reader, writer = await door.connect()
        writer.write(POST + b"0123456789")
        writer.write(POST + b"9876543210")  # behind the first
        await door.until_asked()
        asyncio.get_running_loop().call_later(0.3, door.answers.release)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        await door.until_asked(2)
        asyncio.get_running_loop().call_later(0.3, door.answers.release)
        assert b"HTTP/1.1 200 OK" in await reader.readuntil(b"9876543210")
        writer.close()

    play(script)


@pytest.mark.guarantee("G166")
@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"GET /", b"x"),
        (b"GET / HTTP/1.1\r\n", b"x: y\r\n"),
        (CHUNKED + b"0\r\nx: ", b"x"),
        (CHUNKED + b"0\r\n", b"x: y\r\n"),
        (CHUNKED, b"0"),
    ],
)
def test_what_never_ends_is_cut(start: bytes, more: bytes) -> None:
    async def script(door: Door) -> None:
        reader, writer = await door.connect()
        writer.write(start)
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(more * 1_000)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()
        assert door.bodies == []

    play(script)


@pytest.mark.guarantee("G166")
def test_over_the_bound_the_connection_that_waited_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "CONNECTIONS_MAX", 3)

    async def script(door: Door) -> None:
        door.answers = asyncio.Semaphore(0)
        busy = await door.connect()
        busy[1].write(POST + b"0123456789")
        await door.until_asked()
        idle = [await door.connect() for _ in range(10)]
        for reader, _ in idle[:8]:
            await until_cut(reader)
        door.answers.release()
        door.answers.release()
        idle[9][1].write(GET)
        for reader, _ in (busy, idle[9]):
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        for _, writer in (busy, *idle):
            writer.close()

    play(script)


@pytest.mark.guarantee("G166")
def test_half_a_body_is_never_taken_for_a_whole_one() -> None:
    async def script(door: Door) -> None:
        _, writer = await door.connect()
        writer.write(POST + b"half")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        reader, writer = await door.connect()
        writer.write(GET)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.close()
        assert door.bodies == [b""]

    play(script)
