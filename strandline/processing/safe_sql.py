"""Expressions as Spark runs them: an arithmetic failure gives null, to be judged per record, and never ends a job.

Spark in its ANSI mode raises on overflow, division by zero and bad casts; without it, overflow wraps silently. So the mode
stays on and each operator that can raise is replaced by the form of it that gives null.
"""

from __future__ import annotations

from functools import lru_cache

import sqlglot
from sqlglot import exp

_TRY: dict[type[exp.Expr], str] = {
    exp.Add: "try_add",
    exp.Sub: "try_subtract",
    exp.Mul: "try_multiply",
    exp.Div: "try_divide",
    exp.Mod: "try_mod",
}
_TRY_AGGREGATE: dict[type[exp.Expr], str] = {exp.Sum: "try_sum", exp.Avg: "try_avg"}


@lru_cache(maxsize=1024)
def safe_sql(sql: str) -> str:
    """The same expression with every operator that can raise in the form that gives null instead."""
    tree: exp.Expr = sqlglot.parse_one(sql, dialect="spark", into=exp.Condition)
    # From the leaves up: a replaced node's operands are then safe already.
    for node in reversed(list(tree.walk())):
        replacement = _safe(node)
        if replacement is not node:
            tree = replacement if node is tree else tree
            node.replace(replacement)
    return str(tree.sql(dialect="spark", identify=True))


@lru_cache(maxsize=1024)
def columns_of(sql: str) -> tuple[str, ...]:
    """The columns that an expression reads, in the order of their first use."""
    tree = sqlglot.parse_one(sql, dialect="spark", into=exp.Condition)
    return tuple(dict.fromkeys(column.name for column in tree.find_all(exp.Column)))


def _safe(node: exp.Expr) -> exp.Expr:
    kind: type[exp.Expr] = type(node)
    if kind in _TRY:
        return exp.Anonymous(this=_TRY[kind], expressions=[_unwrapped(node.this), _unwrapped(node.expression)])
    if kind in _TRY_AGGREGATE:
        return exp.Anonymous(this=_TRY_AGGREGATE[kind], expressions=[node.this])
    if kind is exp.IntDiv:
        divisor = exp.Nullif(this=_unwrapped(node.expression), expression=exp.Literal.number(0))
        return exp.IntDiv(this=node.this, expression=divisor)
    if kind in (exp.Cast, exp.TryCast):
        return exp.TryCast(this=node.this, to=node.args["to"], safe=True)
    if kind is exp.Neg and not isinstance(node.this, exp.Literal):
        return exp.Anonymous(this="try_subtract", expressions=[exp.Literal.number(0), _unwrapped(node.this)])
    return node


def _unwrapped(node: exp.Expr) -> exp.Expr:
    inner: exp.Expr = node.this if isinstance(node, exp.Paren) else node
    return inner
