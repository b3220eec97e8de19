"""The plan of a rewind."""

import pytest

from strandline.core.errors import Conflict, LogTruncated
from strandline.ledger.states import StreamRow
from strandline.processing.slices.rewind import RewindPlan, plan_rewind, require_log_holds, require_same_topic
from tests.unit.test_watermark import checkpoint_row, slice_row

SIZES_MS = {"minute": 60_000, "hour": 3_600_000}


def stream_row(topic_id):
    return StreamRow("readings", {}, 1, topic_id, 0)


def never(event_ms):
    raise AssertionError(f"asked for the slice that reaches {event_ms}")


def test_a_first_start_is_a_rewind_to_slice_one():
    assert plan_rewind(None, None, never, SIZES_MS) == RewindPlan(1, 0, {}, None)


def test_nothing_closed_yet_replays_all():
    assert plan_rewind(slice_row(7), checkpoint_row(number=7), never, SIZES_MS) == RewindPlan(1, 7, {}, None)


def test_the_longest_window_decides_how_far_back():
    emitted = {"minute": 7_260_000, "hour": 7_200_000}
    asked = []

    def reaching(event_ms):
        asked.append(event_ms)
        return 42

    plan = plan_rewind(
        slice_row(90, closes_ms=7_265_000), checkpoint_row(7_275_000, 1, 90, emitted), reaching, SIZES_MS
    )
    assert asked == [7_200_000]
    assert plan == RewindPlan(42, 90, emitted, 7_200_000)


def test_a_version_with_other_windows_takes_over_where_all_were_closed():
    """What the former version's stages were called, and how long their windows were, says nothing about the new ones."""
    before = checkpoint_row(7_275_000, 1, 90, {"minute": 7_260_000, "gone": 7_265_000})
    sizes_ms = {"minute": 90_000, "new": 5_000}
    plan = plan_rewind(slice_row(90, closes_ms=7_265_000), before, lambda _: 42, sizes_ms)
    assert plan.emitted == {"minute": 7_200_000, "new": 7_265_000}


def test_what_a_version_with_longer_windows_had_not_emitted_is_the_next_ones():
    """Windows of 15 s were emitted up to 45 s and everything up to 52 s is closed: of those of 10 s, the one up to 50 s
    is nobody's yet, and its records must be replayed."""
    before = checkpoint_row(62_000, 1, 90, {"short": 45_000})
    asked = []
    plan = plan_rewind(slice_row(90, closes_ms=52_000), before, lambda ms: asked.append(ms) or 7, {"short": 10_000})
    assert plan.emitted == {"short": 40_000}
    assert asked == [40_000]
    assert plan.held_open_from_ms == 40_000
    assert [
        plan.closes_ms(slice_row(number, closes_ms=closes_ms)) for number, closes_ms in ((89, 38_000), (90, 52_000))
    ] == [
        38_000,
        40_000,
    ]
    assert plan.closes_ms(slice_row(91, closes_ms=53_000)) == 53_000


def test_no_open_window_replays_nothing():
    plan = plan_rewind(slice_row(90, closes_ms=7_200_000), checkpoint_row(100, 1, 90), lambda _: None, SIZES_MS)
    assert (plan.slice_first, plan.slice_committed) == (91, 90)


def test_a_log_with_a_hole_stops_the_job():
    require_log_holds("j", {"s": {0: 10}}, {"s": {0: 10}})
    with pytest.raises(
        LogTruncated, match="partition 0 from offset 10, but the log starts at 11: retention removed 1 records"
    ):
        require_log_holds("j", {"s": {0: 10}}, {"s": {0: 11}})
    with pytest.raises(LogTruncated, match="no such partition"):
        require_log_holds("j", {"s": {3: 0}}, {"s": {0: 0}})


def test_a_topic_that_was_made_again_is_another_one():
    require_same_topic("power", stream_row(None), "abc", "")
    require_same_topic("power", stream_row("abc"), "abc", "")
    with pytest.raises(Conflict, match=r"readings is another topic.*power.*topic id new, known is old.*Do that\.$"):
        require_same_topic("power", stream_row("old"), "new", "Do that.")
