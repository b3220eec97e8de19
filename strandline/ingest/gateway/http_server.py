"""The HTTP/1.1 server of the gateways: reads requests within limits, and sends the answers in the order of the requests.

httptools (llhttp) parses. There is no framework above it, for two reasons: a framework would cost more than all else that
is done for a single record, and none limits how slowly a request may arrive.

    waiting: no request is complete                   under way: requests are being answered
      between two requests     idle, KEEP_ALIVE_S       reading pauses while more than one is here
      in a request's head      HEAD_TIMEOUT_S           a sender that leaves changes nothing
      in its body              BODY_TIMEOUT_S           a sender that does not read its answers: WRITE_TIMEOUT_S
           |                                               |
           +--- complete, or refused before that --------->+
           +<-- all answered ------------------------------+
                                                           +--> lingering: refused in its body, LINGER_S; then closed

Invariants:
- A connection is in `waiting` or in `under_way`, never in both. `waiting` is ordered by the time of entering it.
- A body gives its room back once: when it was split into records, when it was refused, or when its sender left.
- The server reads the clock once a second. So a limit may be exceeded by a second, and a request needs no timer.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol, cast

import httptools
import structlog

from strandline.ingest.gateway.http_request import WANTED_HEADERS, Answer, BodyRoom, Refusal, Request

logger = structlog.get_logger()

HEAD_TIMEOUT_S = 10.0
"""A head that is not complete by then is refused with 408."""
BODY_TIMEOUT_S = 30.0
"""A body that is not complete by then is refused with 408."""
KEEP_ALIVE_S = 75.0
"""How long an idle connection stays open."""
WRITE_TIMEOUT_S = 30.0
"""How long a sender may leave its answers unread once the socket's buffer is full."""
LINGER_S = 5.0
"""How long the rest of a refused body is read and dropped, so that its sender gets to read the answer."""
HEAD_BYTES_MAX = 32 * 1024
BACKLOG = 2_048
_SWEEP_S = 1.0
_NEVER_S = float("inf")
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class Application(Protocol):
    """What answers the requests."""

    room: BodyRoom

    def admit(self, request: Request) -> None:
        """Called when the head is complete. Raises Refusal to answer without reading the body."""

    async def answer(self, request: Request) -> Answer:
        """Called when the request is complete or refused. Never raises; gives the body's room back."""

    def note_disconnected(self, request: Request) -> None:
        """Called when the sender left before its request was complete."""


class HttpServer:
    """Accepts connections and enforces their limits. For one event loop."""

    def __init__(self, application: Application, *, connections_max: int) -> None:
        self.application = application
        self._connections_max = connections_max
        self.waiting: dict[HttpConnection, None] = {}
        self.under_way: set[HttpConnection] = set()
        self.is_stopping = False
        self.connections_evicted = 0

    async def start(self, listener: socket.socket) -> None:
        self.loop = asyncio.get_running_loop()
        self._is_empty = asyncio.Event()
        self._sweep_each_second()
        self._server = await self.loop.create_server(lambda: HttpConnection(self), sock=listener, backlog=BACKLOG)

    async def stop(self, timeout_s: float) -> None:
        """Accept no more connections, and return when the requests that have begun are answered or the time is up."""
        self.is_stopping = True
        self._server.close()
        for connection in list(self.waiting):
            connection.close_if_idle()
        if self.waiting or self.under_way:
            try:
                await asyncio.wait_for(self._is_empty.wait(), timeout_s)
            except TimeoutError:
                logger.warning("connections were cut", action="connections_cut", connections=self.connections)
        for connection in [*self.waiting, *self.under_way]:
            connection.cut()
        self._sweeping.cancel()

    @property
    def connections(self) -> int:
        return len(self.waiting) + len(self.under_way)

    def enter(self, connection: HttpConnection) -> None:
        """Add a new connection. Over the limit, abort the one that has waited longest."""
        self.waiting[connection] = None
        if self.connections > self._connections_max:
            self.connections_evicted += 1
            longest = next(iter(self.waiting))
            self.leave(longest)
            longest.cut()

    def leave(self, connection: HttpConnection) -> None:
        self.waiting.pop(connection, None)
        self.under_way.discard(connection)
        if self.is_stopping and not self.waiting and not self.under_way:
            self._is_empty.set()

    def _sweep_each_second(self) -> None:
        self.sweep(self.loop.time())
        self._sweeping = self.loop.call_later(_SWEEP_S, self._sweep_each_second)

    def sweep(self, now_s: float) -> None:
        """Set the time for all connections, and end those that have taken too long."""
        self.now_s = now_s
        self.date_header = b"date: " + formatdate(usegmt=True).encode() + b"\r\n"
        for connection in [c for c in (*self.waiting, *self.under_way) if c.deadline_s < self.now_s]:
            connection.end_wait()


class HttpConnection(asyncio.Protocol):
    """One connection; see the drawing above."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._application = server.application
        self._parser = httptools.HttpRequestParser(self)
        self._request: Request | None = None
        """The request that is arriving."""
        self._queue: deque[Request] = deque()
        """The requests that wait behind the one that is being answered."""
        self._answering: asyncio.Task[None] | None = None
        self._head_bytes = 0
        self._is_in_head = False
        self._is_last = False
        """The present request is the last one that is answered."""
        self._is_lingering = False
        self._can_write: asyncio.Event | None = None
        """Cleared while the socket's buffer is full; None until it was full once."""
        self.deadline_s = server.now_s + HEAD_TIMEOUT_S

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._source = b"http:" + (peer[0] if peer else "unknown").encode()
        if self._server.is_stopping:
            self._transport.abort()
        self._server.enter(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Requests that wait in the queue are dropped; the one that is being answered goes on."""
        self._server.leave(self)
        if self._can_write is not None:
            self._can_write.set()
        if self._request is not None and not self._request.is_enough:
            self._application.note_disconnected(self._request)
        for request in (self._request, *self._queue):
            if request is not None:
                request.let_go()
        self._request = None
        self._queue.clear()
        self.deadline_s = _NEVER_S

    def data_received(self, data: bytes) -> None:
        if self._is_last and not self._is_lingering:
            return
        arriving = self._request
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._is_last = True  # answer this request; what follows may be another protocol
        except httptools.HttpParserCallbackError:
            logger.exception("a request could not be read", action="request_failed")
            self.cut()
        except httptools.HttpParserError as error:
            self._refuse(Refusal(400, "bad_request", f"this is not HTTP/1.1 ({error}); nothing of it was persisted"))
        if self._is_in_head and self._request is arriving:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(
                    Refusal(431, "too_large", f"the head has more than {HEAD_BYTES_MAX} bytes; send less in it")
                )

    def pause_writing(self) -> None:
        if self._can_write is None:
            self._can_write = asyncio.Event()
        self._can_write.clear()

    def resume_writing(self) -> None:
        if self._can_write is not None:
            self._can_write.set()

    # What the parser calls

    def on_message_begin(self) -> None:
        self._request = Request(self._source, self._application.room)
        self._is_in_head, self._head_bytes = True, 0
        self.deadline_s = self._server.now_s + HEAD_TIMEOUT_S

    def on_url(self, url: bytes) -> None:
        if self._request is not None:
            self._request.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        wanted = WANTED_HEADERS.get(name) or WANTED_HEADERS.get(name.lower())
        if wanted is not None and self._request is not None:
            headers = self._request.headers
            headers[wanted] = headers[wanted] + b", " + value if wanted in headers else value

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self.deadline_s = self._server.now_s + BODY_TIMEOUT_S
        request = self._request
        if request is None:
            return
        request.method = self._parser.get_method()
        try:
            self._application.admit(request)
        except Refusal as refusal:
            self._refuse(refusal)
        else:
            if request.expects_continue and self._answering is None:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, chunk: bytes) -> None:
        request = self._request
        if request is not None and request.refusal is None and not self._is_lingering:
            try:
                request.add(chunk)
            except Refusal as refusal:
                self._refuse(refusal)

    def on_message_complete(self) -> None:
        request, self._request = self._request, None
        if request is None:
            return
        request.is_whole = True
        if self._is_lingering:
            self._transport.close()
            return
        if not self._parser.should_keep_alive() or self._parser.get_http_version() != "1.1":
            self._is_last = True
        if not request.is_enough:
            self._enqueue(request)

    # Answering, one request after the other

    def _refuse(self, refusal: Refusal) -> None:
        """Answer the arriving request without waiting for the rest of it."""
        if self._is_lingering or self._transport.is_closing():
            return
        request = self._request or Request(self._source, self._application.room)
        if not request.is_enough:
            request.refusal = refusal
            self._enqueue(request)

    def _enqueue(self, request: Request) -> None:
        request.is_enough = True
        if self._answering is None:
            self._server.waiting.pop(self, None)
            self._server.under_way.add(self)
            self._answering = self._server.loop.create_task(self._answer(request))
        else:
            self._queue.append(request)
            self._transport.pause_reading()

    async def _answer(self, request: Request) -> None:
        """Answer a request and those in the queue behind it.

        1. Get the answer from the application, however long that takes.
        2. Send it, and wait while the socket's buffer is full.
        3. Go on with the next request. If there is none, wait for one; close if this was the last; if the rest of a refused
           body is still to come, read it for a while and drop it.
        """
        while True:
            self.deadline_s = _NEVER_S
            answer = await self._application.answer(request)
            if self._transport.is_closing():
                return
            is_last = not request.is_whole or ((self._is_last or self._server.is_stopping) and not self._queue)
            self._transport.write(self._encode(answer, is_last, is_head=request.method == b"HEAD"))
            if self._can_write is not None:
                self.deadline_s = self._server.now_s + WRITE_TIMEOUT_S
                await self._can_write.wait()
            if is_last or not self._queue:
                break
            request = self._queue.popleft()
        self._answering = None
        if self._transport.is_closing():
            return
        if is_last and request.is_whole:
            self._transport.close()
            return
        self._server.under_way.discard(self)
        self._server.waiting[self] = None
        self._transport.resume_reading()
        if not request.is_whole:
            # Closing at once would reset the connection, and the sender would not see the answer.
            self._is_lingering = True
            self.deadline_s = self._server.now_s + LINGER_S
        elif self._request is None:
            self.deadline_s = self._server.now_s + KEEP_ALIVE_S
        else:
            self.deadline_s = self._server.now_s + (HEAD_TIMEOUT_S if self._is_in_head else BODY_TIMEOUT_S)

    def _encode(self, answer: Answer, is_last: bool, is_head: bool) -> bytes:
        own = b"".join(b"%s: %s\r\n" % header for header in answer.headers) if answer.headers else b""
        return b"%s%scontent-type: %s\r\ncontent-length: %d\r\n%s%s\r\n%s" % (
            _STATUS_LINES[answer.status],
            self._server.date_header,
            answer.content_type,
            len(answer.body),
            own,
            b"connection: close\r\n" if is_last else b"",
            b"" if is_head else answer.body,
        )

    # Ending a connection

    def end_wait(self) -> None:
        """The deadline has passed. It may belong to a request that arrives while another one is being answered."""
        is_being_answered = self._answering is not None and (self._can_write is None or self._can_write.is_set())
        if is_being_answered:
            return
        if self._is_lingering or self._answering is not None or self._request is None:
            self.cut()
        elif self._is_in_head:
            self._refuse(Refusal(408, "timeout", f"the head did not arrive within {HEAD_TIMEOUT_S:g} s"))
        else:
            detail = f"the body did not arrive within {BODY_TIMEOUT_S:g} s; nothing of it was persisted"
            self._refuse(Refusal(408, "timeout", detail))

    def close_if_idle(self) -> None:
        if self._request is None:
            self._transport.close()

    def cut(self) -> None:
        """Abort the connection; the request that is being answered goes on."""
        self._transport.abort()
