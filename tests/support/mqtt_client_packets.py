"""Packets of an MQTT client, written for the tests from the OASIS specifications: nothing of the platform's codec is
used."""

from __future__ import annotations

import struct


def varint(value: int) -> bytes:
    """1.5.5 of 5.0, 2.2.3 of 3.1.1."""
    encoded = b""
    while True:
        value, digit = divmod(value, 128)
        encoded += bytes((digit | (0x80 if value else 0),))
        if not value:
            return encoded


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(">H", len(raw)) + raw


def packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + varint(len(body)) + body


def properties(version: int, content: bytes = b"") -> bytes:
    return varint(len(content)) + content if version == 5 else b""


def user_property(name: str, value: str) -> bytes:
    return b"\x26" + text(name) + text(value)


def connect(
    version: int,
    client_id: str | bytes = "c",
    *,
    flags: int = 0x02,
    keep_alive_s: int = 60,
    content: bytes = b"",
    will: tuple[str, bytes, bytes] | None = None,
    user: str | None = None,
    password: bytes | None = None,
) -> bytes:
    """`flags`: without those for will, user, and password, which are derived; a will's QoS is in them."""
    body = text(client_id)
    if will is not None:
        flags |= 0x04
        body += properties(version, will[2]) + text(will[0]) + text(will[1])
    if user is not None:
        flags |= 0x80
        body += text(user)
    if password is not None:
        flags |= 0x40
        body += text(password)
    head = text("MQTT") + struct.pack(">BBH", version, flags, keep_alive_s)
    return packet(0x10, head + properties(version, content) + body)


def publish(
    version: int,
    topic: str | bytes,
    payload: bytes = b"",
    *,
    qos: int = 1,
    packet_id: int = 1,
    retain: bool = False,
    dup: bool = False,
    content: bytes = b"",
) -> bytes:
    identifier = struct.pack(">H", packet_id) if qos else b""
    first = 0x30 | dup << 3 | qos << 1 | retain
    return packet(first, text(topic) + identifier + properties(version, content) + payload)


def subscribe(version: int, packet_id: int, filters: list[str], options: int = 0) -> bytes:
    asked = b"".join(text(one) + bytes((options,)) for one in filters)
    return packet(0x82, struct.pack(">H", packet_id) + properties(version) + asked)


def unsubscribe(version: int, packet_id: int, filters: list[str]) -> bytes:
    return packet(0xA2, struct.pack(">H", packet_id) + properties(version) + b"".join(map(text, filters)))


def disconnect(version: int, reason: int = 0, content: bytes | None = None) -> bytes:
    if version != 5 or (not reason and content is None):
        return b"\xe0\x00"
    return packet(0xE0, bytes((reason,)) + (properties(5, content) if content is not None else b""))


PINGREQ = b"\xc0\x00"
