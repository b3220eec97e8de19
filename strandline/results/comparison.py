"""Compares two documents of one id. Used by the writer where an id is taken, and by the audit."""

from __future__ import annotations

import math
from typing import Any

FLOAT_RELATIVE_MAX = 1e-9
"""Sums of floating-point numbers depend on their order, and a replay may change it."""
FLOAT_ABSOLUTE_MAX = 1e-12
"""The rest of terms that cancel, for which no relative bound can hold: 0.1 + 0.2 - 0.3 is 5.6e-17 in one order and
2.8e-17 in another."""
_ATTEMPT_FIELDS = frozenset({"version", "epoch", "emission"})
"""They say which run wrote the document, and are not part of the result."""


def differences(held: dict[str, Any], computed: dict[str, Any]) -> list[str]:
    """Return a sentence for each field in which the two results differ; none when they are equal.

    Leaves out which run wrote them (`strandline.version`, `.epoch`, `.emission`).
    """
    return _differences(result_of(held), result_of(computed), "")


def result_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document without the fields that say which run wrote it."""
    origin = document.get("strandline")
    if not isinstance(origin, dict):
        return document
    lasting = {name: value for name, value in origin.items() if name not in _ATTEMPT_FIELDS}
    return {**document, "strandline": lasting}


def _differences(held: dict[str, Any], computed: dict[str, Any], prefix: str) -> list[str]:
    found = []
    for name in sorted(held.keys() | computed.keys()):
        path = prefix + name
        if name not in held:
            found.append(f"{path} is missing in the index, this run computed {computed[name]!r}")
        elif name not in computed:
            found.append(f"{path} is {held[name]!r} in the index, this run did not compute it")
        elif isinstance(held[name], dict) and isinstance(computed[name], dict):
            found += _differences(held[name], computed[name], f"{path}.")
        elif not _is_same(held[name], computed[name]):
            found.append(f"{path} is {held[name]!r} in the index, this run computed {computed[name]!r}")
    return found


def _is_same(held: Any, computed: Any) -> bool:
    if isinstance(held, bool) or isinstance(computed, bool):
        return held is computed
    if isinstance(held, int) and isinstance(computed, int):
        return held == computed
    if isinstance(held, int | float) and isinstance(computed, int | float):
        return math.isclose(held, computed, rel_tol=FLOAT_RELATIVE_MAX, abs_tol=FLOAT_ABSOLUTE_MAX)
    return bool(held == computed)
