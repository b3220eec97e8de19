"""What the example's slices took, out of the rows of a ledger."""

from benchmarks.example import measure
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
    assert "(1 of 2 took 1 s or longer)" in found.sentence()
