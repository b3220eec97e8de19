"""One HTTP request to the gateway and its answer: what the head must say, the body within its bounds, problems."""

from __future__ import annotations

import json
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple

from strandline.ingest.gateway.decompression import ContentCoding
from strandline.ingest.gateway.framing import FORM_OF_CONTENT_TYPE, Form

RETRY_AFTER_S = 1
MESSAGE_ID_BYTES_MAX = 255
_JSON = b"application/json"

Headers = tuple[tuple[bytes, bytes], ...]


class Refusal(Exception):
    """Ends a request with a problem for its answer."""

    def __init__(self, status: int, code: str, detail: str, headers: Headers = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = headers


class Answer(NamedTuple):
    """What is sent back, before the connection's own headers."""

    status: int
    body: bytes
    content_type: bytes = _JSON
    headers: Headers = ()


class BodyRoom:
    """Bounds one body, and the sum of all bodies that are arriving or being cut into records."""

    def __init__(self, *, body_bytes_max: int, bytes_held_max: int) -> None:
        self.body_bytes_max = body_bytes_max
        self._bytes_held_max = max(bytes_held_max, body_bytes_max)  # a body that has the room to itself always fits
        self.bytes_held = 0

    def take(self, count: int) -> None:
        """Raises Refusal when there is no room."""
        if self.bytes_held + count > self._bytes_held_max:
            detail = f"{self.bytes_held} bytes of other requests are arriving; nothing of this one was persisted"
            raise Refusal(429, "too_busy", f"{detail}: send it again a little later")
        self.bytes_held += count

    def give_back(self, count: int) -> None:
        """So many bytes are not held any more."""
        self.bytes_held -= count


class Request:
    """A request on its way through the gateway. The connection fills it; `form` and what follows come from `read_head`."""

    method = b""
    url = b""
    is_whole = False
    """The last byte of the body is here."""
    is_enough = False
    """It can be answered: it is whole, or refused before that."""
    refusal: Refusal | None = None
    form = Form.JSON
    coding: ContentCoding | None = None
    message_id: bytes | None = None
    expects_continue = False
    body_bytes = 0
    """What is here of the body, and is held of the room."""

    def __init__(self, source: bytes, room: BodyRoom) -> None:
        self.source = source
        """Protocol and peer, as the records' headers hold it."""
        self.headers: dict[bytes, bytes] = {}
        """Those in WANTED_HEADERS, by lower-case name."""
        self._room = room
        self._chunks: list[bytes] = []

    def add(self, chunk: bytes) -> None:
        """The next piece of the body. Raises Refusal when the body is over a bound."""
        if self.body_bytes + len(chunk) > self._room.body_bytes_max:
            raise body_too_large(self._room.body_bytes_max)
        self._room.take(len(chunk))
        self.body_bytes += len(chunk)
        self._chunks.append(chunk)

    def body(self) -> bytes:
        """The body as it was sent."""
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)

    def let_go(self) -> None:
        """The body is not needed any more."""
        if self.body_bytes:
            self._room.give_back(self.body_bytes)
            self.body_bytes = 0
            self._chunks = []

    def read_head(self, body_bytes_max: int) -> None:
        """Look at all that can be told before the body is read. Raises Refusal."""
        if self.method != b"POST":
            detail = f"records come by POST, not by {self.method.decode('latin-1')}"
            raise Refusal(405, "method_not_allowed", detail, ((b"allow", b"POST"),))
        headers = self.headers
        self.form = form_of(headers.get(b"content-type", b""))
        if b"content-encoding" in headers:
            self.coding = _coding_of(headers[b"content-encoding"])
        if int(headers.get(b"content-length", 0)) > body_bytes_max:
            raise body_too_large(body_bytes_max)
        if b"idempotency-key" in headers:
            self.message_id = _message_id_of(headers[b"idempotency-key"])
        if b"expect" in headers:
            self.expects_continue = headers[b"expect"].lower() == b"100-continue"


WANTED_HEADERS = {
    spelling: name
    for name in (b"content-type", b"content-length", b"content-encoding", b"idempotency-key", b"expect")
    for spelling in (name, name.title())
}
"""The headers that are looked at, in the two spellings that nearly all senders use -> their lower-case name."""


def problem(refusal: Refusal, instance: str) -> Answer:
    """The refusal as `application/problem+json` (RFC 9457)."""
    body = {
        "type": f"urn:strandline:problem:{refusal.code}",
        "title": HTTPStatus(refusal.status).phrase,
        "status": refusal.status,
        "detail": refusal.detail,
        "instance": instance,
        "code": refusal.code,
    }
    headers = refusal.headers
    if refusal.status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        headers = (*headers, (b"retry-after", b"%d" % RETRY_AFTER_S))
    return Answer(refusal.status, json.dumps(body).encode(), b"application/problem+json", headers)


def body_too_large(body_bytes_max: int) -> Refusal:
    detail = f"the body is larger than {body_bytes_max} bytes; nothing of it was persisted: send it in parts"
    return Refusal(413, "too_large", detail)


@lru_cache(maxsize=100)
def form_of(content_type: bytes) -> Form:
    media_type, _, parameters = content_type.decode("latin-1").partition(";")
    form = FORM_OF_CONTENT_TYPE.get(media_type.strip().lower())
    if form is None:
        sent = f"content-type {media_type.strip()}" if content_type else "a body without a content-type"
        known = ", ".join(FORM_OF_CONTENT_TYPE)
        raise Refusal(415, "unsupported_media_type", f"{sent} can't be taken here; send one of {known}")
    charset = parameters.lower().partition("charset=")[2].partition(";")[0].strip(' "')
    if charset not in ("", "utf-8", "utf8", "us-ascii"):
        raise Refusal(415, "unsupported_media_type", f"JSON in {charset} can't be taken here; send it in UTF-8")
    return form


def _coding_of(content_encoding: bytes) -> ContentCoding | None:
    name = content_encoding.decode("latin-1").strip().lower()
    if name in ("", "identity"):
        return None
    try:
        return ContentCoding(name.removeprefix("x-"))
    except ValueError as error:
        known = ", ".join(coding.value for coding in ContentCoding)
        detail = f"a body with content-encoding {name} can't be read; send it plain or as one of {known}"
        raise Refusal(415, "unsupported_media_type", detail, ((b"accept-encoding", known.encode()),)) from error


def _message_id_of(idempotency_key: bytes) -> bytes:
    """The key without the quotes that draft-ietf-httpapi-idempotency-key-header puts around it."""
    key = idempotency_key.strip()
    if len(key) > 1 and key[:1] == key[-1:] == b'"':
        key = key[1:-1]
    if not 0 < len(key) <= MESSAGE_ID_BYTES_MAX:
        detail = f"the Idempotency-Key has {len(key)} bytes; expected 1 to {MESSAGE_ID_BYTES_MAX}"
        raise Refusal(400, "bad_request", detail)
    return key
