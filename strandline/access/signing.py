"""Signed datagrams: who sent one is proven by an HMAC (RFC 2104) under a key that follows from the sender's token. Pure.

    bytes 0-3     SLS1
    bytes 4-11    the ID of the token `sl_ID_SECRET`: its 16 hexadecimal digits as 8 bytes
    bytes 12-19   the counter, unsigned, the most significant byte first: microseconds since 1970, greater with each datagram
    bytes 20-35   the tag: the first 16 bytes of HMAC-SHA-256(K, bytes 0-19, name of the stream, a zero byte, payload)
    bytes 36-     the payload: what the datagram would be without a signature

K is the SHA-256 of SECRET, 32 bytes: what the ledger keeps of a token anyway, so a gateway needs no second list of keys. The
tag covers the stream's name, so a datagram can't be turned to another stream; it is cut to 128 bits, as RFC 4868 does it.
"""

from __future__ import annotations

import hmac
from typing import NamedTuple

MARK = b"SLS1"
HEAD_BYTES = 20
"""What the tag covers before the stream's name."""
TAG_BYTES = 16
SIGNATURE_BYTES = HEAD_BYTES + TAG_BYTES
COUNTER_MAX = 2**64 - 1


class Signed(NamedTuple):
    """What a datagram says of itself; `is_signed_by` tells whether that is so."""

    token_id: str
    counter: int
    datagram: bytes

    @property
    def payload(self) -> bytes:
        return self.datagram[SIGNATURE_BYTES:]


def sign(payload: bytes, *, stream: str, token_id: str, key: bytes, counter: int) -> bytes:
    """The datagram that carries the payload to the stream."""
    head = MARK + bytes.fromhex(token_id) + counter.to_bytes(8, "big")
    return head + _tag(key, head, stream.encode(), payload) + payload


def read_signed(datagram: bytes) -> Signed | None:
    """The parts of a datagram; None for one without a signature."""
    if len(datagram) < SIGNATURE_BYTES or not datagram.startswith(MARK):
        return None
    return Signed(datagram[4:12].hex(), int.from_bytes(datagram[12:HEAD_BYTES], "big"), datagram)


def is_signed_by(signed: Signed, stream: bytes, key: bytes) -> bool:
    """Whether the holder of the key signed it for this stream. Takes as long for a nearly right tag as for any other."""
    datagram = signed.datagram
    expected = _tag(key, datagram[:HEAD_BYTES], stream, datagram[SIGNATURE_BYTES:])
    return hmac.compare_digest(expected, datagram[HEAD_BYTES:SIGNATURE_BYTES])


def _tag(key: bytes, head: bytes, stream: bytes, payload: bytes) -> bytes:
    return hmac.digest(key, b"%b%b\0%b" % (head, stream, payload), "sha256")[:TAG_BYTES]
