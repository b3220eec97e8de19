"""What a window's aggregates consist of: functions of arguments that each row has, and expressions over the functions' values.

Pure. Says nothing of how a function's values come about: the operators fold them, the audit has a way of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from strandline.core.field_types import is_decimal
from strandline.processing.operators.casting import arrow_type, cast
from strandline.processing.operators.evaluation import ColumnExpression
from strandline.processing.pipelines.expression_types import type_of
from strandline.processing.pipelines.expressions import tree_of
from strandline.processing.pipelines.stages import Column

_FUNCTIONS: dict[type[exp.Expr], str] = {
    exp.Count: "count",
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
    exp.StddevPop: "stddev_pop",
    exp.VariancePop: "var_pop",
}


@dataclass(frozen=True)
class AggregateCall:
    """One aggregate function with its argument, as it stands in one or more of a stage's expressions."""

    function: str
    """`count`, `sum`, `avg`, `min`, `max`, `stddev_pop` or `var_pop`."""
    sql: str
    type: str
    argument: int | None
    """The place of its argument among those of `evaluate_arguments`; None for the count of all rows."""
    argument_type: str


@dataclass(frozen=True)
class CallValues:
    """An aggregate function's values, one a group."""

    values: pa.Array
    overflows: npt.NDArray[np.bool_] | None = None
    """The groups whose value is null because it does not fit its type."""


class AggregateCalls:
    """The aggregates of one window stage, taken apart. A function that stands in several expressions is there once."""

    def __init__(self, stage: str, aggregates: Sequence[Column], types: Mapping[str, str]) -> None:
        self.calls: list[AggregateCall] = []
        self._stage = stage
        self._columns = aggregates
        self._types = dict(types)
        self._arguments: dict[tuple[str, str], ColumnExpression] = {}
        self._expressions: list[tuple[ColumnExpression, list[int]]] = []
        for column in aggregates:
            used: list[int] = []
            rest = tree_of(column.sql).transform(self._without_calls, used)
            types_after = {_name(at): call.type for at, call in enumerate(self.calls)}
            self._expressions.append((ColumnExpression(_sql(rest), types_after), used))

    @property
    def columns_read(self) -> tuple[str, ...]:
        """The input columns that the arguments read."""
        return tuple(dict.fromkeys(name for one in self._arguments.values() for name in one.columns))

    @property
    def argument_types(self) -> tuple[pa.DataType, ...]:
        """Of the arguments' columns, in their order."""
        return tuple(arrow_type(kind) for _, kind in self._arguments)

    def evaluate_arguments(self, columns: dict[str, pa.Array], rows: int) -> list[pa.Array]:
        """Each argument's value for each row. Runs where records are decoded."""
        return [cast(one(columns, rows), one.type, kind) for (_, kind), one in self._arguments.items()]

    def results(self, found: Sequence[CallValues], groups: int) -> tuple[list[pa.Array], pa.Array]:
        """The result columns from the values of each call, and per result what went wrong with it (null where nothing did): a
        value that does not fit its type makes the result a dead letter, never a silent null."""
        values = {_name(at): one.values for at, one in enumerate(found)}
        problem = pa.nulls(groups, pa.string())
        results = []
        for column, (after, used) in zip(self._columns, self._expressions, strict=True):
            results.append(cast(after(values, groups), after.type, column.type))
            for at in used:
                overflows = found[at].overflows
                if overflows is not None and overflows.any():
                    call = self.calls[at]
                    text = f"{self._stage}.{column.name}: {call.sql} does not fit into a {call.type}"
                    problem = pc.coalesce(problem, pc.if_else(pa.array(overflows), text, pa.scalar(None, pa.string())))
        return results, problem

    def _without_calls(self, node: exp.Expr, used: list[int]) -> exp.Expr:
        """A column for a call, anything else as it is."""
        function = _FUNCTIONS.get(type(node))
        if function is None:
            return node
        call = self._call(function, node)
        if call not in self.calls:
            self.calls.append(call)
        used.append(self.calls.index(call))
        return exp.column(_name(used[-1]), quoted=True)

    def _call(self, function: str, node: exp.Expr) -> AggregateCall:
        sql, result = _sql(node), type_of(node, self._types)
        if function == "count" and isinstance(node.this, exp.Star | exp.Literal):
            return AggregateCall(function, sql, result, None, "")
        argument = ColumnExpression(_sql(node.this), self._types)
        kind = argument.type
        if function in ("stddev_pop", "var_pop"):
            kind = "double"
        elif function in ("sum", "avg") and kind != "double" and not is_decimal(kind):
            kind = "long"
        self._arguments.setdefault((argument.sql, kind), argument)
        return AggregateCall(function, sql, result, list(self._arguments).index((argument.sql, kind)), kind)


def _name(at: int) -> str:
    return f"aggregate_{at}"


def _sql(node: exp.Expr) -> str:
    return str(node.sql(dialect="spark", identify=True))
