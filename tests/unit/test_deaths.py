"""Deaths in a row: the pause grows, and has an upper bound."""

from __future__ import annotations

import pytest

from strandline.services.supervision import failures as module
from strandline.services.supervision.failures import FailureCounter


def test_the_pause_doubles_up_to_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s)
    failures = FailureCounter(progress=3)
    assert failures.may_start()
    assert [failures.add(0.5, 3.0) for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert (failures.count, failures.next_start, failures.may_start()) == (5, 103.0, False)
    now_s = 103.0
    assert failures.may_start()


def test_an_outage_of_days_does_not_overflow() -> None:
    assert [FailureCounter(0, count=100_000).add(0.5, 10.0), FailureCounter(0, count=100_000).add(1e-6, 10.0)] == [
        10.0,
        1e-6 * 2**16,
    ]
