"""Parses the event times of records into whole microseconds since 1970 UTC.

A number counts `s`, `ms` or `us` since 1970 and may have a fraction, which is rounded to the nearest microsecond.
A text is `YYYY-MM-DD`, or a date, a `T` or a space, and `HH:MM`, `HH:MM:SS` or `HH:MM:SS.fraction` (any number of
digits; those below a microsecond are cut), followed by `Z`, `+HH`, `+HHMM` or `+HH:MM`; without a zone it is UTC. Years 1
to 9999.

Each form has a parser for a single value, which defines the meaning, and one for a column, which must agree.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Micros = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]

PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_FIRST = -62_135_596_800
_SECONDS_END = 253_402_300_800
_TEXT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)"
    r"(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d+))?)?(?:[Zz]|([+-])([01]\d|2[0-3]):?([0-5]\d)?)?)?",
    re.ASCII,
)
_COLUMN_BYTES_MAX = len("YYYY-MM-DD HH:MM:SS.ffffff+HH:MM")


def number_range(unit: str) -> tuple[int, int]:
    """Return the first number in `unit` that lies in year 1, and the first after year 9999."""
    return _SECONDS_FIRST * PER_SECOND[unit], _SECONDS_END * PER_SECOND[unit]


def parse_timestamp(value: float | str, unit: str) -> int | None:
    """Return the microseconds of one value of a record, or None when it is no time in years 1 to 9999."""
    if isinstance(value, str):
        return _parse_text(value)
    first, end = number_range(unit)
    if not first <= value < end:
        return None
    micros_per_unit = 1_000_000 // PER_SECOND[unit]
    # A float of seconds cannot hold most microseconds exactly; the sender meant the nearest.
    return value * micros_per_unit if isinstance(value, int) else round(value * micros_per_unit)


def parse_timestamp_column(values: list[Any], unit: str) -> tuple[Micros, Marks]:
    """Return the microseconds of each value, and which values are times.

    Values are int or float (within `number_range`) or str; any other value is no time.
    """
    kinds = set(map(type, values))
    if len(kinds) == 1:
        return _parse_column_of(kinds.pop(), values, unit)
    micros, valid = np.zeros(len(values), np.int64), np.zeros(len(values), np.bool_)
    for kind in kinds:
        rows = [row for row, value in enumerate(values) if type(value) is kind]
        micros[rows], valid[rows] = _parse_column_of(kind, [values[row] for row in rows], unit)
    return micros, valid


def format_timestamp(micros: int) -> str:
    """Return ISO 8601 in UTC, for messages to people."""
    return str((np.datetime64(0, "us") + micros).astype("datetime64[us]")) + "Z"


def _parse_text(text: str) -> int | None:
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, zone_hours, zone_minutes = match.groups(default="0")
    try:
        moment = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=UTC)
    except ValueError:  # the 30th of February, hour 24, second 60
        return None
    since = moment - _EPOCH
    zone_s = int(zone_hours) * 3_600 + int(zone_minutes) * 60
    seconds = since.days * 86_400 + since.seconds + (zone_s if sign == "-" else -zone_s)
    if not _SECONDS_FIRST <= seconds < _SECONDS_END:
        return None
    return seconds * 1_000_000 + int(fraction[:6].ljust(6, "0"))


def _parse_column_of(kind: type, values: list[Any], unit: str) -> tuple[Micros, Marks]:
    if kind is str:
        return _parse_text_column(values)
    micros_per_unit = 1_000_000 // PER_SECOND[unit]
    if kind is int:
        return np.array(values, np.int64) * micros_per_unit, np.ones(len(values), np.bool_)
    if kind is float:
        return np.rint(np.array(values) * micros_per_unit).astype(np.int64), np.ones(len(values), np.bool_)
    return np.zeros(len(values), np.int64), np.zeros(len(values), np.bool_)


def _parse_text_column(texts: list[str]) -> tuple[Micros, Marks]:
    """Read the usual forms (`YYYY-MM-DD?HH:MM:SS`, up to six digits of fraction, `Z` or `+HH:MM`) for all rows at once,
    by arithmetic on their bytes; give each row of another form to `_parse_text`."""
    micros, valid = _parse_usual_texts(pa.array(texts, pa.string()))
    for row in np.flatnonzero(~valid).tolist():
        parsed = _parse_text(texts[row])
        if parsed is not None:
            micros[row], valid[row] = parsed, True
    return micros, valid


def _parse_usual_texts(texts: pa.StringArray) -> tuple[Micros, Marks]:
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32)[: len(texts) + 1]
    # Padded, so that a position after the end of a short text can be read; the length decides whether it counts.
    padded = np.zeros(int(bounds[-1]) + _COLUMN_BYTES_MAX, np.uint8)
    padded[: bounds[-1]] = np.frombuffer(data, np.uint8)[: bounds[-1]]
    starts, ends, lengths = bounds[:-1], bounds[1:], np.diff(bounds)
    valid = lengths <= _COLUMN_BYTES_MAX

    def byte_is(positions: npt.NDArray[np.int32], characters: str) -> Marks:
        return np.isin(padded[positions], np.frombuffer(characters.encode(), np.uint8))

    def number(positions: npt.NDArray[np.int32], digits: int, used: Marks | None = None) -> Micros:
        """Read `digits` digits; a row with another character becomes invalid, unless it is not `used`."""
        nonlocal valid
        total = np.zeros(len(positions), np.int64)
        for at in range(digits):
            digit = padded[positions + at] - np.uint8(48)  # anything below "0" wraps round to above 9
            valid &= (digit <= 9) if used is None else (digit <= 9) | ~used
            total = total * 10 + digit
        return total

    year, month, day = number(starts, 4), number(starts + 5, 2), number(starts + 8, 2)
    hour, minute, second = number(starts + 11, 2), number(starts + 14, 2), number(starts + 17, 2)
    valid &= byte_is(starts + 4, "-") & byte_is(starts + 7, "-") & byte_is(starts + 10, "T ")
    valid &= byte_is(starts + 13, ":") & byte_is(starts + 16, ":")

    zulu = byte_is(ends - 1, "Z")
    shifted = (lengths >= 25) & byte_is(ends - 6, "+-") & byte_is(ends - 3, ":")
    body = lengths - zulu - 6 * shifted
    valid &= (body == 19) | ((body >= 21) & (body <= 26) & byte_is(starts + 19, "."))
    zone_s = np.zeros(len(texts), np.int64)
    if shifted.any():
        zone_hours, zone_minutes = number(ends - 5, 2, shifted), number(ends - 2, 2, shifted)
        valid &= ((zone_hours < 24) & (zone_minutes < 60)) | ~shifted
        zone_s = np.where(shifted, zone_hours * 3_600 + zone_minutes * 60, 0)
        zone_s = np.where(byte_is(ends - 6, "-"), -zone_s, zone_s)
    fraction = np.zeros(len(texts), np.int64)
    for at in range(6 if (body > 19).any() else 0):
        used = body > 20 + at
        fraction = fraction * 10 + np.where(used, number(starts + 20 + at, 1, used), 0)

    valid &= (month >= 1) & (month <= 12) & (hour < 24) & (minute < 60) & (second < 60)
    month_index = np.where(valid, (year - 1970) * 12 + month - 1, 0)
    month_start_day, month_end_day = _first_day(month_index), _first_day(month_index + 1)
    valid &= (day >= 1) & (day <= month_end_day - month_start_day)
    seconds = (month_start_day + day - 1) * 86_400 + hour * 3_600 + minute * 60 + second - zone_s
    valid &= (year >= 1) & (seconds >= _SECONDS_FIRST) & (seconds < _SECONDS_END)
    return np.where(valid, seconds * 1_000_000 + fraction, 0), valid


def _first_day(month_index: Micros) -> Micros:
    """Return the days from 1970-01-01 to the first of a month, counted in months from 1970-01."""
    return month_index.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
