"""Condition over the fields of a result, as `peak > 100 and site = 'north'`, translated to a query of Elasticsearch. Pure.

The language is a part of that of pipelines: comparisons of a field with a value, `is null`, `and`, `or`, and `not`.
As in SQL, a comparison with a missing value isn't true, also after `not`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from strandline.processing.pipelines.expressions import ExpressionError, parse_expression, sql_of

Query = dict[str, Any]
_RANGES: dict[type[exp.Expr], str] = {exp.GT: "gt", exp.GTE: "gte", exp.LT: "lt", exp.LTE: "lte"}
_NEGATED = {"gt": "lte", "gte": "lt", "lt": "gte", "lte": "gt"}
_FLIPPED = {"gt": "lt", "gte": "lte", "lt": "gt", "lte": "gte"}


@dataclass(frozen=True)
class ResultFilter:
    """A condition that can be sent to Elasticsearch."""

    columns: tuple[str, ...]
    """Fields that the condition reads."""
    query: Query


def filter_of(where: str) -> ResultFilter:
    """Return the condition. Raises ExpressionError."""
    parsed = parse_expression(where)
    return ResultFilter(parsed.columns, _query(parsed.tree, negated=False))


def _query(node: exp.Expr, *, negated: bool) -> Query:
    match node:
        case exp.Paren():
            return _query(node.this, negated=negated)
        case exp.Not():
            return _query(node.this, negated=not negated)
        case exp.And() | exp.Or():
            parts = [_query(one, negated=negated) for one in (node.left, node.right)]
            if isinstance(node, exp.And) is not negated:
                return {"bool": {"filter": parts}}
            return {"bool": {"should": parts, "minimum_should_match": 1}}
        case exp.Column():
            return {"term": {node.name: not negated}}
        case exp.Is() if isinstance(node.this, exp.Column) and isinstance(node.expression, exp.Null):
            return _exists(node.this.name) if negated else _without(_exists(node.this.name))
        case exp.GT() | exp.GTE() | exp.LT() | exp.LTE() | exp.EQ() | exp.NEQ():
            return _comparison(node, negated=negated)
    raise _refusal(node)


def _comparison(node: exp.Binary, *, negated: bool) -> Query:
    is_flipped = isinstance(node.right, exp.Column)
    column, other = (node.right, node.left) if is_flipped else (node.left, node.right)
    if not isinstance(column, exp.Column):
        raise _refusal(node)
    name, value = column.name, _value(other)
    if (operation := _RANGES.get(type(node))) is not None:
        if isinstance(value, bool):
            raise _refusal(node)
        operation = _FLIPPED[operation] if is_flipped else operation
        return {"range": {name: {_NEGATED[operation] if negated else operation: value}}}
    equal = {"term": {name: value}}
    if isinstance(node, exp.EQ) is not negated:
        return equal
    return {"bool": {"filter": [_exists(name)], "must_not": [equal]}}


def _value(node: exp.Expr) -> str | float | int | bool:
    match node:
        case exp.Paren():
            return _value(node.this)
        case exp.Neg():
            value = _value(node.this)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return -value
        case exp.Boolean():
            return bool(node.this)
        case exp.Literal() if node.is_string:
            return str(node.this)
        case exp.Literal():
            text = str(node.this)
            return int(text) if text.isdigit() else float(text)
    raise _refusal(node)


def _exists(name: str) -> Query:
    return {"exists": {"field": name}}


def _without(query: Query) -> Query:
    return {"bool": {"must_not": [query]}}


def _refusal(node: exp.Expr) -> ExpressionError:
    return ExpressionError(
        f"'{sql_of(node)}' can't be evaluated over stored results; compare a field with a number, a string, or true, as "
        "peak > 100, and join comparisons with and, or, not"
    )
