"""The arithmetic of event time, case by case."""

import subprocess
import sys
from dataclasses import replace

import pytest

from strandline.ledger.states import EventTimeRule
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.slices.watermark import (
    closes_after,
    emitted_up_to,
    first_records,
    reached_after,
    watermark_after,
    watermark_by,
)
from tests.support.ledgers import a_checkpoint, a_slice
from tests.support.waiting import stretched

RULE = EventTimeRule(delay_ms=10_000, idle_timeout_ms=30_000)
NEWEST = replace(RULE, watermark="newest")
REACHED = {"s": {0: 1_000_000, 1: 900_000}}


def silent(*silences_ms):
    return {"s": dict(enumerate(silences_ms))}


def test_before_the_first_accepted_record_nothing_is_late_and_nothing_closes():
    assert watermark_after(RULE, None, {}) is None
    assert watermark_after(RULE, a_checkpoint(1, closes_ms=None, reached={}), {}) is None
    assert closes_after(a_slice(1, watermark_ms=None), {}, {}) is None


@pytest.mark.guarantee(
    "G759",
    "If all partitions are idle, time advances the partition that lags most, and it is released after two timeouts.",
    promise="no-record-is-late-without-cause",
)
@pytest.mark.parametrize(
    ("rule", "silence_ms", "event_ms"),
    [
        (RULE, {}, 900_000),
        (RULE, silent(0, 29_999), 900_000),
        (RULE, silent(0, 30_000), 1_000_000),  # the one that is behind is idle
        (RULE, silent(30_000, 0), 900_000),
        (RULE, silent(30_000, 30_000), 900_000),  # both are: the minimum,
        (RULE, silent(95_000, 37_000), 907_000),  # and the time that the shorter silence has beyond the timeout
        (RULE, silent(95_000, 59_999), 929_999),
        (RULE, silent(95_000, 60_000), 1_000_000),  # a silence of two timeouts: the maximum,
        (RULE, silent(95_000, 67_000), 1_007_000),  # and the time that the shorter silence has beyond them
        (NEWEST, {}, 1_000_000),
        (NEWEST, silent(500_000, 0), 1_000_000),
        (NEWEST, silent(95_000, 37_000), 1_007_000),
        (NEWEST, silent(95_000, 67_000), 1_037_000),
        (replace(RULE, idle_timeout_ms=None), silent(10**9, 10**9), 900_000),
        (replace(NEWEST, idle_timeout_ms=None), silent(10**9, 10**9), 1_000_000),
    ],
)
def test_the_watermark_is_the_least_over_the_partitions_that_are_not_idle(rule, silence_ms, event_ms):
    assert watermark_by(rule, REACHED, silence_ms) == event_ms - 10_000


def test_a_partition_that_never_held_an_accepted_record_does_not_count():
    assert watermark_by(RULE, {"s": {0: 1_000_000}}, silent(0, 0)) == 990_000
    assert watermark_by(RULE, {"s": {0: 1_000_000}}, silent(40_000, 0)) == 1_000_000


def test_with_the_first_records_of_a_partition_nobody_knows_yet_which_one_is_behind():
    for silence_ms in ({}, silent(95_000, 37_000)):
        assert watermark_by(RULE, REACHED, silence_ms, first_records={"s"}) is None
        assert watermark_by(NEWEST, REACHED, silence_ms, first_records={"s"}) == 990_000
    checkpoint = a_checkpoint(1, closes_ms=885_000, reached=REACHED)
    assert watermark_after(RULE, checkpoint, silent(95_000, 37_000), first_records={"s"}) == 885_000


def test_a_slice_brings_first_records_of_a_partition_until_one_was_accepted():
    read = {"s": {0: 5, 1: 7}}
    assert not first_records({"s": {0: 1}}, read, read)
    assert not first_records({"s": {0: 1}}, read, {"s": {0: 6, 1: 7}})
    assert not first_records({"s": {0: 1}}, read, {"s": {0: 5, 1: 7, 2: 0}}), "an added one that is empty"
    assert first_records({"s": {0: 1}}, read, {"s": {0: 5, 1: 8}})
    assert first_records({"s": {0: 1, 1: 1}}, read, {"s": {0: 5, 1: 7, 2: 1}})
    assert first_records({}, read, {"s": {0: 6, 1: 7}})


def test_the_watermark_never_falls_below_what_was_closed():
    checkpoint = a_checkpoint(1, closes_ms=995_000, reached=REACHED)
    assert watermark_after(RULE, checkpoint, {}) == 995_000
    assert watermark_after(RULE, replace(checkpoint, closes_ms=1), {}) == 890_000


def test_a_slice_closes_what_its_own_records_complete_by_the_silence_recorded_with_it():
    row = a_slice(2, watermark_ms=890_000, rule=RULE, reached=REACHED, silence_ms=silent(0, 0))
    assert closes_after(row, REACHED, {}) == 890_000
    assert closes_after(row, {"s": {0: 1_000_000, 1: 960_000}}, {}) == 950_000
    is_silent = replace(row, silence_ms=silent(0, 30_000))
    assert closes_after(is_silent, {"s": {0: 1_100_000, 1: 900_000}}, {"s": {0}}) == 1_090_000
    assert closes_after(is_silent, {"s": {0: 1_100_000, 1: 900_000}}, {"s": {0, 1}}) == 890_000, (
        "it isn't silent any more"
    )


def test_a_slice_closes_at_its_watermark_at_least():
    drain = a_slice(2, watermark_ms=3_600_000, rule=RULE, reached=REACHED, silence_ms={})
    assert closes_after(drain, REACHED, {}) == 3_600_000


def test_only_accepted_events_move_a_partition_and_only_ahead():
    assert reached_after(REACHED, {"s": {0: 999_999, 1: 950_000, 3: 7}}) == {"s": {0: 1_000_000, 1: 950_000, 3: 7}}
    assert REACHED == {"s": {0: 1_000_000, 1: 900_000}}
    assert reached_after({}, {}) == {}


def test_emitted_up_to_is_the_last_window_end():
    stages = [("minute", WindowShape(60_000, 60_000)), ("sliding", WindowShape(7_000, 2_000))]
    assert emitted_up_to(stages, 3_725_500) == {"minute": 3_720_000, "sliding": 3_725_000}
    assert emitted_up_to(stages, None) == {}
    assert emitted_up_to(stages, 3_725_500, {"minute": 3_721_000, "sliding": 7}) == {
        "minute": 3_721_000,
        "sliding": 3_725_000,
    }


def test_what_travels_to_the_workers_needs_neither_sql_nor_pydantic():
    program = """if True:
        import sys
        import strandline.processing.slices.silence, strandline.processing.slices.watermark
        print({"sqlalchemy", "pydantic"} & sys.modules.keys())
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=stretched(60)
    )
    assert done.stdout.strip() == "set()"
