"""Functions of numbers."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from strandline.processing.columns.decimals import EXACT_OF_DOUBLE
from strandline.processing.operators.arithmetic import (
    DOUBLE_OPERATIONS,
    INTEGER_OPERATIONS,
    array_of,
    numbers_of,
    valid_in,
)
from strandline.processing.operators.functions.elementary import ELEMENTARY_KERNELS
from strandline.processing.operators.functions.times import Kernel
from strandline.processing.pipelines.functions.units import conversion

_DEGREES, _RADIANS = 180.0 / math.pi, math.pi / 180.0


def _degrees(x: pa.Array) -> pa.Array:
    return pc.multiply(x, _DEGREES)


def _radians(x: pa.Array) -> pa.Array:
    return pc.multiply(x, _RADIANS)


def _isnan(x: pa.Array) -> pa.Array:
    return pc.is_nan(x).fill_null(False)


def _nanvl(x: pa.Array, other: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_nan(x).fill_null(False), other, x)


def _pmod(x: pa.Array, y: pa.Array) -> pa.Array:
    """Return the remainder, with the divisor added if it is negative."""
    if pa.types.is_floating(x.type):
        rest = numbers_of(DOUBLE_OPERATIONS[exp.Mod](x, y))
        divisor = numbers_of(y)
        with np.errstate(all="ignore"):
            again = np.fmod(rest + divisor, np.where(divisor == 0, 1.0, divisor))
        return array_of(np.where(rest < 0, again, rest), valid_in(x, y) & (divisor != 0))
    kind = x.type
    wide, divisor = x.cast(pa.int64()), y.cast(pa.int64())
    rest = INTEGER_OPERATIONS[exp.Mod](wide, divisor)
    below = pc.less(rest, pa.scalar(0, pa.int64()))
    # The sum of two negative numbers can overflow. A negative divisor leaves the remainder unchanged, so it isn't added.
    safe = pc.if_else(pc.less(divisor, pa.scalar(0, pa.int64())), pa.scalar(0, pa.int64()), divisor)
    again = pc.if_else(below, pc.add(rest, safe), rest)
    return again.cast(kind)


def _shifted(left: bool) -> Kernel:
    """Return the kernel that shifts integers left or right. As in Java, only the lowest bits of the count are used: 5 for
    integers of 32 bits, 6 for those of 64 bits."""

    def compute(x: pa.Array, bits: pa.Array) -> pa.Array:
        values = numbers_of(x)
        count = numbers_of(bits).astype(values.dtype) & (values.dtype.itemsize * 8 - 1)
        return array_of(np.left_shift(values, count) if left else np.right_shift(values, count), valid_in(x, bits))

    return compute


def _convert_unit(x: pa.Array, source: str, target: str) -> pa.Array:
    by = conversion(source, target)
    with np.errstate(all="ignore"):
        moved = numbers_of(x) + by.before
        values = moved * by.numerator / by.denominator
        if not np.isfinite(values).all():  # the product can overflow although the quotient doesn't
            values = np.where(np.isfinite(values), values, moved * (by.numerator / by.denominator))
        return array_of(values + by.after, valid_in(x))


def _format_number(x: pa.Array, places: int) -> pa.Array:
    unit = Decimal(1).scaleb(-places)

    def text(value: float | int | Decimal | None) -> str | None:
        if value is None or not math.isfinite(value):
            return None
        number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        if isinstance(value, float) and number != number.quantize(unit, context=EXACT_OF_DOUBLE):
            # The exact value decides about digits that are cut off. Otherwise, a double's shortest digits are shown, as in Java.
            return f"{value:,.{places}f}"
        return f"{number.quantize(unit, rounding=ROUND_HALF_EVEN, context=EXACT_OF_DOUBLE):,f}"

    return pa.array([text(value) for value in x.to_pylist()], pa.string())


NUMBER_KERNELS: dict[str, Kernel] = {
    **ELEMENTARY_KERNELS,
    "sign": pc.sign,
    "isnan": _isnan,
    "nanvl": _nanvl,
    "pi": lambda: math.pi,
    "degrees": _degrees,
    "radians": _radians,
    "pmod": _pmod,
    "shiftleft": _shifted(True),
    "shiftright": _shifted(False),
    "convert_unit": _convert_unit,
    "format_number": _format_number,
}
