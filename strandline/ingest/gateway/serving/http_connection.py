"""One HTTP/1.1 connection of a gateway: it parses requests within limits, and answers them in order.

httptools (llhttp) parses. There is no framework above it, for two reasons. A framework would cost more than all other
work for a single record. And no framework limits how slowly a request may arrive.

States:

- *waiting*: no request is complete. A deadline applies: KEEP_ALIVE_S between two requests, HEAD_TIMEOUT_S in a head, and
  BODY_TIMEOUT_S in a body.
- *under way*: requests are being answered. Reading pauses while more than one request is here. A sender that disconnects
  changes nothing. A sender that doesn't read its answers is cut after WRITE_TIMEOUT_S.
- *lingering*: a request was refused before its body was complete. The connection is closed after LINGER_S.

A complete or refused request moves a waiting connection to under way. When all requests are answered, it waits again or
lingers.

Invariants:

- A connection is in `waiting` or in `under_way` of its server, never in both. `waiting` is ordered by the time of
  entering it.
- A request releases its bytes once: when it was split into records, when it was refused, or when its sender
  disconnected.
- The bytes of an unfinished head or trailer that the parser keeps are bounded, and count in the budget.
"""

from __future__ import annotations

import asyncio
from collections import deque
from http import HTTPStatus
from typing import Protocol, cast

import httptools
import structlog

from strandline.ingest.gateway.serving.http_request import (
    PASSED_OVER_HEADERS,
    WANTED_HEADERS,
    BodyBudget,
    BudgetExceeded,
    Refusal,
    Request,
    Response,
)

logger = structlog.get_logger()

HEAD_TIMEOUT_S = 10.0
"""Seconds after which an incomplete head is refused with 408."""
BODY_TIMEOUT_S = 30.0
"""Seconds after which an incomplete body is refused with 408."""
KEEP_ALIVE_S = 75.0
"""Seconds that an idle connection stays open."""
WRITE_TIMEOUT_S = 30.0
"""Seconds that a sender may leave its answers unread once the socket's buffer is full."""
LINGER_S = 5.0
"""Seconds for which the remaining refused body is read and dropped, so that its sender can read the answer."""
HEAD_BYTES_MAX = 32 * 1024
"""Maximum size in bytes of a head, of trailers, and of the bytes between two chunks. Up to _SLICE_BYTES more may arrive
before the limit is checked."""
TARGET_BYTES_MAX = 4 * 1024
PIPELINED_MAX = 32
"""Maximum number of requests of a connection that may wait for their answers."""
_SLICE_BYTES = 16 * 1024
"""Bytes that are parsed at a time: the most that the parser may keep before it is counted."""
_NEVER_S = float("inf")
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class Application(Protocol):
    """Application that answers the requests."""

    budget: BodyBudget

    def admit(self, request: Request) -> None:
        """Called when the head is complete. Raises Refusal to answer without reading the body."""

    async def answer(self, request: Request) -> Response:
        """Called when the request is complete or refused. Never raises, and releases the bytes of the body."""

    def note_disconnected(self, request: Request) -> None:
        """Called when the sender disconnected before its request was complete."""


class Server(Protocol):
    """Interface of the server that a connection uses."""

    application: Application
    loop: asyncio.AbstractEventLoop
    now_s: float
    date_header: bytes
    is_stopping: bool
    waiting: dict[HttpConnection, None]
    under_way: set[HttpConnection]

    def enter(self, connection: HttpConnection) -> None:
        """Add a new connection."""

    def leave(self, connection: HttpConnection) -> None:
        """Remove a connection that was closed."""


class HttpConnection(asyncio.Protocol):
    """One connection. See the states above."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._application = server.application
        self._parser = httptools.HttpRequestParser(self)
        self._request: Request | None = None
        """The request that is arriving."""
        self._queue: deque[Request] = deque()
        """Requests that wait for the one that is being answered."""
        self._answering: asyncio.Task[None] | None = None
        self._framing_bytes = 0
        """Bytes received since a head, a piece of a body, or a request last ended."""
        self._is_in_head = False
        self._body_head: bytes | None = None
        """A head without `Upgrade` that describes the body. None if no upgrade was requested. See `_ignore_upgrade`."""
        self._is_last = False
        """True if the current request is the last one that is answered."""
        self._is_lingering = False
        self._is_deaf = False
        """True if received bytes are dropped and not parsed."""
        self._can_write: asyncio.Event | None = None
        """Cleared while the socket's buffer is full. None until it was full once."""
        self.deadline_s = server.now_s + HEAD_TIMEOUT_S

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.source = b"http:" + (peer[0] if peer else "unknown").encode()
        if self._server.is_stopping:
            self._transport.abort()
        self._server.enter(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Drop the requests in the queue. The request that is being answered continues."""
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
        if len(data) <= _SLICE_BYTES:
            self._parse(data)
        else:
            view = memoryview(data)
            for start in range(0, len(data), _SLICE_BYTES):
                self._parse(view[start : start + _SLICE_BYTES])

    def _parse(self, data: bytes | memoryview) -> None:
        if self._is_deaf or (self._is_last and not self._is_lingering):
            return
        self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._body_head is None:
                self._is_last = True  # CONNECT: answer it; the following bytes may be another protocol
            else:
                self._ignore_upgrade(self._body_head, data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError:
            logger.exception("a request could not be read", action="request_failed")
            self.cut()
        except httptools.HttpParserError as error:
            detail = f"this is not HTTP/1.1 ({error}); nothing of it was persisted"
            self._refuse(Refusal(400, "bad_request", detail), is_deaf=True)
        if self._is_in_head or self._framing_bytes:
            self._bound_framing(len(data))

    def _bound_framing(self, bytes_new: int) -> None:
        """Count the bytes of an unfinished head or trailer that the parser keeps, and refuse too many."""
        if self._framing_bytes > HEAD_BYTES_MAX:
            detail = f"the head or the trailers have more than {HEAD_BYTES_MAX} bytes; send fewer or shorter headers"
            self._refuse(Refusal(431, "too_large", detail), is_deaf=True)
        elif self.arriving is not None:
            try:
                self.arriving.hold(bytes_new)
            except BudgetExceeded as refusal:
                self._refuse(refusal, is_deaf=True)

    def _ignore_upgrade(self, body_head: bytes, rest: bytes | memoryview) -> None:
        """Continue with HTTP/1.1, as a server may if a client requests another protocol: Java's HttpClient requests h2c
        first.

        llhttp reads no body after such a head, so a new parser reads it after a head without `Upgrade`.
        """
        self._parser = httptools.HttpRequestParser(self)
        self._body_head = None
        self._parse(body_head + rest)

    def pause_writing(self) -> None:
        if self._can_write is None:
            self._can_write = asyncio.Event()
        self._can_write.clear()

    def resume_writing(self) -> None:
        if self._can_write is not None:
            self._can_write.set()

    # Called by the parser

    def on_message_begin(self) -> None:
        if self._request is None and not self._is_deaf:  # else it is the head that `_ignore_upgrade` made
            self._request = Request(self.source, self._application.budget)
            self._is_in_head = True
            self.deadline_s = self._server.now_s + HEAD_TIMEOUT_S

    def on_url(self, url: bytes) -> None:
        if self._request is not None and self._is_in_head:
            self._request.url += url
            if len(self._request.url) > TARGET_BYTES_MAX:
                self._request.url = b"/"
                detail = f"the target has more than {TARGET_BYTES_MAX} bytes; send a shorter URL"
                self._refuse(Refusal(414, "too_large", detail), is_deaf=True)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header that is needed. Trailers are ignored."""
        request = self._request
        if request is None or not self._is_in_head:
            return
        wanted = WANTED_HEADERS.get(name)
        if wanted is None:
            if name in PASSED_OVER_HEADERS:
                return
            lower = name.lower()
            wanted = WANTED_HEADERS.get(lower)
            if wanted is None and lower not in PASSED_OVER_HEADERS:
                request.others.append((lower, value))
        if wanted is not None:
            headers = request.headers
            if wanted in headers:
                detail = f"the head has {wanted.decode()} twice; nothing of the request was persisted: send it once"
                self._refuse(Refusal(400, "bad_request", detail))
            headers[wanted] = value

    def on_headers_complete(self) -> None:
        request = self._request
        if request is None or not self._is_in_head or self._is_deaf:
            return
        self._is_in_head = False
        self._framing_bytes = 0
        self.deadline_s = self._server.now_s + BODY_TIMEOUT_S
        parser = self._parser
        request.method = parser.get_method()
        if parser.should_upgrade() and request.method != b"CONNECT":
            keep = b"keep-alive" if parser.should_keep_alive() else b"close"
            self._body_head = b"POST / HTTP/%s\r\nconnection: %s\r\n" % (parser.get_http_version().encode(), keep)
            for name in (b"content-length", b"transfer-encoding"):
                if name in request.headers:
                    self._body_head += b"%s: %s\r\n" % (name, request.headers[name])
            self._body_head += b"\r\n"
        if request.is_enough:
            return
        try:
            self._application.admit(request)
        except Refusal as refusal:
            self._refuse(refusal)
        else:
            if request.expects_continue and self._answering is None:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, chunk: bytes) -> None:
        self._framing_bytes = 0
        request = self._request
        if request is not None and request.refusal is None and not self._is_lingering:
            try:
                request.add(chunk)
            except Refusal as refusal:
                self._refuse(refusal)

    def on_message_complete(self) -> None:
        self._framing_bytes = 0
        if self._body_head is not None or self._is_deaf:
            return
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

    @property
    def arriving(self) -> Request | None:
        """The request that is neither complete nor refused. None if there is none."""
        return None if self._request is None or self._request.is_enough else self._request

    @property
    def bytes_arriving(self) -> int:
        return 0 if self.arriving is None else self.arriving.bytes_held

    def refuse_slow(self) -> None:
        """Refuse the arriving request, because its bytes are needed, and others arrive faster."""
        assert self.arriving is not None
        self.arriving.let_go()
        self._refuse(
            BudgetExceeded("the gateway buffers as much as it may, and other requests arrive faster"), is_deaf=True
        )

    def _refuse(self, refusal: Refusal, is_deaf: bool = False) -> None:
        """Answer the arriving request without waiting for the remaining bytes. If `is_deaf`, they aren't parsed."""
        self._is_deaf = self._is_deaf or is_deaf
        if self._is_lingering or self._transport.is_closing():
            return
        request = self._request or Request(self.source, self._application.budget)
        if not request.is_enough:
            request.refusal = refusal
            self._enqueue(request)

    def _enqueue(self, request: Request) -> None:
        request.is_enough = True
        if self._answering is None:
            self._server.waiting.pop(self, None)
            self._server.under_way.add(self)
            self._answering = self._server.loop.create_task(self._answer(request))
            return
        if len(self._queue) == PIPELINED_MAX:
            request.let_go()
            detail = (
                f"more than {PIPELINED_MAX} requests of this connection wait for their answers; send fewer at a time"
            )
            request.refusal, request.is_whole, self._is_deaf = Refusal(429, "too_busy", detail), False, True
        self._queue.append(request)
        self._transport.pause_reading()

    async def _answer(self, request: Request) -> None:
        """Answer a request, then the requests in the queue.

        1. Get the answer from the application, however long that takes.
        2. Send it, and wait while the socket's buffer is full.
        3. Continue with the next request. If there is none, wait for one. If this was the last request, close. If a
           refused body is still arriving, read and drop it for LINGER_S.
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
            # Closing immediately would reset the connection, and the sender would not see the answer.
            self._is_lingering = True
            self.deadline_s = self._server.now_s + LINGER_S
        elif self._request is None:
            self.deadline_s = self._server.now_s + KEEP_ALIVE_S
        else:
            self.deadline_s = self._server.now_s + (HEAD_TIMEOUT_S if self._is_in_head else BODY_TIMEOUT_S)

    def _encode(self, answer: Response, is_last: bool, is_head: bool) -> bytes:
        own = b"".join(b"%s: %s\r\n" % header for header in answer.headers) if answer.headers else b""
        if answer.status != HTTPStatus.NO_CONTENT:  # RFC 9110 allows no length here
            own = b"content-type: %s\r\ncontent-length: %d\r\n%s" % (answer.content_type, len(answer.body), own)
        return b"%s%s%s%s\r\n%s" % (
            _STATUS_LINES[answer.status],
            self._server.date_header,
            own,
            b"connection: close\r\n" if is_last else b"",
            b"" if is_head else answer.body,
        )

    # Ending a connection

    def end_wait(self) -> None:
        """End a wait whose deadline has passed.

        It may belong to a request that arrives while another one is being answered.
        """
        is_being_answered = self._answering is not None and (self._can_write is None or self._can_write.is_set())
        if is_being_answered:
            return
        if self._is_lingering or self._answering is not None or self._request is None:
            self.cut()
            return
        detail = f"the body did not arrive within {BODY_TIMEOUT_S:g} s; nothing of it was persisted"
        if self._is_in_head:
            detail = f"the head did not arrive within {HEAD_TIMEOUT_S:g} s"
        self._refuse(Refusal(408, "timeout", detail), is_deaf=True)

    def close_if_idle(self) -> None:
        if self._request is None:
            self._transport.close()

    def cut(self) -> None:
        """Abort the connection. The request that is being answered continues."""
        self._transport.abort()
