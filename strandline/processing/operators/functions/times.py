"""Functions of times: parts, truncation, sums, and differences. A time is microseconds since 1970, UTC. A result that doesn't
fit is null."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlglot import exp

from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.operators.arithmetic import INTEGER_OPERATIONS, Bools, array_of, numbers_of, valid_in
from strandline.processing.pipelines.functions.written import FIXED_UNITS, MONTH_UNITS

Numbers = npt.NDArray[np.int64]

DAY_US = 86_400_000_000
_MONTHS_MAX = 12 * 600_000
"""More months than there are between any two timestamps."""
_TIMESTAMP = arrow_type("timestamp")


def micros_in(times: pa.Array) -> Numbers:
    """Return microseconds since 1970; 0 for nulls."""
    return numbers_of(times.view(pa.int64()))


def times_of(micros: Numbers, valid: Bools) -> pa.Array:
    """Return microseconds since 1970 as timestamps, null where they aren't valid."""
    return array_of(micros, valid).view(_TIMESTAMP)


def days_in(micros: Numbers) -> Numbers:
    """Return days since 1970, rounded down."""
    return micros // DAY_US


def months_in(days: Numbers) -> Numbers:
    """Return months since January 1970 for days since 1970."""
    return days.view("datetime64[D]").astype("datetime64[M]").astype(np.int64)


def first_days(months: Numbers) -> Numbers:
    """Return the first days of months since January 1970, as days since 1970."""
    return months.view("datetime64[M]").astype("datetime64[D]").astype(np.int64)


def weekdays(days: Numbers) -> Numbers:
    """Return the day of the week; 0 is Monday."""
    return (days + 3) % 7


def days_of_year(days: Numbers) -> Numbers:
    """Return the day of the year, from 1."""
    return days - first_days(months_in(days) // 12 * 12) + 1


def _week_of_year(days: Numbers) -> Numbers:
    """Return the week by ISO 8601: a week belongs to the year of its Thursday."""
    return (days_of_year(days - weekdays(days) + 3) - 1) // 7 + 1


def days_of_month(days: Numbers) -> Numbers:
    """Return the day of the month, from 1."""
    return days - first_days(months_in(days)) + 1


def _of_days(compute: Callable[[Numbers], Numbers]) -> Callable[[pa.Array], pa.Array]:
    return lambda times: _integers(compute(days_in(micros_in(times))), times)


def _of_clock(unit_us: int, count: int) -> Callable[[pa.Array], pa.Array]:
    return lambda times: _integers(micros_in(times) // unit_us % count, times)


def _integers(values: Numbers, times: pa.Array) -> pa.Array:
    return array_of(values.astype(np.int32), valid_in(times))


PARTS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "year": _of_days(lambda days: months_in(days) // 12 + 1970),
    "quarter": _of_days(lambda days: months_in(days) % 12 // 3 + 1),
    "month": _of_days(lambda days: months_in(days) % 12 + 1),
    "day": _of_days(days_of_month),
    "dayofweek": _of_days(lambda days: (weekdays(days) + 1) % 7 + 1),
    "weekday": _of_days(weekdays),
    "dayofyear": _of_days(days_of_year),
    "weekofyear": _of_days(_week_of_year),
    "hour": _of_clock(3_600_000_000, 24),
    "minute": _of_clock(60_000_000, 60),
    "second": _of_clock(1_000_000, 60),
}


def truncate(unit: str, times: pa.Array) -> pa.Array:
    """Return the beginning of the unit that contains each time."""
    micros = micros_in(times)
    if unit in MONTH_UNITS:
        months, step = months_in(days_in(micros)), MONTH_UNITS[unit]
        result = first_days(months // step * step) * DAY_US
    elif unit == "WEEK":
        days = days_in(micros)
        result = (days - weekdays(days)) * DAY_US
    else:
        result = micros - micros % FIXED_UNITS[unit]
    # For the earliest times, the beginning doesn't fit: it has wrapped to a large positive number.
    return times_of(result, valid_in(times) & (result <= micros))


def add(unit: str, counts: pa.Array, times: pa.Array) -> pa.Array:
    """Return each time plus a number of units."""
    if unit in FIXED_UNITS:
        moved = INTEGER_OPERATIONS[exp.Mul](counts, pa.repeat(pa.scalar(FIXED_UNITS[unit], pa.int64()), len(counts)))
        return INTEGER_OPERATIONS[exp.Add](moved, times.view(pa.int64())).view(_TIMESTAMP)
    step, count, micros = MONTH_UNITS[unit], numbers_of(counts), micros_in(times)
    valid = valid_in(counts, times) & (np.abs(count // _MONTHS_MAX) <= 1)
    days = days_in(micros)
    months = months_in(days) + np.where(valid, count, 0) * step
    valid &= np.abs(months) <= _MONTHS_MAX
    months = np.where(valid, months, 0)
    first = first_days(months)
    last = first_days(months + 1) - 1
    moved_days = np.minimum(first + days_of_month(days) - 1, last)
    result = moved_days * DAY_US + micros % DAY_US
    return times_of(result, valid & (days_in(result) == moved_days))


def difference(unit: str, starts: pa.Array, ends: pa.Array) -> pa.Array:
    """Return the number of complete units between the times, rounded towards zero."""
    if unit in FIXED_UNITS:
        apart = INTEGER_OPERATIONS[exp.Sub](ends.view(pa.int64()), starts.view(pa.int64()))
        return array_of(_cut_off(numbers_of(apart), FIXED_UNITS[unit]), valid_in(apart))
    start, end = micros_in(starts), micros_in(ends)
    first_day, last_day = days_in(start), days_in(end)
    # As in Java: first whole days, then months of them.
    last_day = last_day - ((last_day > first_day) & (end % DAY_US < start % DAY_US))
    last_day = last_day + ((last_day < first_day) & (end % DAY_US > start % DAY_US))
    packed = [months_in(days) * 32 + days_of_month(days) for days in (first_day, last_day)]
    months = _cut_off(packed[1] - packed[0], 32)
    return array_of(_cut_off(months, MONTH_UNITS[unit]), valid_in(starts, ends))


def _cut_off(numbers: Numbers, unit: int) -> Numbers:
    quotient: Numbers = numbers // unit
    quotient += (numbers % unit != 0) & (numbers < 0)
    return quotient


def since_1970(unit_us: int) -> Callable[[pa.Array], pa.Array]:
    """Return a function that computes whole units since 1970, rounded down."""
    return lambda times: array_of(micros_in(times) // unit_us, valid_in(times))


def after_1970(unit_us: int) -> Callable[[pa.Array], pa.Array]:
    """Return a function that computes the time a number of units after 1970."""

    def compute(numbers: pa.Array) -> pa.Array:
        unit = pa.repeat(pa.scalar(unit_us, pa.int64()), len(numbers))
        return INTEGER_OPERATIONS[exp.Mul](numbers, unit).view(_TIMESTAMP)

    return compute


Kernel = Callable[..., Any]
TIME_KERNELS: dict[str, Kernel] = {
    **PARTS,
    "date_trunc": truncate,
    "timestampadd": add,
    "timestampdiff": difference,
    "unix_seconds": since_1970(1_000_000),
    "unix_millis": since_1970(1_000),
    "unix_micros": since_1970(1),
    "timestamp_millis": after_1970(1_000),
    "timestamp_micros": after_1970(1),
}
