"""One HTTP request and its answer, as ASGI messages: what the head must say, the body within its bounds, problems."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any

from strandline.ingest.framing import FORM_OF_CONTENT_TYPE, Form

BODY_TIMEOUT_S = 30.0
"""A body that has not arrived whole by then is refused with 408."""
LINGER_S = 5.0
"""How long the rest of a refused body is read and thrown away, so that its sender gets to see the answer."""
RETRY_AFTER_S = 1

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


class Refusal(Exception):
    """Ends a request with a problem for its answer."""

    def __init__(self, status: int, code: str, detail: str, headers: Headers | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = headers or []


class Disconnected(Exception):
    """The sender went away before its body was whole."""


class BodyRoom:
    """Bounds one body, and the sum of all bodies that are arriving or being cut into records."""

    def __init__(self, *, body_bytes_max: int, bytes_held_max: int) -> None:
        self.body_bytes_max = body_bytes_max
        self._bytes_held_max = bytes_held_max
        self.bytes_held = 0

    def take(self, chunk: bytes) -> None:
        """Raises Refusal when there is no room. A body that has the room to itself always fits."""
        if self.bytes_held + len(chunk) > max(self._bytes_held_max, self.body_bytes_max):
            detail = f"{self.bytes_held} bytes of other requests are arriving; nothing of this one was persisted"
            raise Refusal(503, "log_busy", f"{detail}: send it again a little later")
        self.bytes_held += len(chunk)

    def give_back(self, chunks: list[bytes]) -> None:
        """The chunks are not held any more."""
        self.bytes_held -= sum(map(len, chunks))


class Exchange:
    """A request on its way through the gateway."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        client = scope["client"]
        self.peer: str = client[0] if client else "unknown"
        self._headers: Headers = scope["headers"]
        self._receive = receive
        self._send = send
        self._is_body_read = False

    def check_head(self, body_bytes_max: int) -> Form:
        """Return the form of the body. Raises Refusal for what can be told before any of it is read."""
        if self.method != "POST":
            detail = f"{self.path} takes POST, not {self.method}"
            raise Refusal(405, "method_not_allowed", detail, [(b"allow", b"POST")])
        content_type = content_encoding = b""
        content_length = 0
        for name, value in self._headers:
            if name == b"content-type":
                content_type = value
            elif name == b"content-length":
                content_length = int(value)
            elif name == b"content-encoding":
                content_encoding = value
        form = _form_of(content_type.decode("latin-1"))
        if content_encoding.lower() not in (b"", b"identity"):
            detail = f"a body with content-encoding {content_encoding.decode('latin-1')} can't be read; send it plain"
            raise Refusal(415, "unsupported_media_type", detail)
        if content_length > body_bytes_max:
            raise _body_too_large(body_bytes_max)
        return form

    async def read_body(self, chunks: list[bytes], room: BodyRoom) -> None:
        """Append the body's parts to `chunks`, which hold their bytes in the room from then on.

        Raises Refusal as soon as the body is over a bound, Disconnected when the sender leaves.
        """
        bytes_read = 0
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                while not self._is_body_read:
                    chunk = await self._next_chunk()
                    bytes_read += len(chunk)
                    if bytes_read > room.body_bytes_max:
                        raise _body_too_large(room.body_bytes_max)
                    room.take(chunk)
                    chunks.append(chunk)
        except TimeoutError as error:
            detail = f"the body did not arrive within {BODY_TIMEOUT_S:g} s; nothing of it was persisted"
            raise Refusal(408, "timeout", detail) from error

    async def answer(self, status: int, body: bytes, content_type: bytes, headers: Headers | None = None) -> None:
        """Send the answer. A sender that has gone does not get it, and that is no error."""
        if self._is_body_read or self.method in ("GET", "HEAD"):
            await self._send_head(status, body, content_type, headers or [])
            await self._send({"type": "http.response.body", "body": body})
            return
        # The rest of the body is on its way. Closing at once would reset the connection, and the sender would see that
        # instead of the answer: so answer, read on for a while without keeping anything, and only then close.
        await self._send_head(status, body, content_type, [*(headers or []), (b"connection", b"close")])
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        with contextlib.suppress(TimeoutError, Disconnected):
            async with asyncio.timeout(LINGER_S):
                while not self._is_body_read:
                    await self._next_chunk()
        await self._send({"type": "http.response.body"})

    async def answer_problem(self, refusal: Refusal) -> None:
        """Send the refusal as `application/problem+json` (RFC 9457)."""
        problem = {
            "type": f"urn:strandline:problem:{refusal.code}",
            "title": HTTPStatus(refusal.status).phrase,
            "status": refusal.status,
            "detail": refusal.detail,
            "instance": self.path,
            "code": refusal.code,
        }
        headers = refusal.headers
        if refusal.status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers = [*headers, (b"retry-after", b"%d" % RETRY_AFTER_S)]
        await self.answer(refusal.status, json.dumps(problem).encode(), b"application/problem+json", headers)

    async def _next_chunk(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        self._is_body_read = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        return chunk

    async def _send_head(self, status: int, body: bytes, content_type: bytes, headers: Headers) -> None:
        own = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
        await self._send({"type": "http.response.start", "status": status, "headers": own + headers})


def _form_of(content_type: str) -> Form:
    media_type, _, parameters = content_type.partition(";")
    form = FORM_OF_CONTENT_TYPE.get(media_type.strip().lower())
    if form is None:
        sent = f"content-type {media_type.strip()}" if content_type else "a body without a content-type"
        known = ", ".join(FORM_OF_CONTENT_TYPE)
        raise Refusal(415, "unsupported_media_type", f"{sent} can't be taken here; send one of {known}")
    charset = parameters.lower().partition("charset=")[2].partition(";")[0].strip(' "')
    if charset not in ("", "utf-8", "utf8", "us-ascii"):
        raise Refusal(415, "unsupported_media_type", f"JSON in {charset} can't be taken here; send it in UTF-8")
    return form


def _body_too_large(body_bytes_max: int) -> Refusal:
    detail = f"the body is larger than {body_bytes_max} bytes; nothing of it was persisted: send it in parts"
    return Refusal(413, "too_large", detail)
