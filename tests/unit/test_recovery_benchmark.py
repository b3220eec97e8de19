"""The parts of the recovery benchmark that check: the expected results, and what is repeated, lost or wrong."""

from __future__ import annotations

from benchmarks.recovery.__main__ import Measured, goal_summaries, recovery_rows, results_text, verdict_rows
from benchmarks.recovery.sides import Kill, Recoveries
from benchmarks.recovery.work import (
    DEVICES,
    ORIGIN_MS,
    PRELOAD_MS,
    RATE,
    Sent,
    Verdict,
    judge,
    pipeline_text,
    preloaded_ms,
    stream_text,
)
from strandline.core.documents import read_documents
from strandline.core.streams.stream import StreamSpec
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec


def test_every_second_of_the_live_feed_holds_as_many_of_each_device() -> None:
    counts = Sent(0, 2 * RATE).counts()
    assert len(counts) == 2 * DEVICES
    assert set(counts.values()) == {RATE // DEVICES}
    assert {end for end, _ in counts} == {ORIGIN_MS + 1_000, ORIGIN_MS + 2_000}


def test_what_is_there_beforehand_comes_before_the_live_feed() -> None:
    sent = Sent(1_000, RATE)
    counts = sent.counts()
    assert sum(counts.values()) == 1_000 + RATE
    assert sent.live_from_ms == ORIGIN_MS + PRELOAD_MS
    assert sent.latest_ms == ORIGIN_MS + PRELOAD_MS + 999
    assert max(end for end, _ in counts) == ORIGIN_MS + PRELOAD_MS + 1_000
    before = [preloaded_ms(number, 1_000) for number in range(1_000)]
    assert (before[0], before[1], before[-1]) == (ORIGIN_MS, ORIGIN_MS + 3_000, ORIGIN_MS + PRELOAD_MS - 3_000)


def test_results_are_held_against_what_was_sent() -> None:
    sent = Sent(0, 2 * RATE)
    right = [(end, device, n) for (end, device), n in sent.counts().items()]
    assert judge(sent, right) == Verdict(2 * DEVICES, 0, 0, 0)
    first = [one for one in right if one[0] == ORIGIN_MS + 1_000]
    assert judge(sent, first) == Verdict(DEVICES, 0, 0, 0), "a window that is not out yet is not lost"
    assert judge(sent, [*right, right[3], right[3]]).repeated == 2
    assert judge(sent, right[1:]).lost == 1
    end, device, n = right[5]
    assert judge(sent, [*right[:5], (end, device, n - 1), *right[6:]]).wrong == 1


def test_the_documents_are_right() -> None:
    stream = StreamSpec.parse(read_documents(stream_text("x"), "x.yaml")[0])
    for reach, ms in (("1m", 60_000), ("1h", 3_600_000)):
        document = read_documents(pipeline_text("x", reach, "snapshot"), "x.yaml")[0]
        pipeline = check(PipelineSpec.parse(document), stream)
        assert pipeline.stages[1].size_ms == ms
        assert ORIGIN_MS % ms == 0


def test_the_tables_say_median_worst_and_goals() -> None:
    measured = Measured(preload=1_000_000, pair_records=1)
    kills = [Kill(9.0, 20.0, 5), Kill(10.5, 30.0, 7), Kill(4.0, 10.0, 6)]
    measured.recoveries = [Recoveries("reach 1 min, rewind, standby", kills)]
    measured.verdicts = {"Strandline, reach 1 min": Verdict(9, 0, 0, 0)}
    measured.pair = {"none": [(100.0, 2.0)], "exactly_once": [(89.0, 2.0)]}
    assert recovery_rows(measured)[1] == ("reach 1 min, rewind, standby", "3", "9.0", "10.5", "20.0", "30.0", "5 to 7")
    assert verdict_rows(measured)[1] == ("Strandline, reach 1 min", "3", "9", "0", "0", "0")
    text = goal_summaries(measured)
    assert "reach 1 min, rewind, standby: the first new result comes after 9.0 s; the goal of 5 s is missed" in text
    assert "89% of the throughput of `none` (median of 1 pairs, 89% to 89%). It has 100% of its CPU time" in text
    assert "The goal of at least 95% of the throughput is missed" in text
    assert "are in the log before the live feed" not in results_text("x", measured)
    measured.recoveries.append(Recoveries("reach 1 h, rewind, standby", kills))
    assert "of 10 devices are in the log before" in results_text("x", measured)
