"""Scans the bytes of many records in parallel: each call reads the next value of every record.

A record with unexpected bytes is marked, and its values have no meaning from then on. No call reads beyond the end of a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.processing.formats.columns.read_columns import Column, Marks

Int64Array = npt.NDArray[np.int64]

LITERAL_BYTES_MAX = 64
"""Maximum number of bytes that are compared in one step."""
_VARINT_BYTES_MAX = 10
_DIGITS_MAX = 16
_ZEROS, _HIGH_BITS = np.uint64(0x3030303030303030), np.uint64(0x8080808080808080)
_TO_HIGH_BIT = np.uint64(0x7676767676767676)
"""Added to a byte of ten or more, it sets the highest bit."""
_SHORT_BYTES = 64
"""If strings have fewer bytes on average, they are gathered by an index for each byte."""
_ARROW_BYTES_MAX = 2**31 - 1


class ByteScanner:
    """The records, and the position of the scan in each."""

    def __init__(self, values: Sequence[bytes | None], end: bytes = b"") -> None:
        """`end`: bytes to append to each record."""
        self.fits: Marks = np.ones(len(values), np.bool_)
        """True for records that were as expected so far."""
        if None in values:
            self.fits = np.array([value is not None for value in values], np.bool_)
            values = [value or b"" for value in values]
        parts: list[bytes] = [*values, bytes(LITERAL_BYTES_MAX)]  # type: ignore[list-item]  # none is None
        self._bytes = end.join(parts)
        lengths = np.fromiter(map(len, parts[:-1]), np.int64, len(values)) + len(end)
        self.data = np.frombuffer(self._bytes, np.uint8)
        self.ends: Int64Array = lengths.cumsum()
        self.at: Int64Array = self.ends - lengths

    def __len__(self) -> int:
        return len(self.at)

    def within(self, starts: Int64Array, ends: Int64Array) -> ByteScanner:
        """Return a scan of these parts of the records. None of them is marked."""
        other = copy(self)
        other.at, other.ends, other.fits = starts, ends, np.ones(len(starts), np.bool_)
        return other

    def next_byte(self) -> npt.NDArray[np.uint8]:
        """Return the next byte of each record; 0 at the end of a record."""
        return np.where(self.at < self.ends, self.data[self.at], 0)

    def first_fit(self) -> int | None:
        """Return the first record that is neither marked nor at its end. None if there is none."""
        found = np.flatnonzero(self.fits & (self.at < self.ends))
        return int(found[0]) if len(found) else None

    def holds(self, found: bytes) -> bool:
        """Return True if any record contains one of these bytes."""
        end = int(self.ends[-1])
        return any(self._bytes.find(byte, 0, end) >= 0 for byte in found)

    @property
    def is_ascii(self) -> bool:
        return self._bytes.isascii()

    def count(self, found: bytes) -> int:
        """Return the number of occurrences of these bytes in the records."""
        return self._bytes.count(found)

    def place_of(self, found: bytes, start: int, end: int) -> int:
        """Return the first position of these bytes in [`start`, `end`), or `end` if they don't occur."""
        at = self._bytes.find(found, start, end)
        return end if at < 0 else at

    def bytes_at(self, at: int, count: int) -> bytes:
        return self._bytes[at : at + count]

    def numbers_at(self, kind: str, at: Int64Array) -> npt.NDArray[Any]:
        """Return the numbers of this numpy type that begin at these positions."""
        size = np.dtype(kind).itemsize
        # Overlapping: one number begins at each byte.
        return np.ndarray((len(self._bytes) - size + 1,), kind, self._bytes, strides=(1,))[at]

    def short_wholes(self, starts: Int64Array, lengths: Int64Array) -> npt.NDArray[np.int64] | None:
        """Return the integers of 1 to 16 digits at these positions; 0 for an empty cell. None if anything else is there."""
        if lengths.max(initial=0) > _DIGITS_MAX:
            return None
        starts = np.minimum(starts, self._last - 8)
        lead = self.data[starts]
        # The last eight digits, and those before them, each in a word padded with zeros. A byte is a digit if it is below ten.
        last = self.numbers_at("<u8", starts + np.maximum(lengths - 8, 0)) ^ _ZEROS
        last <<= (8 * (8 - np.clip(lengths, 1, 8))).astype(np.uint64)
        found = _eight_digits(last)
        others = last + _TO_HIGH_BIT | last
        if lengths.max(initial=0) > 8:
            first = (self.numbers_at("<u8", starts) ^ _ZEROS) << (8 * (16 - np.clip(lengths, 9, 16))).astype(np.uint64)
            is_long = lengths > 8
            found = np.where(is_long, found + 100_000_000 * _eight_digits(first), found)
            others |= np.where(is_long, first + _TO_HIGH_BIT | first, 0)
        is_none = lengths == 0
        are_bad = ((others & _HIGH_BITS) != 0) | ((lead == ord("0")) & (lengths > 1))
        return None if (are_bad & ~is_none).any() else np.where(is_none, 0, found).astype(np.int64)

    def doubles_at(self, kind: str, at: Int64Array) -> npt.NDArray[np.float64]:
        """Return the numbers of this numpy type that begin at these positions, as doubles."""
        with np.errstate(invalid="ignore"):  # a record with other content can have any bits
            return self.numbers_at(kind, at).astype(np.float64)

    def fixed(self, kind: str, where: Marks | None = None) -> npt.NDArray[Any]:
        """Read a number of this numpy type."""
        found = self.numbers_at(kind, self.at)
        self.skip(np.dtype(kind).itemsize, where)
        return found

    def is_next(self, expected: bytes) -> Marks:
        """Return a mask of the records in which these bytes come next."""
        marks = self.ends - self.at >= len(expected)
        if len(expected) > LITERAL_BYTES_MAX:
            return np.zeros(len(self), np.bool_)
        if not expected:
            return marks
        width = -(-len(expected) // 8) * 8
        # All bytes of a record are compared in one step, because neighbouring bytes are fetched together.
        begun = np.minimum(self.at, len(self._bytes) - width)
        words = self.numbers_at(f"V{width}", begun).view("<u8").reshape(len(self), width // 8)
        for at in range(width // 8):
            part = expected[8 * at : 8 * at + 8]
            word = words[:, at] if len(part) == 8 else words[:, at] & np.uint64((1 << 8 * len(part)) - 1)
            marks &= word == np.uint64(int.from_bytes(part, "little"))
        return marks

    @property
    def _last(self) -> int:
        return len(self._bytes) - 8

    def skip(self, count: int | Int64Array, where: Marks | None = None) -> None:
        """Advance by this number of bytes. Mark the records that are too short."""
        self.at = self.at + (count if where is None else np.where(where, count, 0))
        over = self.at > self.ends
        if over.any():
            self.fits &= ~over
            self.at = np.minimum(self.at, self.ends)

    def varint(self, where: Marks | None = None) -> npt.NDArray[np.uint64]:
        """Read a number of variable length, of Avro and Protobuf. 0 for records outside `where`."""
        more = np.ones(len(self), np.bool_) if where is None else where.copy()
        found = np.zeros(len(self), np.uint64)
        length = np.zeros(len(self), np.int64)
        for place in range(_VARINT_BYTES_MAX):
            byte = np.where(more, self.data[self.at + length], 0)
            found |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * place)
            length += more
            more = byte > 0x7F
            if not more.any():
                break
        if length.max(initial=0) == _VARINT_BYTES_MAX:  # only one bit of the last byte is used
            self.fits &= (length < _VARINT_BYTES_MAX) | (byte <= 1)
        self.skip(length)
        return found

    def zigzag(self, where: Marks | None = None) -> npt.NDArray[np.int64]:
        """Read a signed number of variable length."""
        found = self.varint(where)
        return (found >> np.uint64(1)).astype(np.int64) ^ -(found & np.uint64(1)).astype(np.int64)

    def text(self, lengths: Int64Array, where: Marks | None = None) -> Column:
        """Read strings of these lengths in bytes. Mark the records whose bytes aren't UTF-8."""
        present = np.ones(len(self), np.bool_) if where is None else where
        fitting = (lengths >= 0) & (lengths <= self.ends - self.at)
        self.fits &= fitting | ~present
        lengths = np.where(fitting & present, lengths, 0)
        starts = self.at
        self.skip(lengths)
        return self.text_at(starts, lengths, present)

    def text_at(self, starts: Int64Array, lengths: Int64Array, present: Marks) -> Column:
        """Return the strings at these positions. Mark the records whose bytes aren't UTF-8."""
        offsets = np.zeros(len(self) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        total = int(offsets[-1])
        if total > _ARROW_BYTES_MAX:
            self.fits[:] = False
            return Column(pa.nulls(len(self), pa.string()), present)
        data = self._gathered(starts, lengths, offsets)
        beyond = data > 0x7F
        if beyond.any():
            for row in np.unique(np.searchsorted(offsets, np.flatnonzero(beyond), "right") - 1).tolist():
                try:
                    self._bytes[starts[row] : starts[row] + lengths[row]].decode()
                except UnicodeDecodeError:
                    self.fits[row] = False
        valid = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
        buffers = [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
        return Column(pa.Array.from_buffers(pa.string(), len(self), buffers), present)

    def _gathered(self, starts: Int64Array, lengths: Int64Array, offsets: Int64Array) -> npt.NDArray[np.uint8]:
        """Return the bytes at these positions, joined."""
        if offsets[-1] > _SHORT_BYTES * len(self):  # otherwise their indices would be many times as large as the bytes
            pieces = zip(starts.tolist(), lengths.tolist(), strict=True)
            return np.frombuffer(b"".join([self._bytes[start : start + length] for start, length in pieces]), np.uint8)
        data: npt.NDArray[np.uint8] = self.data[np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)]
        return data

    def end(self) -> None:
        """Mark the records that have more bytes."""
        self.fits &= self.at == self.ends


def _eight_digits(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the numbers whose digits are the bytes of these words, the first digit lowest: by pairs, by fours, and all."""
    words = words * np.uint64(10 * 2**8 + 1) >> np.uint64(8) & np.uint64(0x00FF00FF00FF00FF)
    words = words * np.uint64(100 * 2**16 + 1) >> np.uint64(16) & np.uint64(0x0000FFFF0000FFFF)
    return words * np.uint64(10_000 * 2**32 + 1) >> np.uint64(32)
