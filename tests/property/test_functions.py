"""Every function of expressions against a plain reading of one row at a time, over ordinary and extreme values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.operators.evaluation import ColumnExpression
from strandline.processing.pipelines.expressions import parse_expression
from strandline.processing.pipelines.functions.table import CALLS
from tests.support.examples import examples

DAY_US = 86_400_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_US = (datetime(1, 1, 1, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
LAST_US = (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
LONG = (-(2**63), 2**63 - 1)
INTEGER = (-(2**31), 2**31 - 1)


class Row(NamedTuple):
    """One row: times as microseconds since 1970."""

    s: str | None
    i: int | None
    l: int | None  # noqa: E741
    d: float | None
    e: float | None
    t: int | None
    u: int | None
    m: Decimal | None


TYPES = {
    "s": "string", "i": "integer", "l": "long", "d": "double", "e": "double", "t": "timestamp", "u": "timestamp",
    "m": "decimal(12,3)",
}  # fmt: skip
TIMES = st.one_of(
    st.integers(*LONG),
    st.integers(FIRST_US, LAST_US),
    st.integers(0, 4 * 10**15),
    st.sampled_from([*LONG, FIRST_US, LAST_US, -1, 0, DAY_US - 1]),
    # Around the nights in which clocks are put forward and back.
    st.builds(
        lambda night, quarter, second: (night + quarter * 900 + second) * 1_000_000 + 250_000,
        st.sampled_from([1774746000, 1792890000, 1775318400, 4110226800, 4131392400]),
        st.integers(-50, 10),
        st.sampled_from([-1, 0, 1, 450]),
    ),
    st.integers(1900, 2200).map(
        lambda year: (datetime(year, 2, 28, 23, 30, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    ),
)
WORDS = st.lists(
    st.sampled_from(["a", "-", "pump-17", "\n", ",", "é", "😀", "ß", "7", " ", "PM", "\x00", "aa"]), max_size=6
).map("".join)
TWO_DIGITS = st.sampled_from([0, 1, 11, 12, 13, 18, 19, 28, 29, 30, 31, 32, 59, 60])
WRITTEN = st.one_of(
    st.builds(
        "{:02d}.{:02d}.{:04d} {:02d}:{:02d} {}".format,
        TWO_DIGITS, st.integers(0, 13), st.sampled_from([0, 1, 1900, 2000, 2023, 2024, 9999]), TWO_DIGITS, TWO_DIGITS,
        st.sampled_from(["AM", "PM", "pm", "XM", "AM "]),
    ),
    st.builds(
        "{:04d}-{:02d}-{:02d}T{}:{:02d}:{:02d}.{}{}".format,
        st.sampled_from([1, 2024, 9999]), st.integers(0, 13), TWO_DIGITS, st.integers(0, 25), TWO_DIGITS, TWO_DIGITS,
        st.sampled_from(["1", "05", "123", "1234", ""]), st.sampled_from(["Z", "+02:00", "-17:59", "+18:01", "-01:60", ""]),
    ),
)  # fmt: skip
DOUBLES = st.one_of(st.floats(), st.floats(-1e6, 1e6), st.integers(-1000, 1000).map(float))
APART = st.none() | st.builds(
    lambda days, rest: days * DAY_US + rest, st.integers(-1_100, 1_100), st.sampled_from([0, -1, 1, DAY_US // 2])
)


def row_of(apart: int | None, *values: Any) -> Row:
    """`apart`: how much later the second time is, if it follows from the first."""
    row = Row(*values)
    if apart is None or row.t is None:
        return row
    return row._replace(u=min(max(row.t + apart, LONG[0]), LONG[1]))


ROWS = st.builds(
    row_of,
    APART,
    st.none() | WORDS | st.text(max_size=8) | WRITTEN,
    st.none() | st.integers(*INTEGER) | st.integers(-40, 40),
    st.none() | st.integers(*LONG) | st.integers(-1000, 1000),
    st.none() | DOUBLES,
    st.none() | DOUBLES,
    st.none() | TIMES,
    st.none() | TIMES,
    st.none() | st.decimals(-999_999_999, 999_999_999, places=3),
)
Reading = Callable[[Row], Any]


# Times, counted by hand: Python's own know only the years 1 to 9999


def civil(day: int) -> tuple[int, int, int]:
    """Year, month and day of days since 1970, in the Gregorian calendar without end."""
    era, rest = divmod(day + 719_468, 146_097)
    year = (rest - rest // 1_460 + rest // 36_524 - rest // 146_096) // 365
    of_year = rest - (365 * year + year // 4 - year // 100)
    part = (5 * of_year + 2) // 153
    month = part + 3 if part < 10 else part - 9
    return year + era * 400 + (month <= 2), month, of_year - (153 * part + 2) // 5 + 1


def day_of(year: int, month: int, day: int) -> int:
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def length_of(year: int, month: int) -> int:
    return day_of(year + month // 12, month % 12 + 1, 1) - day_of(year, month, 1)


def date(row: Row) -> tuple[int, int, int]:
    assert row.t is not None
    return civil(row.t // DAY_US)


def weekday(day: int) -> int:
    return (day + 3) % 7


def week(row: Row) -> int:
    assert row.t is not None
    day = row.t // DAY_US
    thursday = day - weekday(day) + 3
    return (thursday - day_of(civil(thursday)[0], 1, 1)) // 7 + 1


def in_range(value: int, limits: tuple[int, int] = LONG) -> int | None:
    return value if limits[0] <= value <= limits[1] else None


def months_later(time: int, count: int) -> int | None:
    year, month, day = civil(time // DAY_US)
    months = year * 12 + month - 1 + count
    if abs(months) > 10**8:
        return None
    year, month = divmod(months, 12)
    moved = day_of(year, month + 1, min(day, length_of(year, month + 1)))
    return in_range(moved * DAY_US + time % DAY_US)


def months_between(start: int, end: int) -> int:
    """Count as `java.time` does: entire days, without those that have more of the clock."""
    first, last = start // DAY_US, end // DAY_US
    if last > first and end % DAY_US < start % DAY_US:
        last -= 1
    elif last < first and end % DAY_US > start % DAY_US:
        last += 1
    (y1, m1, d1), (y2, m2, d2) = civil(first), civil(last)
    return cut((y2 * 12 + m2) * 32 + d2 - (y1 * 12 + m1) * 32 - d1, 32)


def cut(number: int, unit: int) -> int:
    return -(-number // unit) if number < 0 else number // unit


def truncated(step: int) -> Reading:
    def read(row: Row) -> int | None:
        year, month, _ = date(row)
        months = (year * 12 + month - 1) // step * step
        return in_range(day_of(months // 12, months % 12 + 1, 1) * DAY_US)

    return read


def as_time(micros: int | None) -> datetime | None:
    if micros is None or not FIRST_US <= micros <= LAST_US:
        return None
    return EPOCH + timedelta(microseconds=micros)


def as_micros(time: datetime) -> int:
    return (time.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


def clock(zone: str) -> Reading:
    def read(row: Row) -> int | None:
        time = as_time(row.t)
        try:
            return None if time is None else as_micros(time.astimezone(ZoneInfo(zone)))
        except OverflowError:
            return None

    return read


def moment(zone: str) -> Reading:
    def read(row: Row) -> int | None:
        time = as_time(row.t)
        if time is None:
            return None
        offset = time.replace(tzinfo=ZoneInfo(zone)).utcoffset()
        assert offset is not None
        try:
            return as_micros(time - offset)
        except OverflowError:
            return None

    return read


def formatted(row: Row) -> str | None:
    time = as_time(row.t)
    return None if time is None else f"{time.year:04d}" + time.strftime("-%m-%dT%H:%M:%S.%fZ, %a %A %b %B %j '%I %p'")


def half_day(row: Row) -> int | None:
    match = re.fullmatch(r"(\d\d)\.(\d\d)\.(\d{4}) (\d\d):(\d\d) ([aApP][mM])", row.s or "", re.ASCII)
    if match is None or not 1 <= int(match[4]) <= 12:
        return None
    hour = int(match[4]) % 12 + (12 if match[6].upper() == "PM" else 0)
    try:
        return as_micros(datetime(int(match[3]), int(match[2]), int(match[1]), hour, int(match[5]), tzinfo=UTC))
    except ValueError:
        return None


def with_offset(row: Row) -> int | None:
    match = re.fullmatch(
        r"(\d{4})-(\d\d)-(\d\d)T(\d{1,2}):(\d\d):(\d\d)\.(\d{1,3})(?:Z|([+-])(\d\d):(\d\d))", row.s or "", re.ASCII
    )
    if match is None:
        return None
    hours, minutes = int(match[9] or 0), int(match[10] or 0)
    if minutes > 59 or hours * 60 + minutes > 18 * 60:
        return None
    offset = timedelta(hours=hours, minutes=minutes)
    try:
        time = datetime(*(int(part) for part in match.groups()[:6]), int(match[7].ljust(6, "0")), tzinfo=UTC)  # type: ignore[arg-type,misc]
        return as_micros(time + offset if match[8] == "-" else time - offset)
    except (ValueError, OverflowError):
        return None


# Numbers


def of_double(compute: Callable[[float], float]) -> Reading:
    def read(row: Row) -> float | None:
        assert row.d is not None
        try:
            return compute(row.d)
        except ValueError:
            return math.nan
        except OverflowError:
            return math.inf

    return read


def logarithm(compute: Callable[[float], float]) -> Reading:
    return lambda row: None if row.d is not None and row.d <= 0 else of_double(compute)(row)


def wrapped(value: int, bits: int) -> int:
    half = 2 ** (bits - 1)
    return (value + half) % (2 * half) - half


def pmod(x: int, y: int) -> int | None:
    if y == 0:
        return None
    rest = abs(x) % abs(y) * (-1 if x < 0 else 1)
    return rest + y if rest < 0 and y > 0 else rest


def celsius(row: Row) -> float:
    assert row.d is not None
    if not math.isfinite(row.d):
        return row.d
    return float((Fraction(row.d) - 32) * 5 / 9)


def commas(value: Any, places: int) -> str | None:
    if not math.isfinite(value):
        return None
    shown = Fraction(repr(value)) if isinstance(value, float) else Fraction(value)
    exact = (shown if (shown * 10**places).denominator == 1 else Fraction(value)) * 10**places
    rounded = round(exact)  # half to even
    digits = str(abs(rounded)).zfill(places + 1)
    whole, part = digits[: len(digits) - places], digits[len(digits) - places :]
    sign = "-" if value < 0 or (rounded == 0 and isinstance(value, float) and math.copysign(1, value) < 0) else ""
    return f"{sign}{int(whole):,}" + (f".{part}" if places else "")


# Text


def part(text: str, separator: str, number: int) -> str:
    parts = text.split(separator)
    at = number - 1 if number > 0 else len(parts) + number
    return parts[at] if 0 <= at < len(parts) else ""


def group(pattern: str, number: int) -> Reading:
    def read(row: Row) -> str:
        match = re.search(pattern, row.s or "", re.ASCII)
        return (match[number] or "") if match else ""

    return read


def filled(text: str, length: int, fill: str, *, left: bool) -> str:
    missing = (fill * length)[: max(length - len(text), 0)]
    return missing + text[:length] if left else text[:length] + missing


def rest(number: int, by: int) -> int:
    """With the sign of the number, as in Spark."""
    return abs(number) % by * (1 if number > 0 else -1)


def place(values: list[Any], number: int) -> Any:
    at = number - 1 if number > 0 else len(values) + number
    return values[at] if number and 0 <= at < len(values) else None


def sliced(values: list[Any], start: int, length: int) -> list[Any] | None:
    if not start or length < 0:
        return None
    first = start - 1 if start > 0 else len(values) + start
    return values[first : first + length] if first >= 0 else []


READINGS: dict[str, Reading] = {
    "year(t)": lambda row: date(row)[0],
    "quarter(t)": lambda row: (date(row)[1] + 2) // 3,
    "month(t)": lambda row: date(row)[1],
    "day(t)": lambda row: date(row)[2],
    "dayofweek(t)": lambda row: (weekday(row.t // DAY_US) + 1) % 7 + 1,
    "weekday(t)": lambda row: weekday(row.t // DAY_US),
    "dayofyear(t)": lambda row: row.t // DAY_US - day_of(date(row)[0], 1, 1) + 1,
    "weekofyear(t)": week,
    "hour(t)": lambda row: row.t % DAY_US // 3_600_000_000,
    "minute(t)": lambda row: row.t // 60_000_000 % 60,
    "extract(second from t)": lambda row: row.t // 1_000_000 % 60,
    "second(t)": lambda row: row.t // 1_000_000 % 60,
    "date_trunc('YEAR', t)": truncated(12),
    "date_trunc('QUARTER', t)": truncated(3),
    "date_trunc('month', t)": truncated(1),
    "date_trunc('WEEK', t)": lambda row: in_range((row.t // DAY_US - weekday(row.t // DAY_US)) * DAY_US),
    "date_trunc('DAY', t)": lambda row: in_range(row.t // DAY_US * DAY_US),
    "date_trunc('MINUTE', t)": lambda row: in_range(row.t // 60_000_000 * 60_000_000),
    "date_trunc('MICROSECOND', t)": lambda row: row.t,
    "timestampadd(HOUR, l, t)": lambda row: in_range(row.t + row.l * 3_600_000_000) if in_range(row.l * 3_600_000_000)
    is not None else None,
    "t - interval '90' minute": lambda row: in_range(row.t - 90 * 60_000_000),
    "timestampadd(MONTH, i, t)": lambda row: months_later(row.t, row.i),
    "timestampadd(YEAR, l, t)": lambda row: months_later(row.t, row.l * 12),
    "timestampdiff(MICROSECOND, t, u)": lambda row: in_range(row.u - row.t),
    "timestampdiff(DAY, t, u)": lambda row: None if in_range(row.u - row.t) is None else cut(row.u - row.t, DAY_US),
    "timestampdiff(MONTH, t, u)": lambda row: months_between(row.t, row.u),
    "timestampdiff(QUARTER, t, u)": lambda row: cut(months_between(row.t, row.u), 3),
    "timestampdiff(YEAR, t, u)": lambda row: cut(months_between(row.t, row.u), 12),
    "unix_seconds(t)": lambda row: row.t // 1_000_000,
    "unix_millis(t)": lambda row: row.t // 1_000,
    "unix_micros(t)": lambda row: row.t,
    "timestamp_millis(l)": lambda row: in_range(row.l * 1_000),
    "timestamp_micros(l)": lambda row: row.l,
    "to_timestamp(s, 'dd.MM.yyyy hh:mm a')": half_day,
    "try_to_timestamp(s, \"yyyy-MM-dd'T'H:mm:ss.SSSXXX\")": with_offset,
    "date_format(t, \"yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX, EEE EEEE MMM MMMM DDD ''hh a''\")": formatted,
    "from_utc_timestamp(t, 'Europe/Berlin')": clock("Europe/Berlin"),
    "from_utc_timestamp(t, 'Australia/Lord_Howe')": clock("Australia/Lord_Howe"),
    "from_utc_timestamp(t, '-09:30')": lambda row: as_micros(time - timedelta(hours=9.5))
    if (time := as_time(row.t)) and row.t >= FIRST_US + DAY_US else None,
    "to_utc_timestamp(t, 'Europe/Berlin')": moment("Europe/Berlin"),
    "to_utc_timestamp(t, 'Australia/Lord_Howe')": moment("Australia/Lord_Howe"),
    "to_utc_timestamp(t, 'America/St_Johns')": moment("America/St_Johns"),
    "cast(t as string)": lambda row: None if (time := as_time(row.t)) is None else (
        str(time.replace(tzinfo=None)).rstrip("0") if time.microsecond else str(time.replace(tzinfo=None))),
    "sign(d)": lambda row: row.d if math.isnan(row.d) or row.d == 0 else math.copysign(1.0, row.d),
    "cbrt(d)": of_double(math.cbrt),
    "log10(d)": logarithm(math.log10),
    "log2(d)": logarithm(math.log2),
    "isnan(d)": lambda row: math.isnan(row.d),
    "nanvl(d, e)": lambda row: row.e if math.isnan(row.d) else row.d,
    "pi()": lambda _: math.pi,
    "sin(d)": of_double(math.sin),
    "cos(d)": of_double(math.cos),
    "tan(d)": of_double(math.tan),
    "asin(d)": of_double(math.asin),
    "acos(d)": of_double(math.acos),
    "atan(d)": of_double(math.atan),
    "atan2(d, e)": lambda row: math.atan2(row.d, row.e),
    "degrees(d)": lambda row: row.d * (180 / math.pi),
    "radians(d)": lambda row: row.d * (math.pi / 180),
    "pmod(l, i)": lambda row: pmod(row.l, row.i),
    "pmod(i, -7)": lambda row: pmod(row.i, -7),
    "pmod(d, 360)": lambda row: math.nan if not math.isfinite(row.d) else (
        rest if (rest := math.fmod(row.d, 360.0)) >= 0 else math.fmod(rest + 360.0, 360.0)),
    "i & 6": lambda row: row.i & 6,
    "i | l": lambda row: row.i | row.l,
    "i ^ l": lambda row: row.i ^ row.l,
    "~l": lambda row: ~row.l,
    "shiftleft(i, 3)": lambda row: wrapped(row.i << 3, 32),
    "shiftleft(l, i)": lambda row: wrapped(row.l << row.i % 64, 64),
    "shiftright(l, i)": lambda row: row.l >> row.i % 64,
    "convert_unit(d, 'degF', 'degC')": celsius,
    "convert_unit(d, 'km/h', 'm/s')": lambda row: row.d * (5 / 18),
    "format_number(d, 2)": lambda row: commas(row.d, 2),
    "format_number(m, 1)": lambda row: commas(row.m, 1),
    "format_number(l, 0)": lambda row: commas(row.l, 0),
    "concat_ws('/', s, s)": lambda row: f"{row.s}/{row.s}",
    "contains(s, '-')": lambda row: "-" in row.s,
    "startswith(s, 'pu')": lambda row: row.s.startswith("pu"),
    "endswith(s, '')": lambda row: True,
    "instr(s, 'é')": lambda row: row.s.find("é") + 1,
    "replace(s, 'a', '😀b')": lambda row: row.s.replace("a", "😀b"),
    "replace(s, '', 'x')": lambda row: row.s,
    "split_part(s, ',', 2)": lambda row: part(row.s, ",", 2),
    "split_part(s, 'aa', -1)": lambda row: part(row.s, "aa", -1),
    "split_part(s, '-', -2)": lambda row: part(row.s, "-", -2),
    "lpad(s, 5, 'é1')": lambda row: filled(row.s, 5, "é1", left=True),
    "rpad(s, 3)": lambda row: filled(row.s, 3, " ", left=False),
    "rpad(s, 3, '')": lambda row: row.s[:3],
    "reverse(s)": lambda row: row.s[::-1],
    r"regexp_like(s, '^[a-z]+-\\d+')": lambda row: re.search(r"^[a-z]+-\d+", row.s, re.ASCII) is not None,
    "s rlike '(?s)a.$'": lambda row: re.search(r"(?s)a.\Z", row.s) is not None,
    r"regexp_extract(s, '(?:[a-z])([a-z]+)-(\\d)?', 2)": group(r"(?:[a-z])([a-z]+)-(\d)?", 2),
    r"regexp_extract(s, '[(](a)|([^])(])', 2)": group(r"[(](a)|([^])(])", 2),
    r"regexp_extract(s, '\\Q(\\E(a)|(-)', 2)": group(r"\((a)|(-)", 2),
    r"regexp_extract(s, '[\\[(]|(a)(?P<n>p*)', 2)": group(r"[\[(]|(a)(?P<n>p*)", 2),
    r"regexp_extract(s, '\\d+', 0)": group(r"\d+", 0),
    r"regexp_replace(s, '([a-z])(\\d)?', '<$1|\\$2\\\\>')": lambda row: re.sub(
        r"([a-z])(\d)?", lambda match: f"<{match[1]}|$2\\>", row.s, flags=re.ASCII),
    "array(i, l, null)": lambda row: [row.i, row.l, None],
    "size(array(s, null))": lambda row: 2,
    "element_at(array(s, 'b', 'c'), i % 5)": lambda row: place([row.s, "b", "c"], rest(row.i, 5)),
    "try_element_at(array(d, e), l)": lambda row: place([row.d, row.e], row.l),
    "slice(array(i, 2, 3, 4), i % 6, l % 6)": lambda row: sliced([row.i, 2, 3, 4], rest(row.i, 6), rest(row.l, 6)),
    "array_contains(array(i, 0, 7), l)": lambda row: row.l in (row.i, 0, 7),
    "array_contains(array(d, e), d)": lambda row: True,
    "array_contains(array(s, null), 'a')": lambda row: True if row.s == "a" else None,
    "array_position(array('a', s, null, s), s)": lambda row: 1 if row.s == "a" else 2,
    "array_position(array(1.5, m), m)": lambda row: 1 if row.m == Decimal("1.5") else 2,
    "array_min(array(i, null, 3))": lambda row: min(row.i, 3),
    "array_max(array(s, 'b'))": lambda row: max(row.s, "b", key=str.encode),
    "array_max(array(d, e))": lambda row: max(row.d, row.e, key=lambda one: (math.isnan(one), one)),
    "array_join(array(s, null, 'x', s), '-')": lambda row: f"{row.s}-x-{row.s}",
    r"split(s, '[,-]\\d*')": lambda row: re.split(r"[,-]\d*", row.s, flags=re.ASCII),
    "named_struct('a', i, 'b', array(s))": lambda row: {"a": row.i, "b": [row.s]},
    "struct(i, d as x).x": lambda row: row.d,
}  # fmt: skip
"""Expression -> its value where all that it reads is there."""
NULLS_ARE_SEEN = (
    *(
        "isnan",
        "nanvl",
        "concat_ws",
        "array",
        "size(",
        "element_at(",
        "try_element_at(",
        "slice(",
        "named_struct(",
        "struct(",
    ),
)  # an array holds nulls
NEARLY = ("cbrt", "log", "sin", "cos", "tan", "degrees", "radians", "convert_unit", "pmod(d")
"""What may differ in the last bits."""


@cache
def compiled(text: str) -> ColumnExpression:
    return ColumnExpression(parse_expression(text).sql, TYPES)


def columns_of(rows: list[Row]) -> dict[str, pa.Array]:
    return {name: pa.array([getattr(row, name) for row in rows], arrow_type(kind)) for name, kind in TYPES.items()}


def values_of(text: str, rows: list[Row]) -> list[Any]:
    found = compiled(text)(columns_of(rows), len(rows))
    assert found.type == arrow_type(compiled(text).type), text
    assert len(found) == len(rows)
    return list((found.view(pa.int64()) if pa.types.is_timestamp(found.type) else found).to_pylist())


def is_same(value: Any, expected: Any, *, nearly: bool) -> bool:
    if not (isinstance(value, float) and isinstance(expected, float)):
        return bool(value == expected) and isinstance(value, bool) == isinstance(expected, bool)
    if math.isnan(value) or math.isnan(expected):
        return math.isnan(value) and math.isnan(expected)
    return value == expected or (nearly and math.isclose(value, expected, rel_tol=1e-12, abs_tol=1e-9))


def test_each_function_has_a_reading() -> None:
    assert [name for name in CALLS if not any(f"{name}(" in text for text in READINGS)] == []


@pytest.mark.guarantee("G411")
@given(rows=st.lists(ROWS, max_size=30))
@examples(150)
def test_each_row_has_the_value_of_a_plain_reading(rows: list[Row]) -> None:
    for text, read in READINGS.items():
        used = compiled(text).columns
        for row, value in zip(rows, values_of(text, rows), strict=True):
            if all(getattr(row, name) is not None for name in used):
                expected = read(row)
                assert is_same(value, expected, nearly=text.startswith(NEARLY)), (text, row, value, expected)
            elif not text.startswith(NULLS_ARE_SEEN):
                assert value is None, (text, row)


@pytest.mark.guarantee(
    "G412",
    "No value of a record ends a job in a function: a row has its value or none, whatever its neighbours are.",
    promise="no-client-can-exhaust-a-service",
)
@given(rows=st.lists(ROWS, min_size=2, max_size=6))
@examples(15)
def test_a_row_has_its_value_whatever_its_neighbours_are(rows: list[Row]) -> None:
    for text in READINGS:
        together = values_of(text, rows)
        alone = [values_of(text, [row])[0] for row in rows]
        assert all(is_same(a, b, nearly=False) for a, b in zip(together, alone, strict=True)), text


def test_what_is_null_is_seen_by_the_functions_that_say_so() -> None:
    nothing = Row(*[None] * 8)
    assert values_of("isnan(d)", [nothing]) == [False]
    assert values_of("nanvl(d, 1)", [nothing]) == [None]
    assert values_of("nanvl(d, e)", [nothing._replace(d=1.0), nothing._replace(d=math.nan)]) == [1.0, None]
    assert values_of("concat_ws('-', s, 'x', s)", [nothing, nothing._replace(s="")]) == ["x", "-x-"]


def test_the_clock_is_right_in_each_second_around_a_change() -> None:
    nothing = Row(*[None] * 8)
    changes_s = [1774746000, 1792890000, 1775318400, 1759591800, 4110226800, 4131392400, -2422054408]
    moments = [
        change + hour * 1_800 + second for change in changes_s for hour in range(-24, 25) for second in (-1, 0, 1)
    ]
    rows = [nothing._replace(t=second * 1_000_000 + 7) for second in moments]
    for text, read in READINGS.items():
        if "utc_timestamp" in text:
            assert values_of(text, rows) == [read(row) for row in rows], text


def test_months_between_days_at_the_ends_of_months() -> None:
    days = [*range(26, 33), *range(56, 62), *range(364, 367), 789, 790]
    moments = [day * DAY_US + clock for day in days for clock in (0, 1, DAY_US - 1)]
    rows = [Row(*[None] * 8)._replace(t=start, u=end) for start in moments for end in moments]
    for text in ("timestampdiff(MONTH, t, u)", "timestampdiff(YEAR, t, u)", "timestampdiff(DAY, t, u)"):
        assert values_of(text, rows) == [READINGS[text](row) for row in rows]
