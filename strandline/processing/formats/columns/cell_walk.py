"""Converts cells of lines to columns, one record per line. The position of each cell is known; this module reads its number or
string."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property, reduce
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.formats.columns.byte_walk import LITERAL_BYTES_MAX, ByteScanner, Int64Array
from strandline.processing.formats.columns.read_columns import Column, Marks, is_whole
from strandline.processing.formats.record_fields import RecordField
from strandline.processing.formats.text_values import NUMBER

Bytes = npt.NDArray[np.uint8]
NumberForm = Literal["whole", "short", "any"]
PATTERNS: dict[NumberForm, str] = {
    "whole": r"-?(?:0|[1-9]\d{0,17}|[1-8]\d{18})",
    "short": r"-?(?:0|[1-9]\d{0,19})(?:\.\d{1,20})?(?:[eE][+-]?\d{1,2})?",
    "any": NUMBER,
}
"""Forms of numbers: integers of 64 bits; numbers far from the limits of a double; and all JSON numbers."""
_WHOLE_DIGITS_MAX = 19
_SHORT_BYTES_MAX = 40
_WINDOW_BYTES, _WINDOWS_MAX = 32, 8
"""Number of bytes of each line that are examined in one step, and maximum number of steps. The first is at most
LITERAL_BYTES_MAX, the number of bytes after the last line. Longer strings are searched one by one."""


class CellScanner:
    """The lines of some records, each with its end."""

    def __init__(self, values: Sequence[bytes | None], refused: bytes | None) -> None:
        """`refused`: records that contain any of these bytes, or a line break, are marked. None if no record is marked."""
        self.walk = ByteScanner(values, b"\n")
        self.starts: Int64Array = self.walk.at.copy()
        self.ends: Int64Array = self.walk.ends - 1
        """Position of the end of each line."""
        self.data = self.walk.data[: int(self.walk.ends[-1])]
        if refused is not None and (self.walk.holds(refused) or self.walk.count(b"\n") > len(values)):
            self._refuse(is_any(self.data, refused + b"\n"))

    @cached_property
    def are_plain(self) -> bool:
        """True if all lines are ASCII without control characters and escapes."""
        controls = np.count_nonzero(self.data < ord(" "))
        return self.walk.is_ascii and not self.walk.holds(b"\\") and controls == len(self.walk)

    def refuse_controls(self) -> None:
        """Mark the lines with control characters."""
        are_controls = self.data < ord(" ")
        if np.count_nonzero(are_controls) > len(self.walk):
            self._refuse(are_controls)

    def _refuse(self, marks: Marks) -> None:
        """Mark the lines with more than one of these bytes; one is the line end."""
        rows = np.searchsorted(self.walk.ends, np.flatnonzero(marks), "right")
        self.walk.fits &= np.bincount(rows, minlength=len(self.walk)) == 1

    def require_utf8(self) -> None:
        """Mark the lines that aren't UTF-8."""
        if not self.walk.is_ascii:
            self.walk.text_at(self.starts, self.ends - self.starts, np.ones(len(self.walk), np.bool_))

    def first_and_count(self, places: Int64Array, expected: int) -> tuple[Int64Array, Int64Array | int]:
        """Return, for ascending positions in the lines, the index of the first position in each line, and the number of
        positions in each.

        This is fast if each line has the expected number.
        """
        first = np.arange(len(self.walk)) * expected
        if len(places) == len(first) * expected:
            of_lines = places.reshape(len(first), expected)
            if expected == 0 or ((of_lines[:, 0] >= self.starts).all() and (of_lines[:, -1] < self.ends).all()):
                return first, expected
        first = np.searchsorted(places, self.starts)
        return first, np.searchsorted(places, self.ends) - first

    def next_of(self, byte: int, starts: Int64Array) -> Int64Array:
        """Return the next position of this byte in each line; the line's end if it has none."""
        found, rows = self._near(lambda data: data == byte, starts)
        spans = zip(found[rows].tolist(), self.ends[rows].tolist(), strict=True)
        found[rows] = [self.walk.place_of(bytes([byte]), start, end) for start, end in spans]
        return found

    def plain_text_ends(self, starts: Int64Array) -> Int64Array:
        """Return the end of the string that begins at each position, if it is short ASCII without control characters and
        escapes."""
        return self._near(
            lambda data: (data == ord('"')) | (data == ord("\\")) | (data.view(np.int8) < ord(" ")), starts
        )[0]

    def plain_number_ends(self, starts: Int64Array) -> Int64Array:
        """Return the end of the number that begins at each position, if it has no exponent. Otherwise return the position
        itself."""
        leads = np.minimum(starts + (self.data[starts] == ord("-")), self.ends)
        ends = self._digit_ends(leads)
        are_whole = (ends > leads) & ((self.data[leads] != ord("0")) | (ends - leads == 1))
        have_point = self.data[ends] == ord(".")
        if have_point.any():
            fractions = np.minimum(ends + 1, self.ends)
            ends = np.where(have_point, self._digit_ends(fractions), ends)
            are_whole &= ~have_point | (ends > fractions)
        return np.where(are_whole, ends, starts)

    def _digit_ends(self, starts: Int64Array) -> Int64Array:
        return self._near(lambda data: data - np.uint8(ord("0")) > 9, starts)[0]

    def _near(self, are_it: Callable[[Bytes], Marks], starts: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the next position of such a byte in each line, or the line's end, and the lines whose search isn't finished."""
        found, go_on = self._in_window(are_it, starts, self.ends)
        rows = np.flatnonzero(go_on)
        for _ in range(_WINDOWS_MAX - 1):
            if not len(rows):
                break
            found[rows], go_on = self._in_window(are_it, found[rows], self.ends[rows])
            rows = rows[go_on]
        return found, rows

    def _in_window(
        self, are_it: Callable[[Bytes], Marks], starts: Int64Array, ends: Int64Array
    ) -> tuple[Int64Array, Marks]:
        """Return the next position of such a byte, or the end of the examined bytes, and a mask of the lines that continue
        after it."""
        marks = are_it(self.walk.numbers_at(f"V{_WINDOW_BYTES}", starts).view(np.uint8).reshape(len(starts), -1))
        steps = marks.argmax(axis=1)
        is_none = (steps == 0) & ~marks[:, 0]
        found = np.minimum(starts + np.where(is_none, _WINDOW_BYTES, steps), ends)
        return found, is_none & (found < ends)

    def require(self, starts: Int64Array, literal: bytes) -> None:
        """Mark the lines that don't have these bytes at these positions."""
        self.walk.fits &= self.are(starts, literal)

    def are(self, starts: Int64Array, literal: bytes) -> Marks:
        """Return a mask of the lines that have these bytes at these positions."""
        marks = np.ones(len(self.walk), np.bool_)
        for first in range(0, len(literal), LITERAL_BYTES_MAX):
            self.walk.at = starts + first
            marks &= self.walk.is_next(literal[first : first + LITERAL_BYTES_MAX])
        return marks

    def repeated(self, rows: Int64Array) -> CellScanner:
        """Return these lines as separate lines, each as often as it occurs in `rows`."""
        other = copy(self)
        other.starts, other.ends = self.starts[rows], self.ends[rows]
        other.walk = self.walk.within(other.starts, self.walk.ends[rows])
        other.walk.fits &= self.walk.fits[rows]
        return other

    def without(self, starts: Int64Array, ends: Int64Array, words: Sequence[bytes]) -> Int64Array:
        """Return the ends of the cells, with cells that contain one of the words made empty."""
        lead = self.data[np.minimum(starts, len(self.data) - 1)]
        if not (lead > ord("9")).any():
            return ends
        self.walk.at = starts
        for word in words:
            ends = np.where((ends - starts == len(word)) & self.walk.is_next(word), starts, ends)
        return ends

    def texts(self, starts: Int64Array, ends: Int64Array) -> Column:
        """Return the cells as strings. An empty cell is an empty string."""
        return self.walk.text_at(starts, self._lengths(starts, ends), np.ones(len(self.walk), np.bool_))

    def plain_texts(self, starts: Int64Array, ends: Int64Array) -> Column:
        """Return the cells as strings. Mark the lines in which one has a control character or an escape."""
        found = self.texts(starts, ends)
        _, offsets, data = found.values.buffers()
        if data is not None:
            texts = np.frombuffer(data, np.uint8)
            unusual = np.flatnonzero((texts < ord(" ")) | (texts == ord("\\")))
            self.walk.fits[np.searchsorted(np.frombuffer(offsets, np.int32), unusual, "right") - 1] = False
        return found

    def column(
        self,
        field: RecordField,
        starts: Int64Array,
        ends: Int64Array,
        form: NumberForm | None = None,
        suffix: bytes = b"",
    ) -> Column:
        """Return the cells as values of the field; an empty cell is null. `form`, `suffix`: form of numbers, if not that of the
        field, and the bytes at their end."""
        present = ends > starts
        if field.type in ("string", "boolean"):
            texts = self.walk.text_at(starts, self._lengths(starts, ends), present)
            if field.type == "string":
                return texts
            is_true = _are(texts.values, "true")
            self.walk.fits &= is_true | _are(texts.values, "false") | ~present
            return Column(is_true, present)
        if is_whole(field) and not suffix:
            wholes = self.walk.short_wholes(starts, self._lengths(starts, ends))
            if wholes is not None:
                return Column(wholes, present)
        numbers = self.numbers(starts, ends, form or ("whole" if is_whole(field) else "any"), suffix)
        try:
            found = np.array(numbers.cast(pa.int64() if is_whole(field) else pa.float64()))
            if form != "short" and not is_whole(field) and (np.signbit(found) & (found == 0)).any():
                found[_are(numbers, "-0")] = 0.0  # an integer has no negative zero
            return Column(found, present)
        except pa.ArrowInvalid:  # a number out of range
            self.walk.fits[:] = False
            return Column(np.zeros(len(self.walk)), present)

    def require_numbers(self, starts: Int64Array, ends: Int64Array) -> None:
        """Mark the lines with cells that aren't JSON numbers and aren't empty."""
        if self.walk.short_wholes(starts, self._lengths(starts, ends)) is None:
            self.numbers(starts, ends, "any")

    def numbers(self, starts: Int64Array, ends: Int64Array, form: NumberForm, suffix: bytes = b"") -> Any:
        """Return the strings of numbers, "0" for an empty cell. Mark the records with anything else."""
        lengths = self._lengths(starts, ends)
        if suffix:
            self.walk.fits &= (self.data[ends - 1] == suffix[0]) | (lengths == 0)
            lengths = np.maximum(lengths - 1, 0)
        texts = self.walk.text_at(starts, lengths, np.ones(len(self.walk), np.bool_)).values
        if lengths.min(initial=1) == 0:
            self.walk.fits &= (lengths > 0) | (starts == ends)
            texts = pc.if_else(pa.array(lengths == 0), "0", texts)
        if not _are_plain(texts, form):
            fitting = pc.match_substring_regex(texts, f"^{PATTERNS[form]}$")
            self.walk.fits &= np.array(fitting)
            texts = pc.if_else(fitting, texts, "0")
        return texts

    def _lengths(self, starts: Int64Array, ends: Int64Array) -> Int64Array:
        return np.where(self.walk.fits, np.maximum(ends - starts, 0), 0)


def is_any(data: npt.NDArray[np.uint8], found: bytes) -> Marks:
    """Return a mask of the bytes that are one of `found`."""
    return reduce(np.logical_or, [data == byte for byte in found])


def _are(texts: pa.Array, text: str) -> Marks:
    return np.array(pc.equal(texts, text).fill_null(False))


def _are_plain(texts: pa.Array, form: NumberForm) -> bool:
    """Return True if all are numbers of the form, without empty strings and exponents. Return False if this can't be
    determined."""
    _, offsets_buffer, data_buffer = texts.buffers()
    ends = np.frombuffer(offsets_buffer, np.int32)[: len(texts) + 1]
    firsts, ends = ends[:-1], ends[1:]
    data = np.frombuffer(data_buffer, np.uint8)[: ends[-1]]
    is_digit, is_minus = (data - np.uint8(ord("0"))) < 10, data == ord("-")
    dots = np.flatnonzero(data == ord("."))
    minuses = is_minus[firsts]
    leads = firsts + minuses
    if np.count_nonzero(is_digit) + np.count_nonzero(minuses) + len(dots) < len(data) or (leads >= ends).any():
        return False
    is_one_digit = leads + 1 == ends
    follows = is_digit[np.minimum(leads + 1, len(data) - 1)] & ~is_one_digit
    if not is_digit[leads].all() or (follows & (data[leads] == ord("0"))).any():
        return False
    lengths = ends - leads
    if form == "whole":
        longest = leads[lengths == _WHOLE_DIGITS_MAX]
        return len(dots) == 0 and int(lengths.max()) <= _WHOLE_DIGITS_MAX and bool((data[longest] < ord("9")).all())
    if int(lengths.max()) > _SHORT_BYTES_MAX:
        return False
    rows = np.searchsorted(ends, dots, "right")
    return not (np.diff(rows) == 0).any() and bool((ends[rows] > dots + 1).all())
