"""Starts and ends of windows, compared with a count of all of them, and with the operator that makes them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.times.time_zones import zone_names
from strandline.processing.kinds.cumulative.shape import CumulativeShape
from strandline.processing.kinds.days.shape import DayShape
from strandline.processing.kinds.join.shape import JoinShape, SameWindowShape
from strandline.processing.kinds.session.shape import SessionShape
from strandline.processing.pipelines.calendars import DAY_MS, day_start_ms
from strandline.processing.pipelines.event_time import (
    RECORDS,
    WindowShape,
    closes_a_window,
    earliest_event,
    first_event,
    last_ends,
    open_until,
    places_taken,
    reach_of,
)

SHAPES = [WindowShape(size, every) for size, every in ((10, 10), (10, 5), (10, 4), (7, 3), (7, 1), (12, 6), (30, 10))]
SHAPES += [WindowShape(10, 10, 3), WindowShape(10, 4, 1), CumulativeShape(12, 3), CumulativeShape(10, 5, 7)]
AROUND = range(-3, 45)


def windows_of(shape):
    """(start, end) of all that lie around."""
    if isinstance(shape, CumulativeShape):
        ends = [shape.offset_ms + n * shape.every_ms for n in range(-100, 200)]
        return [((end - 1 - shape.offset_ms) // shape.size_ms * shape.size_ms + shape.offset_ms, end) for end in ends]
    starts = [shape.offset_ms + n * shape.every_ms for n in range(-100, 200)]
    return [(start, start + shape.size_ms) for start in starts]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ends_and_starts(shape):
    windows = windows_of(shape)
    for at in AROUND:
        assert shape.last_end(at) == max(end for _, end in windows if end <= at)
        assert shape.first_start(at) == min(start for start, end in windows if end > at)
        assert shape.last_start(at) == max(start for start, _ in windows if start <= at)
        assert shape.last_end_holding(at) == max(end for start, end in windows if start <= at < end)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_which_time_closes_a_window_that_can_hold_something(shape):
    ends = [end for _, end in windows_of(shape)]
    for from_, to, until in product(AROUND, AROUND, (shape.last_end_holding(20), shape.last_end_holding(33))):
        assert closes_a_window([shape], from_, to, until) == any(from_ < end <= min(to, until) for end in ends)
    assert closes_a_window([shape], None, 12, 20)
    assert not closes_a_window([shape], None, None, 20)
    assert not closes_a_window([shape], None, 12, None)


def held_by(windows, event):
    """Stage -> the windows that an event gets into: a window's result counts in the next stage at its last moment."""
    found = []
    for shape, taken in zip(windows, places_taken(windows), strict=True):
        moments = {event for one in taken if one == RECORDS}
        moments |= {end - 1 for one in taken if one != RECORDS for _, end in found[one]}
        found.append({(s, e) for s, e in windows_of(shape) for moment in moments if s <= moment < e})
    return found


@st.composite
def branching(draw):
    """Windows of which each takes records or the results of any before it, as joins do of two."""
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=4))
    return [
        replace(shape, reads=tuple(draw(st.lists(st.integers(RECORDS, at - 1), max_size=2, unique=True))))
        for at, shape in enumerate(shapes)
    ]


CASCADES = st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3) | branching()


@given(CASCADES, st.integers(0, 40))
def test_which_windows_of_a_cascade_hold_an_event_or_its_results(windows, event):
    held = held_by(windows, event)
    assert list(last_ends(windows, event)) == [max(end for _, end in of_stage) for of_stage in held]
    assert places_taken([WindowShape(1, 1)] * 3) == [(RECORDS,), (0,), (1,)]
    for after in AROUND:
        first = first_event(windows, after)
        assert event >= first or all(end <= after for _, end in held[-1])
        assert any(end > after for _, end in held_by(windows, first)[-1]), "and not earlier than it must be"


@given(CASCADES, st.integers(0, 40))
def test_open_until_is_the_end_of_the_last_window_of_all_stages(windows, event):
    assert open_until(windows, event) == max(end for stage in held_by(windows, event) for _, end in stage)
    assert open_until(windows, None) is None


@given(CASCADES, st.data())
def test_a_rewind_begins_at_the_earliest_event_of_a_window_that_is_not_emitted(windows, data):
    emitted = [data.draw(st.sampled_from([end for _, end in windows_of(shape) if 0 <= end <= 30])) for shape in windows]
    needed = [
        event
        for event in range(-120, 60)
        if any(end > done for stage, done in zip(held_by(windows, event), emitted, strict=True) for _, end in stage)
    ]
    latest = data.draw(st.none() | st.integers(-120, 60), label="the latest event")
    assert earliest_event(windows, emitted, latest) == min(needed), "whatever came"


def test_the_reach_is_that_of_the_longest_path():
    ten, minute, hour = (WindowShape(size, size) for size in (10, 60, 3_600))
    assert reach_of([ten, minute, hour]) == 3_670
    assert reach_of([ten, minute, replace(hour, reads=(0,))]) == 3_610
    assert reach_of([ten, minute, replace(hour, reads=(RECORDS,))]) == 3_600
    assert reach_of([ten, minute, replace(hour, reads=(0, 1))]) == 3_670, "a join's is that of the longer way"
    assert reach_of([]) == 0


def test_joins_reach_back_as_far_as_they_depend_on():
    latest = JoinShape(60_001, 1, before_ms=60_000, is_latest=True)
    assert latest.first_start(100_000) == 40_000, "a row at 100 s, and the oldest that it may meet"
    assert latest.last_end_holding(40_000) == 100_001
    same = SameWindowShape(20, 10, of=WindowShape(20, 10))
    assert (same.first_end(25), same.first_start(25), same.last_end_holding(29)) == (30, 29, 30)
    assert same.last_end_holding(30) == 40, "a result is in its window's last moment"
    assert reach_of([WindowShape(20, 10), replace(same, reads=(0,))]) == 21


def test_sessions_are_open_for_the_gap_and_depend_on_what_lies_in_their_reach():
    shape = SessionShape(3_600_000, 30_000)
    assert (shape.last_end(1_234), shape.first_end(1_234)) == (1_234, 1_235), "one may end at any time"
    assert shape.reach_ms == 7_230_000
    assert shape.first_start(10_000_000) == 10_000_001 - shape.reach_ms
    assert shape.last_end_holding(10_000_000) == 10_000_000 + shape.reach_ms
    assert open_until([shape], 10_000_000) == 10_030_000
    hours = WindowShape(3_600_000, 3_600_000)
    assert open_until([shape, hours], 10_000_000) == 10_800_000
    assert first_event([shape, hours], 10_800_000) == 10_800_001 - shape.reach_ms


def test_in_silence_ends_of_sessions_are_looked_for_now_and_then():
    shape = SessionShape(3_600_000, 30_000)
    until = open_until([shape], 100_000)
    closings = [at for at in range(90_000, 140_000, 200) if closes_a_window([shape], at, at + 200, until)]
    assert len(closings) <= 30_000 // 3_000 + 5, "a slice for each look would be one every 200 ms"
    assert max(closings) + 200 == until == 130_000


@pytest.mark.parametrize(
    ("gap_ms", "max_ms", "pane_ms", "cut_ms"),
    [
        (30_000, 3_600_000, 30_000, 3_600_000),
        (7_000, 3_600_000, 6_250, 3_600_000),
        (2_400_000, 3_600_000, 1_800_000, 3_600_000),
        (5_000, 5_000, 5_000, 5_000),
        (1_000, 999_983, 999, 999_000),
        (1, 1, 1, 1),
    ],
)
def test_panes_of_sessions_are_no_longer_than_the_gap(gap_ms, max_ms, pane_ms, cut_ms):
    shape = SessionShape(max_ms, gap_ms)
    assert (shape.pane_ms, shape.cut_ms) == (pane_ms, cut_ms)
    assert shape.pane_ms <= gap_ms and shape.cut_ms % shape.pane_ms == 0
    assert gap_ms <= shape.cut_ms <= max_ms


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Pacific/Apia", "America/Havana", "UTC"])
@pytest.mark.parametrize("offset_ms", [0, 9_000_000, 21_600_000])
def test_days_follow_each_other_where_clocks_are_set(zone, offset_ms):
    """In Berlin at two, in Havana at midnight; and Samoa left out the 30th of December 2011."""
    shape = DayShape(DAY_MS, DAY_MS, offset_ms, zone)
    lengths_ms = set()
    for number in [*range(15_330, 15_345), *range(20_500, 20_760)]:
        start_ms, end_ms = shape.start_ms(number), shape.start_ms(number + 1)
        lengths_ms.add(end_ms - start_ms)
        if start_ms == end_ms:
            assert zone == "Pacific/Apia"
            continue
        for at_ms in (start_ms, (start_ms + end_ms) // 2, end_ms - 1):
            assert shape.number_at(at_ms) == number
            assert (shape.last_end(at_ms), shape.last_start(at_ms), shape.first_start(at_ms)) == (start_ms,) * 3
            assert (shape.first_end(at_ms), shape.last_end_holding(at_ms)) == (end_ms, end_ms)
    assert max(lengths_ms) <= shape.reach_ms
    assert (len(lengths_ms) > 1) == (zone != "UTC")


@pytest.mark.parametrize(
    ("zone", "hours"), [("Europe/Berlin", 2), ("UTC", 2), ("Antarctica/Casey", 3), ("Antarctica/Vostok", 7)]
)
def test_a_window_of_a_day_reaches_back_over_the_longest_day_of_its_zone(zone: str, hours: int) -> None:
    shape = DayShape(DAY_MS, DAY_MS, 0, zone)
    assert shape.reach_ms == DAY_MS + hours * 3_600_000
    longest_ms = max(shape.start_ms(day + 1) - shape.start_ms(day) for day in range(365 * 60))
    assert longest_ms <= shape.reach_ms


@pytest.mark.guarantee("G382")
def test_a_zone_is_of_the_locked_package_and_nothing_else():
    assert "Europe/Berlin" in zone_names()
    for name in ("Europe/Bonn", "../zones", "/etc/localtime", ""):
        with pytest.raises(ValueError, match="is not a time zone of the tz database"):
            day_start_ms(name, 0, 20_000)
    assert day_start_ms("Europe/Berlin", 0, 10**7) == DAY_MS * 10**7, "far beyond all rules"
