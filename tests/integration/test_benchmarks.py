"""The benchmark runs and its results are right. Nothing is said about speed, which a busy machine would spoil."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.work_w1 import DELAY_MS, START_MS, Outcome, Readings, expected_outcome

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_quick_run_checks_its_results_and_writes_them(tmp_path: Path) -> None:
    """Every pass compares what came out with an independent count, and fails the run where it differs."""
    output = tmp_path / "RESULTS.md"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "--output", str(output)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("results right") == 3
    text = output.read_text()
    for row in (
        "| Strandline | warm |",
        "| Spark, RocksDB state | warm |",
        "| Spark, in-memory state | cold |",
        "| searchable |",
    ):
        assert row in text


@pytest.mark.long
def test_quick_ingest_run_loses_nothing_and_writes_its_part(tmp_path: Path) -> None:
    """Each case compares the topic with what was acknowledged, and fails the run where they differ."""
    output = tmp_path / "RESULTS.md"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.ingest", "--quick", "--seconds", "1", "--output", str(output)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = output.read_text()
    for row in ("| HTTP, one record a request |", "| HTTP, 100 lines a request |", "| MQTT listener", "| UDP, "):
        assert row in text


def test_expected_outcome_of_work_that_can_be_counted_by_hand() -> None:
    """One device: two readings in the first ten seconds, one in the next, one a minute later."""
    at_ms = START_MS // 60_000 * 60_000
    readings = Readings(
        device=np.array([3, 3, 3, 3]),
        event_ms=at_ms + np.array([0, 9_999, 10_000, 60_000]),
        centidegrees=np.array([100, 300, 150, -500]),
    )
    assert expected_outcome(readings) == Outcome(results=2, readings=4, peaks=2.0 - 5.0)
    assert expected_outcome(readings, up_to_ms=at_ms + 60_000) == Outcome(results=1, readings=3, peaks=2.0)


def test_no_record_of_the_work_can_be_late() -> None:
    """A record is never behind the latest one of the round before by more than the delay, wherever a side cuts the log."""
    event_ms = Readings.generate(20_000).event_ms.reshape(-1, 1_000)
    latest_so_far = np.maximum.accumulate(event_ms.max(axis=1))
    assert (latest_so_far - event_ms.min(axis=1)).max() < DELAY_MS


def test_outcomes_with_another_sum_do_not_agree() -> None:
    right = Outcome(10, 100, 5.5)
    assert right.agrees(Outcome(10, 100, 5.5 * (1 + 1e-12)))
    assert not right.agrees(Outcome(10, 99, 5.5))
    assert not right.agrees(Outcome(9, 100, 5.5))
    assert not right.agrees(Outcome(10, 100, 5.6))
