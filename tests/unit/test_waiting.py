"""Waits whose limit starts again on progress, and limits on a machine that has other work too."""

from __future__ import annotations

import os

import pytest

from tests.support.waiting import EXTENSIONS_MAX, stretched, wait_until

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("at_work", "niceness", "limit_s"),
    [
        pytest.param(0.5 * CORES, 0, 10.0, id="nothing-beside-it"),
        pytest.param(0.5 * CORES, 5, 10.0, id="nobody-to-yield-to"),
        pytest.param(2.0 * CORES, 0, 10.0, id="two-a-core"),
        pytest.param(6.0 * CORES, 0, 30.0, id="six-a-core"),
        pytest.param(2.0 * CORES, 1, 12.5, id="yields-a-step"),
        pytest.param(6.0 * CORES, 2, 46.875, id="yields-two-steps-among-six"),
    ],
)
def test_a_limit_is_longer_only_where_others_take_the_time(
    monkeypatch: pytest.MonkeyPatch, at_work: float, niceness: int, limit_s: float
):
    monkeypatch.setattr(os, "getloadavg", lambda: (at_work, 0.0, 0.0))
    monkeypatch.setattr(os, "getpriority", lambda which, who: niceness)
    assert stretched(10.0) == limit_s


class Clock:
    """Time that passes only while a test sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr("tests.support.waiting.time", self)
        monkeypatch.setattr("tests.support.waiting.stretched", lambda limit_s: limit_s)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_wait_without_progress_ends_at_its_limit_and_prints_the_state(clock: Clock) -> None:
    with pytest.raises(AssertionError, match=r"(?s)not drained within 1\d s.*last: 7\nthe log$"):
        wait_until(lambda: 7, lambda left: left == 0, "drained", 10.0, describe=lambda: "the log")
    assert 10 < clock.now_s < 12


def test_each_sign_of_progress_starts_the_limit_again(clock: Clock) -> None:
    assert wait_until(lambda: int(clock.now_s / 9), lambda turns: turns == 5, "done", 10.0) == 5
    assert clock.now_s >= 45


def test_progress_may_be_another_value_than_the_answer(clock: Clock) -> None:
    assert wait_until(lambda: clock.now_s > 45, bool, "done", 10.0, progress=lambda: int(clock.now_s / 9))
    with pytest.raises(AssertionError, match="not done"):
        wait_until(lambda: -clock.now_s, lambda value: value > 0, "done", 10.0, progress=lambda: "none")


def test_an_answer_that_changes_without_end_ends_the_wait_too(clock: Clock) -> None:
    with pytest.raises(AssertionError, match="not done"):
        wait_until(lambda: clock.now_s, lambda value: value < 0, "done", 10.0)
    assert clock.now_s == pytest.approx(10 * EXTENSIONS_MAX, rel=0.1)


def test_a_wait_keeps_the_longest_limit_that_the_load_asked_for(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.waiting.stretched", lambda limit_s: limit_s * (5 if clock.now_s < 5 else 1))
    with pytest.raises(AssertionError, match="limit 10 s, 50 s with this load"):
        wait_until(lambda: 7, lambda left: left == 0, "drained", 10.0)
    assert clock.now_s > 50
