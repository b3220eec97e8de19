"""The head of a request with records: their form, the compression of the body, and the message id."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.core.record_headers import QUERY_MARK
from strandline.ingest.gateway.decompression import ContentCoding
from strandline.ingest.gateway.framing import Form
from strandline.ingest.gateway.serving.http_request import Refusal, Request, body_too_large, method_not_allowed
from strandline.ingest.http.dialect import Dialect
from strandline.ingest.http.request_headers import EventHead, hold_others

MESSAGE_ID_BYTES_MAX = 255
QUERY_BYTES_MAX = 2_000
"""Maximum size in bytes of a URL's query, which is added to the headers of each record."""


@dataclass(frozen=True, slots=True)
class RecordHead:
    form: Form
    coding: ContentCoding | None
    """Compression of the body. None if it isn't compressed."""
    message_id: bytes | None
    """Value of `Idempotency-Key`. None if it is missing."""
    query: bytes
    """Query of the URL with its question mark, or empty. It may contain fields of the records."""
    event: EventHead | None = None
    """Attributes of a CloudEvent in binary mode. None for other requests."""


def read_record_head(request: Request, dialect: Dialect, body_bytes_max: int) -> RecordHead:
    """Return the head. Raises Refusal for a request that can be refused before its body is read."""
    if request.method not in dialect.methods:
        raise method_not_allowed(request, "POST")
    headers = request.headers
    form, event, is_coded = dialect.body_form(request)
    coding = _coding_of(headers[b"content-encoding"]) if b"content-encoding" in headers and is_coded else None
    if int(headers.get(b"content-length", 0)) > body_bytes_max:
        raise body_too_large(body_bytes_max)
    message_id = _message_id_of(headers[b"idempotency-key"]) if b"idempotency-key" in headers else None
    query = request.url.partition(b"?")[2].partition(b"#")[0]
    if query:
        query = dialect.logged_query(query)
    if len(query) > QUERY_BYTES_MAX:
        raise Refusal(400, "bad_request", f"the URL's query has {len(query)} bytes; at most {QUERY_BYTES_MAX}")
    if request.others:
        hold_others(request)
    return RecordHead(form, coding, message_id, QUERY_MARK + query if query else b"", event)


def _coding_of(content_encoding: bytes) -> ContentCoding | None:
    name = content_encoding.decode("latin-1").strip().lower()
    if name in ("", "identity"):
        return None
    try:
        return ContentCoding(name.removeprefix("x-"))
    except ValueError as error:
        known = ", ".join(coding.value for coding in ContentCoding)
        detail = f"a body with content-encoding {name} can't be read; send it uncompressed, or compressed as {known}"
        raise Refusal(415, "unsupported_media_type", detail, ((b"accept-encoding", known.encode()),)) from error


def _message_id_of(idempotency_key: bytes) -> bytes:
    """Return the key without the quotes that draft-ietf-httpapi-idempotency-key-header requires around it."""
    key = idempotency_key.strip()
    if len(key) > 1 and key[:1] == key[-1:] == b'"':
        key = key[1:-1]
    if not 0 < len(key) <= MESSAGE_ID_BYTES_MAX:
        detail = f"the Idempotency-Key has {len(key)} bytes; expected 1 to {MESSAGE_ID_BYTES_MAX}"
        raise Refusal(400, "bad_request", detail)
    return key
