"""Signed datagrams. An HMAC (RFC 2104) with a key derived from the sender's token proves the sender. Pure.

- Bytes 0-3: SLS1.
- Bytes 4-11: the id of the token `sl_ID_SECRET`: its 16 hexadecimal digits as 8 bytes.
- Bytes 12-19: the counter, unsigned, big-endian: microseconds since 1970, higher in each datagram.
- Bytes 20-35: the tag: the first 16 bytes of HMAC-SHA-256(K, bytes 0-19, name of the stream, a zero byte, payload).
- Bytes 36-: the payload: the datagram without a signature.

K is the SHA-256 of SECRET, 32 bytes. The ledger stores it for each token anyway, so a gateway needs no second list of keys. The
tag covers the name of the stream, so a datagram can't be redirected to another stream. It is truncated to 128 bits, as in RFC
4868.
"""

from __future__ import annotations

import hmac
from typing import NamedTuple

MARK = b"SLS1"
HEAD_BYTES = 20
"""Number of bytes that the tag covers before the name of the stream."""
TAG_BYTES = 16
SIGNATURE_BYTES = HEAD_BYTES + TAG_BYTES
COUNTER_MAX = 2**64 - 1


class Signed(NamedTuple):
    """Parts of a signed datagram. They are unverified until `is_signed_by` returns True."""

    token_id: str
    counter: int
    datagram: bytes

    @property
    def payload(self) -> bytes:
        return self.datagram[SIGNATURE_BYTES:]


def sign(payload: bytes, *, stream: str, token_id: str, key: bytes, counter: int) -> bytes:
    """Return the datagram that carries the payload to the stream."""
    head = MARK + bytes.fromhex(token_id) + counter.to_bytes(8, "big")
    return head + _tag(key, head, stream.encode(), payload) + payload


def read_signed(datagram: bytes) -> Signed | None:
    """Return the parts of a datagram. None if it has no signature."""
    if len(datagram) < SIGNATURE_BYTES or not datagram.startswith(MARK):
        return None
    return Signed(datagram[4:12].hex(), int.from_bytes(datagram[12:HEAD_BYTES], "big"), datagram)


def is_signed_by(signed: Signed, stream: bytes, key: bytes) -> bool:
    """Return True if the holder of the key signed the datagram for this stream. Compares in constant time."""
    datagram = signed.datagram
    expected = _tag(key, datagram[:HEAD_BYTES], stream, datagram[SIGNATURE_BYTES:])
    return hmac.compare_digest(expected, datagram[HEAD_BYTES:SIGNATURE_BYTES])


def _tag(key: bytes, head: bytes, stream: bytes, payload: bytes) -> bytes:
    return hmac.digest(key, b"%b%b\0%b" % (head, stream, payload), "sha256")[:TAG_BYTES]
