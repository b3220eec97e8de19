"""Timestamps with a pattern, as `d/M/yyyy HH:mm:ss`, in UTC or in a zone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from strandline.core.times.time_patterns import read_pattern
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.formats.field_parsers.field_parser import ABSENT, NULL, Marks, ParsedColumn
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
        kinds = set(map(type, values))
        strings = np.ones(len(values), np.bool_) if kinds == {str} else _are(str, values)
        absent = np.zeros(len(values), np.bool_) if kinds == {str} else _are(type(None), values)
        written = values if kinds <= {str, type(None)} else [one if type(one) is str else None for one in values]
        times = read(pa.array(written, pa.string()), self._pattern)
        if self._tz is not None:
            times = to_utc(times, self._tz)
        return ParsedColumn(times.cast(arrow_type("timestamp")), absent, np.zeros(len(values), np.bool_), strings)

    @staticmethod
    def _scalar(text: bytes) -> Any:
        try:
            return _raws_of.decode(text)
        except msgspec.ValidationError:
            return 0


def _are(kind: type, values: Sequence[Any]) -> Marks:
    return np.array([type(value) is kind for value in values], np.bool_)
