"""Formats and parses times by patterns, a whole column in one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.times.time_patterns import MONTHS, WEEKDAYS, Pattern, Piece, read_expression
from strandline.processing.operators.arithmetic import valid_in
from strandline.processing.operators.functions.times import (
    DAY_US,
    Kernel,
    Numbers,
    days_in,
    days_of_month,
    days_of_year,
    first_days,
    micros_in,
    months_in,
    times_of,
    weekdays,
)
from strandline.processing.operators.functions.written_digits import Marks, read_digits
from strandline.processing.operators.functions.zones import in_years

_Part = Callable[[Numbers, Numbers], Numbers]
"""(days since 1970, microseconds of the day) -> a number."""
_PARTS: dict[str, _Part] = {
    "year": lambda days, _: months_in(days) // 12 + 1970,
    "month": lambda days, _: months_in(days) % 12 + 1,
    "day": lambda days, _: days_of_month(days),
    "day of the year": lambda days, _: days_of_year(days),
    "day of the week": lambda days, _: weekdays(days),
    "hour": lambda _, micros: micros // 3_600_000_000,
    "hour of the half day": lambda _, micros: (micros // 3_600_000_000 - 1) % 12 + 1,
    "half of the day": lambda _, micros: micros // 43_200_000_000,
    "minute": lambda _, micros: micros // 60_000_000 % 60,
    "second": lambda _, micros: micros // 1_000_000 % 60,
    "fraction": lambda _, micros: micros % 1_000_000,
}
_WORDS = {
    "MMM": ["", *(name[:3] for name in MONTHS)],
    "MMMM": ["", *MONTHS],
    "EEE": [name[:3] for name in WEEKDAYS],
    "EEEE": list(WEEKDAYS),
    "a": ["AM", "PM"],
}
"""Letters -> the words for each number."""


def write(times: pa.Array, pattern: Pattern) -> pa.Array:
    """Return each time as a string, in UTC; null outside of the years 1 to 9999."""
    micros = micros_in(times)
    valid = valid_in(times) & in_years(micros)
    micros = np.where(valid, micros, 0)
    days, rest = days_in(micros), micros % DAY_US
    texts = [_written(piece, days, rest) for piece in pattern]
    joined = pc.binary_join_element_wise(*texts, pa.scalar("", pa.string()))
    return joined if valid.all() else pc.if_else(pa.array(valid), joined, pa.scalar(None, pa.string()))


def _written(piece: Piece, days: Numbers, rest: Numbers) -> pa.Array:
    if not piece.letters or piece.what == "offset":
        return pa.repeat(pa.scalar("Z" if piece.letters else piece.text, pa.string()), len(days))
    values = _PARTS[piece.what](days, rest)
    if piece.letters in _WORDS:
        return pa.array(_WORDS[piece.letters], pa.string()).take(pa.array(values))
    if piece.letters == "yy":
        values = values % 100
    if piece.what == "fraction":
        values = values // 10 ** (6 - len(piece.letters))
    return pc.utf8_lpad(pa.array(values).cast(pa.string()), width=len(piece.letters), padding="0")


def read(texts: pa.Array, pattern: Pattern) -> pa.Array:
    """Return the time in each string; null if it doesn't fit the pattern, or isn't a time."""
    found = read_digits(texts, pattern)
    if found is None:
        return _times(*_read_parts(texts, pattern))
    values, valid = found
    times = _times(values, valid)
    others = pa.array(~valid & np.array(texts.is_valid()))
    if not others.true_count:
        return times
    return pc.replace_with_mask(times, others, _times(*_read_parts(texts.filter(others), pattern)))


def _read_parts(texts: pa.Array, pattern: Pattern) -> tuple[Mapping[str, Numbers], Marks]:
    """Return the number of each part of the pattern, and a mask of the strings that fit the pattern."""
    found = pc.extract_regex(texts, read_expression(pattern))
    valid = found.is_valid().to_numpy(zero_copy_only=False)
    values = {}
    for at, piece in enumerate(pattern):
        if not piece.letters:
            continue
        shown = found.field(f"p{at}")
        if piece.what == "offset":
            values["offset"], fits = _offset_seconds(shown)
            valid = valid & fits
        else:
            values[piece.what] = _read(piece, shown)
    return values, valid


def _times(values: Mapping[str, Numbers], valid: Marks) -> pa.Array:
    """Return the times with these parts; null if there is no such time."""
    none = np.zeros(len(valid), np.int64)
    year, month, day, hour, minute, second = (
        values.get(what, none) for what in ("year", "month", "day", "hour", "minute", "second")
    )
    if "half of the day" in values:
        half_hour = values["hour of the half day"]
        valid = valid & (half_hour >= 1) & (half_hour <= 12)
        hour = half_hour % 12 + 12 * values["half of the day"]
    valid = valid & (year >= 1) & (month >= 1) & (month <= 12) & (hour <= 23) & (minute <= 59) & (second <= 59)
    months = np.where(valid, (year - 1970) * 12 + month - 1, 0)
    first = first_days(months)
    valid = valid & (day >= 1) & (day <= first_days(months + 1) - first)
    seconds = hour * 3_600 + minute * 60 + second - values.get("offset", none)
    micros = (first + np.where(valid, day, 1) - 1) * DAY_US + seconds * 1_000_000 + values.get("fraction", none)
    return times_of(micros, valid & in_years(micros))


def _read(piece: Piece, shown: pa.Array) -> Numbers:
    if piece.letters in _WORDS:
        words = pa.array([word.lower() for word in _WORDS[piece.letters]], pa.string())
        return _numbers(pc.index_in(pc.utf8_lower(shown), words))
    if piece.what == "fraction":
        shown = pc.utf8_rpad(shown, width=6, padding="0")
    numbers = _whole(shown)
    return numbers + 2000 if piece.letters == "yy" else numbers


def _offset_seconds(shown: pa.Array) -> tuple[Numbers, Marks]:
    """Return the seconds of offsets such as `+02:00`, `+0200`, `+02` or `Z`, and a mask of the possible ones."""
    hours = _whole(pc.utf8_slice_codeunits(shown, 1, 3))
    minutes = _whole(pc.utf8_slice_codeunits(shown, -2, 2**31 - 1))
    minutes = np.where(_numbers(pc.utf8_length(shown)) > 3, minutes, 0)
    seconds = hours * 3_600 + minutes * 60
    negative = pc.starts_with(shown, pattern="-").fill_null(False).to_numpy(zero_copy_only=False)
    return np.where(negative, -seconds, seconds), (seconds <= 18 * 3_600) & (minutes <= 59)


def _whole(digits: pa.Array) -> Numbers:
    """Return numbers of a few digits; 0 for any other string."""
    is_number = pc.match_substring_regex(digits, pattern=r"\A[0-9]{1,6}\z").fill_null(False)
    return _numbers(pc.if_else(is_number, digits, pa.scalar("0", pa.string())).cast(pa.int64()))


def _numbers(array: pa.Array) -> Numbers:
    numbers: Numbers = array.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


WRITTEN_TIME_KERNELS: dict[str, Kernel] = {"date_format": write, "to_timestamp": read, "try_to_timestamp": read}
