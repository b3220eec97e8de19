"""Times of zones. The rules are those that the days of windows go by (`core.times.time_zones`), by Python's `zoneinfo`: Arrow's
own kernels do not know the rules for times after 2037.

An offset is asked for once for each hour that occurs, and within an hour in which it changes the moment is searched for.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache

import numpy as np
import pyarrow as pa

from strandline.core.times.time_zones import rules_of
from strandline.processing.operators.arithmetic import valid_in
from strandline.processing.operators.functions.times import Kernel, Numbers, micros_in, times_of
from strandline.processing.pipelines.functions.written import OFFSET

_HOUR_S = 3_600
_EPOCH, _UTC_EPOCH = datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)  # noqa: DTZ001
FIRST_US = (datetime(1, 1, 1, tzinfo=UTC) - _UTC_EPOCH) // timedelta(microseconds=1)
LAST_US = (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC) - _UTC_EPOCH) // timedelta(microseconds=1)
"""The first and the last microsecond of the years 1 to 9999."""
_MARGIN_S = 2 * 86_400
_FIRST_S, _LAST_S = FIRST_US // 1_000_000 + _MARGIN_S, LAST_US // 1_000_000 - _MARGIN_S
"""Between these a zone's clock shows one of these years, too. No zone changes beyond them."""
_OffsetAt = Callable[[int], int]
"""(seconds since 1970) -> the offset there, in seconds."""


class _Offsets:
    """The offsets of one zone: at moments, or at what its clocks show."""

    def __init__(self, offset_at: _OffsetAt) -> None:
        self._offset_at = lru_cache(maxsize=100_000)(offset_at)

    def of(self, micros: Numbers) -> Numbers:
        """The offset in microseconds, for each of these times of the years 1 to 9999."""
        seconds = micros // 1_000_000
        hours, places = np.unique(seconds // _HOUR_S, return_inverse=True)
        first = np.array([self._offset_at(hour * _HOUR_S) for hour in hours.tolist()], np.int64)
        last = np.array([self._offset_at(hour * _HOUR_S + _HOUR_S - 1) for hour in hours.tolist()], np.int64)
        result = first[places]
        for at in np.flatnonzero(first != last).tolist():
            change = self._change(int(hours[at]) * _HOUR_S, int(last[at]))
            result[(places == at) & (seconds >= change)] = last[at]
        return result * 1_000_000

    def _change(self, start_s: int, offset_after: int) -> int:
        """The first second of the hour from which on the offset is that at its end."""
        low, high = start_s, start_s + _HOUR_S - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._offset_at(middle) == offset_after else (middle + 1, high)
        return low


def _zone(name: str) -> tzinfo:
    match = OFFSET.fullmatch(name)
    if match is None:
        return rules_of(name)
    offset = timedelta(hours=int(match[2]), minutes=int(match[3]))
    return timezone(offset if match[1] == "+" else -offset)


@lru_cache(maxsize=100)
def _at_moments(name: str) -> _Offsets:
    zone = _zone(name)
    return _Offsets(lambda second: _seconds((_UTC_EPOCH + timedelta(seconds=_inside(second))).astimezone(zone)))


@lru_cache(maxsize=100)
def _at_clocks(name: str) -> _Offsets:
    zone = _zone(name)
    return _Offsets(lambda second: _seconds((_EPOCH + timedelta(seconds=_inside(second))).replace(tzinfo=zone)))


def _inside(second: int) -> int:
    return min(max(second, _FIRST_S), _LAST_S)


def _seconds(moment: datetime) -> int:
    offset = moment.utcoffset()
    assert offset is not None, "it has a zone"
    return offset // timedelta(seconds=1)


def from_utc(times: pa.Array, zone: str) -> pa.Array:
    """What clocks in the zone show at each time, as if it were UTC."""
    return _moved(times, _at_moments(zone), 1)


def to_utc(clocks: pa.Array, zone: str) -> pa.Array:
    """When clocks in the zone show this. Twice is the first time; what is skipped counts by the offset from before."""
    return _moved(clocks, _at_clocks(zone), -1)


def _moved(times: pa.Array, offsets: _Offsets, sign: int) -> pa.Array:
    micros = micros_in(times)
    valid = valid_in(times) & in_years(micros)
    moved = micros + sign * offsets.of(np.where(valid, micros, 0))
    return times_of(moved, valid & in_years(moved))


def in_years(micros: Numbers) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Which times lie in the years 1 to 9999."""
    return (micros >= FIRST_US) & (micros <= LAST_US)


ZONE_KERNELS: dict[str, Kernel] = {"from_utc_timestamp": from_utc, "to_utc_timestamp": to_utc}
