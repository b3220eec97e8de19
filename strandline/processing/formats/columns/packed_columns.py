"""Flat maps in MessagePack and CBOR as columns. All records have the same names in the same order, with numbers, strings,
booleans, and nulls.

In both formats, each value begins with a byte that contains its kind and its length. The tables here have the meaning of each
byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from strandline.processing.formats.columns.byte_walk import ByteScanner
from strandline.processing.formats.columns.read_columns import (
    Column,
    ColumnsAndMarks,
    as_doubles,
    can_be_read,
    is_whole,
)
from strandline.processing.formats.record_fields import RecordField

_OTHER, _COUNT, _BELOW_ZERO, _SIGNED, _FLOAT, _DOUBLE, _TEXT, _NULL, _FALSE, _TRUE, _MAP = range(11)
"""Kinds of first bytes. `_COUNT`: a number from 0. `_BELOW_ZERO`: -1 minus such a number."""
_WIDTHS = (1, 2, 4, 8)


@dataclass(frozen=True)
class _Coding:
    """For each first byte its kind, the number of bytes of the number that follows, and the number that the byte itself
    contains."""

    kinds: npt.NDArray[np.uint8]
    widths: npt.NDArray[np.int64]
    own: npt.NDArray[np.uint64]


def _coding(ranges: Sequence[tuple[int, int, int]], wide: Sequence[tuple[int, int, int]]) -> _Coding:
    """Return the coding with these bytes. `ranges`: (first byte, count, kind) of bytes that contain a number: their distance
    from the first byte. `wide`: (byte, kind, number of bytes of the number that follows)."""
    kinds, widths, own = np.zeros(256, np.uint8), np.zeros(256, np.int64), np.zeros(256, np.uint64)
    for first, count, kind in ranges:
        kinds[first : first + count] = kind
        own[first : first + count] = np.arange(count)
    for byte, kind, width in wide:
        kinds[byte], widths[byte] = kind, width
    return _Coding(kinds, widths, own)


@cache
def msgpack_coding() -> _Coding:
    """Return the coding of MessagePack. Bytes, arrays, and extensions are left to other readers."""
    numbers = [(0xCC + at, _COUNT, width) for at, width in enumerate(_WIDTHS)]
    numbers += [(0xD0 + at, _SIGNED, width) for at, width in enumerate(_WIDTHS)]
    texts = [(0xD9 + at, _TEXT, width) for at, width in enumerate(_WIDTHS[:3])]
    plain = [(0xC0, _NULL, 0), (0xC2, _FALSE, 0), (0xC3, _TRUE, 0), (0xCA, _FLOAT, 4), (0xCB, _DOUBLE, 8)]
    coding = _coding([(0x00, 128, _COUNT), (0x80, 16, _MAP), (0xA0, 32, _TEXT)], [*numbers, *texts, *plain])
    coding.kinds[0xE0:], coding.own[0xE0:] = _BELOW_ZERO, np.arange(31, -1, -1)
    return coding


@cache
def cbor_coding() -> _Coding:
    """Return the coding of RFC 8949. Values of indefinite length, tags, bytes, arrays, and half floats are left to other
    readers."""
    majors = {0x00: _COUNT, 0x20: _BELOW_ZERO, 0x60: _TEXT}
    wide = [(first + 24 + at, kind, width) for first, kind in majors.items() for at, width in enumerate(_WIDTHS)]
    plain = [(0xF4, _FALSE, 0), (0xF5, _TRUE, 0), (0xF6, _NULL, 0), (0xFA, _FLOAT, 4), (0xFB, _DOUBLE, 8)]
    return _coding([(first, 24, kind) for first, kind in [*majors.items(), (0xA0, _MAP)]], [*wide, *plain])


class PackedColumns:
    """Reads the maps of one stream."""

    def __init__(self, coding: _Coding, fields: Sequence[RecordField]) -> None:
        self._coding = coding
        self._fields = {field.name: field for field in fields} if all(map(can_be_read, fields)) else None

    def columns(
        self, values: Sequence[bytes | None], _sources: Sequence[bytes | None] = (None,)
    ) -> ColumnsAndMarks | None:
        """See `ColumnReader`. Reads the maps with the names of the first map."""
        walk = ByteScanner(values)
        model = walk.first_fit()
        if self._fields is None or model is None:
            return None
        head = walk.bytes_at(int(walk.at[model]), 1)
        if self._coding.kinds[head[0]] != _MAP:
            return None
        walk.fits &= walk.is_next(head)
        walk.skip(1)
        columns: dict[str, Column] = {}
        names = set[bytes]()
        for _ in range(int(self._coding.own[head[0]])):
            name = self._name_at(walk, int(walk.at[model]))
            if name is None or name in names:
                return None
            names.add(name)
            walk.fits &= walk.is_next(name)
            walk.skip(len(name))
            field = self._fields.get(name[1:].decode(errors="replace"))
            column = self._read(walk, field)
            if field is not None:
                columns[field.name] = column
        walk.end()
        return columns, walk.fits

    def _name_at(self, walk: ByteScanner, at: int) -> bytes | None:
        """Return the name at this position with its first byte. None if it is a long name, or not a name."""
        (head,) = walk.bytes_at(at, 1)
        if self._coding.kinds[head] != _TEXT or self._coding.widths[head]:
            return None
        name = walk.bytes_at(at, 1 + int(self._coding.own[head]))
        try:
            name[1:].decode()
        except UnicodeDecodeError:
            return None
        return name

    def _read(self, walk: ByteScanner, field: RecordField | None) -> Column:
        at, coding = walk.at, self._coding
        head = walk.fixed("u1")
        kinds, widths = coding.kinds[head], coding.widths[head]
        present = kinds != _NULL
        if field is not None and field.type == "double":
            return self._read_doubles(walk, at, kinds, widths, head)
        is_text = kinds == _TEXT
        words = walk.numbers_at(">u8", at + 1) >> (64 - 8 * widths).astype(np.uint64)
        numbers = np.where(widths > 0, words, coding.own[head])
        walk.skip(widths)
        if field is None or field.type == "string":
            # A value that fills no field must be readable too.
            walk.fits &= (kinds != _OTHER) & (kinds != _MAP) if field is None else is_text | ~present
            return walk.text(numbers.astype(np.int64), is_text)
        if field.type == "boolean":
            walk.fits &= (kinds == _FALSE) | (kinds == _TRUE) | ~present
            return Column(kinds == _TRUE, present)
        assert is_whole(field)
        return Column(_whole(walk, kinds, widths, numbers), present)

    def _read_doubles(
        self,
        walk: ByteScanner,
        at: npt.NDArray[np.int64],
        kinds: npt.NDArray[np.uint8],
        widths: npt.NDArray[np.int64],
        head: npt.NDArray[np.uint8],
    ) -> Column:
        found = walk.doubles_at(">f8", at + 1)
        present, is_double, is_float = kinds != _NULL, kinds == _DOUBLE, kinds == _FLOAT
        if is_float.any():
            found = np.where(is_float, walk.doubles_at(">f4", at + 1), found)
        walk.skip(widths)
        others = present & ~is_double & ~is_float
        if others.any():
            words = walk.numbers_at(">u8", at + 1) >> (64 - 8 * widths).astype(np.uint64)
            numbers = np.where(widths > 0, words, self._coding.own[head])
            before = walk.fits.copy()
            whole, are_sure = as_doubles(_whole(walk, kinds, widths, numbers))
            walk.fits = np.where(others, walk.fits & are_sure, before)
            found = np.where(others, whole, found)
        return Column(found, present)


def _whole(
    walk: ByteScanner,
    kinds: npt.NDArray[np.uint8],
    widths: npt.NDArray[np.int64],
    numbers: npt.NDArray[np.uint64],
) -> npt.NDArray[np.int64]:
    """Return the integers. Mark the records with other values, and with integers that don't fit into a signed 64-bit integer."""
    found = numbers.astype(np.int64)
    is_signed, is_below = kinds == _SIGNED, kinds == _BELOW_ZERO
    walk.fits &= (kinds == _COUNT) | is_signed | is_below | (kinds == _NULL)
    walk.fits &= (found >= 0) | is_signed
    if is_signed.any():
        shift = np.where(is_signed, 64 - 8 * widths, 0)
        found = np.where(is_signed, (found << shift) >> shift, found)
    return np.where(is_below, -1 - found, found)
