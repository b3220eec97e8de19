"""What the head of a request says about the records in its body: their form, how the body is compressed, the message id."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from strandline.core.record_headers import QUERY_MARK
from strandline.ingest.gateway.decompression import ContentCoding
from strandline.ingest.gateway.framing import FORM_OF_CONTENT_TYPE, Form
from strandline.ingest.gateway.serving.http_request import Refusal, Request, body_too_large, method_not_allowed
from strandline.ingest.http.influx_api import is_influx, without_login
from strandline.ingest.http.request_headers import EventHead, hold_others, is_event
from strandline.ingest.http.telemetry_api import require_telemetry, telemetry_of

MESSAGE_ID_BYTES_MAX = 255
QUERY_BYTES_MAX = 2_000
"""It goes to each record's headers."""


@dataclass(frozen=True, slots=True)
class RecordHead:
    form: Form
    coding: ContentCoding | None
    """How the body is compressed; None: not at all."""
    message_id: bytes | None
    """The `Idempotency-Key`."""
    query: bytes
    """What stands behind the path of the URL, with its mark; empty if nothing does. It may hold fields of the records."""
    event: EventHead | None = None
    """Of a CloudEvent in binary mode."""


def read_record_head(request: Request, body_bytes_max: int) -> RecordHead:
    """Raises Refusal for what can be refused before the body is read."""
    if request.method != b"POST":
        raise method_not_allowed(request, "POST")
    headers = request.headers
    # Clients of InfluxDB send lines under any content type.
    telemetry = telemetry_of(request.url)
    is_packed = telemetry is not None and require_telemetry(request, telemetry[1])
    is_other_api = telemetry is not None or is_influx(request.url)
    event = EventHead(request) if request.others and not is_other_api and is_event(request) else None
    if event is not None or telemetry is not None:
        form = Form.WHOLE  # whatever its data are
    else:
        form = Form.LINES if is_influx(request.url) else form_of(headers.get(b"content-type", b""))
    coding = _coding_of(headers[b"content-encoding"]) if b"content-encoding" in headers and not is_packed else None
    if int(headers.get(b"content-length", 0)) > body_bytes_max:
        raise body_too_large(body_bytes_max)
    message_id = _message_id_of(headers[b"idempotency-key"]) if b"idempotency-key" in headers else None
    query = request.url.partition(b"?")[2].partition(b"#")[0]
    if is_influx(request.url):
        query = without_login(query)
    if len(query) > QUERY_BYTES_MAX:
        raise Refusal(400, "bad_request", f"the URL's query has {len(query)} bytes; at most {QUERY_BYTES_MAX}")
    if request.others:
        hold_others(request)
    return RecordHead(form, coding, message_id, QUERY_MARK + query if query else b"", event)


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
        raise Refusal(415, "unsupported_media_type", f"text in {charset} can't be taken here; send it in UTF-8")
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
