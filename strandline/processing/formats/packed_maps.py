"""Converts packed maps to JSON objects.

Byte strings become base64 strings. Values that JSON can't represent, such as infinity, become null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from strandline.core.record_headers import REASON_DECODE, REASON_SCHEMA
from strandline.processing.formats.columns.packed_columns import PackedColumns
from strandline.processing.formats.record_fields import JsonText, Rejection, in_blocks


class PackedMaps:
    """Reads the maps of one stream. `unpack` returns the value of the bytes. It raises ValueError if they aren't exactly one
    value."""

    def __init__(self, name: str, unpack: Callable[[bytes], Any], quick: PackedColumns) -> None:
        self._name = name
        self._unpack = unpack
        self.columns = quick.columns

    def objects(self, values: Sequence[bytes | None], _sources: Sequence[bytes | None]) -> list[JsonText]:
        """Return each map as a JSON object."""
        return in_blocks(self._at_once, self._object, values)

    def _at_once(self, values: Sequence[bytes | None]) -> list[bytes] | None:
        """Return the objects of values that are all maps. None if any is not."""
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
        if not isinstance(found, Mapping):  # a map inside a tag isn't a `dict`
            return Rejection(REASON_SCHEMA, f"expected a map, got {type(found).__name__}")
        try:
            return _encode(found)
        except (TypeError, ValueError, RecursionError) as error:
            return Rejection(REASON_DECODE, f"the map contains a value that no field can have: {error}")


def _plain(value: Any) -> Any:
    """Return an extension of MessagePack, a map inside a CBOR tag, or a simple value of CBOR in a form for JSON."""
    import cbor2  # only imported if a stream needs it

    if value is None:  # JSON has null, but not as a name
        raise TypeError("a map has null as a name; names must be strings or numbers")
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, msgspec.msgpack.Ext):
        return value.data
    if value is cbor2.undefined or isinstance(value, cbor2.CBORSimpleValue):
        return None
    raise TypeError(f"JSON can't represent a {type(value).__name__}")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
