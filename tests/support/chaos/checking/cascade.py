"""The windows of both stages over the used records, and the steps between them.

Sums of doubles are compared to the last bit, because the platform promises the order of additions. In a window, first
the values of each partition are added by offset, and then the sums of the partitions in their order. In a later window,
the values are ordered by the ends of the earlier windows and then by key, null last.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from tests.support.chaos.checking.judging import ClassifiedRecord
from tests.support.chaos.checking.pace import LONG, SHORT, Pace
from tests.support.chaos.checking.versions import Version
from tests.support.chaos.dump import Row

Key = tuple[str, int, tuple[str | None, ...]]
"""A result: stage, window end, by fields."""
NEAR_A_TIE = Fraction(1, 10**12)
"""Relative to the tie."""
DERIVE, WHERE = "steps[3].derive.crowd", "steps[4].where"
"""The steps between the windows that may have no value."""
RATIO_MAX = 40


@dataclass(frozen=True)
class Hundredths:
    """A mean of doubles, rounded half up to hundredths."""

    exact: Fraction
    """The mean itself."""
    added: float
    """The mean as doubles give it."""

    def allows(self, held: Any) -> bool:
        """Return True if the value may be rounded to this.

        If a mean is so close to a tie that an addition of doubles, or their shortest digits, may be on the other side,
        both directions are allowed. An exact tie of exact doubles is rounded up.
        """
        if not isinstance(held, float):
            return False
        scaled = abs(self.exact) * 100
        below = math.floor(scaled)
        tie = below + Fraction(1, 2)
        allowed = {below + 1 if scaled >= tie else below}
        if abs(scaled - tie) <= NEAR_A_TIE * tie and not scaled == tie == abs(Fraction(self.added)) * 100:
            allowed = {below, below + 1}
        sign = -1 if self.exact < 0 else 1
        return any(held == float(Fraction(sign * one, 100)) for one in allowed)


@dataclass
class Result:
    end_ms: int
    by: dict[str, str | None]
    values: Row
    exact_load: Fraction = Fraction(0)
    """The mean load without any rounding."""
    failed_in: str | None = None
    """The step behind the window that has no value for it."""
    start_ms: int | None = None
    """Start of a window that begins at a record's time. None if the stage's windows have a fixed size."""
    beside: tuple[str | int, ...] = ()
    """What tells it apart from others of its window and key, and is in its id."""


def results_of_closed(results: dict[int, dict[Key, Result]], slices: list[Row], closers: Closers) -> dict[Key, Result]:
    """Every result of a closed window, as the version has it that closed the window. `results`: of each version, made of all
    records, also of those that an earlier version read."""
    versions = {row["number"]: row["version"] for row in slices}
    found = {}
    for version, of_version in results.items():
        for key, result in of_version.items():
            closer = closers.of(key[1])
            if closer is not None and versions[closer] == version:
                found[key] = result
    return found


def cascade(judged: list[ClassifiedRecord], pace: Pace, version: Version) -> dict[Key, Result]:
    """Every result of both stages as this version has it, closed or not. `judged` by partition and offset."""
    windows: dict[tuple[int, str | None, str | None], list[ClassifiedRecord]] = defaultdict(list)
    for one in judged:
        if one.member is not None and one.event_ms is not None and one.member["load"] < version.load_below:
            end_ms = (one.event_ms // pace.short_ms + 1) * pace.short_ms
            windows[end_ms, one.member.get("site"), one.member.get("client")].append(one)
    results: dict[Key, Result] = {}
    later: dict[tuple[int, str | None], list[tuple[Result, float]]] = defaultdict(list)
    for (end_ms, site, client), members in sorted(windows.items(), key=lambda item: _order(item[0])):
        result = results[SHORT, end_ms, (site, client)] = _short(end_ms, site, client, members, pace, version)
        crowd = _crowd(result)
        if crowd is not None:
            later[-(-end_ms // pace.long_ms) * pace.long_ms, site].append((result, crowd))
    for (end_ms, site), parts in later.items():
        results[LONG, end_ms, (site,)] = _long(end_ms, site, parts)
    return results


def _order(key: tuple[int, str | None, str | None]) -> tuple[object, ...]:
    end_ms, *by = key
    return end_ms, *((value is None, (value or "").encode()) for value in by)


def _short(
    end_ms: int, site: str | None, client: str | None, members: list[ClassifiedRecord], pace: Pace, version: Version
) -> Result:
    rows = [one.member for one in members if one.member is not None]
    load = load_of(members, pace.short_ms) / len(rows)
    exact = mean_of_doubles([row["load"] for row in rows])
    powers = [float(row["power"]) for row in rows]
    values = {
        "n": len(rows),
        "load": load,
        "mean": Hundredths(exact, load),
        "peak": max(powers),
        "low": min(powers),
        "total": sum(row["count"] * version.times for row in rows),
        "busy": sum(row["busy"] for row in rows),
        "cost": sum((Decimal(row["cost"]) for row in rows), Decimal(0)),
    }
    return Result(end_ms, {"site": site, "client": client}, values, exact)


def _crowd(result: Result) -> float | None:
    """Return the value that the derive after the first window adds.

    None if the result stops there. Records the step that failed.
    """
    values = result.values
    if values["busy"] == 0:
        result.failed_in = DERIVE
    elif values["low"] == 0:
        result.failed_in = WHERE
    elif values["peak"] / values["low"] < RATIO_MAX:
        return float(values["n"] / values["busy"])
    return None


def _long(end_ms: int, site: str | None, parts: Sequence[tuple[Result, float]]) -> Result:
    results = [result for result, _ in parts]
    rows = [result.values for result in results]
    load = added(row["load"] for row in rows) / len(rows)
    exact = mean(result.exact_load for result in results)
    values = {
        "n": sum(row["n"] for row in rows),
        "clients": len(rows),
        "load": load,
        "mean": Hundredths(exact, load),
        "peak": max(row["peak"] for row in rows),
        "crowd": max(crowd for _, crowd in parts),
        "total": sum(row["total"] for row in rows),
        "cost": sum((row["cost"] for row in rows), Decimal(0)),
    }
    return Result(end_ms, {"site": site}, values, exact)


def load_of(members: Iterable[ClassifiedRecord], pane_ms: int) -> float:
    """The sum of the loads of records in one window, as the platform adds. Sliding windows are made of panes: the loads of
    each pane are added by offset, and then the panes of a partition in the order of time.

    `members` by partition and offset.
    """
    partitions: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in members:
        assert one.member is not None and one.event_ms is not None
        partitions[one.record.partition][one.event_ms // pane_ms].append(one.member["load"])
    return added(added(added(panes[at]) for at in sorted(panes)) for panes in partitions.values())


def added(values: Iterable[float]) -> float:
    """One after the other. (`sum` corrects the rounding of doubles.)"""
    total = 0.0
    for value in values:
        total += value
    return total


def mean_of_doubles(values: Sequence[float]) -> Fraction:
    """Without any rounding. Their denominators are powers of two, so each divides the largest: to add fractions would take ten
    times as long."""
    ratios = [value.as_integer_ratio() for value in values]
    whole = max(denominator for _, denominator in ratios)
    return Fraction(sum(one * (whole // denominator) for one, denominator in ratios), whole * len(ratios))


def mean(values: Iterable[Fraction]) -> Fraction:
    found = list(values)
    return sum(found, Fraction(0)) / len(found)


class Closers:
    """The slice that closes a window: the first that closes at or after the window's end."""

    def __init__(self, closes_ms: dict[int, int | None]) -> None:
        self._reached: list[tuple[int, int]] = []
        for number, up_to_ms in closes_ms.items():
            if up_to_ms is not None and (not self._reached or up_to_ms > self._reached[-1][0]):
                self._reached.append((up_to_ms, number))

    def of(self, end_ms: int) -> int | None:
        at = bisect_left(self._reached, end_ms, key=lambda reached: reached[0])
        return self._reached[at][1] if at < len(self._reached) else None
