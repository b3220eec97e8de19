"""The benchmark runs and its results are right. Nothing is said about speed, which a busy machine would spoil."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.throughput import SIDES
from benchmarks.works import WORKS

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_quick_run_checks_its_results_and_writes_them(tmp_path: Path) -> None:
    """Every run compares its results with an independent count, and fails if they differ."""
    output = tmp_path / "RESULTS.md"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "--output", str(output)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("results right") == len(SIDES) * len(WORKS)
    text = output.read_text()
    for row in ("### Work W1", "### Work W2", *[f"| {side} |" for side in SIDES.values()], "| searchable |"):
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


@pytest.mark.long
@pytest.mark.timeout(600)
def test_plain_spark_gives_what_the_oracle_says_of_each_query_of_nexmark() -> None:
    command = [sys.executable, "-m", "benchmarks.nexmark.plain_spark", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_short_ledger_run_plans_a_start_over_its_slices() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.ledger", "--days", "2", "--every-s", "1800", "--rewind", "10"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "day 2: 96 slices" in done.stdout and "a start is planned in" in done.stdout
