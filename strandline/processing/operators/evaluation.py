"""Expressions of Spark SQL, evaluated on Arrow columns without Spark.

The dialect and its checks are those of `pipelines.expressions`, and the types those of `pipelines.expression_types`. Where
Spark's ANSI mode would raise an error (overflow, division by zero, a bad cast), the value is null here. So the caller handles
the row, and no row ends a job. The tests compare with Spark: every form of expression over ordinary and extreme values.

There are two intended differences from Spark. Powers, logarithms, and angles are correctly rounded, so the last bit of Java's
values can differ. A double becomes a string with its shortest digits, as in newer Java versions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import partial, reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from strandline.core.field_types import SIMPLE_TYPES, is_decimal, is_nested, members_of
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.decimals import rounded_decimals
from strandline.processing.operators.arithmetic import (
    DOUBLE_OPERATIONS,
    INTEGER_OPERATIONS,
    decimal_operation,
    double_to_whole,
    quantized,
    round_half_up,
    subtract,
)
from strandline.processing.operators.casting import cast
from strandline.processing.operators.comparisons import COMPARE, best, equals_any, greater, is_too_wide, less
from strandline.processing.operators.functions.kernels import KERNELS
from strandline.processing.operators.functions.string_limit import concatenable
from strandline.processing.operators.texts import is_like, like_pattern, lower, substring, upper
from strandline.processing.pipelines.expression_types import (
    common_of,
    common_type,
    digits_in_arithmetic,
    type_of,
    written_arguments,
)
from strandline.processing.pipelines.expressions import WINDOW_TIME_OF, tree_of
from strandline.processing.pipelines.functions.array_functions import STRUCT, wanted_types
from strandline.processing.pipelines.functions.signature import COMMON
from strandline.processing.pipelines.functions.table import CALLS

Columns = Mapping[str, pa.Array]
Evaluate = Callable[[Columns, int], pa.Array]
"""(columns, number of rows) -> one value for each row."""
Compare = Callable[[pa.Array, Columns, int], pa.Array]
"""(one value for each row, columns, number of rows) -> True for each row in which the comparison is true."""
Choose = Callable[[Sequence[Evaluate], Evaluate], Evaluate]
"""(values of the branches, value if no branch applies) -> value for each row."""


class ColumnExpression:
    """One checked expression, compiled once for columns of known types.

    `sql` is the normalised SQL from the check. `types` has every usable column. Raises ExpressionError as the check does. A
    call costs a few kernels for each node, and no Python for each row, except for decimals and unusual casts.
    """

    def __init__(self, sql: str, types: Mapping[str, str]) -> None:
        tree = tree_of(sql)
        self.sql = sql
        self.type = type_of(tree, types)
        self.columns = tuple(dict.fromkeys(column.name for column in tree.find_all(exp.Column)))
        compiler = _Compiler(types)
        self._evaluate = compiler.compile(tree)
        conditions = tree.flatten() if isinstance(tree, exp.And) else [tree]
        self._conditions = [(compiler.compiled[id(one)], compiler.null_by_choice(one)) for one in conditions]

    def __call__(self, columns: Columns, rows: int) -> pa.Array:
        """Return one value for each row, null if there is none. `columns` must contain those that the expression reads."""
        return self._evaluate(columns, rows)

    def fails(self, columns: Columns, rows: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows for which the expression fails: it is null, but not on purpose. Conditions joined by `and`
        fail if one of them does.

        A null is on purpose if it comes from `null`, from a `case` without a branch that applies, or from `nullif`, `try_cast`,
        or another `try_` function whose arguments have values.
        """
        failed = np.zeros(rows, np.bool_)
        for condition, is_chosen in self._conditions:
            is_null = condition(columns, rows).is_null()
            if pc.any(is_null).as_py():
                failed |= pc.and_not(is_null, is_chosen(columns, rows)).to_numpy(zero_copy_only=False)
        return failed


def _given(node: exp.Expr) -> list[exp.Expr]:
    """Return the arguments from which a node computes null on purpose."""
    return list(node.expressions) if isinstance(node, exp.Anonymous) else [node.this]


def _held(node: exp.Expr, maker: str) -> list[exp.Expr]:
    """Return the arguments of a call of `array` or `named_struct`. Empty for another node."""
    made = node.unnest()
    return list(made.expressions) if isinstance(made, exp.Anonymous) and made.name.lower() == maker else []


def _gives_null(node: exp.Expr) -> bool:
    if isinstance(node, exp.Null):
        return not isinstance(node.parent, exp.Is)
    if isinstance(node, exp.Case):
        return node.args.get("default") is None
    if isinstance(node, exp.Anonymous):
        return CALLS[node.name.lower()].is_null_by_choice
    # The dialect's `cast` is a TryCast too; only `try_cast` is safe.
    return isinstance(node, exp.Nullif) or (isinstance(node, exp.TryCast) and bool(node.args.get("safe")))


class _Compiler:
    """Compiles a tree to closures, leaves first. Each method compiles one kind of node."""

    def __init__(self, types: Mapping[str, str]) -> None:
        self._types = types
        self.compiled: dict[int, Evaluate] = {}
        """Compiled nodes, by the identity of the node."""
        self._choosers: dict[int, Choose] = {}
        """Chooser of each `case` and `if`, by the identity of the node."""

    def compile(self, node: exp.Expr) -> Evaluate:
        self.compiled[id(node)] = _BUILDER_OF[type(node)](self, node)
        return self.compiled[id(node)]

    def null_by_choice(self, node: exp.Expr) -> Evaluate:
        """Return the rows for which the compiled node is null on purpose. For an array or a struct, its parts are considered.

        Only operands from which the value is computed count. Branches that aren't chosen, ignored nulls, and compared values
        don't count.
        """
        if id(node) not in self.compiled or not any(map(_gives_null, node.walk())):
            return _never
        if isinstance(node, exp.Null):
            return _always
        value, said = self.compiled[id(node)], self._said(node)
        if is_nested(self._type(node)):
            return said
        return lambda columns, rows: pc.and_(value(columns, rows).is_null(), said(columns, rows))

    def _said(self, node: exp.Expr) -> Evaluate:
        """Return the rows in which a null of the node, which isn't `null` itself, is on purpose."""
        if isinstance(node, exp.Case | exp.If):
            values, other = _values_of(node)
            otherwise = _always if other is None else self.null_by_choice(other)
            return self._choosers[id(node)]([self.null_by_choice(one) for one in values], otherwise)
        if isinstance(node, exp.Coalesce):
            return self.null_by_choice((node.this, *node.expressions)[-1])
        if isinstance(node, exp.Least | exp.Greatest):
            return self._all_said((node.this, *node.expressions))
        if isinstance(node, exp.Nullif):
            return _joined(pc.or_, [self.null_by_choice(node.this), _is_there(self.compiled[id(node.this)])])
        if isinstance(node, exp.Dot) and (values := _held(node.this, "named_struct")):
            at = list(members_of(self._type(node.this))).index(node.expression.name)
            return self.null_by_choice(values[1::2][at])
        if isinstance(node, exp.Anonymous):
            return self._said_of_call(node)
        return self._said_of_operands(node)

    def _said_of_call(self, node: exp.Expr) -> Evaluate:
        name, operands = node.name.lower(), node.expressions
        elements = _held(operands[0], "array") if operands else []
        if name == "nanvl":
            chosen = _joined(pc.and_, [_is_there(self.compiled[id(operands[0])]), self.null_by_choice(operands[1])])
            return _joined(pc.or_, [self.null_by_choice(operands[0]), chosen])
        if elements and name in ("element_at", "try_element_at"):
            return self._said_at_place(node, elements)
        if elements and name in ("array_min", "array_max"):
            return self._all_said(elements)
        if elements and name == "array_position":
            return self.null_by_choice(operands[1])
        return self._said_of_operands(node)

    def _said_at_place(self, node: exp.Expr, elements: Sequence[exp.Expr]) -> Evaluate:
        """Return the rows in which the chosen element of the array is null on purpose. If the array doesn't have the element,
        only `try_element_at` returns null on purpose."""
        place = self.compiled[id(node.expressions[1])]
        said = [self.null_by_choice(one) for one in elements]
        absent = [self.null_by_choice(node.expressions[1]), *([_is_there(place)] if _gives_null(node) else [])]
        otherwise = _joined(pc.or_, absent)

        def evaluate(columns: Columns, rows: int) -> pa.Array:
            arrays = KERNELS["array"](*[one(columns, rows) for one in said])
            return pc.coalesce(KERNELS["element_at"](arrays, place(columns, rows)), otherwise(columns, rows))

        return evaluate

    def _said_of_operands(self, node: exp.Expr) -> Evaluate:
        """Return the rows in which any operand is null on purpose, for a node that is null if any operand is."""
        operands = [one for one in node.iter_expressions() if id(one) in self.compiled]
        said = [self.null_by_choice(one) for one in operands]
        if _gives_null(node):
            given = [_is_there(self.compiled[id(one)]) for one in _given(node) if id(one) in self.compiled]
            said.append(_joined(pc.and_, given))
        return _joined(pc.or_, said)

    def _all_said(self, values: Iterable[exp.Expr]) -> Evaluate:
        """Return the rows in which all values are null on purpose, for a node that returns a value that isn't null."""
        return _joined(pc.and_, [self.null_by_choice(one) for one in values])

    def typed(self, node: exp.Expr, target: str) -> Evaluate:
        """Return the node's value, widened to `target`."""
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
        if name in WINDOW_TIME_OF:
            return lambda columns, rows: pc.multiply(columns[name], 1_000).cast(arrow_type("timestamp"))
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
        operate = DOUBLE_OPERATIONS[type(node)] if kind == "double" else INTEGER_OPERATIONS[type(node)]
        # Integers are computed in 64 bits, and a value that doesn't fit into the type of the result is null.
        wide = "double" if kind == "double" else "long"
        left, right = self.typed(node.this, wide), self.typed(node.expression, wide)
        if kind == wide:
            return lambda columns, rows: operate(left(columns, rows), right(columns, rows))
        return lambda columns, rows: cast(operate(left(columns, rows), right(columns, rows)), "long", kind)

    def _decimal_arithmetic(self, node: exp.Expr, kind: str) -> Evaluate:
        left, right = self._as_decimal(node.this), self._as_decimal(node.expression)
        target = arrow_type(kind)
        return lambda columns, rows: decimal_operation(type(node), left(columns, rows), right(columns, rows), target)

    def _as_decimal(self, node: exp.Expr) -> Evaluate:
        """Return an operand of decimal arithmetic. An integer becomes a decimal with its digits, or with the maximum of its
        type."""
        precision, scale = digits_in_arithmetic(node, self._types)
        return self.typed(node, f"decimal({precision},{scale})")

    def negative(self, node: exp.Expr) -> Evaluate:
        kind, inner = self._type(node), self.compile(node.this)
        if kind == "double" or is_decimal(kind):
            return lambda columns, rows: pc.negate(inner(columns, rows))
        return lambda columns, rows: subtract(
            pa.repeat(pa.scalar(0, arrow_type(kind)), rows), inner(columns, rows), kind
        )

    def absolute(self, node: exp.Expr) -> Evaluate:
        kind, inner = self._type(node), self.compile(node.this)
        if kind == "double" or is_decimal(kind):
            return lambda columns, rows: pc.abs(inner(columns, rows))

        def evaluate(columns: Columns, rows: int) -> pa.Array:
            value = inner(columns, rows)
            opposite = subtract(pa.repeat(pa.scalar(0, value.type), rows), value, kind)
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
            # In decimals, which have enough digits to round up.
            wide, rounded = "decimal(20,0)", "decimal(38,0)"
            return lambda columns, rows: cast(
                quantized(cast(inner(columns, rows), source, wide), places, rounded), rounded, target
            )
        return lambda columns, rows: quantized(inner(columns, rows), places, target)

    def whole(self, node: exp.Expr) -> Evaluate:
        source, target = self._type(node.this), self._type(node)
        up = isinstance(node, exp.Ceil)
        if source in ("integer", "long"):
            return self.typed(node.this, target)
        inner = self.compile(node.this)
        if source == "double":
            return lambda columns, rows: double_to_whole(inner(columns, rows), np.ceil if up else np.floor)
        rounding = ROUND_CEILING if up else ROUND_FLOOR

        def evaluate(columns: Columns, rows: int) -> pa.Array:
            values = [None if v is None else v.to_integral_value(rounding) for v in inner(columns, rows).to_pylist()]
            return rounded_decimals(values, arrow_type(target))

        return evaluate

    def elementary(self, node: exp.Expr) -> Evaluate:
        operands = [self.typed(operand, "double") for operand in node.iter_expressions()]
        kernel = KERNELS[node.key]
        return lambda columns, rows: kernel(*[operand(columns, rows) for operand in operands])

    def bits(self, node: exp.Expr) -> Evaluate:
        kind = self._type(node)
        operands = [self.typed(operand, kind) for operand in node.iter_expressions()]
        kernel = _BIT_KERNELS[type(node)]
        return lambda columns, rows: kernel(*[operand(columns, rows) for operand in operands])

    # Functions of the table

    def call(self, node: exp.Expr) -> Evaluate:
        function, kernel = CALLS[node.name.lower()], KERNELS[node.name.lower()]
        written = written_arguments(function, node, node.expressions)
        if not function.arguments:
            return _constant(kernel(), arrow_type(function.result))
        if function.result == STRUCT:
            return self._struct(node)
        types = {at: self._type(one) for at, one in enumerate(node.expressions) if at not in written}
        common = self._type(node) if function.result == COMMON else ""
        wanted_here = wanted_types(function, list(types.values()), self._type(node), partial(common_of, node))
        arguments = []
        for at in range(max(len(node.expressions), len(function.arguments))):
            if at in written:
                arguments.append(_as_written(written[at]))
                continue
            argument = function.argument(at)
            widened = dict(zip(types, wanted_here, strict=True))[at]
            wanted = common or (argument.type if argument.type in SIMPLE_TYPES else widened)
            arguments.append(self.typed(node.expressions[at], wanted))
        return lambda columns, rows: kernel(*[argument(columns, rows) for argument in arguments])

    def _struct(self, node: exp.Expr) -> Evaluate:
        fields = list(arrow_type(self._type(node)))
        values = [self.compile(one) for one in node.expressions[1::2]]
        return lambda columns, rows: pa.StructArray.from_arrays([one(columns, rows) for one in values], fields=fields)

    def member(self, node: exp.Expr) -> Evaluate:
        inner, at = self.compile(node.this), list(members_of(self._type(node.this))).index(node.expression.name)
        return lambda columns, rows: pc.struct_field(inner(columns, rows), [at])

    # Conditions

    def comparison(self, node: exp.Expr) -> Evaluate:
        value, compared = self.compile(node.this), self._compared(type(node), node.this, node.expression)
        return lambda columns, rows: compared(value(columns, rows), columns, rows)

    def _compared(self, comparison: type[exp.Expr], one: exp.Expr, other: exp.Expr) -> Compare:
        """Return a function that compares the values of `one` with those of `other`, in a type that represents both exactly.

        The values are its arguments, so that a caller with two comparisons computes them once: for nested nodes, the work would
        double with each level."""
        compare, source, kind = COMPARE[comparison], self._type(one), self._common((one, other))
        if is_decimal(kind) and is_too_wide(source, self._type(other)):
            # Compared as numbers in Python, because the common decimal type would cut digits off.
            bare = self.compile(other)
            return lambda values, columns, rows: compare(values, bare(columns, rows), "numbers")
        others = self.typed(other, kind)
        if source == kind:
            return lambda values, columns, rows: compare(values, others(columns, rows), kind)
        return lambda values, columns, rows: compare(cast(values, source, kind), others(columns, rows), kind)

    def between(self, node: exp.Expr) -> Evaluate:
        value = self.compile(node.this)
        low = self._compared(exp.GTE, node.this, node.args["low"])
        high = self._compared(exp.LTE, node.this, node.args["high"])

        def evaluate(columns: Columns, rows: int) -> pa.Array:
            values = value(columns, rows)
            return pc.and_kleene(low(values, columns, rows), high(values, columns, rows))

        return evaluate

    def is_in(self, node: exp.Expr) -> Evaluate:
        kind = self._common((node.this, *node.expressions))
        value = self.typed(node.this, kind)
        choices = [self.typed(choice, kind) for choice in node.expressions]
        return lambda columns, rows: equals_any(
            value(columns, rows), [choice(columns, rows) for choice in choices], kind
        )

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
            found = [None if t is None or p is None else is_like(t, p) for t, p in pairs]
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
        if isinstance(node, exp.Case) and node.this is not None:
            subject = self.compile(node.this)
            conditions = [self._compared(exp.EQ, node.this, branch.this) for branch in branches]
        else:
            subject = _constant(True, pa.bool_())
            conditions = [_alone(self.typed(branch.this, "boolean")) for branch in branches]

        def choose(values: Sequence[Evaluate], otherwise: Evaluate) -> Evaluate:
            def evaluate(columns: Columns, rows: int) -> pa.Array:
                result = otherwise(columns, rows)
                subjects = subject(columns, rows)
                for condition, value in zip(reversed(conditions), reversed(values), strict=True):
                    chosen = condition(subjects, columns, rows).fill_null(False)
                    result = pc.if_else(chosen, value(columns, rows), result)
                return result

            return evaluate

        self._choosers[id(node)] = choose
        values, other = _values_of(node)
        otherwise = self.typed(other, target) if other is not None else _constant(None, arrow_type(target))
        return choose([self.typed(value, target) for value in values], otherwise)

    def coalesce(self, node: exp.Expr) -> Evaluate:
        target = self._type(node)
        values = [self.typed(argument, target) for argument in (node.this, *node.expressions)]
        return lambda columns, rows: pc.coalesce(*[value(columns, rows) for value in values])

    def extreme_of(self, node: exp.Expr) -> Evaluate:
        """`least` or `greatest`: null only if all values are null. NaN is the largest double."""
        target = self._type(node)
        values = [self.typed(argument, target) for argument in (node.this, *node.expressions)]
        is_better = less if isinstance(node, exp.Least) else greater
        return lambda columns, rows: best([value(columns, rows) for value in values], is_better, target)

    def nullif(self, node: exp.Expr) -> Evaluate:
        value = self.compile(node.this)
        equal = self._compared(exp.EQ, node.this, node.expression)
        nothing = pa.scalar(None, arrow_type(self._type(node)))

        def evaluate(columns: Columns, rows: int) -> pa.Array:
            values = value(columns, rows)
            return pc.if_else(equal(values, columns, rows).fill_null(False), nothing, values)

        return evaluate

    def cast(self, node: exp.Expr) -> Evaluate:
        return self.typed(node.this, self._type(node))

    # Text

    def upper_lower(self, node: exp.Expr) -> Evaluate:
        text = self.typed(node.this, "string")
        convert = upper if isinstance(node, exp.Upper) else lower
        return lambda columns, rows: convert(text(columns, rows))

    def trim(self, node: exp.Expr) -> Evaluate:
        text = self.typed(node.this, "string")
        kernel = {"LEADING": pc.utf8_ltrim, "TRAILING": pc.utf8_rtrim}.get(str(node.args.get("position")), pc.utf8_trim)
        return lambda columns, rows: kernel(text(columns, rows), characters=" ")

    def concat(self, node: exp.Expr) -> Evaluate:
        parts = [self.typed(part, "string") for part in node.iter_expressions()]

        def evaluate(columns: Columns, rows: int) -> pa.Array:
            values = [part(columns, rows) for part in parts]
            return pc.binary_join_element_wise(concatenable(values), *values[1:], "")

        return evaluate

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
            return pa.array([substring(*triple) for triple in triples], pa.string())

        return evaluate


_Build = Callable[[_Compiler, exp.Expr], Evaluate]
_BUILDERS: tuple[tuple[tuple[type[exp.Expr], ...], _Build], ...] = (
    ((exp.Column,), _Compiler.column),
    ((exp.Paren,), _Compiler.inner),
    ((exp.Literal,), _Compiler.literal),
    ((exp.Null,), _Compiler.null),
    ((exp.Boolean,), _Compiler.boolean),
    ((exp.Neg,), _Compiler.negative),
    ((exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod), _Compiler.arithmetic),
    ((exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot), _Compiler.bits),
    ((exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ), _Compiler.comparison),
    ((exp.Between,), _Compiler.between),
    ((exp.In,), _Compiler.is_in),
    ((exp.Is,), _Compiler.is_),
    ((exp.Like,), _Compiler.like),
    ((exp.And, exp.Or, exp.Not), _Compiler.logical),
    ((exp.Case, exp.If), _Compiler.case),
    ((exp.Coalesce,), _Compiler.coalesce),
    ((exp.Least, exp.Greatest), _Compiler.extreme_of),
    ((exp.Nullif,), _Compiler.nullif),
    ((exp.Cast, exp.TryCast), _Compiler.cast),
    ((exp.Abs,), _Compiler.absolute),
    ((exp.Ceil, exp.Floor), _Compiler.whole),
    ((exp.Round,), _Compiler.round),
    ((exp.Sqrt, exp.Pow, exp.Ln, exp.Exp), _Compiler.elementary),
    ((exp.Lower, exp.Upper), _Compiler.upper_lower),
    ((exp.Trim,), _Compiler.trim),
    ((exp.Concat, exp.DPipe), _Compiler.concat),
    ((exp.Length,), _Compiler.length),
    ((exp.Substring,), _Compiler.substring),
    ((exp.Anonymous,), _Compiler.call),
    ((exp.Dot,), _Compiler.member),
)
_BUILDER_OF: dict[type[exp.Expr], _Build] = {kind: build for kinds, build in _BUILDERS for kind in kinds}
_BIT_KERNELS: dict[type[exp.Expr], Callable[..., pa.Array]] = {
    exp.BitwiseAnd: pc.bit_wise_and,
    exp.BitwiseOr: pc.bit_wise_or,
    exp.BitwiseXor: pc.bit_wise_xor,
    exp.BitwiseNot: pc.bit_wise_not,
}


def _alone(condition: Evaluate) -> Compare:
    return lambda _, columns, rows: condition(columns, rows)


def _values_of(node: exp.Expr) -> tuple[list[exp.Expr], exp.Expr | None]:
    """Return the values of the branches of a `case` or an `if`, and the value if no branch applies."""
    branches = node.args["ifs"] if isinstance(node, exp.Case) else [node]
    return [branch.args["true"] for branch in branches], node.args.get("default") or node.args.get("false")


def _is_there(value: Evaluate) -> Evaluate:
    return lambda columns, rows: value(columns, rows).is_valid()


def _joined(join: Callable[[pa.Array, pa.Array], pa.Array], conditions: Sequence[Evaluate]) -> Evaluate:
    return lambda columns, rows: reduce(join, [one(columns, rows) for one in conditions])


def _as_written(value: object) -> Callable[[Columns, int], object]:
    return lambda columns, rows: value


def _constant(value: object, kind: pa.DataType) -> Evaluate:
    scalar = pa.scalar(value, kind)
    return lambda columns, rows: pa.repeat(scalar, rows)


def _always(_: Columns, rows: int) -> pa.Array:
    return pa.repeat(True, rows)


def _never(_: Columns, rows: int) -> pa.Array:
    return pa.repeat(False, rows)
