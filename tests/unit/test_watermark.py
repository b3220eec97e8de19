"""The arithmetic of event time, case by case."""

import pytest

from strandline.ledger.states import CheckpointRow, SliceKind, SliceRow, SliceStatus
from strandline.processing.pipelines.event_time import EventTimeRule
from strandline.processing.slices.watermark import (
    Thresholds,
    closes_a_window,
    emitted_up_to,
    open_until,
    thresholds_after,
)

RULE = EventTimeRule(delay_ms=10_000, idle_timeout_ms=30_000, window_sizes_ms=(60_000, 3_600_000))


def slice_row(number=1, cut_time_ms=0, watermark_ms=None, closes_ms=None, tick_ms=None, kind=SliceKind.LIVE):
    return SliceRow(
        job="j", number=number, epoch=1, version=1, offsets_first={"s": {0: 0}}, offsets={"s": {0: 1}},
        cut_time_ms=cut_time_ms, watermark_ms=watermark_ms, closes_ms=closes_ms, tick_ms=tick_ms, kind=kind,
        status=SliceStatus.COMMITTED, planned_ms=0,
    )  # fmt: skip


def checkpoint_row(latest_event_ms=None, latest_log_ms=None, number=1, emitted=None):
    return CheckpointRow(
        job="j", slice=number, epoch=1, version=1, emitted=emitted or {}, latest_event_ms=latest_event_ms,
        latest_log_ms=latest_log_ms, records=1, accepted=1, rejected={}, results={}, dead_letter_offsets={}, committed_ms=0,
    )  # fmt: skip


def test_before_the_first_record_nothing_is_late():
    assert thresholds_after(RULE, None, None) == Thresholds(None, None)
    assert thresholds_after(RULE, slice_row(), checkpoint_row()) == Thresholds(None, None)


def test_the_watermark_trails_the_latest_event_by_the_delay():
    after = thresholds_after(RULE, slice_row(cut_time_ms=5_000), checkpoint_row(1_000_000, 5_000))
    assert after == Thresholds(990_000, 990_000)


def test_the_watermark_never_falls():
    done = slice_row(watermark_ms=995_000, closes_ms=995_000)
    assert thresholds_after(RULE, done, checkpoint_row(1_000_000, 5_000)) == Thresholds(995_000, 995_000)


def test_silence_beyond_the_timeout_moves_the_watermark_at_once_and_closing_with_the_tick():
    done = slice_row(cut_time_ms=100_000)
    silent = checkpoint_row(latest_event_ms=1_000_000, latest_log_ms=50_000)
    assert thresholds_after(RULE, done, silent) == Thresholds(1_010_000, 990_000)
    ticked = slice_row(number=2, cut_time_ms=100_000, watermark_ms=1_010_000, closes_ms=990_000, tick_ms=1_020_000)
    assert thresholds_after(RULE, ticked, silent) == Thresholds(1_010_000, 1_010_000)


def test_without_idle_timeout_silence_moves_nothing():
    rule = EventTimeRule(10_000, None, (60_000,))
    done = slice_row(cut_time_ms=10**9)
    assert thresholds_after(rule, done, checkpoint_row(1_000_000, 50_000)) == Thresholds(990_000, 990_000)


def test_a_drain_tick_closes_all_open_windows():
    checkpoint = checkpoint_row(1_000_000, 1_000)
    until = open_until(RULE, checkpoint)
    assert until == 3_600_000
    drain = slice_row(kind=SliceKind.DRAIN, tick_ms=until + RULE.delay_ms)
    assert thresholds_after(RULE, drain, checkpoint) == Thresholds(3_600_000, 3_600_000)


@pytest.mark.parametrize(
    ("closed_ms", "closes_ms", "until_ms", "expected"),
    [
        (None, None, None, False),
        (None, 59_999, 60_000, True),
        (10_000, 59_999, 3_600_000, False),
        (10_000, 60_000, 3_600_000, True),
        (60_000, 119_999, 3_600_000, False),
        (3_600_000, 9_000_000, 3_600_000, False),
    ],
)
def test_closes_a_window(closed_ms, closes_ms, until_ms, expected):
    assert closes_a_window(RULE, closed_ms, closes_ms, until_ms) is expected


def test_emitted_up_to_is_the_last_window_end():
    sizes = [("minute", 60_000), ("hour", 3_600_000)]
    assert emitted_up_to(sizes, 3_725_000) == {"minute": 3_720_000, "hour": 3_600_000}
    assert emitted_up_to(sizes, None) == {}
    assert emitted_up_to(sizes, 3_725_000, {"minute": 3_721_000, "hour": 7}) == {"minute": 3_721_000, "hour": 3_600_000}
