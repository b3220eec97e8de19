"""A record's Kafka key, found in the record. Gateways and result streams assign equal keys to the same partition."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import msgspec

Record = tuple[bytes, bytes | None]
"""The value, which is the sender's bytes, and the Kafka key."""


@lru_cache(maxsize=1_000)
def key_finder(field: str) -> Callable[[bytes], bytes | None]:
    """Return a function that finds a record's Kafka key: the value of that top-level field of a JSON object.

    The key of a string is its text (escapes resolved, UTF-8); the key of a number or a boolean is the sender's bytes. A
    record has no key if it isn't a JSON object, or if its field is missing, null, an object, or an array. The record
    itself is not changed.
    """
    # Only this field is decoded, and it keeps the sender's bytes.
    shape = msgspec.defstruct("Keyed", [("key", msgspec.Raw, msgspec.field(default=msgspec.Raw(b""), name=field))])
    read = msgspec.json.Decoder(shape).decode
    read_text = msgspec.json.Decoder(str).decode

    def find_key(value: bytes) -> bytes | None:
        try:
            raw = bytes(read(value).key)  # type: ignore[attr-defined]
            if raw[:1] == b'"':
                return read_text(raw).encode()
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None  # it becomes a dead letter, whatever its partition
        return None if raw[:1] in (b"", b"n", b"{", b"[") else raw

    return find_key
