"""The days of a time zone as times. Pure, and light to import."""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from strandline.core.times.time_zones import rules_of

DAY_MS = 86_400_000
_SET_BACK_MS = 7_200_000
"""Assumed maximum by which a country sets its clocks back in one step, if it never did so. Some countries did by two hours. A
zone in Antarctica did by seven hours."""
_DAY_LAST = 2_932_000
"""A day in the year 9997. Later days, and days equally far before 1970, are days of UTC, because `datetime` can't represent
them."""
_DAY_FIRST = -700_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=1 << 16)
def day_start_ms(zone: str, offset_ms: int, day: int) -> int:
    """Return the beginning of a day, in ms: the first time when clocks in the zone show `offset_ms` after midnight. If clocks are
    set forward past that time, it is the time of the change. `day`: number of days after 1970-01-01."""
    if not _DAY_FIRST < day < _DAY_LAST:
        return day * DAY_MS + offset_ms
    rules = rules_of(zone)
    shown = _EPOCH + timedelta(days=day, milliseconds=offset_ms)
    before, after = (_ms(shown.replace(tzinfo=rules, fold=fold).utcoffset() or timedelta()) for fold in (0, 1))
    start_ms = _ms(shown - _EPOCH) - before
    if before >= after:
        return start_ms
    # Clocks are set forward past it. The change is between the two times when clocks would show it by the later and earlier rule.
    instants = range(start_ms + before - after, start_ms + 1)
    return instants[bisect_left(instants, True, key=lambda at_ms: _ahead_ms(rules, at_ms) >= after)]


def _ahead_ms(rules: ZoneInfo, at_ms: int) -> int:
    """Return the difference between the zone's clocks and UTC in ms. Positive if the clocks are ahead."""
    return _ms((_EPOCH + timedelta(milliseconds=at_ms)).astimezone(rules).utcoffset() or timedelta())


@cache
def longer_ms_max(zone: str) -> int:
    """Return the maximum in ms by which a day is longer than 24 hours, because clocks are set back."""
    ahead = [_ahead_ms(rules_of(zone), day * DAY_MS) for day in range(365 * 80)]
    return max(_SET_BACK_MS, *(before - after for before, after in pairwise(ahead)))


def _ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def day_of(zone: str, offset_ms: int, at_ms: int) -> int:
    """Return the number of the day that contains this time."""
    day = (at_ms - offset_ms) // DAY_MS
    while day_start_ms(zone, offset_ms, day) > at_ms:
        day -= 1
    while day_start_ms(zone, offset_ms, day + 1) <= at_ms:
        day += 1
    return day


def days_begin_at_multiples(zone: str, offset_ms: int, every_ms: int, first_ms: int) -> bool:
    """Return True if each day since 2000 begins a multiple of `every_ms` after `first_ms`, by the known rules."""
    days = range(365 * 30, 365 * 80)
    return all((day_start_ms(zone, offset_ms, day) - first_ms) % every_ms == 0 for day in days)
