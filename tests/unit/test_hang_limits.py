"""The time limit of each test: it grows with the load, and ends a test that hangs."""

from __future__ import annotations

import threading

import pytest

from tests.support import hang_limits
from tests.support.hang_limits import HangLimit
from tests.support.waiting import wait_until


def test_a_test_that_hangs_is_ended() -> None:
    ended = threading.Event()
    limit = HangLimit(0.05, ended.set, look_s=0.01)
    wait_until(ended.is_set, what="ended")
    limit.cancel()


def test_a_limit_that_is_cancelled_ends_nothing() -> None:
    ended = threading.Event()
    HangLimit(60, ended.set).cancel()
    assert not ended.is_set()


def test_a_limit_grows_with_the_load_and_stays_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, looks, ended_s = [0.0], [0], list[float]()

    def stretched(limit_s: float) -> float:
        now_s[0] += 1.0
        looks[0] += 1
        return limit_s * (10 if looks[0] == 1 else 1)

    monkeypatch.setattr(hang_limits.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(hang_limits, "stretched", stretched)
    limit = HangLimit(5.0, lambda: ended_s.append(now_s[0]), look_s=0.001)
    limit._thread.join()
    assert ended_s == [51.0]


def test_it_takes_the_place_of_the_timer_of_pytest_timeout(request: pytest.FixtureRequest) -> None:
    assert isinstance(getattr(request.node.cancel_timeout, "__self__", None), HangLimit)
