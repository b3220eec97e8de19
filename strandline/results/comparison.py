"""Compares two documents with one id.

The writer compares exactly if an id exists already, because the operators compute the same bits each time. The audit
allows rounding, because another engine adds in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

FLOAT_RELATIVE_MAX = 1e-9
"""Relative tolerance of the audit: sums of floating-point numbers depend on their order."""
FLOAT_ABSOLUTE_MAX = 1e-12
"""Absolute tolerance of the audit, for terms that cancel, where no relative tolerance can work: 0.1 + 0.2 - 0.3 is
5.6e-17 in one order and 2.8e-17 in another."""
_ATTEMPT_FIELDS = frozenset({"version", "epoch", "emission", "slice_digest"})
"""Fields that identify the run that wrote the document, and are not part of the result."""


def differences(held: dict[str, Any], computed: dict[str, Any], place: str = "the index") -> list[str]:
    """Return a message for each field in which the two results differ, or none if they are equal. `place` contains
    `held`.

    Ignores the fields that identify the run (`strandline.version`, `.epoch`, `.emission`, `.slice_digest`).
    """
    return _differences(result_of(held), result_of(computed), "", _is_same, place)


def differences_beyond_rounding(held: dict[str, Any], computed: dict[str, Any], place: str = "the index") -> list[str]:
    """Return the same as `differences`, but allow rounding if one of two numbers is a double.

    Another engine adds numbers in another order.
    """
    return _differences(result_of(held), result_of(computed), "", _is_close, place)


def result_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document without the fields that identify the run that wrote it."""
    origin = document.get("strandline")
    if not isinstance(origin, dict):
        return document
    lasting = {name: value for name, value in origin.items() if name not in _ATTEMPT_FIELDS}
    return {**document, "strandline": lasting}


def _differences(
    held: dict[str, Any], computed: dict[str, Any], prefix: str, is_same: Callable[[Any, Any], bool], place: str
) -> list[str]:
    found = []
    for name in sorted(held.keys() | computed.keys()):
        path = prefix + name
        if name not in held:
            found.append(f"{path} is missing in {place}, this run computed {computed[name]!r}")
        elif name not in computed:
            found.append(f"{path} is {held[name]!r} in {place}, this run did not compute it")
        elif isinstance(held[name], dict) and isinstance(computed[name], dict):
            found += _differences(held[name], computed[name], f"{path}.", is_same, place)
        elif not is_same(held[name], computed[name]):
            found.append(f"{path} is {held[name]!r} in {place}, this run computed {computed[name]!r}")
    return found


def _is_same(held: Any, computed: Any) -> bool:
    if isinstance(held, bool) or isinstance(computed, bool):  # Python treats True and 1 as equal
        return held is computed
    if isinstance(held, list) and isinstance(computed, list):
        return len(held) == len(computed) and all(map(_is_same, held, computed))
    if isinstance(held, dict) and isinstance(computed, dict):
        return held.keys() == computed.keys() and all(_is_same(held[name], computed[name]) for name in held)
    return bool(held == computed)


def _is_close(held: Any, computed: Any) -> bool:
    if isinstance(held, list) and isinstance(computed, list):
        return len(held) == len(computed) and all(map(_is_close, held, computed))
    if isinstance(held, dict) and isinstance(computed, dict):
        return held.keys() == computed.keys() and all(_is_close(held[name], computed[name]) for name in held)
    if isinstance(held, float) or isinstance(computed, float):
        numbers = [one for one in (held, computed) if isinstance(one, int | float) and not isinstance(one, bool)]
        return len(numbers) == 2 and math.isclose(*numbers, rel_tol=FLOAT_RELATIVE_MAX, abs_tol=FLOAT_ABSOLUTE_MAX)
    return _is_same(held, computed)
