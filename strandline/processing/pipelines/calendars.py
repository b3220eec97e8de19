"""The days of a time zone as instants. Pure, and light to import."""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from strandline.core.times.time_zones import rules_of

DAY_MS = 86_400_000
_SET_BACK_MS = 7_200_000
"""What a country may set its clocks back by at once that never did so: some have, for two hours. In Antarctica it was seven."""
_DAY_LAST = 2_932_000
"""In the year 9997. Later days, and those so long before 1970, which no datetime reaches, are of UTC."""
_DAY_FIRST = -700_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=1 << 16)
def day_start_ms(zone: str, offset_ms: int, day: int) -> int:
    """When the day begins that is so many days after 1970-01-01: when clocks there first show `offset_ms` after midnight, or more
    because they are set forward past it."""
    if not _DAY_FIRST < day < _DAY_LAST:
        return day * DAY_MS + offset_ms
    rules = rules_of(zone)
    shown = _EPOCH + timedelta(days=day, milliseconds=offset_ms)
    before, after = (_ms(shown.replace(tzinfo=rules, fold=fold).utcoffset() or timedelta()) for fold in (0, 1))
    start_ms = _ms(shown - _EPOCH) - before
    if before >= after:
        return start_ms
    # Clocks are set forward past it: between when they would show it by the later rule, and when by the earlier one.
    instants = range(start_ms + before - after, start_ms + 1)
    return instants[bisect_left(instants, True, key=lambda at_ms: _ahead_ms(rules, at_ms) >= after)]


def _ahead_ms(rules: ZoneInfo, at_ms: int) -> int:
    """How much clocks are ahead of UTC."""
    return _ms((_EPOCH + timedelta(milliseconds=at_ms)).astimezone(rules).utcoffset() or timedelta())


@cache
def longer_ms_max(zone: str) -> int:
    """By so much a day is longer than 24 hours at most, where clocks are set back."""
    ahead = [_ahead_ms(rules_of(zone), day * DAY_MS) for day in range(365 * 80)]
    return max(_SET_BACK_MS, *(before - after for before, after in pairwise(ahead)))


def _ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def day_of(zone: str, offset_ms: int, at_ms: int) -> int:
    """The day that holds this instant."""
    day = (at_ms - offset_ms) // DAY_MS
    while day_start_ms(zone, offset_ms, day) > at_ms:
        day -= 1
    while day_start_ms(zone, offset_ms, day + 1) <= at_ms:
        day += 1
    return day


def days_begin_at_multiples(zone: str, offset_ms: int, every_ms: int, first_ms: int) -> bool:
    """Whether each day since 2000 begins a multiple of `every_ms` after `first_ms`, by the rules as they are known."""
    days = range(365 * 30, 365 * 80)
    return all((day_start_ms(zone, offset_ms, day) - first_ms) % every_ms == 0 for day in days)
