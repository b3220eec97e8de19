"""What a window's aggregates consist of: functions of arguments that each row has, and expressions over the functions' values.

Pure. Says nothing of how a function's values come about: the operators fold them, the audit has a way of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from strandline.core.field_types import is_decimal
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.values import hashes, is_valid
from strandline.processing.operators.aggregation.aggregate import CallValues
from strandline.processing.operators.casting import cast
from strandline.processing.operators.evaluation import ColumnExpression
from strandline.processing.pipelines.expression_types import type_of
from strandline.processing.pipelines.expressions import share_of, tree_of
from strandline.processing.pipelines.functions.list_aggregates import BY, columns_of, numbers_of_call
from strandline.processing.pipelines.row_step import Column
from strandline.results.writer import LATE

_FUNCTIONS: dict[type[exp.Expr], str] = {
    exp.Count: "count",
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
    exp.Stddev: "stddev",
    exp.StddevSamp: "stddev",
    exp.StddevPop: "stddev_pop",
    exp.Variance: "variance",
    exp.VariancePop: "var_pop",
    exp.First: "first",
    exp.Last: "last",
    exp.ArgMin: "min_by",
    exp.ArgMax: "max_by",
    exp.ApproxDistinct: "approx_count_distinct",
    exp.Quantile: "percentile",
    exp.Median: "percentile",
    exp.ApproxQuantile: "approx_percentile",
}
ORDERED = ("first", "last", "min_by", "max_by", "collect_list", *BY)
"""Functions that choose rows by where they stand. The last one of their arguments is the event time, in microseconds."""
_TO_DOUBLE = ("stddev", "stddev_pop", "variance", "var_pop", "percentile", "approx_percentile", "histogram")


@dataclass(frozen=True)
class AggregateCall:
    """One aggregate function with its arguments, as it stands in one or more of a stage's expressions."""

    function: str
    """As `_FUNCTIONS` or `CALLS_OF_LISTS` names it, or `count_distinct`."""
    sql: str
    type: str
    arguments: tuple[int, ...]
    """The places of its arguments among those of `evaluate_arguments`; none for the count of all rows."""
    argument_types: tuple[str, ...]
    share: float = 0.0
    """Of a percentile: of all values the part that is below it, from 0 to 1."""
    numbers: tuple[float, ...] = ()
    """Of an aggregate that gives an array: `numbers_of_call`."""

    @property
    def argument(self) -> int | None:
        """The place of its first argument; None for the count of all rows."""
        return self.arguments[0] if self.arguments else None

    @property
    def argument_type(self) -> str:
        """The type of its first argument."""
        return self.argument_types[0] if self.argument_types else ""


class _Argument(NamedTuple):
    """What each row has for a function."""

    expression: ColumnExpression | None
    """None: its event time."""
    type: str
    """To which its value is cast."""
    is_hashed: bool
    """Whether the function sees a hash of it."""


_EVENT_TIME = _Argument(None, "long", is_hashed=False)


class AggregateCalls:
    """The aggregates of one window stage, taken apart. A function that stands in several expressions is there once."""

    def __init__(self, stage: str, aggregates: Sequence[Column], types: Mapping[str, str]) -> None:
        self.calls: list[AggregateCall] = []
        self._stage = stage
        self._columns = aggregates
        self._types = {LATE: "boolean", **types}
        self._arguments: dict[tuple[str, str, bool], _Argument] = {}
        self._expressions: list[tuple[ColumnExpression, list[int]]] = []
        for column in aggregates:
            used: list[int] = []
            rest = tree_of(column.sql).transform(self._without_calls, used)
            types_after = {_name(at): call.type for at, call in enumerate(self.calls)}
            self._expressions.append((ColumnExpression(_sql(rest), types_after), used))

    @property
    def columns_read(self) -> tuple[str, ...]:
        """The input columns that the arguments read."""
        expressions = (one.expression for one in self._arguments.values())
        return tuple(dict.fromkeys(name for one in expressions if one is not None for name in one.columns))

    @property
    def argument_types(self) -> tuple[pa.DataType, ...]:
        """Of the arguments' columns, in their order."""
        return tuple(arrow_type("long" if one.is_hashed else one.type) for one in self._arguments.values())

    def evaluate_arguments(self, columns: dict[str, pa.Array], event_us: pa.Array) -> list[pa.Array]:
        """Each argument's value for each row. Runs where records are decoded. `event_us`: the event time of each row."""
        values = []
        for expression, kind, is_hashed in self._arguments.values():
            if expression is None:
                values.append(event_us)
                continue
            value = cast(expression(columns, len(event_us)), expression.type, kind)
            values.append(hashes(value) if is_hashed else value)
        return values

    def results(self, found: Sequence[CallValues], groups: int) -> tuple[list[pa.Array], pa.Array]:
        """The result columns from the values of each call, and per result what went wrong with it (null where nothing did): a
        value that does not fit its type, or that can't be computed from values that are there, makes the result a dead letter,
        never a silent null, but where the expression is null by choice."""
        values = {_name(at): one.values for at, one in enumerate(found)}
        problem = pa.nulls(groups, pa.string())
        results = []
        for column, (after, used) in zip(self._columns, self._expressions, strict=True):
            result = cast(after(values, groups), after.type, column.type)
            results.append(result)
            for at in used:
                overflows = found[at].overflows
                if overflows is not None and overflows.any():
                    call = self.calls[at]
                    reason = found[at].reason or f"does not fit into a {call.type}"
                    problem = self._with_problem(problem, overflows, column, f"{call.sql} {reason}")
            if result.null_count:
                failed = ~is_valid(result) & after.fails(values, groups)
                for name in after.columns:
                    failed &= is_valid(values[name])
                text = f"no value from {column.sql} (a division by zero, an overflow or a null)"
                problem = self._with_problem(problem, failed, column, text)
        return results, problem

    def _with_problem(self, problem: pa.Array, failed: npt.NDArray[np.bool_], column: Column, text: str) -> pa.Array:
        """This problem where there is none yet."""
        found = pc.if_else(pa.array(failed), f"{self._stage}.{column.name}: {text}", pa.scalar(None, pa.string()))
        return pc.coalesce(problem, found)

    def _without_calls(self, node: exp.Expr, used: list[int]) -> exp.Expr:
        """A column for a call, anything else as it is."""
        condition = node.expression.this if isinstance(node, exp.Filter) else None
        called = node.this if isinstance(node, exp.Filter) else node
        function = called.name if isinstance(called, exp.AnonymousAggFunc) else _FUNCTIONS.get(type(called))
        if function is None:
            return node
        call = self._call(function, called, condition, _sql(node))
        if call not in self.calls:
            self.calls.append(call)
        used.append(self.calls.index(call))
        return exp.column(_name(used[-1]), quoted=True)

    def _call(self, function: str, node: exp.Expr, condition: exp.Expr | None, sql: str) -> AggregateCall:
        """The call, with its arguments among those of all. A row that the filter leaves out has a null where no function counts
        one: for the last argument, which is the second one of `min_by` and its kin."""
        result, argument = type_of(node, self._types), node.this
        if function == "count" and isinstance(argument, exp.Distinct):
            function, (argument,) = "count_distinct", argument.expressions
        elif function == "count" and isinstance(argument, exp.Star | exp.Literal):
            if condition is None:
                return AggregateCall(function, sql, result, (), ())
            argument = exp.Boolean(this=True)
        arguments = [argument]
        if isinstance(node, exp.AnonymousAggFunc):
            arguments = list(columns_of(node))
        elif function in ("min_by", "max_by"):
            arguments.append(node.expression)
        if condition is not None:
            arguments[-1] = exp.Case(ifs=[exp.If(this=condition.copy(), true=arguments[-1].copy())])
        found = [self._argument(one, function) for one in arguments]
        if function in ORDERED:
            found.append(_EVENT_TIME)
        return AggregateCall(
            function,
            sql,
            result,
            tuple(self._place(one) for one in found),
            tuple(one.type for one in found),
            share_of(node),
            numbers_of_call(node),
        )

    def _argument(self, node: exp.Expr, function: str) -> _Argument:
        expression = ColumnExpression(_sql(node), self._types)
        kind = expression.type
        if function in _TO_DOUBLE:
            kind = "double"
        elif function in ("sum", "avg") and kind != "double" and not is_decimal(kind):
            kind = "long"
        return _Argument(expression, kind, function == "approx_count_distinct")

    def _place(self, argument: _Argument) -> int:
        key = (argument.expression.sql if argument.expression else "", argument.type, argument.is_hashed)
        self._arguments.setdefault(key, argument)
        return list(self._arguments).index(key)


def _name(at: int) -> str:
    return f"aggregate_{at}"


def _sql(node: exp.Expr) -> str:
    return str(node.sql(dialect="spark", identify=True))
