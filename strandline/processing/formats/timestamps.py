"""Parses the event times of records to integers: microseconds since 1970 UTC.

A number counts `s`, `ms`, `us` or `ns` since 1970, and can have a fraction. It is rounded to the nearest microsecond. Nanoseconds
without a fraction are rounded down.

A string is `YYYY-MM-DD`, or a date, a `T` or a space, and a time: `HH:MM`, `HH:MM:SS` or `HH:MM:SS.fraction`. A fraction can
have any number of digits; those below a microsecond are cut. Then comes `Z`, `+HH`, `+HHMM` or `+HH:MM`. Without one of these,
the string is the local time in the zone `tz`, or UTC if `tz` is None. A local time that occurs twice, because clocks are set
back, is the first one. A local time that clocks skip counts on from before. Years 1 to 9999.

Each form has a parser for a single value, which defines the meaning, and one for a column, which must agree.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Micros = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]

PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MID_CENTURY_MICROS = 2_524_608_000_000_000
"""The year 2050. The times from half this value to one and a half times this value are the years 2010 to 2090."""
_SECONDS_FIRST = -62_135_596_800
_SECONDS_END = 253_402_300_800
_TEXT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)"
    r"(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d+))?)?(?:[Zz]|([+-])([01]\d|2[0-3]):?([0-5]\d)?)?)?",
    re.ASCII,
)
# Strings that have the same meaning for Arrow as for `_TEXT`: an existing day from the year 1000, seconds, up to six digits.
_LEAP_YEAR = r"(?:(?:[2468][048]|[13579][26])00|[1-9]\d(?:0[48]|[2468][048]|[13579][26]))"
_DAY = r"(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8])"
_HOUR_MINUTE = r"(?:[01]\d|2[0-3]):[0-5]\d"
_USUAL_TEXT = (
    rf"^(?:[1-9]\d\d\d-(?:{_DAY})|{_LEAP_YEAR}-02-29)"
    rf"[T ]{_HOUR_MINUTE}:[0-5]\d(?:\.\d{{1,6}})?(?:Z|[+-]{_HOUR_MINUTE})?$"
)


def number_range(unit: str) -> tuple[int, int]:
    """Return the first number in `unit` that is in year 1, and the first after year 9999. For `ns`, the range of 64 bits."""
    per_second = PER_SECOND[unit]
    return max(_SECONDS_FIRST * per_second, -(2**63)), min(_SECONDS_END * per_second, 2**63 - 1)


def parse_timestamp(value: float | str, unit: str, tz: str | None = None) -> int | None:
    """Return the microseconds of one value of a record. None if it isn't a time in years 1 to 9999."""
    if isinstance(value, str):
        return _parse_text(value, tz)
    first, end = number_range(unit)
    if not first <= value < end:
        return None
    if isinstance(value, int):
        return value // 1_000 if unit == "ns" else value * _micros_per(unit)
    # A float of seconds can't represent most microseconds exactly; the sender meant the nearest.
    return round(value / 1_000) if unit == "ns" else round(value * _micros_per(unit))


def likely_unit(micros: int, unit: str, near_micros: int, within_micros: int) -> tuple[str, int] | None:
    """Return another unit in which a number is a time near `near_micros`, and that time. `micros`: the number as read in
    `unit`."""
    for other, per_second in PER_SECOND.items():
        found = micros * PER_SECOND[unit] // per_second
        if other != unit and abs(found - near_micros) <= within_micros:
            return other, found
    return None


def unit_of_century(micros: int, unit: str) -> tuple[str, int] | None:
    """Return another unit in which a number is a time of 2010 to 2090, and that time. `micros`: the number as read in `unit`."""
    return likely_unit(micros, unit, _MID_CENTURY_MICROS, _MID_CENTURY_MICROS // 2)


def parse_timestamp_column(
    values: list[Any], unit: str, kinds: set[type], tz: str | None = None
) -> tuple[Micros, Marks]:
    """Return the microseconds of each value, and a mask of the values that are times.

    Values are int or float (within `number_range`) or str. Other values aren't times. `kinds`: types of the values.
    """
    if len(kinds) == 1:
        return _parse_column_of(next(iter(kinds)), values, unit, tz)
    if not kinds:
        return np.zeros(0, np.int64), np.zeros(0, np.bool_)
    # One kind is read in place, with its first value instead of values of other kinds. These are a separate column.
    kind = type(values[0])
    others = [row for row, value in enumerate(values) if type(value) is not kind]
    alike = values.copy()
    for row in others:
        alike[row] = values[0]
    micros, valid = _parse_column_of(kind, alike, unit, tz)
    micros[others], valid[others] = parse_timestamp_column([values[row] for row in others], unit, kinds - {kind}, tz)
    return micros, valid


def format_timestamp(micros: int) -> str:
    """Return ISO 8601 in UTC, for messages."""
    return str((np.datetime64(0, "us") + micros).astype("datetime64[us]")) + "Z"


def _micros_per(unit: str) -> int:
    """Return the number of microseconds of a unit, which must be at least a microsecond."""
    return 1_000_000 // PER_SECOND[unit]


def _parse_text(text: str, tz: str | None) -> int | None:
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, zone_hours, zone_minutes = match.groups(default="0")
    says_zone = sign != "0" or text[-1] in "Zz"
    try:
        moment = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=UTC)
    except ValueError:  # for example February 30, hour 24, or second 60
        return None
    since = moment - _EPOCH
    zone_s = int(zone_hours) * 3_600 + int(zone_minutes) * 60
    seconds = since.days * 86_400 + since.seconds + (zone_s if sign == "-" else -zone_s)
    if not _SECONDS_FIRST <= seconds < _SECONDS_END:
        return None
    micros = seconds * 1_000_000 + int(fraction[:6].ljust(6, "0"))
    return micros if tz is None or says_zone else _of_clocks(np.array([micros]), tz)[0].as_py()


def _of_clocks(micros: Micros, tz: str) -> pa.Array:
    """Return the times in UTC, in microseconds, at which clocks of the zone show these times. Null outside of the years 1 to
    9999."""
    from strandline.processing.operators.functions.zones import (
        to_utc,
    )  # imported here, because few streams have such strings

    return to_utc(pa.array(micros).cast(pa.timestamp("us")), tz).cast(pa.int64())


def _parse_column_of(kind: type, values: list[Any], unit: str, tz: str | None) -> tuple[Micros, Marks]:
    if kind is str:
        return _parse_text_column(values, tz)
    if kind is int:
        numbers = np.array(values, np.int64)
        return numbers // 1_000 if unit == "ns" else numbers * _micros_per(unit), np.ones(len(values), np.bool_)
    if kind is float:
        times = np.array(values)
        times = times / 1_000 if unit == "ns" else times * _micros_per(unit)
        return np.rint(times).astype(np.int64), np.ones(len(values), np.bool_)
    return np.zeros(len(values), np.int64), np.zeros(len(values), np.bool_)


def _parse_text_column(texts: list[str], tz: str | None) -> tuple[Micros, Marks]:
    """Parse strings of the usual forms with Arrow, and the others with `_parse_text`."""
    column = pa.array(texts, pa.string())
    usual = pc.match_substring_regex(column, _USUAL_TEXT)
    if not pc.all(usual).as_py():
        column = pc.if_else(usual, column, "1970-01-01T00:00:00Z")
    zoned = pc.ends_with(column, "Z")
    if not pc.all(zoned).as_py():
        sign = pc.binary_slice(column.view(pa.binary()), -6, -5)
        zoned = pc.or_(zoned, pc.is_in(sign, pa.array([b"+", b"-"])))
        column = pc.if_else(zoned, column, pc.binary_join_element_wise(column, "Z", ""))
    micros = np.array(column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()))
    # With its offset, a time can be after the last year.
    valid = np.array(usual) & (micros < _SECONDS_END * 1_000_000)
    if tz is not None and len(of_clocks := np.flatnonzero(valid & ~np.array(zoned))):
        moved = _of_clocks(micros[of_clocks], tz)
        micros[of_clocks] = moved.fill_null(0)
        valid[of_clocks] = moved.is_valid()
    for row in np.flatnonzero(~valid).tolist():
        parsed = _parse_text(texts[row], tz)
        if parsed is not None:
            micros[row], valid[row] = parsed, True
    return micros, valid
