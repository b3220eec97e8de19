"""Optional values: markers of missing values (`missing`), and values of another type that are null (`or_null`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.formats.field_parsers.field_parser import (
    ABSENT,
    MISFIT,
    NULL,
    Absent,
    FieldParser,
    ParsedColumn,
    are_strings,
    column_of,
)

_value_of = msgspec.json.Decoder(str | int | float | bool | None)
_doubles_of = msgspec.json.Decoder(list[float | str | bool | None]).decode


class Markers:
    """Values that mean null. A string matches in upper and lower case. A number matches an equal number, whatever its form."""

    def __init__(self, markers: Sequence[str | float]) -> None:
        self._texts = frozenset(marker.strip().lower() for marker in markers if isinstance(marker, str))
        self.numbers = frozenset(float(marker) for marker in markers if not isinstance(marker, str))
        """The markers that are numbers."""

    def match(self, value: object) -> bool:
        """Return True if a JSON value is a marker."""
        if isinstance(value, str):
            text = value.strip().lower()
            return text in self._texts or (bool(self.numbers) and _number_of(text) in self.numbers)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and float(value) in self.numbers  # type: ignore[arg-type]


class LenientParser:
    """Parses the values of a field with `missing` or `or_null`."""

    def __init__(
        self, plain: FieldParser, type_name: str, markers: Sequence[str | float], *, or_null: bool, is_plain: bool
    ) -> None:
        """`plain`: parses the values that aren't markers. `is_plain`: True for a double without limits."""
        self._plain = plain
        self._markers = Markers(markers)
        self._or_null = or_null
        self._is_plain = is_plain
        self._arrow_type = arrow_type(type_name)

    def parse(self, text: bytes) -> Any:
        text = text.strip()
        if text == NULL or self._is_marker(text):
            return ABSENT
        found = self._plain.parse(text)
        return MISFIT if found is None and self._or_null else found

    def parse_column(self, texts: Sequence[msgspec.Raw]) -> ParsedColumn:
        if self._is_plain and (quick := self._doubles(texts)) is not None:
            return quick
        return column_of([self.parse(bytes(text)) for text in texts], self._arrow_type, are_strings(texts))

    def _doubles(self, texts: Sequence[msgspec.Raw]) -> ParsedColumn | None:
        """Return the column of doubles. None if the values can't be parsed together."""
        try:
            values = _doubles_of(b"[" + b",".join(texts) + b"]")
        except (msgspec.DecodeError, ValueError):
            return None
        absent, misfits, strings = (np.zeros(len(values), np.bool_) for _ in range(3))
        if set(map(type, values)) != {float}:
            for at in [at for at, value in enumerate(values) if type(value) is not float]:
                found = self.parse(bytes(texts[at]))
                strings[at] = isinstance(values[at], str)
                absent[at], misfits[at] = isinstance(found, Absent), found is MISFIT
                values[at] = None if isinstance(found, Absent) else found
        array = pa.array(values, pa.float64())
        if self._markers.numbers:
            marked = np.isin(array.fill_null(math.nan).to_numpy(), list(self._markers.numbers))
            if marked.any():
                array = pa.array(array.fill_null(0.0).to_numpy(), mask=np.array(array.is_null()) | marked)
                absent |= marked
        return ParsedColumn(array, absent, misfits, strings)

    def _is_marker(self, text: bytes) -> bool:
        try:
            return self._markers.match(_value_of.decode(text))
        except (msgspec.DecodeError, OverflowError):
            return False


def _number_of(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
