"""Comparisons of Arrow columns by Spark's rules: NaN equals itself and is larger than every other double."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from strandline.core.field_types import NULL, PRECISION_MAX, decimal_digits
from strandline.processing.operators.arithmetic import array_of, numbers_of, valid_in
from strandline.processing.operators.casting import decimals_of

_Compare = Callable[[pa.Array, pa.Array, str], pa.Array]
"""(one, other, type of both or `numbers`) -> one boolean for each row. `numbers`: integers and decimals of any digits."""


def is_too_wide(one: str, other: str) -> bool:
    """Return True if no decimal type can represent the digits of both number types."""
    (p1, s1), (p2, s2) = decimal_digits(one), decimal_digits(other)
    return max(p1 - s1, p2 - s2) + max(s1, s2) > PRECISION_MAX


def _compare(one: pa.Array, other: pa.Array, kind: str, name: str) -> pa.Array:
    if kind == NULL:
        return pa.nulls(len(one), pa.bool_())
    if kind == "numbers":
        operate = _PYTHON_COMPARE[name]
        pairs = zip(decimals_of(one), decimals_of(other), strict=True)
        return pa.array([None if a is None or b is None else operate(a, b) for a, b in pairs], pa.bool_())
    result = pc.call_function(name, [one, other])
    if kind != "double":
        return result
    left, right = np.isnan(numbers_of(one)), np.isnan(numbers_of(other))
    if not (left.any() or right.any()):
        return result
    ordered = {
        "equal": left & right,
        "less": right & ~left,
        "less_equal": right,
        "greater": left & ~right,
        "greater_equal": left,
    }[name]
    return pc.if_else(pa.array(left | right), array_of(ordered, valid_in(one, other)), result)


_PYTHON_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "equal": operator.eq,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}


def equal(one: pa.Array, other: pa.Array, kind: str) -> pa.Array:
    return _compare(one, other, kind, "equal")


def equals_any(value: pa.Array, choices: list[pa.Array], kind: str) -> pa.Array:
    """Return True for rows in which the value equals one of the choices. Null if it equals none and an operand is null."""
    return reduce(pc.or_kleene, (equal(value, choice, kind) for choice in choices))


def best(values: list[pa.Array], is_better: _Compare, kind: str) -> pa.Array:
    """Return the best value of each row; null only if all values are null."""
    found = values[0]
    for value in values[1:]:
        take = pc.or_(found.is_null(), is_better(value, found, kind).fill_null(False))
        found = pc.if_else(take, value, found)
    return found


def _null_safe_equal(one: pa.Array, other: pa.Array, kind: str) -> pa.Array:
    both_null = pc.and_(one.is_null(), other.is_null())
    return pc.or_(equal(one, other, kind).fill_null(False), both_null)


def _ordered(name: str) -> _Compare:
    def compare(one: pa.Array, other: pa.Array, kind: str) -> pa.Array:
        if pa.types.is_boolean(one.type):
            one, other = one.cast(pa.int8()), other.cast(pa.int8())
        return _compare(one, other, kind, name)

    return compare


less = _ordered("less")
greater = _ordered("greater")
COMPARE: dict[type[exp.Expr], _Compare] = {
    exp.EQ: equal,
    exp.NullSafeEQ: _null_safe_equal,
    exp.NEQ: lambda one, other, kind: pc.invert(equal(one, other, kind)),
    exp.GT: greater,
    exp.GTE: _ordered("greater_equal"),
    exp.LT: less,
    exp.LTE: _ordered("less_equal"),
}
