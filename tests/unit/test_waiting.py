"""Limits on a machine that has other work too."""

from __future__ import annotations

import os

import pytest

from tests.support.waiting import stretched

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
