"""Tests if two documents of the same id are the same result."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.results.comparison import differences, differences_beyond_rounding

HELD: dict[str, Any] = {
    "@timestamp": "2024-05-01T12:01:00.000Z",
    "window": {"start": "2024-05-01T12:00:00.000Z", "end": "2024-05-01T12:01:00.000Z"},
    "device": "t-17",
    "n": 9007199254740993,
    "ok": True,
    "load": 0.1 + 0.2,
    "price": "12.50",
    "missing": None,
    "strandline": {"job": "j", "stage": "s", "version": 1, "epoch": 1, "emission": 1},
}


@pytest.mark.parametrize(
    "change", [{}, {"strandline": {"job": "j", "stage": "s", "version": 2, "epoch": 9, "emission": 7}}]
)
def test_the_same_result(change: dict[str, Any]) -> None:
    assert differences(HELD, HELD | change) == []
    assert differences_beyond_rounding(HELD, HELD | change) == []


@pytest.mark.parametrize("load", [0.3, 0.3 * (1 + 9e-10)])
def test_rounding_is_a_difference_to_the_writer_and_none_to_the_audit(load: float) -> None:
    (sentence,) = differences(HELD, HELD | {"load": load})
    assert sentence.startswith("load is 0.30000000000000004 in the index")
    assert differences_beyond_rounding(HELD, HELD | {"load": load}) == []


def test_what_cancelling_terms_leave_is_the_same_result_to_the_audit() -> None:
    assert 0.1 + 0.2 - 0.3 != 0.2 - 0.3 + 0.1
    assert differences_beyond_rounding({"sum": 0.1 + 0.2 - 0.3}, {"sum": 0.2 - 0.3 + 0.1}) == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"load": 0.3 * (1 + 3e-9)}, "load"),
        ({"load": None}, "load"),
        ({"load": "0.3"}, "load"),
        ({"n": 9007199254740992}, "n"),
        ({"ok": 1}, "ok"),
        ({"price": "12.51"}, "price"),
        ({"missing": 0}, "missing"),
        ({"device": "t-18"}, "device"),
        ({"window": {"start": "2024-05-01T12:00:00.000Z", "end": "2024-05-01T12:02:00.000Z"}}, "window.end"),
        ({"strandline": {"job": "other", "stage": "s"}}, "strandline.job"),
        ({"more": 1}, "more"),
    ],
)
def test_another_result(change: dict[str, Any], path: str) -> None:
    for compare in (differences, differences_beyond_rounding):
        (sentence,) = compare(HELD, HELD | change)
        assert sentence.startswith(path + " is ")


def test_a_field_that_only_the_index_holds_is_a_difference() -> None:
    computed = {name: value for name, value in HELD.items() if name != "price"}
    assert differences(HELD, computed) == ["price is '12.50' in the index, this run did not compute it"]
