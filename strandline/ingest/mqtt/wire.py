"""The fields of MQTT packets: numbers, lengths, strings, topics, and the properties of 5.0.

Formats: OASIS MQTT 3.1.1 (29 October 2014) and 5.0 (7 March 2019). A name in square brackets is a normative statement
of 5.0.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache

import msgspec

from strandline.core.errors import PermanentError

V311, V5 = 4, 5
"""Protocol levels in CONNECT."""
TOPIC_BYTES_REMEMBERED_MAX = 256
"""Maximum length in bytes of a cached topic. A longer one is checked each time, so that clients can't fill the memory.
"""


class Reason(IntEnum):
    """The reason codes that the server sends: MQTT 5.0, section 2.4."""

    SUCCESS = 0x00
    NO_SUBSCRIPTION_EXISTED = 0x11
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_NAME_INVALID = 0x90
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    QUOTA_EXCEEDED = 0x97
    QOS_NOT_SUPPORTED = 0x9B
    CONNECTION_RATE_EXCEEDED = 0x9F


class PacketError(PermanentError):
    """The bytes are not a packet that is allowed here.

    Close the connection, with this reason if the version of MQTT allows it.
    """

    code = "mqtt_packet"

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class PublishProperties(msgspec.Struct, frozen=True):
    """The properties of an MQTT 5 PUBLISH that are kept."""

    content_type: str | None
    user: tuple[tuple[str, str], ...]
    """User properties, in order. A name may occur more than once."""


def check_topic(topic: bytes) -> None:
    """Raises PacketError if this is not a valid topic name [MQTT-3.3.2-2, MQTT-4.7.3-1, MQTT-4.7.3-2]."""
    if not topic or b"+" in topic or b"#" in topic:
        raise PacketError(Reason.TOPIC_NAME_INVALID, f"{shown(topic)} is not a valid topic name")
    check_text(topic)


check_short_topic = lru_cache(maxsize=10_000)(check_topic)


def check_text(raw: bytes) -> str:
    """Decode strict UTF-8 without U+0000 [MQTT-1.5.4-1, MQTT-1.5.4-2]."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise malformed(f"{shown(raw)} is not UTF-8: {error.reason} (byte {error.start})") from error
    if "\0" in text:
        raise malformed(f"{shown(raw)} contains U+0000")
    return text


class Body:
    """The bytes of one packet after its fixed header, read from left to right. Reading past the end raises PacketError."""

    __slots__ = ("at", "data", "end", "version")

    def __init__(self, data: bytes, at: int, end: int, version: int) -> None:
        self.data, self.at, self.end, self.version = data, at, end, version

    def take(self, count: int) -> bytes:
        at, self.at = self.at, self.at + count
        if self.at > self.end:
            raise malformed("the packet ends within a field")
        return self.data[at : self.at]

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def binary(self) -> bytes:
        return self.take(self.number(2))

    def text(self) -> str:
        return check_text(self.binary())

    def varint(self) -> int:
        read = read_varint(self.data, self.at, self.end)
        if read is None:
            raise malformed("the packet ends within a length")
        value, at = read
        if at - self.at > 1 and value < 1 << 7 * (at - self.at - 1):
            raise malformed("a length has more bytes than it needs")
        self.at = at
        return value

    def part(self) -> Body:
        """Return the properties that begin here, after their length."""
        length = self.varint()
        at = self.at
        self.take(length)
        return Body(self.data, at, at + length, self.version)

    @property
    def is_at_end(self) -> bool:
        return self.at == self.end

    def require_end(self, packet: str) -> None:
        if self.at != self.end:
            raise malformed(f"{packet} has bytes after its end")


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int] | None:
    """Read a variable byte integer of at most four bytes. Return it with its end. None if it is incomplete."""
    value = 0
    for shift in (0, 7, 14, 21):
        if at == end:
            return None
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise malformed("a length of more than four bytes")


def _flag(body: Body) -> bool:
    value = body.number(1)
    if value > 1:
        raise PacketError(Reason.PROTOCOL_ERROR, f"a property that is 0 or 1 is {value}")
    return value == 1


def _positive(width: int) -> Callable[[Body], int]:
    def read(body: Body) -> int:
        value = body.number(width)
        if not value:
            raise PacketError(Reason.PROTOCOL_ERROR, "a property that must not be 0 is 0")
        return value

    return read


def _long(body: Body) -> int:
    return body.number(4)


def _alias(body: Body) -> int:
    raise PacketError(Reason.TOPIC_ALIAS_INVALID, "a topic alias, but CONNACK allowed none")


SESSION_EXPIRY, _RECEIVE_MAXIMUM, PACKET_BYTES_MAX, AUTH_METHOD, AUTH_DATA = 0x11, 0x21, 0x27, 0x15, 0x16
WILL_DELAY = 0x18
_CONTENT_TYPE, _USER = 0x03, 0x26
_Property = Callable[[Body], object]
_MESSAGE: dict[int, _Property] = {
    0x01: _flag,  # payload format indicator
    0x02: _long,  # message expiry interval
    _CONTENT_TYPE: Body.text,
    0x08: Body.text,  # response topic
    0x09: Body.binary,  # correlation data
}
OF_CONNECT: dict[int, _Property] = {
    SESSION_EXPIRY: _long,
    _RECEIVE_MAXIMUM: _positive(2),
    PACKET_BYTES_MAX: _positive(4),
    0x22: lambda body: body.number(2),  # topic alias maximum
    0x19: _flag,  # request response information
    0x17: _flag,  # request problem information
    AUTH_METHOD: Body.text,
    AUTH_DATA: Body.binary,
}
OF_WILL: dict[int, _Property] = {**_MESSAGE, WILL_DELAY: _long}
OF_PUBLISH: dict[int, _Property] = {**_MESSAGE, 0x23: _alias}
OF_SUBSCRIBE: dict[int, _Property] = {0x0B: Body.varint}
OF_DISCONNECT: dict[int, _Property] = {SESSION_EXPIRY: _long, 0x1F: Body.text}


def read_properties(body: Body, known: dict[int, _Property]) -> tuple[dict[int, object], tuple[tuple[str, str], ...]]:
    """Return the properties of a packet, which must be in `known`, and its user properties. Empty in 3.1.1."""
    found: dict[int, object] = {}
    user: list[tuple[str, str]] = []
    if body.version != V5:
        return found, ()
    part = body.part()
    while not part.is_at_end:
        identifier = part.varint()
        if identifier == _USER:
            user.append((part.text(), part.text()))
            continue
        if identifier not in known:
            raise PacketError(Reason.PROTOCOL_ERROR, f"property 0x{identifier:02x} does not belong in this packet")
        if identifier in found:
            raise PacketError(Reason.PROTOCOL_ERROR, f"property 0x{identifier:02x} occurs twice")
        found[identifier] = known[identifier](part)
    return found, tuple(user)


def publish_properties(found: dict[int, object], user: tuple[tuple[str, str], ...]) -> PublishProperties | None:
    """Return the properties of a message that are kept. None if it has none of them."""
    content_type = found.get(_CONTENT_TYPE)
    if content_type is None and not user:
        return None
    assert content_type is None or isinstance(content_type, str)
    return PublishProperties(content_type, user)


def malformed(message: str) -> PacketError:
    return PacketError(Reason.MALFORMED_PACKET, message)


def shown(raw: bytes) -> str:
    """Return the first bytes for a message."""
    return repr(raw[:60]).removeprefix("b") + ("..." if len(raw) > 60 else "")
