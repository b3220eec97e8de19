"""Packed maps to JSON objects.

Byte strings become base64 strings. What JSON can't hold, for example an infinite number, becomes null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from strandline.core.record_headers import REASON_DECODE, REASON_SCHEMA
from strandline.processing.formats.columns.packed_columns import PackedColumns
from strandline.processing.formats.record_fields import JsonText, Rejection, in_blocks


class PackedMaps:
    """Reads the maps of one stream. `unpack` returns what the bytes hold, and raises ValueError where they hold nothing whole."""

    def __init__(self, name: str, unpack: Callable[[bytes], Any], quick: PackedColumns) -> None:
        self._name = name
        self._unpack = unpack
        self.columns = quick.columns

    def objects(self, values: Sequence[bytes | None], _sources: Sequence[bytes | None]) -> list[JsonText]:
        """Each map as a JSON object."""
        return in_blocks(self._at_once, self._object, values)

    def _at_once(self, values: Sequence[bytes | None]) -> list[bytes] | None:
        """The objects of values that are maps all; None if any is not."""
        try:
            found = list(map(self._unpack, values))  # type: ignore[arg-type]  # None raises TypeError
            are_maps = all(issubclass(kind, Mapping) for kind in set(map(type, found)))
            return list(map(_encode, found)) if are_maps else None
        except (ValueError, TypeError, RecursionError):
            return None

    def _object(self, value: bytes | None) -> JsonText:
        if value is None:
            return None
        try:
            found = self._unpack(value)
        except (ValueError, RecursionError) as error:
            return Rejection(REASON_DECODE, f"not {self._name}: {error}")
        if not isinstance(found, Mapping):  # a map inside a tag is no `dict`
            return Rejection(REASON_SCHEMA, f"expected a map, got {type(found).__name__}")
        try:
            return _encode(found)
        except (TypeError, ValueError, RecursionError) as error:
            return Rejection(REASON_DECODE, f"the map holds what no field can: {error}")


def _plain(value: Any) -> Any:
    """What JSON can hold of an extension of MessagePack, of a map inside a tag of CBOR, or of one of CBOR's simple values."""
    import cbor2  # only where a stream needs it, as below

    if value is None:  # JSON has a null, but not as a name
        raise TypeError("a name in it is neither text nor number")
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, msgspec.msgpack.Ext):
        return value.data
    if value is cbor2.undefined or isinstance(value, cbor2.CBORSimpleValue):
        return None
    raise TypeError(f"a {type(value).__name__} is nothing that JSON has")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
