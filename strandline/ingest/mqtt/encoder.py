"""Encodes the MQTT packets that a server sends if it publishes nothing.

Formats: OASIS MQTT 3.1.1 (29 October 2014) and 5.0 (7 March 2019).
"""

from __future__ import annotations

from strandline.ingest.mqtt.decoder import Subscribe, Unsubscribe
from strandline.ingest.mqtt.wire import V5, Reason

_RETURN_CODES = {
    Reason.UNSUPPORTED_PROTOCOL_VERSION: 1,
    Reason.CLIENT_IDENTIFIER_NOT_VALID: 2,
    Reason.SERVER_UNAVAILABLE: 3,
    Reason.SERVER_BUSY: 3,
    Reason.CONNECTION_RATE_EXCEEDED: 3,
    Reason.BAD_USER_NAME_OR_PASSWORD: 4,
}
"""Return codes in a CONNACK of MQTT 3.1.1. For other reasons it has none: then the connection is closed without an
answer."""

PINGRESP = b"\xd0\x00"


def connack(
    version: int,
    reason: Reason,
    *,
    is_session_present: bool = False,
    properties: bytes = b"",
) -> bytes:
    """Return the answer to CONNECT.

    Empty if the version has none for this reason. The functions below create `properties`.
    """
    if version == V5:
        return _packet(0x20, bytes((is_session_present, reason)) + _varint(len(properties)) + properties)
    if reason is Reason.SUCCESS:
        return _packet(0x20, bytes((is_session_present, 0)))
    return _packet(0x20, bytes((0, _RETURN_CODES[reason]))) if reason in _RETURN_CODES else b""


def connack_properties(
    *,
    receive_maximum: int,
    packet_bytes_max: int,
    session_expiry_s: int | None,
    client_id: str | None,
    keep_alive_s: int | None,
) -> bytes:
    """Return the properties of a server that accepts QoS 0 and 1, and no subscriptions.

    Args: session_expiry_s, client_id, keep_alive_s: None for the value that the client requested.
    """
    parts = [
        b"\x21" + receive_maximum.to_bytes(2, "big"),
        b"\x24\x01",  # maximum QoS
        b"\x27" + packet_bytes_max.to_bytes(4, "big"),
        b"\x28\x00\x29\x00\x2a\x00",  # no wildcard subscriptions, subscription identifiers, shared subscriptions
    ]
    if session_expiry_s is not None:
        parts.append(b"\x11" + session_expiry_s.to_bytes(4, "big"))
    if client_id is not None:
        parts.append(b"\x12" + _text(client_id))
    if keep_alive_s is not None:
        parts.append(b"\x13" + keep_alive_s.to_bytes(2, "big"))
    return b"".join(parts)


def reason_string(text: str) -> bytes:
    """Return a property with a message for people."""
    return b"\x1f" + _text(text)


def puback(packet_id: int, reason: Reason = Reason.SUCCESS) -> bytes:
    """Return a PUBACK. Only MQTT 5.0 has reasons other than success."""
    if reason is Reason.SUCCESS:
        return b"\x40\x02" + packet_id.to_bytes(2, "big")
    return b"\x40\x03" + packet_id.to_bytes(2, "big") + bytes((reason,))


def suback_refused(version: int, subscribe: Subscribe) -> bytes:
    """Refuse every subscription: this server publishes nothing."""
    if version == V5:
        codes = bytes((Reason.IMPLEMENTATION_SPECIFIC_ERROR,)) * subscribe.filters
        return _packet(0x90, subscribe.packet_id.to_bytes(2, "big") + b"\x00" + codes)
    return _packet(0x90, subscribe.packet_id.to_bytes(2, "big") + b"\x80" * subscribe.filters)


def unsuback(version: int, unsubscribe: Unsubscribe) -> bytes:
    """Answer that no such subscription existed."""
    body = unsubscribe.packet_id.to_bytes(2, "big")
    if version == V5:
        body += b"\x00" + bytes((Reason.NO_SUBSCRIPTION_EXISTED,)) * unsubscribe.filters
    return _packet(0xB0, body)


def disconnect(version: int, reason: Reason, text: str, packet_bytes_max: int | None = None) -> bytes:
    """Return the packet that closes the connection with a reason. Empty in 3.1.1, which has no such packet.

    A text that makes the packet larger than `packet_bytes_max` is left out.
    """
    if version != V5:
        return b""
    properties = reason_string(text)
    whole = _packet(0xE0, bytes((reason,)) + _varint(len(properties)) + properties)
    if packet_bytes_max is not None and len(whole) > packet_bytes_max:
        return _packet(0xE0, bytes((reason,)))
    return whole


def _packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _text(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(2, "big") + raw
