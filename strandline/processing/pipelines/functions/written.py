"""Readers of the arguments that must be written out. All raise ValueError with the problem of the argument."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

from strandline.core.times.time_zones import zone_names

TEXT_LENGTH_MAX = 1_000
FIXED_UNITS = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": 86_400_000_000,
    "WEEK": 604_800_000_000,
}
"""Unit of time -> microseconds. A day has 24 hours, in UTC."""
MONTH_UNITS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
"""Unit of time -> months."""
TIME_UNITS = (*FIXED_UNITS, *MONTH_UNITS)
OFFSET = re.compile(r"([+-])(\d{2}):(\d{2})", re.ASCII)


def text(written: str) -> str:
    """Return a string of bounded length."""
    if len(written) > TEXT_LENGTH_MAX:
        raise ValueError(f"is longer than {TEXT_LENGTH_MAX:,} characters")
    return written


def some_text(written: str) -> str:
    """Return a string of bounded length that isn't empty."""
    if not written:
        raise ValueError("is empty")
    return text(written)


_LIKE_PATTERN = re.compile(r"(?:[^\\]|\\[\\%_])*")


def is_like_pattern(text: str) -> bool:
    """Return True if `%`, `_`, or a backslash follows each backslash of a LIKE pattern. Spark refuses all other patterns."""
    return _LIKE_PATTERN.fullmatch(text) is not None


def whole_from(low: int, high: int) -> Callable[[str], int]:
    """Return a reader of an integer within bounds."""

    def read(written: str) -> int:
        if not re.fullmatch(r"-?\d{1,10}", written, re.ASCII) or not low <= int(written) <= high:
            raise ValueError(f"is {written[:40]}; expected an integer from {low} to {high}")
        return int(written)

    return read


def part_number(written: str) -> int:
    """Return the number of a part, counted from 1, or from the end if it is negative."""
    number = whole_from(-10_000, 10_000)(written)
    if not number:
        raise ValueError("is 0; parts count from 1, and from -1 at the end")
    return number


def time_unit(written: str) -> str:
    """Return a unit of time, as `HOUR`."""
    unit = written.upper()
    if unit not in TIME_UNITS:
        raise ValueError(f"is {written[:40]}; expected one of: {', '.join(TIME_UNITS)}")
    return unit


def zone(written: str) -> str:
    """Return a time zone: a name of the IANA database, or an offset as `+02:00`."""
    match = OFFSET.fullmatch(written)
    if match:
        if timedelta(hours=int(match[2]), minutes=int(match[3])) > timedelta(hours=18) or int(match[3]) > 59:
            raise ValueError(f"is {written}; an offset is at most 18 hours")
        return written
    if written not in zone_names():
        raise ValueError(
            f"is '{written[:40]}', which is not a time zone of the IANA database; write 'Europe/Berlin' or '+02:00'"
        )
    return written
