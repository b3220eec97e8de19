"""One HTTP request to a gateway and its answer: the body within its limits, and refusals as problem documents."""

from __future__ import annotations

import json
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import unquote

from strandline.core.problem import PROBLEM_MEDIA_TYPE, problem_document

RETRY_AFTER_S = 1
_JSON = b"application/json"

Headers = tuple[tuple[bytes, bytes], ...]


class Refusal(Exception):
    """Ends a request with a problem document as its answer."""

    def __init__(self, status: int, code: str, detail: str, headers: Headers = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = headers


class Answer(NamedTuple):
    """What is sent back; the connection adds its own headers."""

    status: int
    body: bytes
    content_type: bytes = _JSON
    headers: Headers = ()


class BodyRoom:
    """Limits one body, and the sum of all bodies that are arriving or being split into records."""

    def __init__(self, *, body_bytes_max: int, bytes_held_max: int) -> None:
        self.body_bytes_max = body_bytes_max
        self._bytes_held_max = max(bytes_held_max, body_bytes_max)  # while no other body is held, any body fits
        self.bytes_held = 0

    def take(self, count: int) -> None:
        """Raises Refusal when there is no room."""
        if self.bytes_held + count > self._bytes_held_max:
            detail = f"{self.bytes_held} bytes of other requests are arriving; nothing of this one was persisted"
            raise Refusal(429, "too_busy", f"{detail}: send it again a little later")
        self.bytes_held += count

    def give_back(self, count: int) -> None:
        """So many bytes are no longer held."""
        self.bytes_held -= count


class Request:
    """A request on its way through the gateway; the connection fills it."""

    method = b""
    url = b""
    is_whole = False
    """The last byte of the body has arrived."""
    is_enough = False
    """It can be answered: it is complete, or was refused before that."""
    refusal: Refusal | None = None
    body_bytes = 0
    """How much of the body has arrived; the room counts it."""
    head: object = None
    """What the application's `admit` read in the head, for its `answer`."""

    def __init__(self, source: bytes, room: BodyRoom) -> None:
        self.source = source
        """Protocol and peer, as the records' headers hold it."""
        self.headers: dict[bytes, bytes] = {}
        """The headers in WANTED_HEADERS, by lower-case name."""
        self._room = room
        self._chunks: list[bytes] = []

    @property
    def path(self) -> str:
        return path_of(self.url)

    @property
    def expects_continue(self) -> bool:
        """The sender waits for `100 Continue` before it sends the body."""
        return self.headers.get(b"expect", b"").lower() == b"100-continue"

    def add(self, chunk: bytes) -> None:
        """Add the next piece of the body. Raises Refusal when a limit is exceeded."""
        if self.body_bytes + len(chunk) > self._room.body_bytes_max:
            raise body_too_large(self._room.body_bytes_max)
        self._room.take(len(chunk))
        self.body_bytes += len(chunk)
        self._chunks.append(chunk)

    def body(self) -> bytes:
        """The body as it was sent."""
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)

    def let_go(self) -> None:
        """Drop the body, which is needed no longer, and give its room back."""
        if self.body_bytes:
            self._room.give_back(self.body_bytes)
            self.body_bytes = 0
            self._chunks = []


WANTED_HEADERS = {
    spelling: name
    for name in (b"host", b"content-type", b"content-length", b"content-encoding", b"idempotency-key", b"expect")
    for spelling in (name, name.title())
}
"""The headers that a gateway reads, in the two spellings that nearly all senders use -> their lower-case name."""


@lru_cache(maxsize=1_000)
def path_of(url: bytes) -> str:
    """The path of a request's target, decoded; a proxy may send a whole URL."""
    target = url.decode("latin-1")
    if not target.startswith("/"):
        target = "/" + target.partition("://")[2].partition("/")[2]
    return unquote(target.partition("?")[0], errors="replace")


def problem(refusal: Refusal, path: str) -> Answer:
    """The refusal as a problem document."""
    document = problem_document(refusal.status, refusal.code, refusal.detail, path)
    headers = refusal.headers
    if refusal.status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        headers = (*headers, (b"retry-after", b"%d" % RETRY_AFTER_S))
    return Answer(refusal.status, json.dumps(document).encode(), PROBLEM_MEDIA_TYPE.encode(), headers)


def body_too_large(body_bytes_max: int) -> Refusal:
    detail = f"the body is larger than {body_bytes_max} bytes; nothing of it was persisted: send it in parts"
    return Refusal(413, "too_large", detail)


def method_not_allowed(request: Request, *allowed: str) -> Refusal:
    method = request.method.decode("latin-1")
    detail = f"{request.path} takes {' and '.join(allowed)}, not {method}"
    return Refusal(405, "method_not_allowed", detail, ((b"allow", ", ".join(allowed).encode()),))
