"""Connections of an HTTP server over a transport that records, for tests that tell the time themselves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from strandline.ingest.gateway.serving.http_connection import HttpConnection
from strandline.ingest.gateway.serving.http_request import BodyBudget, Refusal, Request, Response, problem
from strandline.ingest.gateway.serving.http_server import HttpServer

ROOM_BYTES = 1_000


class RecordingTransport:
    """Keeps what was written, and what was done to it."""

    def __init__(self, host: str) -> None:
        self._host = host
        self.written = b""
        self.is_reading = True
        self.ended = ""
        """`closed` or `aborted`."""

    def get_extra_info(self, name: str) -> object:
        return (self._host, 4711)

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return bool(self.ended)

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def statuses(self) -> list[int]:
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", self.written)]


class EchoingApplication:
    """Answers with method, target and body; a request to /slow only when `may_go_on` is set."""

    def __init__(self, bodies_held_max: int, body_bytes_max: int) -> None:
        self.budget = BodyBudget(body_bytes_max=body_bytes_max, bytes_held_max=bodies_held_max * body_bytes_max)
        self.may_go_on = asyncio.Event()
        self.disconnected = 0
        self.seen: list[Request] = []

    def admit(self, request: Request) -> None:
        if request.url == b"/nowhere":
            raise Refusal(404, "not_found", "there is nothing")

    async def answer(self, request: Request) -> Response:
        self.seen.append(request)
        if request.url == b"/slow":
            await self.may_go_on.wait()
        body = b"%s %s %s" % (request.method, request.url, request.body())
        request.let_go()
        return problem(request.refusal, "/") if request.refusal else Response(200, body, b"text/plain")

    def note_disconnected(self, request: Request) -> None:
        self.disconnected += 1


class Peer:
    """One connection, from the sender's side."""

    def __init__(self, server: HttpServer, host: str = "192.0.2.1") -> None:
        self.transport = RecordingTransport(host)
        self.connection = HttpConnection(server)
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.connection.data_received(piece)
        for _ in range(20):
            await asyncio.sleep(0)
        if self.transport.ended and self.connection in self.connection._server.waiting:
            self.lose()

    def lose(self) -> None:
        self.transport.ended = self.transport.ended or "left"
        self.connection.connection_lost(None)


Script = Callable[[HttpServer, EchoingApplication], Awaitable[None]]


def play(
    script: Script, connections_max: int = 100, bodies_held_max: int = 10, body_bytes_max: int = ROOM_BYTES
) -> None:
    """Run a script over a server and its application, and see that no bytes are reserved at its end."""

    async def run() -> None:
        application = EchoingApplication(bodies_held_max, body_bytes_max)
        server = HttpServer(application, connections_max=connections_max)
        server.loop = asyncio.get_running_loop()
        server.sweep(0.0)
        await script(server, application)
        assert application.budget.bytes_held == 0

    asyncio.run(run())


def post(body: bytes, target: bytes = b"/x", more: bytes = b"") -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%s\r\n%s" % (target, len(body), more, body)
