"""Arithmetic on Arrow columns by Spark's rules. Where Spark's ANSI mode would raise an error, for example for an integer that
doesn't fit, or for a division by zero, the value is null."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.decimals import EXACT, EXACT_OF_DOUBLE, rounded_decimals
from strandline.processing.operators.casting import cast

Bools = npt.NDArray[np.bool_]

_DIVISION_PLACES = Decimal(1).scaleb(-39)
"""Number of places to which Spark divides decimals before it rounds to the type of the result."""
_EXACT_DOUBLE = 2.0**52
_POWERS_MAX = 22
"""Maximum power of ten that a double represents exactly."""


def valid_in(*arrays: pa.Array) -> Bools:
    """Return a mask of the rows in which no array is null."""
    valid = np.ones(len(arrays[0]), np.bool_)
    for array in arrays:
        if array.null_count:
            valid &= array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def numbers_of(array: pa.Array) -> npt.NDArray[Any]:
    """Return the numbers; 0 for nulls."""
    values: npt.NDArray[Any] = (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False)
    return values


def array_of(values: npt.NDArray[Any], valid: Bools) -> pa.Array:
    """Return the values, null where they aren't valid."""
    return pa.array(values, mask=None if valid.all() else ~valid)


def _add(left: pa.Array, right: pa.Array) -> pa.Array:
    a, b = numbers_of(left), numbers_of(right)
    total = a + b
    return array_of(total, valid_in(left, right) & ~(((a ^ total) & (b ^ total)) < 0))


def subtract(left: pa.Array, right: pa.Array, kind: str = "long") -> pa.Array:
    a, b = numbers_of(left).astype(np.int64), numbers_of(right).astype(np.int64)
    total = a - b
    result = array_of(total, valid_in(left, right) & ~(((a ^ b) & (a ^ total)) < 0))
    return result if kind == "long" else cast(result, "long", kind)


def _multiply(left: pa.Array, right: pa.Array) -> pa.Array:
    a, b = numbers_of(left), numbers_of(right)
    valid = valid_in(left, right)
    product = a * b
    doubtful = np.abs(a.astype(np.float64) * b.astype(np.float64)) > 9.2e18
    for at in np.flatnonzero(doubtful & valid).tolist():  # near or beyond 64 bits, where doubles aren't exact enough
        valid[at] = -(2**63) <= int(a[at]) * int(b[at]) < 2**63
    return array_of(product, valid)


def _whole_divide(left: pa.Array, right: pa.Array) -> pa.Array:
    a, b = numbers_of(left), numbers_of(right)
    valid = valid_in(left, right) & (b != 0) & ~((a == -(2**63)) & (b == -1))
    safe = np.where(valid, b, 1)
    quotient = a // safe
    # numpy rounds down, SQL towards zero.
    quotient += (a % safe != 0) & ((a < 0) != (safe < 0))
    return array_of(quotient, valid)


def _whole_remainder(left: pa.Array, right: pa.Array) -> pa.Array:
    a, b = numbers_of(left), numbers_of(right)
    valid = valid_in(left, right) & (b != 0)
    return array_of(np.fmod(a, np.where(b == 0, 1, b)), valid)


def _divide(left: pa.Array, right: pa.Array) -> pa.Array:
    a, b = numbers_of(left), numbers_of(right)
    with np.errstate(all="ignore"):
        return array_of(a / np.where(b == 0, 1.0, b), valid_in(left, right) & (b != 0))


def _remainder(left: pa.Array, right: pa.Array) -> pa.Array:
    a, b = numbers_of(left), numbers_of(right)
    with np.errstate(all="ignore"):
        return array_of(np.fmod(a, np.where(b == 0, 1.0, b)), valid_in(left, right) & (b != 0))


_Binary = Callable[[pa.Array, pa.Array], pa.Array]
INTEGER_OPERATIONS: dict[type[exp.Expr], _Binary] = {
    exp.Add: _add,
    exp.Sub: subtract,
    exp.Mul: _multiply,
    exp.IntDiv: _whole_divide,
    exp.Mod: _whole_remainder,
}
DOUBLE_OPERATIONS: dict[type[exp.Expr], _Binary] = {
    exp.Add: pc.add,
    exp.Sub: pc.subtract,
    exp.Mul: pc.multiply,
    exp.Div: _divide,
    exp.Mod: _remainder,
}
_DECIMAL_KERNELS: dict[type[exp.Expr], _Binary] = {exp.Add: pc.add, exp.Sub: pc.subtract, exp.Mul: pc.multiply}
_DECIMAL_OPERATIONS: dict[type[exp.Expr], Callable[[Decimal, Decimal], Decimal | None]] = {
    exp.Add: EXACT.add,
    exp.Sub: EXACT.subtract,
    exp.Mul: EXACT.multiply,
    exp.Div: lambda a, b: None if not b else EXACT.quantize(EXACT.divide(a, b), _DIVISION_PLACES),
    exp.IntDiv: lambda a, b: None if not b else EXACT.divide_int(a, b),
    exp.Mod: lambda a, b: None if not b else EXACT.remainder(a, b),
}


def _fits_exactly(kind: type[exp.Expr], one: pa.DataType, other: pa.DataType, target: pa.DataType) -> bool:
    """Return True if Arrow's exact kernel returns the type of the result, so that no rounding is needed."""
    if kind is exp.Mul:
        precision, scale = one.precision + other.precision + 1, one.scale + other.scale
    else:
        scale = max(one.scale, other.scale)
        precision = max(one.precision - one.scale, other.precision - other.scale) + scale + 1
    return (precision, scale) == (target.precision, target.scale)


def decimal_operation(kind: type[exp.Expr], one: pa.Array, other: pa.Array, target: pa.DataType) -> pa.Array:
    """Compute two columns of decimals. `target`: type of the result, decimals or integers of type long."""
    if kind in _DECIMAL_KERNELS and _fits_exactly(kind, one.type, other.type, target):
        return _DECIMAL_KERNELS[kind](one, other)
    compute = _DECIMAL_OPERATIONS[kind]
    values = [
        None if a is None or b is None else compute(a, b)
        for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)
    ]
    if pa.types.is_integer(target):
        return pa.array([None if v is None or not -(2**63) <= v < 2**63 else int(v) for v in values], target)
    return rounded_decimals(values, target)


def round_half_up(array: pa.Array, places: int) -> pa.Array:
    """Round doubles half up in their shortest decimal digits, as Spark's `round` does.

    Rounding the product with a power of ten is exact, except for numbers next to a half and for very large numbers. These are
    rounded as decimals, one by one.
    """
    values, valid = numbers_of(array).astype(np.float64), valid_in(array)
    power = 10.0 ** abs(places)
    with np.errstate(all="ignore"):
        scaled = np.abs(values) * power if places >= 0 else np.abs(values) / power
        whole = np.floor(scaled)
        part = scaled - whole
        nearest = whole + (part > 0.5)
        result = np.copysign(nearest / power if places >= 0 else nearest * power, values)
        certain = (scaled < _EXACT_DOUBLE / 1024) & (np.abs(part - 0.5) > 1e-3) & (part < 1 - 1e-9)
    certain &= abs(places) <= _POWERS_MAX
    unit = Decimal(1).scaleb(-places)
    for at in np.flatnonzero(valid & ~certain).tolist():
        value = float(values[at])
        result[at] = value if not np.isfinite(value) else float(EXACT_OF_DOUBLE.quantize(Decimal(repr(value)), unit))
    result[result == 0] = 0.0
    return array_of(result, valid)


def quantized(array: pa.Array, places: int, target: str) -> pa.Array:
    unit = Decimal(1).scaleb(-places)
    return rounded_decimals(
        [None if v is None else EXACT.quantize(v, unit) for v in array.to_pylist()], arrow_type(target)
    )


def double_to_whole(array: pa.Array, function: Callable[[Any], Any]) -> pa.Array:
    """Convert doubles to long as Java does: the nearest long, and 0 for NaN."""
    values = function(numbers_of(array).astype(np.float64))
    with np.errstate(all="ignore"):
        result = np.where(np.isnan(values), 0.0, values).clip(-(2.0**63), 2.0**63 - 1024).astype(np.int64)
    result[values >= 2.0**63] = 2**63 - 1
    return array_of(result, valid_in(array))
