"""Reads written times whose parts are digits, a whole column in one step: the usual case of `written_times.read`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.core.times.time_patterns import Pattern
from strandline.processing.operators.functions.times import Numbers

_DIGITS = {
    **{letters: (len(letters), len(letters)) for letters in ("yyyy", "yy", "MM", "dd", "HH", "hh", "mm", "ss")},
    **{letter: (1, 2) for letter in ("M", "d", "H", "h", "m", "s")},
    **{"S" * digits: (1, digits) for digits in range(1, 7)},
}
"""Letters -> minimum and maximum number of digits."""

Marks = npt.NDArray[np.bool_]


def read_digits(texts: pa.Array, pattern: Pattern) -> tuple[Mapping[str, Numbers], Marks] | None:
    """Return the number of each part of the pattern, and a mask of the strings that were read. None if they can't be read in this
    way, for example because a part isn't digits.

    Each part takes as many digits as it can, as the regular expression of the pattern does first. So a string that is read to its
    end has the same numbers. A string that isn't read can still fit the pattern.
    """
    if any(piece.letters and piece.letters not in _DIGITS for piece in pattern):
        return None
    if len(texts) == 0 or not pa.types.is_string(texts.type):
        return None
    _, offsets, content = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    walk = _Walk(b"" if content is None else content, bounds)
    values = {}
    for piece in pattern:
        if not piece.letters:
            walk.skip(piece.text.encode())
            continue
        least, most = _DIGITS[piece.letters]
        number, count = walk.number(least, most)
        if piece.what == "fraction":
            number = number * 10 ** (6 - count)
        values[piece.what] = number + 2000 if piece.letters == "yy" else number
    return values, walk.fits & (walk.at == walk.ends) & np.array(texts.is_valid())


class _Walk:
    """The position in each string. A string that isn't as expected is marked, and its position has no meaning from then on."""

    def __init__(self, content: Any, bounds: Numbers) -> None:
        self.at = bounds[:-1].copy()
        self.ends = bounds[1:]
        self.fits: Marks = np.ones(len(self.at), np.bool_)
        self._data = np.append(np.frombuffer(content, np.uint8), np.uint8(0))
        """The bytes of all strings, and one byte after them."""

    def skip(self, expected: bytes) -> None:
        for byte in expected:
            self.fits &= self._next() == byte
            self.at += 1

    def number(self, least: int, most: int) -> tuple[Numbers, Numbers]:
        """Read a number of `least` to `most` digits. Return it, and its number of digits."""
        number = np.zeros(len(self.at), np.int64)
        count = np.zeros(len(self.at), np.int64)
        for place in range(most):
            digit = self._next() - np.uint8(ord("0"))
            is_digit = (digit <= 9) & (self.at < self.ends) & (count == place)
            if place < least:
                self.fits &= is_digit
            number = np.where(is_digit, number * 10 + digit, number)
            count += is_digit
            self.at += is_digit
        return number, count

    def _next(self) -> npt.NDArray[np.uint8]:
        return self._data[np.minimum(self.at, len(self._data) - 1)]
