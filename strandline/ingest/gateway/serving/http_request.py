"""One HTTP request to a gateway, its body within limits, its answer, and refusals as problem documents."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import unquote

from strandline.core.problem import PROBLEM_MEDIA_TYPE, problem_document

RETRY_AFTER_S = (1, 2, 3)
"""Values of `Retry-After`. One is chosen at random, so that senders refused together don't return together."""
SMALL_REQUEST_BYTES = 256 * 1024
"""Maximum number of buffered bytes of a small request."""
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


class Response(NamedTuple):
    """Response to a request. The connection adds its own headers."""

    status: int
    body: bytes
    content_type: bytes = _JSON
    headers: Headers = ()


class BudgetExceeded(Refusal):
    """The budget for arriving bytes is used up."""

    def __init__(self, why: str) -> None:
        super().__init__(429, "too_busy", f"{why}; nothing of this request was persisted: send it again a little later")


class BodyBudget:
    """Limits one body, and the sum of the buffered bytes of all requests that are arriving or being split into records.

    A part of the budget is for small requests only, so that large bodies that wait for a thread never block them.
    """

    def __init__(self, *, body_bytes_max: int, bytes_held_max: int) -> None:
        self.body_bytes_max = body_bytes_max
        self.bytes_held_max = max(bytes_held_max, body_bytes_max)
        self._large_bytes_held_max = max(
            bytes_held_max * 3 // 4, body_bytes_max
        )  # while no other is held, any body fits
        self.bytes_held = 0
        self.reclaim_bytes: Callable[[], None] = lambda: None
        """Called when the budget is used up. Releases the bytes of the slowest requests. The server sets it."""

    def take(self, request: Request, count: int) -> None:
        """Reserve bytes. Raises BudgetExceeded if they don't fit."""
        is_small = request.bytes_held + count <= SMALL_REQUEST_BYTES
        limit = self.bytes_held_max if is_small else self._large_bytes_held_max
        if self.bytes_held + count > limit:
            self.reclaim_bytes()
            if self.bytes_held + count > limit:
                raise BudgetExceeded(f"{self.bytes_held} bytes of other requests are arriving")
        self.bytes_held += count

    def give_back(self, count: int) -> None:
        """Release this many bytes."""
        self.bytes_held -= count


class Request:
    """A request on its way through the gateway. The connection fills it."""

    method = b""
    url = b""
    is_whole = False
    """True if the last byte of the body has arrived."""
    is_enough = False
    """True if the request can be answered: it is complete, or was refused before that."""
    refusal: Refusal | None = None
    body_bytes = 0
    """Number of bytes of the body that have arrived."""
    bytes_held = 0
    """Bytes that count in the budget: the body, and the received bytes of unfinished heads, trailers, or chunk ends."""
    held_before = held_last = 0
    """`bytes_held` one and two seconds ago, or less."""
    is_admitted = False
    """True if the sender has proven its right to this request."""
    head: object = None
    """Data that the application's `admit` read from the head, for its `answer`."""

    def __init__(self, source: bytes, budget: BodyBudget) -> None:
        self.source = source
        """Protocol and peer, as in the headers of the records."""
        self.headers: dict[bytes, bytes] = {}
        """The headers in WANTED_HEADERS, by lower-case name."""
        self.others: list[tuple[bytes, bytes]] = []
        """Headers that only some streams use: lower-case name, value."""
        self._budget = budget
        self._body: bytes | bytearray = b""

    @property
    def path(self) -> str:
        return path_of(self.url)

    @property
    def expects_continue(self) -> bool:
        """True if the sender waits for `100 Continue` before it sends the body."""
        return self.headers.get(b"expect", b"").lower() == b"100-continue"

    @property
    def pace(self) -> int:
        """Number of bytes that arrived in the last one or two seconds."""
        return self.bytes_held - self.held_before

    def note_pace(self) -> None:
        """Update `pace`. Call it once a second."""
        self.held_before, self.held_last = self.held_last, self.bytes_held

    def add(self, chunk: bytes) -> None:
        """Add the next piece of the body. Raises Refusal when a limit is exceeded."""
        if self.body_bytes + len(chunk) > self._budget.body_bytes_max:
            raise body_too_large(self._budget.body_bytes_max)
        self.hold(len(chunk))
        self.body_bytes += len(chunk)
        if not self._body:
            self._body = chunk
        elif isinstance(self._body, bytearray):
            self._body += chunk
        else:  # one bytearray: a list of many small pieces would use a multiple of their bytes
            self._body = bytearray(self._body) + chunk

    def hold(self, count: int) -> None:
        """Count bytes that must be kept. Raises BudgetExceeded if they don't fit into the budget."""
        self._budget.take(self, count)
        self.bytes_held += count

    def body(self) -> bytes:
        """Return the body as it was sent."""
        if isinstance(self._body, bytearray):
            self._body = bytes(self._body)
        return self._body

    def let_go(self) -> None:
        """Drop the body when it is no longer needed, and release its bytes."""
        if self.bytes_held:
            self._budget.give_back(self.bytes_held)
            self.bytes_held = self.body_bytes = 0
            self._body = b""
        self.others = []


WANTED_HEADERS = {
    spelling: name
    for name in (
        b"host", b"content-type", b"content-length", b"transfer-encoding", b"content-encoding", b"idempotency-key", b"expect",
        b"origin", b"authorization",
    )
    for spelling in (name, name.title())
}  # fmt: skip
"""Headers that a gateway reads, in the two spellings that nearly all senders use -> their lower-case name."""
PASSED_OVER_HEADERS = frozenset(
    spelling
    for name in (
        b"accept", b"accept-encoding", b"accept-language", b"authorization", b"cache-control", b"connection", b"cookie",
        b"keep-alive", b"pragma", b"proxy-authorization", b"referer", b"te", b"trailer", b"upgrade", b"user-agent",
    )
    for spelling in (name, name.title())
)  # fmt: skip
"""Headers that are never kept, in the two usual spellings: no stream may add them to its records."""


@lru_cache(maxsize=1_000)
def path_of(url: bytes) -> str:
    """Return the decoded path of a request's target. A proxy may send a complete URL."""
    target = url.decode("latin-1")
    if not target.startswith("/"):
        target = "/" + target.partition("://")[2].partition("/")[2]
    return unquote(target.partition("?")[0], errors="replace")


def problem(refusal: Refusal, path: str) -> Response:
    """Return the refusal as a problem document."""
    document = problem_document(refusal.status, refusal.code, refusal.detail, path)
    return Response(refusal.status, json.dumps(document).encode(), PROBLEM_MEDIA_TYPE.encode(), headers_of(refusal))


def headers_of(refusal: Refusal) -> Headers:
    """Return the headers of the refusal's answer, in addition to the headers of every answer."""
    if refusal.status not in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        return refusal.headers
    return (*refusal.headers, (b"retry-after", b"%d" % random.choice(RETRY_AFTER_S)))  # noqa: S311  # spreads the load, guards nothing


def body_too_large(body_bytes_max: int) -> Refusal:
    detail = f"the body is larger than {body_bytes_max} bytes; nothing of it was persisted: send it in parts"
    return Refusal(413, "too_large", detail)


def method_not_allowed(request: Request, *allowed: str) -> Refusal:
    method = request.method.decode("latin-1")
    detail = f"{request.path} accepts {' and '.join(allowed)}, not {method}"
    return Refusal(405, "method_not_allowed", detail, ((b"allow", ", ".join(allowed).encode()),))
