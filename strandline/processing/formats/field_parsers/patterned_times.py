"""Timestamps with a pattern, as `d/M/yyyy HH:mm:ss`, in UTC or in a zone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from strandline.core.times.time_patterns import read_pattern
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.formats.field_parsers.field_parser import ABSENT, NULL, ParsedColumn, are_strings
from strandline.processing.operators.functions.written_times import read
from strandline.processing.operators.functions.zones import to_utc

_texts_of = msgspec.json.Decoder(list[str | int | float | bool | None]).decode
_raws_of = msgspec.json.Decoder(str | int | float | bool | None)


class PatternedTimeParser:
    """Reads strings by the pattern. Other strings don't fit. If the pattern has an offset, the zone is ignored."""

    def __init__(self, pattern: str, tz: str | None) -> None:
        self._pattern = read_pattern(pattern)
        has_offset = any(piece.what == "offset" for piece in self._pattern if piece.letters)
        self._tz = None if has_offset else tz

    def parse(self, text: bytes) -> Any:
        if text.strip() == NULL:
            return ABSENT
        (value,) = self.parse_column([msgspec.Raw(text)]).array.to_pylist()
        return value

    def parse_column(self, texts: Sequence[msgspec.Raw]) -> ParsedColumn:
        try:
            values = _texts_of(b"[" + b",".join(texts) + b"]")
        except msgspec.ValidationError:  # an object or an array
            values = [self._scalar(bytes(text)) for text in texts]
        strings = pa.array([value if isinstance(value, str) else None for value in values], pa.string())
        times = read(strings, self._pattern)
        if self._tz is not None:
            times = to_utc(times, self._tz)
        absent = np.array([value is None for value in values], np.bool_)
        return ParsedColumn(
            times.cast(arrow_type("timestamp")), absent, np.zeros(len(values), np.bool_), are_strings(texts)
        )

    @staticmethod
    def _scalar(text: bytes) -> Any:
        try:
            return _raws_of.decode(text)
        except msgspec.ValidationError:
            return 0
