"""The works of the benchmarks, and how a run is measured: the arithmetic, without any side."""

from __future__ import annotations

import io
import operator
import signal
import subprocess
import sys
from collections import defaultdict

import numpy as np
import psutil
import pytest

from benchmarks.measured import Run, Snapshot, Spent, memory_text, watch
from benchmarks.process_tree import WatchedTree, cpu_by_role, kill_with_children
from benchmarks.progress import Progress, tell_answer, telling_mark
from benchmarks.report import goal_summaries, throughput_rows
from benchmarks.throughput import JET_SIDE, STRANDLINE, Plan, Throughput
from benchmarks.works import DELAY_MS, PARTITIONS, START_MS, W1, W2, Outcome, Readings
from strandline.core.documents import read_documents
from tests.support.waiting import stretched, wait_until

RIGHT = Outcome(results=10, readings=100, windows=4_000, values=5.5)


def test_w1_of_readings_that_can_be_counted_by_hand() -> None:
    """One device: two readings in the first ten seconds, one in the next, one a minute later."""
    at_ms = START_MS // 60_000 * 60_000
    first = at_ms // 60_000
    readings = Readings(
        device=np.array([3, 3, 3, 3]),
        event_ms=at_ms + np.array([0, 9_999, 10_000, 60_000]),
        centidegrees=np.array([100, 300, 150, -500]),
    )
    assert W1.expected(readings, None) == Outcome(2, 4, windows=3 * first + first + 1, values=2.0 - 5.0)
    assert W1.expected(readings, at_ms + 60_000) == Outcome(1, 3, windows=3 * first, values=2.0)


def test_w2_counts_each_reading_in_each_window_that_covers_it() -> None:
    """Against loops over readings and windows, all of them and those that end by some time."""
    readings = Readings.generate(3_000)
    counts: dict[tuple[int, int], int] = defaultdict(int)
    sums: dict[tuple[int, int], int] = defaultdict(int)
    columns = (readings.device.tolist(), readings.event_ms.tolist(), readings.centidegrees.tolist())
    for device, event_ms, centidegrees in zip(*columns, strict=True):
        newest = event_ms // 5_000
        for window in range(newest - 11, newest + 1):
            counts[window, device] += 1
            sums[window, device] += centidegrees
    for up_to_ms in (None, START_MS + 8_000):
        kept = [key for key in counts if up_to_ms is None or key[0] * 5_000 + 60_000 <= up_to_ms]
        by_hand = Outcome(
            len(kept),
            sum(counts[key] for key in kept),
            sum(key[0] * counts[key] for key in kept),
            sum(sums[key] / 100 / counts[key] for key in kept),
        )
        assert kept and W2.expected(readings, up_to_ms).agrees(by_hand)


def test_no_reading_can_be_late() -> None:
    """None is ever behind the latest one of the round before by more than the delay, wherever a side cuts the log."""
    event_ms = Readings.generate(20_000).event_ms.reshape(-1, 1_000)
    latest_so_far = np.maximum.accumulate(event_ms.max(axis=1))
    assert (latest_so_far - event_ms.min(axis=1)).max() < DELAY_MS


def test_bad_readings_are_left_out_of_what_must_come_out() -> None:
    readings = Readings.generate(10_000, devices=50, bad_percent=1)
    assert readings.bad is not None and 50 < readings.bad.sum() < 150
    assert set(readings.device.tolist()) == set(range(50))
    assert W1.expected(readings.good, None).readings == 10_000 - readings.bad.sum()
    everything = Readings.generate(10_000, devices=50)
    assert everything.good is everything and (everything.event_ms == readings.event_ms).all()


def test_every_partition_has_reached_what_is_said_to_be_reached_everywhere() -> None:
    readings = Readings.generate(4_000)
    latest = [int(readings.event_ms[readings.partition == one].max()) for one in range(PARTITIONS)]
    assert readings.latest_everywhere_ms == min(latest) < max(latest) == readings.latest_ms


@pytest.mark.parametrize(
    "wrong",
    [
        Outcome(10, 99, 4_000, 5.5),
        Outcome(9, 100, 4_000, 5.5),
        Outcome(10, 100, 4_001, 5.5),
        Outcome(10, 100, 4_000, 5.6),
    ],
)
def test_outcomes_with_another_sum_do_not_agree(wrong: Outcome) -> None:
    assert RIGHT.agrees(Outcome(10, 100, 4_000, 5.5 * (1 + 1e-12)))
    assert not RIGHT.agrees(wrong)


def test_the_sink_of_a_work_is_named_as_its_job() -> None:
    (document,) = read_documents(W1.pipeline_text("x"), "x.yaml")
    assert document.data["pipeline"] == "x"
    assert document.data["steps"][-1]["emit"] == [{"elasticsearch": "x"}]  # type: ignore[index]


def lines(*records: int) -> list[str]:
    """Return what a side prints: progress after each number of records, the last with its answer, and other lines."""
    said = [Progress(one, RIGHT, complete=one == records[-1]).line() for one in records]
    return ["a warning", *said, "and the end"]


def test_a_run_is_cold_until_the_mark_and_warm_from_there() -> None:
    taken = iter(
        [Snapshot(2_100, 108.0, {"jvm": 20.0, "python": 4.0}), Snapshot(6_100, 112.0, {"jvm": 30.0, "python": 6.0})]
    )
    asked = []

    def take(records: int) -> Snapshot:
        asked.append(records)
        return next(taken)

    run = watch(lines(500, 2_100, 4_000, 6_100), 2_000, 100.0, take)
    assert asked == [2_100, 6_100]
    assert run == Run(
        cold=Spent(2_100, 8.0, {"jvm": 20.0, "python": 4.0}),
        warm=Spent(4_000, 4.0, {"jvm": 10.0, "python": 2.0}),
        outcome=RIGHT,
    )
    assert run.warm.cpu_s_per_million == pytest.approx(12 * 1e6 / 4_000)
    assert run.warm.records_a_second == 1_000


@pytest.mark.parametrize(
    ("said", "why"), [(lines(2_000, 6_000)[:-2], "ended before"), (lines(500, 6_000), "complete before")]
)
def test_a_run_without_an_answer_or_without_a_warm_part_is_none(said: list[str], why: str) -> None:
    with pytest.raises(RuntimeError, match=why):
        watch(said, 2_000, 0.0, lambda records: Snapshot(records, 1.0, {}))


def test_a_side_tells_its_mark_once_and_then_its_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = io.StringIO()  # pytest's own capture may lose what a thread prints while it is read
    monkeypatch.setattr(sys, "stdout", said)
    with telling_mark(iter([0, 900, 2_500]).__next__, 2_000):  # asked a fourth time it would fail
        while not said.getvalue().endswith("\n"):
            pass
    monkeypatch.undo()
    assert Progress.parse(said.getvalue()) == Progress(2_500, Outcome(0, 0, 0, 0.0), complete=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    tell_answer(6_000, RIGHT)
    assert Progress.parse(capsys.readouterr().out) == Progress(6_000, RIGHT, complete=True)


SPENDS = "import time\nwhile time.process_time() < 0.3: pass\n"
LEAVES_A_CHILD_UNWAITED = f"""
import os, signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets what the child used
subprocess.Popen([sys.executable, "-c", {SPENDS!r} + "print('spent', flush=True)\\ninput()"], stdin=sys.stdin)
signal.pause()
"""


def test_the_time_of_a_process_that_nobody_waited_for_is_not_lost() -> None:
    command = [sys.executable, "-c", LEAVES_A_CHILD_UNWAITED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None and parent.stdin is not None
        try:
            assert parent.stdout.readline() == "spent\n"
            with WatchedTree(parent.pid) as tree:
                alive = tree.cpu_by_role()["python"]
                parent.stdin.close()
                wait_until(psutil.Process(parent.pid).children, operator.not_, "waited for")
                assert tree.cpu_s() >= tree.cpu_by_role()["python"] >= alive > 0.2
            assert cpu_by_role(parent.pid)["python"] < 0.1
        finally:
            parent.kill()


def test_a_child_that_ends_before_it_is_killed_spares_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    root, ended, other = (subprocess.Popen(["sleep", "60"]) for _ in range(3))
    children = [psutil.Process(ended.pid), psutil.Process(other.pid)]
    monkeypatch.setattr(psutil.Process, "children", lambda _, recursive: children if recursive else [])
    ended.kill()
    ended.wait()
    kill_with_children(root.pid)
    assert [root.wait(stretched(10)), other.wait(stretched(10))] == [-signal.SIGKILL] * 2


KEEPS_100_MB = "kept = bytearray(b'x') * (100 << 20)\nprint('kept', flush=True)\ninput()"


def test_the_most_memory_of_a_tree_is_seen() -> None:
    command = [sys.executable, "-c", KEEPS_100_MB]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "kept\n"
        with WatchedTree(process.pid) as tree:
            wait_until(lambda: tree.peak_mb["driver"], lambda mb: mb > 0, "weighed")
            process.stdin.close()
        assert 100 < tree.peak_mb["driver"] < 150
        assert memory_text({"driver": 1_200.4, "jvm": 300.0}) == "1,500 MB (driver 1,200, jvm 300)"


def measured(ours: float, theirs: float) -> Throughput:
    """Return one run of two sides whose warm part costs these CPU-seconds per million."""

    def run(cost: float) -> Run:
        cpu_s = {"driver": 0.0, "jvm": cost * 4, "python": 0.0}
        return Run(Spent(2_000_000, 20.0, {"jvm": 32.0}), Spent(4_000_000, 16.0, cpu_s), RIGHT)

    plan = Plan(6_000_000, 2_000_000, 1, [STRANDLINE, JET_SIDE], [W1])
    return Throughput(plan, {"W1": {STRANDLINE: [run(ours)], JET_SIDE: [run(theirs)]}})


def test_goals_are_judged_by_the_figures_in_the_table() -> None:
    found = measured(4.5, 6.0)
    assert [row[:4] for row in throughput_rows(found, W1)[1:]] == [
        ("Strandline", "4.5", "4.5 to 4.5", "250,000"),
        ("Hazelcast Jet 5.6.0", "6.0", "6.0 to 6.0", "250,000"),
    ]
    assert goal_summaries(found) == [
        "W1: 4.5 CPU-s per M warm; the goal of at most 4.5 is reached.",
        "W1: 16.0 CPU-s per M cold; the goal of at most 16 is reached.",
        "W1: 250,000 records/s; the goal of at least 200,000 is reached.",
        "W1: warm, Strandline takes 75% of Hazelcast Jet 5.6.0's CPU time.",
    ]
    assert "4.6 CPU-s per M warm; the goal of at most 4.5 is missed" in goal_summaries(measured(4.6, 6.0))[0]


def test_runs_of_the_others_alone_have_no_goals() -> None:
    found = measured(4.5, 6.0)
    del found.runs["W1"][STRANDLINE]
    assert goal_summaries(found) == []
    assert len(throughput_rows(found, W1)) == 2
