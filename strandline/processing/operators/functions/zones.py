"""Local times of zones. The rules are those of windows of days (`core.times.time_zones`), from Python's `zoneinfo`: Arrow's own
kernels don't know the rules for times after 2037.

An offset is queried once for each hour that occurs. In an hour in which it changes, the time of the change is searched.
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
"""First and last microsecond of the years 1 to 9999."""
_MARGIN_S = 2 * 86_400
_FIRST_S, _LAST_S = FIRST_US // 1_000_000 + _MARGIN_S, LAST_US // 1_000_000 - _MARGIN_S
"""Between these times, the local time of every zone is in these years too. No zone changes outside of them."""
_OffsetAt = Callable[[int], int]
"""(seconds since 1970) -> offset at that time, in seconds."""


class _Offsets:
    """The offsets of one zone, by UTC times or by local times."""

    def __init__(self, offset_at: _OffsetAt) -> None:
        self._offset_at = lru_cache(maxsize=100_000)(offset_at)

    def of(self, micros: Numbers) -> Numbers:
        """Return the offset in microseconds for each of these times, which must be in the years 1 to 9999."""
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
        """Return the first second of the hour from which the offset is that at its end."""
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
    assert offset is not None, "the time has a zone"
    return offset // timedelta(seconds=1)


def from_utc(times: pa.Array, zone: str) -> pa.Array:
    """Return the local time in the zone for each time, as if it were UTC."""
    return _moved(times, _at_moments(zone), 1)


def to_utc(clocks: pa.Array, zone: str) -> pa.Array:
    """Return the UTC time of local times in the zone. A local time that occurs twice is the first one. A local time that clocks
    skip has the offset from before."""
    return _moved(clocks, _at_clocks(zone), -1)


def _moved(times: pa.Array, offsets: _Offsets, sign: int) -> pa.Array:
    micros = micros_in(times)
    valid = valid_in(times) & in_years(micros)
    moved = micros + sign * offsets.of(np.where(valid, micros, 0))
    return times_of(moved, valid & in_years(moved))


def in_years(micros: Numbers) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return a mask of the times in the years 1 to 9999."""
    return (micros >= FIRST_US) & (micros <= LAST_US)


ZONE_KERNELS: dict[str, Kernel] = {"from_utc_timestamp": from_utc, "to_utc_timestamp": to_utc}
