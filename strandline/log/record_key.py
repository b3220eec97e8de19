"""A record's Kafka key: where it is found in the record. Gateways and result streams place equal keys alike."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import msgspec

Record = tuple[bytes, bytes | None]
"""The value, which is the sender's bytes, and the Kafka key."""


@lru_cache(maxsize=1_000)
def key_finder(field: str) -> Callable[[bytes], bytes | None]:
    """Return a function that finds a record's Kafka key: the value of that top-level field of a JSON object.

    A string's key is its text (escapes resolved, UTF-8), a number's or a boolean's is what the sender wrote. A record
    that is not a JSON object, or whose field is absent, null, an object or an array, has no key. The record itself is
    not changed.
    """
    # The one field is all that is decoded, and it stays as the sender wrote it.
    shape = msgspec.defstruct("Keyed", [("key", msgspec.Raw, msgspec.field(default=msgspec.Raw(b""), name=field))])
    read = msgspec.json.Decoder(shape).decode
    read_text = msgspec.json.Decoder(str).decode

    def find_key(value: bytes) -> bytes | None:
        try:
            raw = bytes(read(value).key)  # type: ignore[attr-defined]
            if raw[:1] == b'"':
                return read_text(raw).encode()
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None  # it becomes a dead letter, whichever partition holds it
        return None if raw[:1] in (b"", b"n", b"{", b"[") else raw

    return find_key
