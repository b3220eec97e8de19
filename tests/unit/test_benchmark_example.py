"""The durations of the example's slices, computed from the rows of a ledger."""

import pytest

from benchmarks.example import Look, cpu_summary, measure
from tests.support.ledgers import a_checkpoint, a_slice


def test_seconds_and_ages_are_of_the_slices_after_the_first_seconds_that_hold_records() -> None:
    slices = [a_slice(number, planned_ms=number * 10_000) for number in range(1, 6)]
    took_ms = {1: 9_000, 2: 700, 3: 800, 4: 900, 5: 1_500}
    checkpoints = [
        a_checkpoint(
            number,
            committed_ms=number * 10_000 + took_ms[number],
            latest_log_ms=number * 10_000 - 250,
            records=0 if number == 4 else 30,
        )
        for number in range(1, 6)
    ]
    found = measure(slices, checkpoints, left_out_s=15)
    assert found.seconds == [0.8, 1.5]
    assert found.ages_s == [11.05, 11.75]
    assert found.records == 60
    assert "(1 of 2 took 1 s or longer)" in found.summary()


def test_a_slice_costs_what_the_runner_used_between_two_looks_over_the_slices_between_them() -> None:
    looks = [
        Look(second * 1000, {"driver": 0.1 * second, "jvm": 1.0 * second, "python": 0.4 * second})
        for second in range(6)
    ]
    checkpoints = [a_checkpoint(number, committed_ms=number * 500) for number in range(1, 12)]
    summary = cpu_summary(looks, checkpoints, from_ms=1500)
    assert summary == "CPU time of the runner: 750 ms a slice (driver 50 / jvm 500 / python 200), over 6 slices"
    with pytest.raises(ValueError, match="run the example for longer"):
        cpu_summary(looks, checkpoints, from_ms=5000)
