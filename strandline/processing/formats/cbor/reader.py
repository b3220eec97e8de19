"""Converts CBOR maps (RFC 8949) to JSON objects.

Times become ISO 8601 strings. `undefined` becomes null. A tag without a meaning here, or one that doesn't fit the value that it
encloses, leaves the value unchanged. A reference to an earlier value (a shared value, a repeated string) is null, because a few
bytes could expand to any amount of text.
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

from strandline.processing.formats.columns.packed_columns import PackedColumns, cbor_coding
from strandline.processing.formats.packed_maps import PackedMaps
from strandline.processing.formats.record_fields import RecordField

_BIG_NUMBER_BYTES_MAX = 64
"""Maximum number of bytes of an integer. A longer one is null: no field can hold it, and formatting costs the square of its
length."""
_EXPONENT_MAX = 1_100
"""Maximum absolute value of an exponent. Other numbers are null: they are larger or smaller than all doubles."""
_DAY_0 = date(1970, 1, 1).toordinal()


def cbor_maps(fields: Sequence[RecordField] = ()) -> PackedMaps:
    """Return a reader of the maps of a stream with these fields."""
    return PackedMaps("CBOR", _unpack, PackedColumns(cbor_coding(), fields))


def _whole(value: Any) -> int | None:
    if not isinstance(value, bytes):
        raise TypeError("the bytes of a number are not a byte string")
    return int.from_bytes(value) if len(value) <= _BIG_NUMBER_BYTES_MAX else None


def _below_zero(value: Any) -> int | None:
    return None if (number := _whole(value)) is None else -1 - number


def _scaled(value: Any, base: int) -> msgspec.Raw | None:
    """Return the number of an exponent and an integer, as JSON. msgspec would write a NaN or infinite Decimal without quotes."""
    match value:
        case [int(exponent), int(whole)]:
            if abs(exponent) > _EXPONENT_MAX:
                return None
            if exponent >= 0:
                number = Decimal(whole * base**exponent)
            else:
                number = Decimal(f"{whole}E{exponent}") if base == 10 else whole * Decimal(base) ** exponent
            return msgspec.Raw(str(number)) if isfinite(float(number)) else None
    raise TypeError("not an exponent and an integer")


def _uuid(value: Any) -> UUID:
    if not isinstance(value, bytes):
        raise TypeError("the bytes of a UUID are not a byte string")
    return UUID(bytes=value)


def _if_fit(read: Callable[[Any], Any]) -> Callable[[Any, bool], Any]:
    """Return a decoder: the result of `read` for the enclosed value, or the value unchanged if it doesn't fit the tag."""

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
"""Decoders that replace those of cbor2, which refuses a record if a value doesn't fit its tag. Tags 0 and 1004 enclose the string
of a time, which is read like any other time. The only remaining tag of cbor2 is 55799, which has no meaning here.
"""


def _unpack(value: bytes) -> Any:
    import cbor2  # only imported if a stream needs it: each Python worker imports this module

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
