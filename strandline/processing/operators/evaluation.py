"""Expressions of Spark SQL, evaluated on Arrow columns without Spark.

The dialect, its checks and its types are those of `pipelines.expressions`. What Spark's ANSI mode would raise for (overflow,
division by zero, a bad cast) is null here, so that a caller judges the row and no row ends a job. Spark is the oracle in the
tests: every form of expression over ordinary and extreme values.

Known differences from Spark, on purpose: transcendental functions (`exp`, `ln`, `pow`) are those of the C library and may
differ from Java's in the last bit; a double becomes text by its shortest digits, as newer Java versions do it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp

from strandline.processing.operators.casting import (
    EXACT,
    EXACT_OF_DOUBLE,
    NULL,
    arrow_type,
    cast,
    decimal_digits,
    decimals_of,
    is_decimal,
    rounded_decimals,
)
from strandline.processing.pipelines.expressions import common_type, digits_in_arithmetic, type_of

Columns = Mapping[str, pa.Array]
Bools = npt.NDArray[np.bool_]
Evaluate = Callable[[Columns, int], pa.Array]
"""(columns, number of rows) -> one value a row."""

_DIVISION_PLACES = Decimal(1).scaleb(-39)
"""Spark divides decimals to this many places before it rounds to the type of the result."""
_EXACT_DOUBLE = 2.0**52
_POWERS_MAX = 22
"""Powers of ten up to this one are exact doubles."""


class ColumnExpression:
    """One checked expression, compiled once for columns of known types.

    `sql` is the normalised text that the check wrote; `types` has every column in sight. Raises ExpressionError as the check
    does. Calling it costs a few kernels a node, and no Python per row but for decimals and unusual casts.
    """

    def __init__(self, sql: str, types: Mapping[str, str]) -> None:
        tree: exp.Expr = sqlglot.parse_one(sql, dialect="spark", into=exp.Condition)
        self.sql = sql
        self.type = type_of(tree, types)
        self.columns = tuple(dict.fromkeys(column.name for column in tree.find_all(exp.Column)))
        self._evaluate = _Compiler(types).compile(tree)

    def __call__(self, columns: Columns, rows: int) -> pa.Array:
        """One value a row, null where there is none. `columns` holds at least those that the expression reads."""
        return self._evaluate(columns, rows)


class _Compiler:
    """Turns a tree into closures, leaves first. Each method is one kind of node."""

    def __init__(self, types: Mapping[str, str]) -> None:
        self._types = types

    def compile(self, node: exp.Expr) -> Evaluate:
        for kinds, build in _BUILDERS:
            if isinstance(node, kinds):
                return build(self, node)
        raise AssertionError(f"the check lets {type(node).__name__} pass, and evaluation does not know it")

    def typed(self, node: exp.Expr, target: str) -> Evaluate:
        """The node's value, widened to `target`."""
        source, inner = self._type(node), self.compile(node)
        if source == target:
            return inner
        return lambda columns, rows: cast(inner(columns, rows), source, target)

    def _type(self, node: exp.Expr) -> str:
        return type_of(node, self._types)

    def _common(self, nodes: Iterable[exp.Expr]) -> str:
        return common_type(list(nodes), self._types)

    # Leaves

    def column(self, node: exp.Expr) -> Evaluate:
        name = node.name
        return lambda columns, rows: columns[name]

    def inner(self, node: exp.Expr) -> Evaluate:
        return self.compile(node.this)

    def literal(self, node: exp.Expr) -> Evaluate:
        kind = self._type(node)
        value: object = node.name
        if kind in ("integer", "long"):
            value = int(node.name)
        elif kind == "double":
            value = float(node.name)
        elif is_decimal(kind):
            value = Decimal(node.name)
        return _constant(value, arrow_type(kind))

    def null(self, node: exp.Expr) -> Evaluate:
        return _constant(None, pa.null())

    def boolean(self, node: exp.Expr) -> Evaluate:
        return _constant(bool(node.this), pa.bool_())

    # Arithmetic

    def arithmetic(self, node: exp.Expr) -> Evaluate:
        kind = self._type(node)
        if kind != "double" and any(is_decimal(self._type(one)) for one in (node.this, node.expression)):
            return self._decimal_arithmetic(node, kind)
        operate = _DOUBLE_OPERATIONS[type(node)] if kind == "double" else _INTEGER_OPERATIONS[type(node)]
        left, right = self.typed(node.this, kind), self.typed(node.expression, kind)
        if kind == "double":
            return lambda columns, rows: operate(left(columns, rows), right(columns, rows))
        # Whole numbers are computed as 64 bits, and what does not fit into the type of the result is null.
        left, right = self.typed(node.this, "long"), self.typed(node.expression, "long")
        if kind == "long":
            return lambda columns, rows: operate(left(columns, rows), right(columns, rows))
        return lambda columns, rows: cast(operate(left(columns, rows), right(columns, rows)), "long", kind)

    def _decimal_arithmetic(self, node: exp.Expr, kind: str) -> Evaluate:
        operands = [self._as_decimal(operand) for operand in (node.this, node.expression)]
        left, right = operands
        kernel = _DECIMAL_KERNELS.get(type(node))
        compute = _DECIMAL_OPERATIONS[type(node)]
        target = None if kind == "long" else arrow_type(kind)

        def evaluate(columns: Columns, rows: int) -> pa.Array:
            one, other = left(columns, rows), right(columns, rows)
            if kernel is not None and target is not None and _fits_exactly(type(node), one.type, other.type, target):
                return kernel(one, other)
            values = [
                None if a is None or b is None else compute(a, b)
                for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)
            ]
            if target is None:
                return pa.array(
                    [None if v is None or not -(2**63) <= v < 2**63 else int(v) for v in values], pa.int64()
                )
            return rounded_decimals(values, target)

        return evaluate

    def _as_decimal(self, node: exp.Expr) -> Evaluate:
        """An operand of decimal arithmetic: a whole number is a decimal with as many digits as it, or its type, can have."""
        precision, scale = digits_in_arithmetic(node, self._types)
        return self.typed(node, f"decimal({precision},{scale})")

    def negative(self, node: exp.Expr) -> Evaluate:
        kind, inner = self._type(node), self.compile(node.this)
        if kind == "double" or is_decimal(kind):
            return lambda columns, rows: pc.negate(inner(columns, rows))
        return lambda columns, rows: _subtract(
            pa.repeat(pa.scalar(0, arrow_type(kind)), rows), inner(columns, rows), kind
        )

    def absolute(self, node: exp.Expr) -> Evaluate:
        kind, inner = self._type(node), self.compile(node.this)
        if kind == "double" or is_decimal(kind):
            return lambda columns, rows: pc.abs(inner(columns, rows))

        def evaluate(columns: Columns, rows: int) -> pa.Array:
            value = inner(columns, rows)
            opposite = _subtract(pa.repeat(pa.scalar(0, value.type), rows), value, kind)
            return pc.if_else(pc.less(value, pa.scalar(0, value.type)), opposite, value)

        return evaluate

    def round(self, node: exp.Expr) -> Evaluate:
        source, target, inner = self._type(node.this), self._type(node), self.compile(node.this)
        places = 0 if node.args.get("decimals") is None else int(node.args["decimals"].sql().replace(" ", ""))
        if source == "double":
            return lambda columns, rows: round_half_up(inner(columns, rows), places)
        if source in ("integer", "long") and places >= 0:
            return inner
        if source in ("integer", "long"):
            # In decimals, where there is room to round up.
            wide, rounded = "decimal(20,0)", "decimal(38,0)"
            return lambda columns, rows: cast(
                _quantized(cast(inner(columns, rows), source, wide), places, rounded), rounded, target
            )
        return lambda columns, rows: _quantized(inner(columns, rows), places, target)

    def whole(self, node: exp.Expr) -> Evaluate:
        source, target, inner = self._type(node.this), self._type(node), self.compile(node.this)
        up = isinstance(node, exp.Ceil)
        if source in ("integer", "long"):
            return self.typed(node.this, target)
        if source == "double":
            return lambda columns, rows: _double_to_whole(inner(columns, rows), np.ceil if up else np.floor)
        rounding = ROUND_CEILING if up else ROUND_FLOOR

        def evaluate(columns: Columns, rows: int) -> pa.Array:
            values = [None if v is None else v.to_integral_value(rounding) for v in inner(columns, rows).to_pylist()]
            return rounded_decimals(values, arrow_type(target))

        return evaluate

    def transcendental(self, node: exp.Expr) -> Evaluate:
        operands = [self.typed(operand, "double") for operand in node.iter_expressions()]
        function = _TRANSCENDENTAL[type(node)]

        def evaluate(columns: Columns, rows: int) -> pa.Array:
            arrays = [operand(columns, rows) for operand in operands]
            with np.errstate(all="ignore"):
                values = function(*[_numbers(array) for array in arrays])
            valid = _valid(*arrays)
            if isinstance(node, exp.Ln):
                valid &= ~(_numbers(arrays[0]) <= 0)
            return _array(values, valid)

        return evaluate

    # Conditions

    def comparison(self, node: exp.Expr) -> Evaluate:
        left, right, kind = self._compared(node.this, node.expression)
        compare = _COMPARE[type(node)]
        if isinstance(node, exp.NullSafeEQ):
            return lambda columns, rows: _null_safe_equal(left(columns, rows), right(columns, rows), kind)
        return lambda columns, rows: compare(left(columns, rows), right(columns, rows), kind)

    def _compared(self, one: exp.Expr, other: exp.Expr) -> tuple[Evaluate, Evaluate, str]:
        """Both operands in a type in which they can be compared without loss, and that type."""
        types = (self._type(one), self._type(other))
        kind = self._common((one, other))
        if is_decimal(kind) and _is_too_wide(types):
            # Compared as numbers in Python: the one decimal type for both would cut digits off.
            return self.compile(one), self.compile(other), "numbers"
        return self.typed(one, kind), self.typed(other, kind), kind

    def between(self, node: exp.Expr) -> Evaluate:
        low = self.comparison(exp.GTE(this=node.this, expression=node.args["low"]))
        high = self.comparison(exp.LTE(this=node.this, expression=node.args["high"]))
        return lambda columns, rows: pc.and_kleene(low(columns, rows), high(columns, rows))

    def is_in(self, node: exp.Expr) -> Evaluate:
        kind = self._common((node.this, *node.expressions))
        value = self.typed(node.this, kind)
        choices = [self.typed(choice, kind) for choice in node.expressions]

        def evaluate(columns: Columns, rows: int) -> pa.Array:
            present = value(columns, rows)
            found = _equal(present, choices[0](columns, rows), kind)
            for choice in choices[1:]:
                found = pc.or_kleene(found, _equal(present, choice(columns, rows), kind))
            return found

        return evaluate

    def is_(self, node: exp.Expr) -> Evaluate:
        inner = self.compile(node.this)
        if isinstance(node.expression, exp.Null):
            return lambda columns, rows: inner(columns, rows).is_null()
        wanted = bool(node.expression.this)
        keep: Callable[[pa.Array], pa.Array] = (lambda value: value) if wanted else pc.invert
        return lambda columns, rows: keep(cast(inner(columns, rows), "boolean", "boolean")).fill_null(False)

    def like(self, node: exp.Expr) -> Evaluate:
        text, pattern = self.typed(node.this, "string"), self.typed(node.expression, "string")
        negate = bool(node.args.get("negate"))
        if isinstance(node.expression, exp.Literal):
            match = re.compile(like_pattern(node.expression.name), re.DOTALL).fullmatch

            def constant(columns: Columns, rows: int) -> pa.Array:
                texts = text(columns, rows).to_pylist()
                return pa.array([None if t is None else (match(t) is not None) != negate for t in texts], pa.bool_())

            return constant

        def evaluate(columns: Columns, rows: int) -> pa.Array:
            pairs = zip(text(columns, rows).to_pylist(), pattern(columns, rows).to_pylist(), strict=True)
            found = [None if t is None or p is None else _is_like(t, p) for t, p in pairs]
            return pa.array([None if f is None else f != negate for f in found], pa.bool_())

        return evaluate

    def logical(self, node: exp.Expr) -> Evaluate:
        operands = [self.typed(operand, "boolean") for operand in node.iter_expressions()]
        if isinstance(node, exp.Not):
            return lambda columns, rows: pc.invert(operands[0](columns, rows))
        join = pc.and_kleene if isinstance(node, exp.And) else pc.or_kleene
        return lambda columns, rows: join(operands[0](columns, rows), operands[1](columns, rows))

    # Choices

    def case(self, node: exp.Expr) -> Evaluate:
        target = self._type(node)
        branches = node.args["ifs"] if isinstance(node, exp.Case) else [node]
        subject = node.this if isinstance(node, exp.Case) else None
        other = node.args.get("default") or node.args.get("false")
        conditions = [
            self.comparison(exp.EQ(this=subject, expression=branch.this))
            if subject is not None
            else self.typed(branch.this, "boolean")
            for branch in branches
        ]
        values = [self.typed(branch.args["true"], target) for branch in branches]
        otherwise = self.typed(other, target) if other is not None else _constant(None, arrow_type(target))

        def evaluate(columns: Columns, rows: int) -> pa.Array:
            result = otherwise(columns, rows)
            for condition, value in zip(reversed(conditions), reversed(values), strict=True):
                result = pc.if_else(condition(columns, rows).fill_null(False), value(columns, rows), result)
            return result

        return evaluate

    def coalesce(self, node: exp.Expr) -> Evaluate:
        target = self._type(node)
        values = [self.typed(argument, target) for argument in (node.this, *node.expressions)]
        return lambda columns, rows: pc.coalesce(*[value(columns, rows) for value in values])

    def extreme_of(self, node: exp.Expr) -> Evaluate:
        """`least` or `greatest`: the one that is not null, where one is; not a number is the greatest double."""
        target = self._type(node)
        values = [self.typed(argument, target) for argument in (node.this, *node.expressions)]
        is_better = _less if isinstance(node, exp.Least) else _greater

        def evaluate(columns: Columns, rows: int) -> pa.Array:
            result = values[0](columns, rows)
            for value in values[1:]:
                other = value(columns, rows)
                take_other = pc.or_(result.is_null(), is_better(other, result, target).fill_null(False))
                result = pc.if_else(take_other, other, result)
            return result

        return evaluate

    def nullif(self, node: exp.Expr) -> Evaluate:
        value = self.compile(node.this)
        equal = self.comparison(exp.EQ(this=node.this, expression=node.expression))
        nothing = pa.scalar(None, arrow_type(self._type(node)))
        return lambda columns, rows: pc.if_else(equal(columns, rows).fill_null(False), nothing, value(columns, rows))

    def cast(self, node: exp.Expr) -> Evaluate:
        return self.typed(node.this, self._type(node))

    # Text

    def upper_lower(self, node: exp.Expr) -> Evaluate:
        text = self.typed(node.this, "string")
        upper = isinstance(node, exp.Upper)

        def evaluate(columns: Columns, rows: int) -> pa.Array:
            value = text(columns, rows)
            if pc.all(pc.string_is_ascii(value)).as_py() is not False:
                return pc.ascii_upper(value) if upper else pc.ascii_lower(value)
            return pa.array(
                [None if t is None else t.upper() if upper else t.lower() for t in value.to_pylist()], pa.string()
            )

        return evaluate

    def trim(self, node: exp.Expr) -> Evaluate:
        text = self.typed(node.this, "string")
        kernel = {"LEADING": pc.utf8_ltrim, "TRAILING": pc.utf8_rtrim}.get(str(node.args.get("position")), pc.utf8_trim)
        return lambda columns, rows: kernel(text(columns, rows), characters=" ")

    def concat(self, node: exp.Expr) -> Evaluate:
        parts = [self.typed(part, "string") for part in node.iter_expressions()]
        return lambda columns, rows: pc.binary_join_element_wise(*[part(columns, rows) for part in parts], "")

    def length(self, node: exp.Expr) -> Evaluate:
        text = self.typed(node.this, "string")
        return lambda columns, rows: pc.utf8_length(text(columns, rows))

    def substring(self, node: exp.Expr) -> Evaluate:
        text = self.typed(node.this, "string")
        start = self.typed(node.args.get("start") or exp.Literal.number(1), "integer")
        length = node.args.get("length")
        count = self.typed(length, "integer") if length is not None else None

        def evaluate(columns: Columns, rows: int) -> pa.Array:
            counts = [2**31] * rows if count is None else count(columns, rows).to_pylist()
            triples = zip(text(columns, rows).to_pylist(), start(columns, rows).to_pylist(), counts, strict=True)
            return pa.array([_substring(*triple) for triple in triples], pa.string())

        return evaluate


_BUILDERS: tuple[tuple[type[exp.Expr] | tuple[type[exp.Expr], ...], Callable[[_Compiler, exp.Expr], Evaluate]], ...] = (
    (exp.Column, _Compiler.column),
    (exp.Paren, _Compiler.inner),
    (exp.Literal, _Compiler.literal),
    (exp.Null, _Compiler.null),
    (exp.Boolean, _Compiler.boolean),
    (exp.Neg, _Compiler.negative),
    ((exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod), _Compiler.arithmetic),
    ((exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ), _Compiler.comparison),
    (exp.Between, _Compiler.between),
    (exp.In, _Compiler.is_in),
    (exp.Is, _Compiler.is_),
    (exp.Like, _Compiler.like),
    ((exp.And, exp.Or, exp.Not), _Compiler.logical),
    ((exp.Case, exp.If), _Compiler.case),
    (exp.Coalesce, _Compiler.coalesce),
    ((exp.Least, exp.Greatest), _Compiler.extreme_of),
    (exp.Nullif, _Compiler.nullif),
    ((exp.Cast, exp.TryCast), _Compiler.cast),
    (exp.Abs, _Compiler.absolute),
    ((exp.Ceil, exp.Floor), _Compiler.whole),
    (exp.Round, _Compiler.round),
    ((exp.Sqrt, exp.Pow, exp.Ln, exp.Exp), _Compiler.transcendental),
    ((exp.Lower, exp.Upper), _Compiler.upper_lower),
    (exp.Trim, _Compiler.trim),
    ((exp.Concat, exp.DPipe), _Compiler.concat),
    (exp.Length, _Compiler.length),
    (exp.Substring, _Compiler.substring),
)


def _constant(value: object, kind: pa.DataType) -> Evaluate:
    scalar = pa.scalar(value, kind)
    return lambda columns, rows: pa.repeat(scalar, rows)


def _valid(*arrays: pa.Array) -> Bools:
    valid = np.ones(len(arrays[0]), np.bool_)
    for array in arrays:
        if array.null_count:
            valid &= array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _numbers(array: pa.Array) -> npt.NDArray[Any]:
    """The numbers; 0 where there is none."""
    values: npt.NDArray[Any] = (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False)
    return values


def _array(values: npt.NDArray[Any], valid: Bools) -> pa.Array:
    return pa.array(values, mask=None if valid.all() else ~valid)


# Whole numbers: null where the value does not fit


def _add(left: pa.Array, right: pa.Array) -> pa.Array:
    a, b = _numbers(left), _numbers(right)
    total = a + b
    return _array(total, _valid(left, right) & ~(((a ^ total) & (b ^ total)) < 0))


def _subtract(left: pa.Array, right: pa.Array, kind: str = "long") -> pa.Array:
    a, b = _numbers(left).astype(np.int64), _numbers(right).astype(np.int64)
    total = a - b
    result = _array(total, _valid(left, right) & ~(((a ^ b) & (a ^ total)) < 0))
    return result if kind == "long" else cast(result, "long", kind)


def _multiply(left: pa.Array, right: pa.Array) -> pa.Array:
    a, b = _numbers(left), _numbers(right)
    valid = _valid(left, right)
    product = a * b
    doubtful = np.abs(a.astype(np.float64) * b.astype(np.float64)) > 9.2e18
    for at in np.flatnonzero(doubtful & valid).tolist():  # near or past the end of 64 bits, where doubles can't tell
        valid[at] = -(2**63) <= int(a[at]) * int(b[at]) < 2**63
    return _array(product, valid)


def _whole_divide(left: pa.Array, right: pa.Array) -> pa.Array:
    a, b = _numbers(left), _numbers(right)
    valid = _valid(left, right) & (b != 0) & ~((a == -(2**63)) & (b == -1))
    safe = np.where(valid, b, 1)
    quotient = a // safe
    # numpy rounds down, SQL towards zero.
    quotient += (a % safe != 0) & ((a < 0) != (safe < 0))
    return _array(quotient, valid)


def _whole_remainder(left: pa.Array, right: pa.Array) -> pa.Array:
    a, b = _numbers(left), _numbers(right)
    valid = _valid(left, right) & (b != 0)
    return _array(np.fmod(a, np.where(b == 0, 1, b)), valid)


def _divide(left: pa.Array, right: pa.Array) -> pa.Array:
    a, b = _numbers(left), _numbers(right)
    with np.errstate(all="ignore"):
        return _array(a / np.where(b == 0, 1.0, b), _valid(left, right) & (b != 0))


def _remainder(left: pa.Array, right: pa.Array) -> pa.Array:
    a, b = _numbers(left), _numbers(right)
    with np.errstate(all="ignore"):
        return _array(np.fmod(a, np.where(b == 0, 1.0, b)), _valid(left, right) & (b != 0))


_Binary = Callable[[pa.Array, pa.Array], pa.Array]
_INTEGER_OPERATIONS: dict[type[exp.Expr], _Binary] = {
    exp.Add: _add,
    exp.Sub: _subtract,
    exp.Mul: _multiply,
    exp.IntDiv: _whole_divide,
    exp.Mod: _whole_remainder,
}
_DOUBLE_OPERATIONS: dict[type[exp.Expr], _Binary] = {
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
_TRANSCENDENTAL: dict[type[exp.Expr], Callable[..., npt.NDArray[np.float64]]] = {
    exp.Sqrt: np.sqrt,
    exp.Pow: np.power,
    exp.Ln: np.log,
    exp.Exp: np.exp,
}


def _fits_exactly(kind: type[exp.Expr], one: pa.DataType, other: pa.DataType, target: pa.DataType) -> bool:
    """Whether Arrow's exact kernel has the type of the result, so that nothing is to be rounded."""
    if kind is exp.Mul:
        precision, scale = one.precision + other.precision + 1, one.scale + other.scale
    else:
        scale = max(one.scale, other.scale)
        precision = max(one.precision - one.scale, other.precision - other.scale) + scale + 1
    return (precision, scale) == (target.precision, target.scale)


def round_half_up(array: pa.Array, places: int) -> pa.Array:
    """Doubles rounded half up in their shortest decimal digits, as Spark's `round` does it.

    Rounding the product with a power of ten is exact but for numbers next to a half and for very large ones; those are rounded
    as decimals, one by one.
    """
    values, valid = _numbers(array).astype(np.float64), _valid(array)
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
    return _array(result, valid)


def _quantized(array: pa.Array, places: int, target: str) -> pa.Array:
    unit = Decimal(1).scaleb(-places)
    return rounded_decimals(
        [None if v is None else EXACT.quantize(v, unit) for v in array.to_pylist()], arrow_type(target)
    )


def _double_to_whole(array: pa.Array, function: Callable[[Any], Any]) -> pa.Array:
    """As Java turns a double into a long: the nearest one there is, and 0 for what is no number."""
    values = function(_numbers(array).astype(np.float64))
    with np.errstate(all="ignore"):
        result = np.where(np.isnan(values), 0.0, values).clip(-(2.0**63), 2.0**63 - 1024).astype(np.int64)
    result[values >= 2.0**63] = 2**63 - 1
    return _array(result, _valid(array))


# Comparisons; not a number equals itself and is greater than every other double


def _is_too_wide(types: tuple[str, str]) -> bool:
    (p1, s1), (p2, s2) = (decimal_digits(kind) for kind in types)
    return max(p1 - s1, p2 - s2) + max(s1, s2) > 38


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
    left, right = np.isnan(_numbers(one)), np.isnan(_numbers(other))
    if not (left.any() or right.any()):
        return result
    ordered = {
        "equal": left & right,
        "less": right & ~left,
        "less_equal": right,
        "greater": left & ~right,
        "greater_equal": left,
    }[name]
    return pc.if_else(pa.array(left | right), _array(ordered, _valid(one, other)), result)


_PYTHON_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "equal": lambda a, b: a == b,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
}


def _equal(one: pa.Array, other: pa.Array, kind: str) -> pa.Array:
    return _compare(one, other, kind, "equal")


def _less(one: pa.Array, other: pa.Array, kind: str) -> pa.Array:
    if pa.types.is_boolean(one.type):
        return pc.and_(pc.invert(one), other)
    return _compare(one, other, kind, "less")


def _greater(one: pa.Array, other: pa.Array, kind: str) -> pa.Array:
    return _less(other, one, kind)


def _null_safe_equal(one: pa.Array, other: pa.Array, kind: str) -> pa.Array:
    both_null = pc.and_(one.is_null(), other.is_null())
    return pc.or_(_equal(one, other, kind).fill_null(False), both_null)


def _ordered(name: str) -> Callable[[pa.Array, pa.Array, str], pa.Array]:
    def compare(one: pa.Array, other: pa.Array, kind: str) -> pa.Array:
        if pa.types.is_boolean(one.type):
            one, other = one.cast(pa.int8()), other.cast(pa.int8())
        return _compare(one, other, kind, name)

    return compare


_COMPARE: dict[type[exp.Expr], Callable[[pa.Array, pa.Array, str], pa.Array]] = {
    exp.EQ: _equal,
    exp.NullSafeEQ: _null_safe_equal,
    exp.NEQ: lambda one, other, kind: pc.invert(_equal(one, other, kind)),
    exp.GT: _ordered("greater"),
    exp.GTE: _ordered("greater_equal"),
    exp.LT: _ordered("less"),
    exp.LTE: _ordered("less_equal"),
}


# Text


def like_pattern(pattern: str) -> str:
    """The regular expression for a LIKE pattern: `%` any text, `_` one character, a backslash takes the next one literally."""
    parts, at = [], 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\" and at + 1 < len(pattern):
            at += 1
            parts.append(re.escape(pattern[at]))
        else:
            parts.append({"%": ".*", "_": "."}.get(character) or re.escape(character))
        at += 1
    return "".join(parts)


def _is_like(text: str, pattern: str) -> bool:
    return re.fullmatch(like_pattern(pattern), text, re.DOTALL) is not None


def _substring(text: str | None, start: int | None, count: int | None) -> str | None:
    """Counted from 1; 0 counts as 1, and a negative start counts from the end."""
    if text is None or start is None or count is None:
        return None
    first = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    end = first + max(count, 0)
    return text[max(first, 0) : max(end, 0)]
