"""Checks of the calls whose values are arrays."""

from __future__ import annotations

from strandline.core.field_types import is_nested, kind_of
from strandline.processing.aggregates.contract import Constant

LISTED_MAX = 1_000
"""Maximum length of an array, and maximum number of bins of a histogram. It determines results, so it isn't a setting."""


def list_length(written: Constant | None) -> int:
    """Return the maximum length of the array from the last argument of a call. Raises ValueError if it isn't an integer
    from 1 to LISTED_MAX.
    """
    if not isinstance(written, float) or written != int(written) or not 1 <= written <= LISTED_MAX:
        raise ValueError(f"the last argument must be written out as an integer from 1 to {LISTED_MAX:,}")
    return int(written)


def require_element(kind: str) -> None:
    """Raise ValueError if an array can't contain values of this type."""
    if kind_of(kind) == "array":
        raise ValueError(f"collects {kind}, and no array contains arrays; collect an element, as element_at(x, 1)")


def require_rank(kind: str) -> None:
    """Raise ValueError if values of this type can't be sorted."""
    if is_nested(kind):
        raise ValueError(f"sorts values, and {kind} has no order")
