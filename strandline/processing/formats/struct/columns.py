"""The values of binary records as columns: many records at a time, without Python for each record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.core.field_types import WHOLE_RANGES
from strandline.processing.formats.columns.read_columns import (
    Column,
    ColumnsAndMarks,
    Marks,
    as_doubles,
    holds_values,
    is_whole,
)
from strandline.processing.formats.record_fields import RecordField
from strandline.processing.formats.struct.layout import FLOATS, INTEGERS, Layout, Member

Block = npt.NDArray[np.uint8]
"""Bytes of records of equal size: one row for each record."""
_EXACT = 2**53
_SIGNED_MAX = np.uint64(2**63 - 1)
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint8).reshape(256, 2)


class Values(NamedTuple):
    """Values of one member of all records."""

    name: str
    kind: str
    """`whole`, `double`, `boolean`, or `string`."""
    values: npt.NDArray[np.generic]
    """Integers are int64, or uint64 if the member is `uint64`. Strings are bytes."""
    present: Marks


def values_of(block: Block, layout: Layout) -> Iterator[Values]:
    """Yield the values of each named member of the layout, in their order."""
    for member in layout.members:
        piece = block[:, member.at : member.at + member.width]
        if member.type in INTEGERS:
            yield from _integers(piece, member)
        elif member.type in FLOATS:
            order = ">" if member.is_big else "<"
            found = np.ascontiguousarray(piece).view(f"{order}f{member.width}")[:, 0].astype(np.float64)
            numbers = found if member.factors is None else found * float(member.factors[0]) + float(member.factors[1])
            yield Values(member.name, "double", numbers, np.isfinite(numbers))
        else:
            yield Values(member.name, "string", _texts(piece, member), np.ones(len(block), np.bool_))


def _integers(piece: Block, member: Member) -> Iterator[Values]:
    wide = np.zeros((len(piece), 8), np.uint8)
    wide[:, 8 - member.width :] = piece if member.is_big else piece[:, ::-1]
    raw = wide.view(">u8")[:, 0].astype(np.uint64)
    free = np.uint64(64 - 8 * member.width)
    is_signed = member.type.startswith("int")
    wholes: npt.NDArray[np.generic] = (raw << free).view(np.int64) >> free.astype(np.int64) if is_signed else raw
    if not is_signed and member.width < 8:
        wholes = raw.astype(np.int64)
    present = np.ones(len(raw), np.bool_) if member.missing is None else wholes != member.missing
    if member.name and member.factors is None:
        yield Values(member.name, "whole", wholes, present)
    elif member.name and member.factors is not None:
        yield Values(member.name, "double", _scaled(wholes, member), present)
    for bits in member.bits:
        chosen = (raw >> np.uint64(bits.first)) & np.uint64(2**bits.width - 1)
        everywhere = np.ones(len(raw), np.bool_)
        if bits.is_flag:
            yield Values(bits.name, "boolean", chosen == 1, everywhere)
        else:
            yield Values(bits.name, "whole", chosen if bits.width == 64 else chosen.astype(np.int64), everywhere)


def _scaled(wholes: npt.NDArray[np.generic], member: Member) -> npt.NDArray[np.float64]:
    """Return the numbers times the factor plus the summand: the double next to the decimal result, if integers are exact."""
    assert member.factors is not None
    scale, offset = map(Decimal, member.factors)
    places = max(0, *(-int(one.as_tuple().exponent) for one in (scale, offset)))
    divisor = 10**places
    factor, summand = int(scale * divisor), int(offset * divisor)
    if divisor < _EXACT and abs(factor) * 2 ** (8 * member.width) + abs(summand) < _EXACT:
        exact: npt.NDArray[np.float64] = (wholes.astype(np.int64) * factor + summand) / divisor
        return exact
    return wholes.astype(np.float64) * float(scale) + float(offset)


def _texts(piece: Block, member: Member) -> npt.NDArray[np.generic]:
    if member.type == "bytes":
        return np.ascontiguousarray(_HEX[piece].reshape(len(piece), 2 * member.width)).view(f"S{2 * member.width}")[
            :, 0
        ]
    ended = np.logical_and.accumulate(piece != 0, axis=1)
    return np.ascontiguousarray(np.where(ended, piece, 0).astype(np.uint8)).view(f"S{member.width}")[:, 0]


class StructColumns:
    """Reads the records of one stream as columns."""

    def __init__(self, layout: Layout, fields: Sequence[RecordField]) -> None:
        self._layout = layout
        self._fields: dict[str, list[RecordField]] = {}
        for field in fields:
            self._fields.setdefault(str(field.path[0]) if field.path else field.name, []).append(field)
        self._can_read = all(holds_values(field) and not field.text and _has_name(field) for field in fields)

    def columns(
        self, values: Sequence[bytes | None], _sources: Sequence[bytes | None] = (None,)
    ) -> ColumnsAndMarks | None:
        """See `ColumnReader`."""
        if not self._can_read or None in values:
            return None
        block, fits = block_of(values, self._layout)
        found: dict[str, Column] = {}
        for one in values_of(block, self._layout):
            for field in self._fields.get(one.name, ()):
                column = _column(field, one, fits)
                if column is None:
                    return None
                found[field.name] = column
        return found, fits


def block_of(values: Sequence[bytes | None], layout: Layout) -> tuple[Block, Marks]:
    """Return the bytes of the records, and a mask of those that fit the layout. The bytes of others are zero."""
    size, count = layout.size, len(values)
    sizes = np.fromiter((-1 if value is None else len(value) for value in values), np.int64, count)
    fits = sizes >= size if layout.ignores_longer else sizes == size
    if np.all(sizes == size):
        return np.frombuffer(b"".join(values), np.uint8).reshape(count, size), fits  # type: ignore[arg-type]
    block = np.zeros((count, size), np.uint8)
    some = b"".join(value[:size] for value, is_good in zip(values, fits, strict=True) if is_good and value is not None)
    block[fits] = np.frombuffer(some, np.uint8).reshape(-1, size)
    return block, fits


def _has_name(field: RecordField) -> bool:
    return field.path is None or (len(field.path) == 1 and isinstance(field.path[0], str))


def _column(field: RecordField, one: Values, fits: Marks) -> Column | None:
    """Return the values as a column of the field, and remove records from `fits` whose value is not sure to fit. None if the
    values have another type."""
    if one.kind == "whole":
        is_small = one.values <= _SIGNED_MAX if one.values.dtype == np.uint64 else np.ones(len(fits), np.bool_)
        wholes = one.values.astype(np.int64)
        if field.type == "double":
            doubles, are_sure = as_doubles(wholes)
            fits &= (is_small & are_sure) | ~one.present
            return Column(doubles, one.present)
        if not is_whole(field):
            return None
        first, last = WHOLE_RANGES.get(field.type, WHOLE_RANGES["long"])
        fits &= (is_small & (wholes >= first) & (wholes <= last)) | ~one.present
        return Column(wholes, one.present)
    if one.kind == "string" and field.type == "string":
        is_ascii = (one.values.view(np.uint8).reshape(len(fits), -1) < 0x80).all(axis=1)
        fits &= is_ascii
        texts = pa.array(np.where(is_ascii, one.values, b""), pa.binary()).cast(pa.string())
        return Column(texts, one.present)
    return Column(one.values, one.present) if one.kind == field.type else None
