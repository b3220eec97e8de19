"""Maps in MessagePack and CBOR (RFC 8949) to JSON objects.

Byte strings become base64 text, CBOR's times ISO 8601 text. What JSON can't hold (an infinite number) becomes null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

import msgspec

from strandline.core.record_headers import REASON_DECODE, REASON_SCHEMA
from strandline.processing.formats.columns.packed_columns import PackedColumns, cbor_coding, msgpack_coding
from strandline.processing.formats.record_fields import JsonText, RecordField, Rejection, in_blocks


class PackedMaps:
    """Reads the maps of one stream. `unpack` returns what the bytes hold, and raises ValueError where they hold nothing whole."""

    def __init__(self, name: str, unpack: Callable[[bytes], Any], quick: PackedColumns) -> None:
        self._name = name
        self._unpack = unpack
        self.columns = quick.columns

    @classmethod
    def of_msgpack(cls, fields: Sequence[RecordField] = ()) -> PackedMaps:
        return cls("MessagePack", msgspec.msgpack.Decoder().decode, PackedColumns(msgpack_coding(), fields))

    @classmethod
    def of_cbor(cls, fields: Sequence[RecordField] = ()) -> PackedMaps:
        return cls("CBOR", _unpack_cbor, PackedColumns(cbor_coding(), fields))

    def objects(self, values: Sequence[bytes | None], _sources: Sequence[bytes | None]) -> list[JsonText]:
        """Each map as a JSON object."""
        return in_blocks(self._at_once, self._object, values)

    def _at_once(self, values: Sequence[bytes | None]) -> list[bytes] | None:
        """The objects of values that are maps all; None if any is not."""
        try:
            found = list(map(self._unpack, values))  # type: ignore[arg-type]  # None raises TypeError
            return list(map(msgspec.json.encode, found)) if set(map(type, found)) == {dict} else None
        except (ValueError, TypeError, RecursionError):
            return None

    def _object(self, value: bytes | None) -> JsonText:
        if value is None:
            return None
        try:
            found = self._unpack(value)
        except (ValueError, RecursionError) as error:
            return Rejection(REASON_DECODE, f"not {self._name}: {error}")
        if not isinstance(found, dict):
            return Rejection(REASON_SCHEMA, f"expected a map, got {type(found).__name__}")
        try:
            return msgspec.json.encode(found)
        except (TypeError, ValueError, RecursionError) as error:
            return Rejection(REASON_DECODE, f"the map holds what no field can: {error}")


def _unpack_cbor(value: bytes) -> Any:
    import cbor2  # only where a stream needs it: each Python worker imports this module

    stream = BytesIO(value)
    try:
        found = cbor2.CBORDecoder(stream).decode()
    except cbor2.CBORError as error:
        raise ValueError(error) from error
    if stream.tell() < len(value):
        raise ValueError(f"the map ends at byte {stream.tell()}, but more follows")
    return found
