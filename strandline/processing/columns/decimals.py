"""Decimals with more digits than Arrow or a double can hold. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal

import pyarrow as pa

EXACT = Context(prec=120, rounding=ROUND_HALF_UP)
"""Context for decimals: more digits than the product of two of them can have."""
EXACT_OF_DOUBLE = Context(prec=800, rounding=ROUND_HALF_UP)
"""Context for the exact digits of a double."""


def rounded_decimals(values: Sequence[Decimal | None], target: pa.Decimal128Type) -> pa.Array:
    """Round half up to the scale of the target. The result is null if a value has too many digits for the target."""
    unit, limit = Decimal(1).scaleb(-target.scale), Decimal(10) ** (target.precision - target.scale)
    rounded = [None if value is None else EXACT_OF_DOUBLE.quantize(value, unit) for value in values]
    # copy_abs rounds nothing, which abs does to 28 digits.
    return pa.array([None if value is None or value.copy_abs() >= limit else value for value in rounded], target)
