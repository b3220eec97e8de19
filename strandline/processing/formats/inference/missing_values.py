"""Markers of missing values in a sample: words such as `n/a`, and numbers such as -9999."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_WORDS = frozenset(
    """
    ? - -- --- n/a na nan null none nil bad mm unavailable unknown undefined missing offline inf -inf infinity -infinity
    #n/a
    """.split()  # noqa: SIM905
) | {"", "i/o timeout", "no data", "bad input", "not connected", "comm fail", "no value", "no reading", "calc failed"}
_NUMBERS = (-9999, -999, -99999, -32768, -999.9, -9999.9, -9999.99, -999.99)
_OTHERS_MIN = 3
"""Minimum number of other values that a number must be far away from."""


def is_marker(value: Any) -> bool:
    """Return True if a string is a usual marker of a missing value."""
    return isinstance(value, str) and value.strip().lower() in _WORDS


def markers_in(values: Sequence[Any]) -> list[str]:
    """Return the different markers among the values, as they are written first."""
    found: dict[str, str] = {}
    for value in values:
        if is_marker(value):
            found.setdefault(value.strip().lower(), value)
    return list(found.values())


def number_markers_in(numbers: Sequence[float]) -> list[float]:
    """Return the numbers that mark a missing value, because all other numbers are far away from them."""
    others = [number for number in numbers if number not in _NUMBERS]
    if len(others) < _OTHERS_MIN or len(others) == len(numbers):
        return []
    return [marker for marker in _NUMBERS if marker in numbers and min(others) > marker / 2]
