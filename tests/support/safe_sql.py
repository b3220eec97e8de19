"""Expressions as Spark runs them: an arithmetic error gives null, which may reject a record but never ends a job.

In its ANSI mode Spark raises on overflow, division by zero and bad casts; without it, overflow wraps silently. So the mode
stays on, and each operator that can raise is replaced by its form that gives null.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import sqlglot
from sqlglot import exp

from strandline.processing.pipelines.expression_types import infer_type
from strandline.processing.pipelines.expressions import parse_expression

_TRY: dict[type[exp.Expr], str] = {
    exp.Add: "try_add",
    exp.Sub: "try_subtract",
    exp.Mul: "try_multiply",
    exp.Div: "try_divide",
    exp.Mod: "try_mod",
}
_TRY_AGGREGATE: dict[type[exp.Expr], str] = {exp.Sum: "try_sum", exp.Avg: "try_avg"}


def safe_sql(sql: str, columns: Mapping[str, str]) -> str:
    """Return the expression with every operator that can raise replaced by its form that gives null.

    `columns` maps every column in sight to its type, as for `infer_type`. Raises ExpressionError as that does.
    """
    tree: exp.Expr = sqlglot.parse_one(sql, dialect="spark", into=exp.Condition)
    # From the leaves up: a replaced node's operands are then safe already. Types are derived from the original nodes.
    nodes = [(node, _integer_type(node.this, columns)) for node in reversed(list(tree.walk()))]
    for node, integer_type in nodes:
        replacement = _safe(node, integer_type)
        if replacement is not node:
            tree = replacement if node is tree else tree
            node.replace(replacement)
    return str(tree.sql(dialect="spark", identify=True))


@lru_cache(maxsize=1024)
def columns_of(sql: str) -> tuple[str, ...]:
    """The columns that an expression reads, in the order of their first use."""
    tree = sqlglot.parse_one(sql, dialect="spark", into=exp.Condition)
    return tuple(dict.fromkeys(column.name for column in tree.find_all(exp.Column)))


def _integer_type(operand: object, columns: Mapping[str, str]) -> str:
    """Return `bigint` or `int` if that is the type of the operand of a sign, of `abs`, or of `round`; else an empty
    string.

    The minimum integer has no opposite, and the maximum can't be rounded up.
    """
    if not isinstance(operand, exp.Expr) or not isinstance(operand.parent, exp.Neg | exp.Abs | exp.Round):
        return ""
    found = infer_type(parse_expression(operand.sql(dialect="spark", identify=True)), columns)
    return {"long": "bigint", "integer": "int"}.get(found, "")


def _safe(node: exp.Expr, integer_type: str) -> exp.Expr:
    kind: type[exp.Expr] = type(node)
    if kind in _TRY:
        return _call(_TRY[kind], node.this, node.expression)
    if kind in _TRY_AGGREGATE:
        return exp.Anonymous(this=_TRY_AGGREGATE[kind], expressions=[node.this])
    if kind is exp.IntDiv:
        divisor = exp.Nullif(this=_unwrapped(node.expression), expression=exp.Literal.number(0))
        return exp.IntDiv(this=node.this, expression=divisor)
    if kind in (exp.Cast, exp.TryCast):
        return exp.TryCast(this=node.this, to=node.args["to"], safe=True)
    if kind is exp.Neg and integer_type and not isinstance(node.this, exp.Literal):
        return _opposite(node.this)
    if kind is exp.Abs and integer_type:
        is_negative = exp.LT(this=node.this.copy(), expression=exp.Literal.number(0))
        return exp.If(this=is_negative, true=_opposite(node.this.copy()), false=node.this)
    if kind is exp.Round and integer_type and isinstance(node.args.get("decimals"), exp.Neg):
        # In decimals, where there is room to round up.
        wide = exp.Cast(this=node.this, to=exp.DataType.build("decimal(20,0)"))
        rounded = exp.Round(this=wide, decimals=node.args["decimals"])
        return exp.TryCast(this=rounded, to=exp.DataType.build(integer_type), safe=True)
    return node


def _opposite(operand: exp.Expr) -> exp.Expr:
    return _call("try_subtract", exp.Literal.number(0), operand)


def _call(name: str, left: exp.Expr, right: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=[_unwrapped(left), _unwrapped(right)])


def _unwrapped(node: exp.Expr) -> exp.Expr:
    inner: exp.Expr = node.this if isinstance(node, exp.Paren) else node
    return inner
