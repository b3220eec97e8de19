"""Maps in MessagePack and CBOR (RFC 8949) to JSON objects.

Byte strings and MessagePack's extensions become base64 text, CBOR's times ISO 8601 text. What JSON can't hold (an infinite
number, `undefined`) becomes null. A tag of CBOR that means nothing here, or that what it encloses doesn't fit, leaves that as
it is, and what refers to something before it (a shared value, a repeated text) is null: a few bytes could be any amount of text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from math import isfinite
from typing import Any
from uuid import UUID

import msgspec

from strandline.core.record_headers import REASON_DECODE, REASON_SCHEMA
from strandline.processing.formats.columns.packed_columns import PackedColumns, cbor_coding, msgpack_coding
from strandline.processing.formats.record_fields import JsonText, RecordField, Rejection, in_blocks

_BIG_NUMBER_BYTES_MAX = 64
"""A whole number of more bytes is null: no field holds it, and to write it costs the square of its length."""
_EXPONENT_MAX = 1_100
"""A number with a greater exponent, or a less one than with a minus, is null: no double is as large, or as small."""
_DAY_0 = date(1970, 1, 1).toordinal()


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


def _whole(value: Any) -> int | None:
    if not isinstance(value, bytes):
        raise TypeError("the bytes of a number are no byte string")
    return int.from_bytes(value) if len(value) <= _BIG_NUMBER_BYTES_MAX else None


def _below_zero(value: Any) -> int | None:
    return None if (number := _whole(value)) is None else -1 - number


def _scaled(value: Any, base: int) -> msgspec.Raw | None:
    """The number of an exponent and a whole number, as JSON: msgspec would write a Decimal that is a name without quotes."""
    match value:
        case [int(exponent), int(whole)]:
            if abs(exponent) > _EXPONENT_MAX:
                return None
            if exponent >= 0:
                number = Decimal(whole * base**exponent)
            else:
                number = Decimal(f"{whole}E{exponent}") if base == 10 else whole * Decimal(base) ** exponent
            return msgspec.Raw(str(number)) if isfinite(float(number)) else None
    raise TypeError("not an exponent and a whole number")


def _uuid(value: Any) -> UUID:
    if not isinstance(value, bytes):
        raise TypeError("the bytes of a UUID are no byte string")
    return UUID(bytes=value)


def _if_fit(read: Callable[[Any], Any]) -> Callable[[Any, bool], Any]:
    """What `read` makes of what a tag encloses; what it encloses as it is, where the two don't fit together."""

    def decode(value: Any, _is_key: bool) -> Any:
        try:
            return read(value)
        except (TypeError, ValueError, ArithmeticError, OSError):
            return value

    return decode


def _enclosed(value: Any, _is_key: bool) -> Any:
    return value


_CBOR_TAGS: Mapping[int, Callable[[Any, bool], Any]] = {
    1: _if_fit(lambda value: datetime.fromtimestamp(value, UTC)),
    2: _if_fit(_whole),
    3: _if_fit(_below_zero),
    4: _if_fit(lambda value: _scaled(value, 10)),
    5: _if_fit(lambda value: _scaled(value, 2)),
    37: _if_fit(_uuid),
    100: _if_fit(lambda value: date.fromordinal(_DAY_0 + value)),
    **dict.fromkeys((25, 29), lambda *_: None),
    **dict.fromkeys((0, 28, 30, 35, 36, 52, 54, 256, 258, 260, 261, 1004, 43000), _enclosed),
}
"""In place of what cbor2 makes of these tags: it refuses the record for one that doesn't fit. Tags 0 and 1004 enclose the text of
a time, which is read as any other text of one. Of cbor2's own only 55799 is left, which means nothing here.
"""


def _unpack_cbor(value: bytes) -> Any:
    import cbor2  # only where a stream needs it: each Python worker imports this module

    stream = BytesIO(value)
    try:
        found = cbor2.CBORDecoder(
            stream, semantic_decoders=_CBOR_TAGS, tag_hook=lambda tag, _is_key: tag.value
        ).decode()
    except cbor2.CBORError as error:
        raise ValueError(error) from error
    if stream.tell() < len(value):
        raise ValueError(f"the map ends at byte {stream.tell()}, but more follows")
    return found
