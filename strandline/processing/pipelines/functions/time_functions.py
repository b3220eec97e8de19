"""The functions of times."""

from __future__ import annotations

from strandline.core.times.time_patterns import read_pattern, written_pattern
from strandline.processing.pipelines.functions.signature import Argument, Function
from strandline.processing.pipelines.functions.written import time_unit, zone

_TIMES = "Times"
_TIME = Argument("time", "timestamp")
_UNIT = Argument("unit", "string", time_unit, is_word=True)
_ZONE = Argument("zone", "string", zone)
_T = "timestamp '2026-03-29 01:30:15.250'"
_BEYOND = "a result beyond what a timestamp can hold"
_YEARS = "a time beyond the years 1 to 9999"
DEFAULT_PATTERN = "yyyy-MM-dd HH:mm:ss"


def _part(name: str, says: str, value: str) -> Function:
    return Function(name, _TIMES, (_TIME,), "integer", says, examples=((f"{name}({_T})", value),))


def _number_of(name: str, says: str, value: str) -> Function:
    return Function(name, _TIMES, (_TIME,), "long", says, examples=((f"{name}({_T})", value),))


def _time_of(name: str, says: str, example: str) -> Function:
    arguments = (Argument("number", "long"),)
    return Function(
        name,
        _TIMES,
        arguments,
        "timestamp",
        says,
        _BEYOND,
        examples=((f"{name}({example})", "2026-11-01 12:00:07.25"),),
    )


TIME_FUNCTIONS = (
    Function(
        "date_trunc", _TIMES, (Argument("unit", "string", time_unit), _TIME), "timestamp",
        "the beginning of the unit that contains the time, in UTC; a week begins on Monday", _BEYOND,
        examples=(
            (f"date_trunc('HOUR', {_T})", "2026-03-29 01:00:00"), (f"date_trunc('WEEK', {_T})", "2026-03-23 00:00:00"),
        ),
    ),
    _part("year", "the year", "2026"),
    _part("quarter", "the quarter, 1 to 4", "1"),
    _part("month", "the month, 1 to 12", "3"),
    _part("day", "the day of the month, 1 to 31", "29"),
    _part("hour", "the hour, 0 to 23", "1"),
    _part("minute", "the minute, 0 to 59", "30"),
    _part("second", "the second, 0 to 59, without its fraction", "15"),
    _part("dayofweek", "the day of the week: 1 is Sunday, 7 Saturday", "1"),
    _part("weekday", "the day of the week: 0 is Monday, 6 Sunday", "6"),
    _part("dayofyear", "the day of the year, 1 to 366", "88"),
    _part("weekofyear", "the week of the year by ISO 8601, 1 to 53", "13"),
    Function(
        "timestampadd", _TIMES, (_UNIT, Argument("count", "long"), _TIME), "timestamp",
        "the time plus this count of units. A month later is the same day of the next month, or its last; "
        "`time + interval '90' minute` is the same",
        _BEYOND,
        examples=(
            (f"timestampadd(MINUTE, -90, {_T})", "2026-03-29 00:00:15.25"),
            ("timestampadd(MONTH, 1, timestamp '2026-01-31 12:00:00')", "2026-02-28 12:00:00"),
        ),
    ),
    Function(
        "timestampdiff", _TIMES, (_UNIT, Argument("start", "timestamp"), Argument("end", "timestamp")), "long",
        "the number of complete units between them; negative if the end is before the start",
        "times farther apart than 292,000 years",
        examples=((f"timestampdiff(SECOND, timestamp '2026-03-29 01:29:00', {_T})", "75"),),
    ),
    _number_of("unix_seconds", "seconds since 1970, rounded down", "1774747815"),
    _number_of("unix_millis", "milliseconds since 1970, rounded down", "1774747815250"),
    _number_of("unix_micros", "microseconds since 1970", "1774747815250000"),
    _time_of("timestamp_millis", "the time this number of milliseconds after 1970", "1793534407250"),
    _time_of("timestamp_micros", "the time this number of microseconds after 1970", "1793534407250000"),
    Function(
        "to_timestamp", _TIMES,
        (Argument("text", "string"), Argument("pattern", "string", read_pattern, default=f"'{DEFAULT_PATTERN}'")),
        "timestamp", "the time in the string, read by the pattern", "a string that doesn't fit the pattern, or is no time",
        examples=(("to_timestamp('29.03.2026 01:30', 'dd.MM.yyyy HH:mm')", "2026-03-29 01:30:00"),),
    ),
    Function(
        "try_to_timestamp", _TIMES,
        (Argument("text", "string"), Argument("pattern", "string", read_pattern, default=f"'{DEFAULT_PATTERN}'")),
        "timestamp", "the same, or null if the string doesn't fit the pattern, or is no time",
        examples=(("try_to_timestamp('2026-03-29', 'yyyy-MM-dd')", "2026-03-29 00:00:00"),), is_null_by_choice=True,
    ),
    Function(
        "date_format", _TIMES, (_TIME, Argument("pattern", "string", written_pattern)), "string",
        "the time as a string, written by the pattern", _YEARS,
        examples=((f"date_format({_T}, 'EEE, d MMM yyyy HH:mm')", "Sun, 29 Mar 2026 01:30"),),
    ),
    Function(
        "from_utc_timestamp", _TIMES, (_TIME, _ZONE), "timestamp",
        "the local time in the zone, for use with the functions that count in UTC", _YEARS,
        examples=((f"from_utc_timestamp({_T}, 'Europe/Berlin')", "2026-03-29 03:30:15.25"),),
    ),
    Function(
        "to_utc_timestamp", _TIMES, (Argument("clock", "timestamp"), _ZONE), "timestamp",
        "the time at which clocks in the zone show this. A time shown twice is the first one. A time that clocks skip counts "
        "on from before",
        _YEARS,
        examples=(
            ("to_utc_timestamp(timestamp '2026-10-25 02:30:00', 'Europe/Berlin')", "2026-10-25 00:30:00"),
            ("to_utc_timestamp(timestamp '2026-03-29 02:30:00', 'Europe/Berlin')", "2026-03-29 01:30:00"),
        ),
    ),
)  # fmt: skip
