"""Where windows begin and end, against a count of all of them one by one; and against the operator that makes them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
AROUND = range(-3, 45)


def windows_of(shape):
    """(start, end) of all that lie around."""
    return [(n * shape.every_ms, n * shape.every_ms + shape.size_ms) for n in range(-100, 200)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ends_and_starts(shape):
    windows = windows_of(shape)
    for at in AROUND:
        assert shape.last_end(at) == max(end for _, end in windows if end <= at)
        assert shape.first_start(at) == min(start for start, end in windows if end > at)
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
        moments = {event} if taken == RECORDS else {end - 1 for _, end in found[taken]}
        found.append({(s, e) for s, e in windows_of(shape) for moment in moments if s <= moment < e})
    return found


@st.composite
def branching(draw):
    """Windows of which each takes records or the results of any before it."""
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=4))
    return [replace(shape, takes=draw(st.none() | st.integers(RECORDS, at - 1))) for at, shape in enumerate(shapes)]


CASCADES = st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3) | branching()


@given(CASCADES, st.integers(0, 40))
def test_which_windows_of_a_cascade_hold_an_event_or_its_results(windows, event):
    held = held_by(windows, event)
    assert list(last_ends(windows, event)) == [max(end for _, end in of_stage) for of_stage in held]
    assert places_taken([WindowShape(1, 1)] * 3) == [RECORDS, 0, 1]
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
    assert earliest_event(windows, emitted) == min(needed)


def test_the_reach_is_that_of_the_longest_path():
    ten, minute, hour = (WindowShape(size, size) for size in (10, 60, 3_600))
    assert reach_of([ten, minute, hour]) == 3_670
    assert reach_of([ten, minute, replace(hour, takes=0)]) == 3_610
    assert reach_of([ten, minute, replace(hour, takes=RECORDS)]) == 3_600
    assert reach_of([]) == 0
