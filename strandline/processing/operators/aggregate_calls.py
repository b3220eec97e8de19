"""The aggregates of a window stage as parts: calls of aggregate functions, their arguments for each row, and the expressions
over the values of the calls.

Pure. Operators and the audit share this module. They compute the values of the calls independently of each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from strandline.processing.aggregates.contract import AggregateCall
from strandline.processing.aggregates.kernel import CallValues
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.values import hashes, is_valid
from strandline.processing.operators.casting import cast
from strandline.processing.operators.evaluation import ColumnExpression
from strandline.processing.pipelines.aggregate_nodes import read_call
from strandline.processing.pipelines.expression_types import type_of
from strandline.processing.pipelines.expressions import tree_of
from strandline.processing.pipelines.row_step import Column
from strandline.results.writer import LATE


class _Argument(NamedTuple):
    """An argument of a function, with a value for each row."""

    expression: ColumnExpression | None
    """None for the event time of the row."""
    type: str
    """Type to which its value is cast."""
    is_hashed: bool
    """True if the function gets hashes of the values."""


_EVENT_TIME = _Argument(None, "long", is_hashed=False)


class AggregateCalls:
    """The aggregates of one window stage as parts. A call that occurs in several expressions is computed once."""

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
        """Input columns that the arguments read."""
        expressions = (one.expression for one in self._arguments.values())
        return tuple(dict.fromkeys(name for one in expressions if one is not None for name in one.columns))

    @property
    def argument_types(self) -> tuple[pa.DataType, ...]:
        """Types of the arguments' columns, in their order."""
        return tuple(arrow_type("long" if one.is_hashed else one.type) for one in self._arguments.values())

    def evaluate_arguments(self, columns: dict[str, pa.Array], event_us: pa.Array) -> list[pa.Array]:
        """Return the value of each argument for each row. Runs where records are decoded. `event_us`: event time of each row."""
        values = []
        for expression, kind, is_hashed in self._arguments.values():
            if expression is None:
                values.append(event_us)
                continue
            value = cast(expression(columns, len(event_us)), expression.type, kind)
            values.append(hashes(value) if is_hashed else value)
        return values

    def results(self, found: Sequence[CallValues], groups: int) -> tuple[list[pa.Array], pa.Array]:
        """Return the result columns, and a column with the problem of each result as a string: null if it has none.

        `found`: values of each call. A value has a problem if it doesn't fit its type, or can't be computed from existing values.
        Its result becomes a dead letter. A null that the expression returns on purpose is no problem.
        """
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
        """Return the problems, with this problem for each failed result that has none yet."""
        found = pc.if_else(pa.array(failed), f"{self._stage}.{column.name}: {text}", pa.scalar(None, pa.string()))
        return pc.coalesce(problem, found)

    def _without_calls(self, node: exp.Expr, used: list[int]) -> exp.Expr:
        """Replace a call by a column."""
        condition = node.expression.this if isinstance(node, exp.Filter) else None
        called = node.this if isinstance(node, exp.Filter) else node
        if not isinstance(called, exp.AnonymousAggFunc):
            return node
        call = self._call(called, condition, _sql(node))
        if call not in self.calls:
            self.calls.append(call)
        used.append(self.calls.index(call))
        return exp.column(_name(used[-1]), quoted=True)

    def _call(self, node: exp.AnonymousAggFunc, condition: exp.Expr | None, sql: str) -> AggregateCall:
        """Return the call, and add its arguments.

        A row that the filter leaves out has a null in the last column: no function uses such a row.
        """
        read = read_call(node)
        columns = list(read.columns)
        if condition is not None:
            last = columns.pop() if columns else exp.Boolean(this=True)
            columns.append(exp.Case(ifs=[exp.If(this=condition.copy(), true=last.copy())]))
        expressions = [ColumnExpression(_sql(column), self._types) for column in columns]
        types = read.function.row_types(tuple(one.type for one in expressions))
        found = [
            _Argument(expression, kind, read.function.is_hashed)
            for expression, kind in zip(expressions, types, strict=True)
        ]
        if read.function.is_ordered:
            found.append(_EVENT_TIME)
        return AggregateCall(
            read.function,
            sql,
            type_of(node, self._types),
            tuple(self._place(one) for one in found),
            tuple(one.type for one in found),
            read.parameters,
            read.is_distinct,
        )

    def _place(self, argument: _Argument) -> int:
        key = (argument.expression.sql if argument.expression else "", argument.type, argument.is_hashed)
        self._arguments.setdefault(key, argument)
        return list(self._arguments).index(key)


def _name(at: int) -> str:
    return f"aggregate_{at}"


def _sql(node: exp.Expr) -> str:
    return str(node.sql(dialect="spark", identify=True))
