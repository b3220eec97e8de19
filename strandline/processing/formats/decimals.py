"""Parses the decimals of records, which are JSON numbers or strings with only a number, to exact numbers.

The parser for a single value defines the result. The parser for a column must agree with it.
"""

from __future__ import annotations

import decimal
import re

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.field_types import digits_of
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.formats.timestamps import Marks

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


class DecimalParser:
    """Parses the values of one field of type `decimal(precision,scale)`."""

    def __init__(self, type_name: str, least: float | None, greatest: float | None) -> None:
        sizes = digits_of(type_name)
        assert sizes is not None, "only called for decimals"
        precision, scale = sizes
        self._context = decimal.Context(prec=precision, traps=[decimal.Inexact, decimal.InvalidOperation])
        self._last_digit = decimal.Decimal((0, (1,), -scale))
        self._least = None if least is None else decimal.Decimal(str(least))
        self._greatest = None if greatest is None else decimal.Decimal(str(greatest))
        self._arrow_type = arrow_type(type_name)
        # The strings that have the same meaning for Arrow, without their quotes, and that fit into the type.
        whole = rf"\d{{1,{precision - scale}}}" if precision > scale else "0"
        number = rf"-?{whole}(?:\.\d{{1,{scale}}})?" if scale else rf"-?{whole}"
        self._usual_text = f'^(?:{number}|"{number}")$'

    def parse(self, text: bytes) -> decimal.Decimal | None:
        """Return the exact number in the field's scale. None if it isn't a number, doesn't fit, or is out of range."""
        if text.startswith(b'"'):
            if b"\\" in text:  # digits can be written as escapes
                try:
                    text = msgspec.json.encode(msgspec.json.decode(text, type=str))
                except ValueError:
                    return None
            if not _NUMBER.fullmatch(text, 1, len(text) - 1):
                return None
            text = text[1:-1]
        try:
            # Refuses text that isn't a number, and numbers with more digits than the type has, before or after the point.
            number = decimal.Decimal(text.decode()).quantize(self._last_digit, context=self._context)
        except decimal.DecimalException:
            return None
        return number if self._is_in_range(number) else None

    def parse_column(self, texts: list[msgspec.Raw]) -> tuple[pa.Array, Marks]:
        """Return the number of each value, null if `parse` returns None, and a mask of the values that are strings.

        Arrow reads the usual forms, and `parse` reads the others.
        """
        # No JSON text contains a NUL. Splitting the joined text again costs less than a Python object for each.
        column = pc.split_pattern(pa.array([b"\0".join(texts)], pa.binary()), b"\0").values[: len(texts)]
        assert len(column) == len(texts), "a NUL in a JSON text"
        usual = pc.match_substring_regex(column, self._usual_text)
        digits = pc.ascii_trim(pc.if_else(usual, column, None).view(pa.string()), '"')
        numbers = digits.cast(self._arrow_type)
        if not all(map(self._is_in_range, pc.min_max(numbers).as_py().values())):
            in_range = [number if self._is_in_range(number) else None for number in numbers.to_pylist()]
            numbers = pa.array(in_range, self._arrow_type)
        unusual = np.flatnonzero(~np.array(pc.or_(usual, pc.equal(column, b"null")))).tolist()
        parsed = {at: self.parse(column[at].as_py()) for at in unusual}
        if any(number is not None for number in parsed.values()):
            every = [parsed.get(at, number) for at, number in enumerate(numbers.to_pylist())]
            numbers = pa.array(every, self._arrow_type)
        return numbers, np.array(pc.starts_with(column, '"'), np.bool_)

    def _is_in_range(self, number: decimal.Decimal | None) -> bool:
        return number is None or (
            (self._least is None or number >= self._least) and (self._greatest is None or number <= self._greatest)
        )
