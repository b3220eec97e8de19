"""Decodes the MQTT packets that a server receives if it publishes nothing. Opens no socket and reads no clock.

Formats: OASIS MQTT 3.1.1 (29 October 2014) and 5.0 (7 March 2019), strictly. The packets are CONNECT, PUBLISH,
SUBSCRIBE, UNSUBSCRIBE, PINGREQ, and DISCONNECT; from such a client any other is an error. For the reasons against a
library see docs/decisions/0009-own-mqtt-codec.md.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from strandline.ingest.mqtt.wire import (
    AUTH_DATA,
    AUTH_METHOD,
    OF_CONNECT,
    OF_DISCONNECT,
    OF_PUBLISH,
    OF_SUBSCRIBE,
    OF_WILL,
    PACKET_BYTES_MAX,
    SESSION_EXPIRY,
    TOPIC_BYTES_REMEMBERED_MAX,
    V5,
    V311,
    WILL_DELAY,
    Body,
    PacketError,
    PublishProperties,
    Reason,
    check_short_topic,
    check_topic,
    malformed,
    publish_properties,
    read_properties,
    read_varint,
    shown,
)

CONNECT_BYTES_MAX = 64 * 1024
"""Maximum size of a CONNECT in bytes: its sender has not authenticated yet."""

_CONNECT, _PUBLISH, _SUBSCRIBE, _UNSUBSCRIBE, _PINGREQ, _DISCONNECT = 1, 3, 8, 10, 12, 14
_FLAGS = {_CONNECT: 0, _SUBSCRIBE: 2, _UNSUBSCRIBE: 2, _PINGREQ: 0, _DISCONNECT: 0}
"""Packet type -> the lower four bits of the first byte, if they are fixed."""
_ANSWERS = frozenset({4, 5, 6, 7, 15})
"""PUBACK, PUBREC, PUBREL, PUBCOMP, and AUTH: answers to a server that publishes or has begun to authenticate."""


class Will(msgspec.Struct, frozen=True):
    """The message to publish when the client disconnects without a DISCONNECT that cancels the will."""

    topic: bytes
    payload: bytes
    retain: bool
    properties: PublishProperties | None
    delay_s: int = 0
    """Seconds from the end of the connection until it is published, if the session lasts that long and the client does
    not return."""


class Connect(msgspec.Struct, frozen=True):
    version: int
    client_id: str
    clean_start: bool
    """True for a new session; in 3.1.1 this is called a clean session."""
    keep_alive_s: int
    """0 for no keep-alive."""
    user: str | None = None
    password: bytes | None = None
    will: Will | None = None
    session_expiry_s: int = 0
    packet_bytes_max: int | None = None
    """Maximum size in bytes of a packet that may be sent to the client. None for no limit."""


class Publish(msgspec.Struct, frozen=True, gc=False):
    """A PUBLISH packet: one message. DUP isn't included, because it does not identify the message."""

    topic: bytes
    """UTF-8, without wildcards."""
    payload: bytes
    qos: int
    retain: bool
    packet_id: int
    """0 with QoS 0."""
    properties: PublishProperties | None


class Subscribe(msgspec.Struct, frozen=True):
    packet_id: int
    filters: int
    """Number of topic filters."""


class Unsubscribe(msgspec.Struct, frozen=True):
    packet_id: int
    filters: int


class PingRequest(msgspec.Struct, frozen=True):
    pass


class Disconnect(msgspec.Struct, frozen=True):
    reason: int
    """0x00, a normal disconnection, cancels the will. Always 0x00 in 3.1.1."""
    session_expiry_s: int | None
    """None for the expiry of CONNECT."""


Packet = Connect | Publish | Subscribe | Unsubscribe | PingRequest | Disconnect


class PacketReader:
    """Splits the bytes of one client into packets as its pieces arrive.

    Buffers at most one incomplete packet. A packet that announces a size over the limit is an error immediately.
    """

    def __init__(self, packet_bytes_max: int) -> None:
        self._packet_bytes_max = packet_bytes_max
        self.version = 0
        """0 until CONNECT, which must be the first packet and be sent only once."""
        self._partial = bytearray()
        self._needed = 0
        """Size in bytes below which the packet is incomplete."""

    @property
    def bytes_held(self) -> int:
        """Bytes of the incomplete packet."""
        return len(self._partial)

    def feed(self, data: bytes) -> tuple[list[Packet], PacketError | None]:
        """Return the packets that are complete now, and the error after them.

        After an error no more packets can be read.
        """
        if self._partial:
            self._partial += data
            if len(self._partial) < self._needed:
                return [], None
            data = bytes(self._partial)
            self._partial.clear()
        packets: list[Packet] = []
        try:
            at = self._read_all(data, packets)
        except PacketError as error:
            return packets, error
        if at < len(data):
            self._partial += memoryview(data)[at:]
        return packets, None

    def _read_all(self, data: bytes, packets: list[Packet]) -> int:
        """Read all complete packets. Return the start of the first incomplete one."""
        at, end = 0, len(data)
        while end - at >= 2:
            first, length, body = data[at], data[at + 1], at + 2
            if length & 0x80:
                self._check_head(first, 0)
                size = read_varint(data, at + 1, end)
                if size is None:
                    self._needed = end - at + 1
                    return at
                length, body = size
                if self.version == V5 and length < 1 << 7 * (body - at - 2):
                    raise malformed("the remaining length has more bytes than it needs")
            body_end = body + length
            if body_end > end:
                self._check_head(first, body_end - at)
                self._needed = body_end - at
                return at
            if first >> 4 == _PUBLISH and self.version:
                if body_end - at > self._packet_bytes_max:
                    raise self._too_large(body_end - at)
                packets.append(read_publish(first, data, body, body_end, self.version))
            else:
                self._check_head(first, body_end - at)
                content = Body(data, body, body_end, self.version)
                try:
                    packets.append(_READERS[first >> 4](content))
                finally:
                    self.version = content.version  # also from a CONNECT with an error, for the answer to it
            at = body_end
        self._needed = 2
        return at

    def _check_head(self, first: int, packet_bytes: int) -> None:
        """Refuse a packet by its first byte and its size, before the remaining bytes arrive."""
        kind = first >> 4
        if not self.version:
            if first != _CONNECT << 4:
                raise PacketError(Reason.PROTOCOL_ERROR, f"the first byte is 0x{first:02x}, which begins no CONNECT")
            if packet_bytes > CONNECT_BYTES_MAX:
                raise PacketError(
                    Reason.PACKET_TOO_LARGE, f"a CONNECT of {packet_bytes} bytes, the limit is {CONNECT_BYTES_MAX}"
                )
            return
        if kind == _CONNECT:
            raise PacketError(Reason.PROTOCOL_ERROR, "a second CONNECT")
        if kind != _PUBLISH and (kind not in _FLAGS or _FLAGS[kind] != first & 0x0F):
            if kind in _ANSWERS:
                raise PacketError(Reason.PROTOCOL_ERROR, f"a packet of type {kind} answers nothing that was sent")
            raise malformed(f"0x{first:02x} begins no packet")
        if packet_bytes > self._packet_bytes_max:
            raise self._too_large(packet_bytes)

    def _too_large(self, packet_bytes: int) -> PacketError:
        return PacketError(
            Reason.PACKET_TOO_LARGE, f"a packet of {packet_bytes} bytes, the limit is {self._packet_bytes_max}"
        )


def read_publish(first: int, data: bytes, at: int, end: int, version: int) -> Publish:
    """Decode PUBLISH. Its speed matters, so it creates no intermediate objects."""
    qos = first >> 1 & 3
    if qos == 3 or first & 0x0E == 0x08:
        raise malformed(f"the flags of PUBLISH are 0x{first & 0x0F:x}")
    topic_end = at + 2 + (data[at] << 8 | data[at + 1]) if at + 2 <= end else end + 1
    payload = topic_end + 2 if qos else topic_end
    if payload > end:
        raise malformed("PUBLISH ends within its topic or packet identifier")
    topic = data[at + 2 : topic_end]
    if version == V311 or topic:  # 5.0 allows an empty topic with a topic alias, which is refused below
        (check_topic if topic_end - at > TOPIC_BYTES_REMEMBERED_MAX else check_short_topic)(topic)
    packet_id = 0
    if qos:
        packet_id = data[topic_end] << 8 | data[topic_end + 1]
        if not packet_id:
            raise malformed("PUBLISH with packet identifier 0")
    properties = None
    if version == V5:
        if payload < end and data[payload] == 0:
            payload += 1
        else:
            body = Body(data, payload, end, version)
            properties = publish_properties(*read_properties(body, OF_PUBLISH))
            payload = body.at
        if not topic:
            raise PacketError(Reason.PROTOCOL_ERROR, "PUBLISH without a topic")
    return Publish(topic, data[payload:end], qos, bool(first & 1), packet_id, properties)


def read_publish_head(first: int, data: bytes) -> Publish:
    """Read a PUBLISH that `read_publish` refuses, with the fields that name and acknowledge it.

    The fields are the topic, which may not be UTF-8, and the packet identifier. Raises PacketError if even these can't
    be read.
    """
    qos = first >> 1 & 3
    if qos == 3:
        raise malformed(f"the flags of PUBLISH are 0x{first & 0x0F:x}")
    body = Body(data, 0, len(data), V5)
    topic = body.binary()
    return Publish(topic, b"", qos, bool(first & 1), _read_packet_id(body) if qos else 0, None)


def _read_connect(body: Body) -> Connect:
    name = body.binary()
    level = body.number(1)
    if (name, level) not in ((b"MQTT", V311), (b"MQTT", V5)):
        raise PacketError(
            Reason.UNSUPPORTED_PROTOCOL_VERSION,
            f"{shown(name)} level {level} is not supported here; use MQTT 3.1.1 or 5.0",
        )
    body.version = level
    flags = body.number(1)
    has_user, has_password, has_will = flags & 0x80, flags & 0x40, flags & 0x04
    if flags & 0x01 or flags & 0x18 == 0x18 or (not has_will and flags & 0x38):
        raise malformed(f"the flags of CONNECT are 0x{flags:02x}")
    if level == V311 and has_password and not has_user:
        raise malformed("a password without a user name")
    keep_alive_s = body.number(2)
    properties, _ = read_properties(body, OF_CONNECT)
    if AUTH_DATA in properties and AUTH_METHOD not in properties:
        raise PacketError(Reason.PROTOCOL_ERROR, "authentication data without a method")
    if AUTH_METHOD in properties:
        raise PacketError(Reason.BAD_AUTHENTICATION_METHOD, "enhanced authentication is not offered; use a password")
    client_id = body.text()
    will = _read_will(body, flags) if has_will else None
    user = body.text() if has_user else None
    password = body.binary() if has_password else None
    body.require_end("CONNECT")
    clean_start = bool(flags & 0x02)
    # Before 5.0 a session that is not clean never expires.
    expiry_s = properties.get(SESSION_EXPIRY, 0 if clean_start or level == V5 else 0xFFFFFFFF)
    packet_bytes_max = properties.get(PACKET_BYTES_MAX)
    assert isinstance(expiry_s, int)
    assert packet_bytes_max is None or isinstance(packet_bytes_max, int)
    return Connect(level, client_id, clean_start, keep_alive_s, user, password, will, expiry_s, packet_bytes_max)


def _read_will(body: Body, flags: int) -> Will:
    found, user = read_properties(body, OF_WILL)
    delay_s = found.get(WILL_DELAY, 0)
    assert isinstance(delay_s, int)
    topic = body.binary()
    check_topic(topic)
    payload = body.binary()
    if flags & 0x18 == 0x10:
        raise PacketError(Reason.QOS_NOT_SUPPORTED, "a will with QoS 2; QoS 1 is the highest here")
    return Will(topic, payload, bool(flags & 0x20), publish_properties(found, user), delay_s)


def _read_subscribe(body: Body) -> Subscribe:
    packet_id = _read_packet_id(body)
    read_properties(body, OF_SUBSCRIBE)
    filters = 0
    while not body.is_at_end:
        _read_filter(body)
        options = body.number(1)
        if options & (0xC0 if body.version == V5 else 0xFC) or options & 3 == 3 or options & 0x30 == 0x30:
            raise malformed(f"the options of a subscription are 0x{options:02x}")
        filters += 1
    return Subscribe(packet_id, _some(filters))


def _read_unsubscribe(body: Body) -> Unsubscribe:
    packet_id = _read_packet_id(body)
    read_properties(body, {})
    filters = 0
    while not body.is_at_end:
        _read_filter(body)
        filters += 1
    return Unsubscribe(packet_id, _some(filters))


def _read_filter(body: Body) -> None:
    if not body.text():
        raise malformed("an empty topic filter")


def _some(filters: int) -> int:
    if not filters:
        raise PacketError(Reason.PROTOCOL_ERROR, "no topic filter")
    return filters


def _read_packet_id(body: Body) -> int:
    packet_id = body.number(2)
    if not packet_id:
        raise malformed("packet identifier 0")
    return packet_id


def _read_ping(body: Body) -> PingRequest:
    body.require_end("PINGREQ")
    return PingRequest()


def _read_disconnect(body: Body) -> Disconnect:
    reason = 0
    properties: dict[int, object] = {}
    if body.version == V5 and not body.is_at_end:
        reason = body.number(1)
        if not body.is_at_end:
            properties, _ = read_properties(body, OF_DISCONNECT)
    body.require_end("DISCONNECT")
    expiry_s = properties.get(SESSION_EXPIRY)
    assert expiry_s is None or isinstance(expiry_s, int)
    return Disconnect(reason, expiry_s)


_READERS: dict[int, Callable[[Body], Packet]] = {
    _CONNECT: _read_connect,
    _SUBSCRIBE: _read_subscribe,
    _UNSUBSCRIBE: _read_unsubscribe,
    _PINGREQ: _read_ping,
    _DISCONNECT: _read_disconnect,
}
