"""Calls of aggregate functions in the tree of an expression.

The parser makes an `exp.AnonymousAggFunc` for each call. Its name is the name of the function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sqlglot import exp

from strandline.processing.aggregates import registry
from strandline.processing.aggregates.contract import AggregateFunction, Constant, Parameters


class ReadCall(NamedTuple):
    """A call of an aggregate function, without its filter."""

    function: AggregateFunction
    columns: tuple[exp.Expr, ...]
    """Arguments that rows supply."""
    parameters: Parameters
    is_distinct: bool


def call_node(name: str) -> Callable[[list[exp.Expr]], exp.Expr]:
    """Return the function with which the parser makes the node of a call."""
    return lambda arguments: exp.AnonymousAggFunc(this=name, expressions=arguments)


def function_of(node: exp.AnonymousAggFunc) -> AggregateFunction:
    """Return the function of a call. Raises FunctionUnusable if its package can't be used."""
    return registry.function_of(node.name)


def read_call(node: exp.AnonymousAggFunc) -> ReadCall:
    """Return the parts of a call. Raises ValueError, whose message starts after the call, if an argument is missing, surplus, or
    not written out."""
    function, arguments = function_of(node), list(node.expressions)
    is_distinct = len(arguments) == 1 and isinstance(arguments[0], exp.Distinct) and function.accepts_distinct
    if is_distinct:
        arguments = list(arguments[0].expressions)
    counts = [function.columns + number for number in function.constants]
    if len(arguments) not in counts or any(isinstance(one, exp.Distinct) for one in arguments):
        raise ValueError(f"expected {function.call}")
    columns, rest = arguments[: function.columns], arguments[function.columns :]
    if function.accepts_all_rows and not is_distinct and isinstance(columns[0], exp.Star | exp.Literal):
        columns = []
    elif any(isinstance(one, exp.Star) for one in arguments):
        raise ValueError(f"expected {function.call}")
    parameters = function.parameters(tuple(constant_of(one) for one in rest))
    return ReadCall(function, tuple(columns), parameters, is_distinct)


def constant_of(node: exp.Expr) -> Constant | None:
    """Return the number, string, or array of them that is written out. None if the node is anything else."""
    if isinstance(node, exp.Anonymous) and node.name.lower() == "array":
        return tuple(constant_of(one) for one in node.expressions)
    literal = node.this if isinstance(node, exp.Neg) else node
    if not isinstance(literal, exp.Literal):
        return None
    if literal.is_string:
        return None if literal is not node else str(literal.name)
    return -float(literal.name) if isinstance(node, exp.Neg) else float(literal.name)
