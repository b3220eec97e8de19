"""The source's wait for the next slice, with a clock that only the test moves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from strandline.ledger.states import SliceKind
from strandline.processing.slices.rewind import RewindPlan
from strandline.processing.slices.silence import GAP_MAX_MS
from strandline.processing.slices.spark_offset import offset_of_slice
from strandline.processing.source import data_source
from strandline.processing.source.data_source import SliceStreamReader
from tests.support.ledgers import a_slice


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


class Planner:
    """Has a slice at each look, and notes when it looked."""

    def __init__(self, clock, kind=SliceKind.LIVE):
        self.clock = clock
        self.kind = kind
        self.ends_s = float("inf")
        self.number = 0
        self.looks_s = []

    def count_silence(self):
        self.looks_s.append(self.clock.now_s)

    def next_slice(self, committed=0):
        assert committed == self.number
        self.looks_s.append(self.clock.now_s)
        self.number += 1
        return a_slice(self.number, kind=self.kind)

    def is_to_end(self):
        return self.clock.now_s >= self.ends_s


@pytest.mark.parametrize(("every_ms", "looks"), [(200, 1), (60_000, 60)])
def test_while_no_slice_is_due_for_long_silence_is_counted(monkeypatch, every_ms, looks):
    clock = Clock()
    monkeypatch.setattr(data_source, "time", clock)
    reader = SliceStreamReader(SimpleNamespace(plan=RewindPlan(1, 0), slice_interval_ms=every_ms))
    reader._planner = planner = Planner(clock)
    assert reader.latestOffset(offset_of_slice(0)) == offset_of_slice(1)
    first_s = clock.now_s
    assert reader.latestOffset(offset_of_slice(1)) == offset_of_slice(2)
    assert clock.now_s == first_s + every_ms / 1_000
    between_s = [later - earlier for earlier, later in zip(planner.looks_s, planner.looks_s[1:], strict=False)]
    assert len(between_s) == looks
    assert max(between_s) * 1_000 <= GAP_MAX_MS


@pytest.mark.parametrize(("kind", "orders_after_s", "waits_s"), [
    (SliceKind.CATCH_UP, None, 0.0), (SliceKind.LIVE, 0.0, 0.0), (SliceKind.LIVE, 5.5, 6.0), (SliceKind.LIVE, None, 60.0),
])  # fmt: skip
def test_who_is_behind_or_shall_end_does_not_wait_for_the_next_slice(monkeypatch, kind, orders_after_s, waits_s):
    clock = Clock()
    monkeypatch.setattr(data_source, "time", clock)
    reader = SliceStreamReader(SimpleNamespace(plan=RewindPlan(1, 0), slice_interval_ms=60_000))
    reader._planner = planner = Planner(clock, kind)
    reader.latestOffset(offset_of_slice(0))
    first_s = clock.now_s
    if orders_after_s is not None:
        planner.ends_s = first_s + orders_after_s
    assert reader.latestOffset(offset_of_slice(1)) == offset_of_slice(2)
    assert clock.now_s - first_s == waits_s
