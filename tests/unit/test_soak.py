"""Values that the soak reports as growing, and others."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.soak import Sample, anonymous_bytes, disk_use, evaluate, report, slope

MB = 2**20
MINUTES = 121
RECORDS_PER_MINUTE = 60_000


def a_run(
    memory: Callable[[int], float] = lambda _: 100 * MB,
    descriptors: Callable[[int], float] = lambda _: 40,
    disk: Callable[[int], float] = lambda minute: 200 * RECORDS_PER_MINUTE * minute,
) -> list[Sample]:
    """Two hours of one process and one part of the data directory, a sample each minute."""
    return [
        Sample(
            60.0 * minute,
            RECORDS_PER_MINUTE * minute,
            100 * minute,
            {"runner": {"memory": memory(minute), "descriptors": descriptors(minute), "threads": 9}},
            {"kafka": round(disk(minute))},
        )
        for minute in range(MINUTES)
    ]


def found(samples: list[Sample]) -> list[str]:
    return [one.subject for one in evaluate(samples, 1_800)]


def test_a_steady_process_with_noise_and_outliers_does_not_grow():
    chance = random.Random(7)
    assert found(a_run(lambda minute: 100 * MB + chance.uniform(-MB, MB) + (50 * MB if minute % 20 == 3 else 0))) == []


def test_growth_during_the_warm_up_does_not_count():
    assert found(a_run(lambda minute: min(minute, 30) * 5 * MB + 50 * MB, lambda minute: min(minute, 25) + 10)) == []


@pytest.mark.parametrize(("per_half_hour", "grows"), [(0.008, False), (0.013, True), (0.1, True)])
def test_memory_that_grows_by_one_percent_per_half_hour_is_found(per_half_hour, grows):
    samples = a_run(lambda minute: 100 * MB * (1 + per_half_hour * (minute - 75) / 30))
    assert found(samples) == (["runner"] if grows else [])
    assert not grows or "the memory grows by" in evaluate(samples, 1_800)[0].summary


def test_one_descriptor_per_half_hour_is_found():
    assert found(a_run(descriptors=lambda minute: 40 + minute // 30)) == ["runner"]
    assert found(a_run(descriptors=lambda minute: 40 + minute % 3)) == []


def test_disk_use_that_grows_faster_than_the_records_is_found():
    assert found(a_run(disk=lambda minute: RECORDS_PER_MINUTE * minute * minute)) == ["kafka"]
    assert found(a_run(disk=lambda minute: 50_000_000 - minute * 1_000)) == []


def test_too_few_samples_are_an_error():
    with pytest.raises(ValueError, match="run for longer"):
        evaluate(a_run()[:33], 1_800)


def test_a_process_that_ran_for_a_moment_is_left_out():
    samples = a_run()
    samples[60] = Sample(3_600, 1, 1, {"audit": {"memory": 1, "descriptors": 1, "threads": 1}}, {"kafka": 1})
    assert found(samples) == []


def test_the_report_has_each_process_and_each_part_of_the_disk():
    lines = "\n".join(report(a_run(lambda minute: 100 * MB + minute * MB), 1_800))
    assert "runner" in lines and "kafka" in lines and "200.0" in lines


def test_the_slope_is_that_of_most_points():
    assert slope([(0, 0), (1, 2), (2, 4), (3, 600), (4, 8)]) == 2
    assert slope([(1, 1)]) == 0


def test_what_is_measured_of_this_process_and_of_a_folder(tmp_path: Path):
    before = anonymous_bytes(os.getpid())
    block = bytearray(os.urandom(32 * MB))
    assert anonymous_bytes(os.getpid()) - before > 24 * MB
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka" / "segment").write_bytes(block)
    (tmp_path / "ledger.sqlite").write_bytes(b"x")
    use = disk_use(tmp_path)
    assert use["kafka"] >= 32 * MB and 0 < use["ledger.sqlite"] < MB
