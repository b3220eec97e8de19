"""Timestamps with a minimum or a maximum (`min`, `max`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from strandline.processing.formats.field_parsers.field_parser import ABSENT, NULL, Absent, FieldParser, ParsedColumn

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class LimitedTimesParser:
    """Refuses the times of another parser that are outside the limits."""

    def __init__(self, times: FieldParser, first_micros: int | None, last_micros: int | None) -> None:
        """The limits are in microseconds since 1970, and are allowed themselves. None if there is none."""
        self._times = times
        self._first = _FIRST if first_micros is None else first_micros
        self._last = _LAST if last_micros is None else last_micros

    def parse(self, text: bytes) -> Any:
        if text.strip() == NULL:
            return ABSENT
        found = self._times.parse(text)
        if found is None or isinstance(found, Absent):
            return found
        micros = (found - _EPOCH) // _MICROSECOND if isinstance(found, datetime) else found
        return found if self._first <= micros <= self._last else None

    def parse_column(self, texts: Sequence[msgspec.Raw]) -> ParsedColumn:
        parsed = self._times.parse_column(texts)
        micros = parsed.array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        outside = (micros < self._first) | (micros > self._last) | np.array(parsed.array.is_null())
        array = pa.array(micros, mask=outside).cast(parsed.array.type)
        absent = parsed.absent | np.array([bytes(text).strip() == NULL for text in texts], np.bool_)
        return replace(parsed, array=array, absent=absent)
