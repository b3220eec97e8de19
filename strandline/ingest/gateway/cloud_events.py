"""CloudEvents 1.0 (HTTP protocol binding), as far as a gateway needs them: what identifies an event, and its attributes in
headers.

The gateway judges no attribute and changes no event: an event without an id is a record like any other. In the log the attributes
of an event in binary mode are headers as CloudEvents' binding for Kafka writes them (`ce_id`), so that its readers know them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote_to_bytes

import msgspec

from strandline.core.record_headers import HEADER_CLOUD_EVENT_PREFIX

ATTRIBUTE_MARK = b"ce-"
"""The beginning of an HTTP header that is an attribute."""
IDENTITY_BYTES_MAX = 1_000
"""A longer identity is replaced by its hash."""
EVENT_CONTENT_TYPES = (b"application/cloudevents",)
"""The beginning of the content types whose bodies are events: then attributes in headers only repeat what stands there."""
STRUCTURED_CONTENT_TYPE = b"application/cloudevents+json"
"""Of one event that holds its attributes itself."""
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


class _Identity(msgspec.Struct):
    source: str = ""
    id: str = ""


_read_identity = msgspec.json.Decoder(_Identity).decode


def attributes_of(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, bytes]:
    """Attributes that stand in HTTP headers, by their names as Kafka headers. `headers`: lower-case names and values."""
    return {
        HEADER_CLOUD_EVENT_PREFIX + name[len(ATTRIBUTE_MARK) :].decode("latin-1"): plain_value(value)
        for name, value in headers
        if name.startswith(ATTRIBUTE_MARK)
    }


def plain_value(value: bytes) -> bytes:
    """An HTTP header's value as CloudEvents has it read: without quotes and their escapes, then without percent-encoding."""
    value = value.strip(b" \t")
    if len(value) > 1 and value[:1] == value[-1:] == b'"':
        value = _ESCAPED.sub(rb"\1", value[1:-1])
    return unquote_to_bytes(value)


def identity_of_attributes(attributes: Mapping[str, bytes]) -> bytes | None:
    """What identifies an event whose attributes stand in headers; None if it doesn't say."""
    source, own = (attributes.get(HEADER_CLOUD_EVENT_PREFIX + name, b"") for name in ("source", "id"))
    return _identity(source, own)


def identity_of_event(event: bytes) -> bytes | None:
    """What identifies an event in JSON that holds its attributes itself; None if it doesn't say, or is no such event."""
    try:
        found = _read_identity(event)
        return _identity(found.source.encode(), found.id.encode())
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _identity(source: bytes, own: bytes) -> bytes | None:
    """Source and id together are unique. A source is a URI, which holds no space."""
    if not source or not own:
        return None
    identity = source + b" " + own
    return (
        identity if len(identity) <= IDENTITY_BYTES_MAX else b"sha256:" + hashlib.sha256(identity).hexdigest().encode()
    )
