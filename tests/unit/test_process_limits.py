"""The time limit for the start of a server of a stack."""

from __future__ import annotations

from strandline.services.processes.child_process import StartLimit


def test_a_start_that_writes_nothing_more_is_over_after_the_limit() -> None:
    limit = StartLimit(180.0, 1_000.0)
    assert not limit.is_over(1_180.0, 0)
    assert limit.is_over(1_181.0, 0)
    assert limit.waited_s(1_181.0) == 181.0


def test_a_start_that_gets_on_is_not_stopped() -> None:
    limit = StartLimit(180.0, 0.0)
    assert not any(limit.is_over(now_s, now_s) for now_s in range(0, 900, 170))


def test_a_start_that_never_ends_is_over_after_five_times_the_limit() -> None:
    limit = StartLimit(180.0, 0.0)
    assert not limit.is_over(900.0, 1)
    assert limit.is_over(901.0, 2)
