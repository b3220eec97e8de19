"""HTTP headers that are added to a request's records: attributes of a CloudEvent in binary mode, and headers that the
stream's document lists."""

from __future__ import annotations

from strandline.core.record_headers import HEADER_HTTP_PREFIX
from strandline.core.streams.entrances import HttpSpec
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.cloud_events import (
    ATTRIBUTE_MARK,
    EVENT_CONTENT_TYPES,
    attributes_of,
    identity_of_attributes,
)
from strandline.ingest.gateway.framing import Framed
from strandline.ingest.gateway.serving.http_request import Refusal, Request

HEADERS_MAX = 64
HEADERS_BYTES_MAX = 2_000
"""Maximum size in bytes of names and values together, because they are added to each record of the request."""
HEADER_COST_BYTES = 100
"""Memory in bytes that a header uses in addition to its bytes."""


class EventHead:
    """Attributes of a CloudEvent in binary mode, from the head of a request."""

    __slots__ = ("attributes", "content_type", "identity")

    def __init__(self, request: Request) -> None:
        """Raises Refusal if there are too many attributes, or if one is repeated or isn't UTF-8."""
        given = [header for header in request.others if header[0].startswith(ATTRIBUTE_MARK)]
        _require_sound(given, "attributes of a CloudEvent")
        self.attributes = tuple(attributes_of(given).items())
        for name, value in self.attributes:
            _require_text(name, value)
        """The attributes as Kafka headers."""
        self.identity = identity_of_attributes(dict(self.attributes))
        self.content_type = request.headers.get(b"content-type") or None
        """Content type of the event's data. None if it is missing."""


def is_event(request: Request) -> bool:
    """Return True for a CloudEvent in binary mode: an attribute is in a header, and the body isn't an event itself."""
    if request.headers.get(b"content-type", b"").lower().startswith(EVENT_CONTENT_TYPES):
        return False
    return any(name.startswith(ATTRIBUTE_MARK) for name, _ in request.others)


def hold_others(request: Request) -> None:
    """Count the headers that are kept until the stream is known. Raises BudgetExceeded if they don't fit into the budget."""
    request.hold(sum(len(name) + len(value) + HEADER_COST_BYTES for name, value in request.others))


def headers_named_by(http: HttpSpec, request: Request) -> tuple[tuple[str, bytes], ...]:
    """Return the headers of the request that the stream's document lists, as headers of its records. Raises Refusal if
    one is repeated, or if they are too many or too long.
    """
    wanted = {name.lower().encode() for name in http.headers.values()}
    given = [header for header in request.others if header[0] in wanted and not header[0].startswith(ATTRIBUTE_MARK)]
    _require_sound(given, "headers that become fields")
    return tuple((HEADER_HTTP_PREFIX + name.decode("latin-1"), value) for name, value in given)


def with_key_of(spec: StreamSpec, headers: tuple[tuple[str, bytes], ...], framed: Framed) -> Framed:
    """Set the key of records without one to the value of the header that the document names for it."""
    if spec.key is None or spec.http is None:
        return framed
    key = dict(headers).get(spec.http.record_headers.get(spec.key, ""))
    if not key:
        return framed
    return framed._replace(records=[(value, own or key) for value, own in framed.records])


def _require_text(name: str, value: bytes) -> None:
    try:
        value.decode()
    except UnicodeDecodeError as error:
        detail = f"the attribute {name} of the CloudEvent is not UTF-8 after percent-decoding"
        raise Refusal(400, "bad_request", f"{detail}; nothing of the request was persisted: encode it again") from error


def _require_sound(given: list[tuple[bytes, bytes]], what: str) -> None:
    names = [name for name, _ in given]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        detail = f"the head has {twice.decode('latin-1')} twice; nothing of the request was persisted: send it once"
        raise Refusal(400, "bad_request", detail)
    size = sum(len(name) + len(value) for name, value in given)
    if len(given) > HEADERS_MAX or size > HEADERS_BYTES_MAX:
        detail = f"the {what} are {len(given)} with {size} bytes; at most {HEADERS_MAX} with {HEADERS_BYTES_MAX}"
        raise Refusal(400, "bad_request", detail)
