"""CloudEvents 1.0 (HTTP protocol binding), as far as a gateway needs it: the identity of an event, and its attributes
in headers.

The gateway validates no attribute and changes no event: an event without an id is a record like any other. The log
stores the attributes of an event in binary mode as headers of CloudEvents' Kafka binding (`ce_id`), so that its readers
understand them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote_to_bytes

import msgspec

from strandline.core.record_headers import HEADER_CLOUD_EVENT_PREFIX

ATTRIBUTE_MARK = b"ce-"
"""Prefix of an HTTP header that is an attribute."""
IDENTITY_BYTES_MAX = 1_000
"""Maximum length of an identity in bytes. A longer one is replaced by its hash."""
EVENT_CONTENT_TYPES = (b"application/cloudevents",)
"""Prefixes of the content types whose bodies are events. Then attributes in headers only repeat the attributes in the
body."""
STRUCTURED_CONTENT_TYPE = b"application/cloudevents+json"
"""Content type of a single event that contains its attributes."""
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


class _Identity(msgspec.Struct):
    source: str = ""
    id: str = ""


_read_identity = msgspec.json.Decoder(_Identity).decode


def attributes_of(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, bytes]:
    """Return the attributes in HTTP headers, by their names as Kafka headers.

    `headers`: lower-case names and values.
    """
    return {
        HEADER_CLOUD_EVENT_PREFIX + name[len(ATTRIBUTE_MARK) :].decode("latin-1"): plain_value(value)
        for name, value in headers
        if name.startswith(ATTRIBUTE_MARK)
    }


def plain_value(value: bytes) -> bytes:
    """Decode the value of an HTTP header as CloudEvents requires: remove quotes and their escapes, then
    percent-encoding."""
    value = value.strip(b" \t")
    if len(value) > 1 and value[:1] == value[-1:] == b'"':
        value = _ESCAPED.sub(rb"\1", value[1:-1])
    return unquote_to_bytes(value)


def identity_of_attributes(attributes: Mapping[str, bytes]) -> bytes | None:
    """Return the identity of an event whose attributes are in headers. None if it has no source or no id."""
    source, own = (attributes.get(HEADER_CLOUD_EVENT_PREFIX + name, b"") for name in ("source", "id"))
    return _identity(source, own)


def identity_of_event(event: bytes) -> bytes | None:
    """Return the identity of an event in JSON that contains its attributes.

    None if it has no source or no id, or if it isn't an event.
    """
    try:
        found = _read_identity(event)
        return _identity(found.source.encode(), found.id.encode())
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _identity(source: bytes, own: bytes) -> bytes | None:
    """Join source and id, which are unique together. A source is a URI, so it contains no space."""
    if not source or not own:
        return None
    identity = source + b" " + own
    return (
        identity if len(identity) <= IDENTITY_BYTES_MAX else b"sha256:" + hashlib.sha256(identity).hexdigest().encode()
    )
