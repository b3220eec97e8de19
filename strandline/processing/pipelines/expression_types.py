"""The types of expressions by Spark's rules, one rule for each kind of node. They must be exact, because index mappings are
strict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from sqlglot import exp

from strandline.core.field_types import (
    NULL,
    PRECISION_MAX,
    SCALAR_NAMES,
    WHOLE_RANGES,
    decimal_digits,
    decimal_type,
    element_of,
    is_decimal,
    is_number,
    kind_of,
    members_of,
)
from strandline.core.times.time_patterns import micros_of_text
from strandline.processing.aggregates.contract import require_order, with_article
from strandline.processing.pipelines.aggregate_nodes import read_call
from strandline.processing.pipelines.expressions import (
    ARITHMETIC,
    BITS,
    COMPARISONS,
    WINDOW_TIME_OF,
    Expression,
    ExpressionError,
    refuse_unknown_columns,
    sql_of,
)
from strandline.processing.pipelines.functions.array_functions import (
    ARRAY,
    ELEMENT,
    OF_ALL,
    SOUGHT,
    STRUCT,
    nested_result,
    refuse_elements,
)
from strandline.processing.pipelines.functions.signature import COMMON, FIRST, Argument, Function
from strandline.processing.pipelines.functions.table import CALLS, TABLE
from strandline.processing.pipelines.functions.written import is_like_pattern

_SIGNED_PRECISION_MAX = 34
"""Precision in which Spark negates a decimal: that of IEEE 754 decimal128."""


def infer_type(expression: Expression, columns: Mapping[str, str]) -> str:
    """Return the type of the value in Spark 4: string, long, integer, double, boolean, timestamp, decimal(p,s).

    `columns`: type of every usable column. Raises ExpressionError for an unknown column, for operands whose types don't fit
    together (strings, numbers, and times are never converted silently), and for a bare null.
    """
    refuse_unknown_columns(expression, columns)
    try:
        found = type_of(expression.tree, columns)
    except RecursionError as error:
        raise ExpressionError("is nested too deeply; split it over several derive steps") from error
    if found == NULL:
        raise ExpressionError("is always null and has no type; write cast(null as ...) or remove it")
    return found


def type_of(node: exp.Expr, columns: Mapping[str, str]) -> str:
    """Return the type of a checked tree's value, `null` for a bare null. Raises ExpressionError as `infer_type`."""
    rule = _RULE_OF.get(type(node))
    if rule is not None:
        return rule(node, columns)
    raise ExpressionError(f"{sql_of(node)}: its type can't be determined; write a cast around it")


def common_type(operands: Sequence[exp.Expr], columns: Mapping[str, str]) -> str:
    """Return the common type of all operands, `null` if all are bare nulls."""
    return _common(operands[0], [type_of(operand, columns) for operand in operands])


def common_of(node: exp.Expr, types: Iterable[str]) -> str:
    """Return the common type of operands of these types. Raises ExpressionError, which shows the node, if there is none."""
    return _common(node, types)


def digits_in_arithmetic(operand: exp.Expr, columns: Mapping[str, str]) -> tuple[int, int]:
    """Return the precision and scale of an operand in decimal arithmetic."""
    return _digits_in(operand, type_of(operand, columns))


def _literal(node: exp.Expr, _: Mapping[str, str]) -> str:
    if node.is_string:
        return "string"
    text = node.name.lower()
    if "e" in text:
        return "double"
    if "." not in text:
        number = int(text) if len(text) <= PRECISION_MAX else 10**PRECISION_MAX
        if number < 2**31:
            return "integer"
        if number < 2**63:
            return "long"
    whole, _point, fraction = text.partition(".")
    scale = len(fraction)
    precision = max(len((whole + fraction).lstrip("0")), scale, 1)
    if precision > PRECISION_MAX:
        raise ExpressionError(
            f"the number {text[:40]} has more than {PRECISION_MAX} digits; write it as 1.5e3 for a double"
        )
    return decimal_type(precision, scale)


def _exactly_signed(node: exp.Expr, columns: Mapping[str, str]) -> str:
    found = _numeric(node, node.this, columns)
    if is_decimal(found) and decimal_digits(found)[0] > _SIGNED_PRECISION_MAX:
        raise ExpressionError(
            f"{sql_of(node)}: Spark rounds a {found} to {_SIGNED_PRECISION_MAX} digits when it changes its sign; "
            f"write it as cast(... as decimal({_SIGNED_PRECISION_MAX},s)), with fewer places"
        )
    return found


def _arithmetic(node: exp.Expr, columns: Mapping[str, str]) -> str:
    left = _numeric(node, node.this, columns)
    right = _numeric(node, node.expression, columns)
    if isinstance(node, exp.IntDiv):
        if "double" in (left, right):
            raise ExpressionError(f"{sql_of(node)}: 'div' is for integers; write floor(a / b)")
        return "long"
    if "double" in (left, right):
        return "double"
    if not (is_decimal(left) or is_decimal(right)):
        if isinstance(node, exp.Div):
            return "double"
        return "long" if "long" in (left, right) else "integer"
    (p1, s1), (p2, s2) = _digits_in(node.this, left), _digits_in(node.expression, right)
    match node:
        case exp.Add() | exp.Sub():
            scale = max(s1, s2)
            return _adjusted(max(p1 - s1, p2 - s2) + scale + 1, scale)
        case exp.Mul():
            return _adjusted(p1 + p2 + 1, s1 + s2)
        case exp.Div():
            scale = max(6, s1 + p2 + 1)
            return _adjusted(p1 - s1 + s2 + scale, scale)
        case _:
            scale = max(s1, s2)
            return _adjusted(min(p1 - s1, p2 - s2) + scale, scale)


def _comparison(node: exp.Expr, columns: Mapping[str, str]) -> str:
    _has_order(node, _common(node, [type_of(operand, columns) for operand in node.iter_expressions()]))
    return "boolean"


def _is(node: exp.Expr, columns: Mapping[str, str]) -> str:
    found = type_of(node.this, columns)
    if not isinstance(node.expression, exp.Null):
        _expect(node, found, "boolean")
    return "boolean"


def _logical(node: exp.Expr, columns: Mapping[str, str]) -> str:
    for operand in node.iter_expressions():
        _expect(node, type_of(operand, columns), "boolean")
    return "boolean"


def _like(node: exp.Expr, columns: Mapping[str, str]) -> str:
    _strings(node, (node.this, node.expression), columns)
    pattern = node.expression.unnest()
    if isinstance(pattern, exp.Literal) and not is_like_pattern(pattern.name):
        raise ExpressionError(
            f"{sql_of(node)}: in a pattern, only %, _, or a backslash can follow a backslash; write '\\\\\\\\' for a backslash"
        )
    return "boolean"


def _case(node: exp.Expr, columns: Mapping[str, str]) -> str:
    branches = node.args["ifs"] if isinstance(node, exp.Case) else [node]
    subject = type_of(node.this, columns) if node.this is not None and isinstance(node, exp.Case) else None
    for branch in branches:
        found = type_of(branch.this, columns)
        if subject is not None:
            _has_order(node, _common(node, (subject, found)))
        else:
            _expect(node, found, "boolean")
    values = [branch.args["true"] for branch in branches]
    other = node.args.get("default") or node.args.get("false")
    if other is None and isinstance(node, exp.If):
        raise ExpressionError(f"{sql_of(node)}: expected if(condition, then, else), where 'else' may be null")
    return _common(node, [type_of(value, columns) for value in [*values, other] if value is not None])


def _same(node: exp.Expr, columns: Mapping[str, str]) -> str:
    arguments = [node.this, *node.expressions]
    if isinstance(node, exp.Least | exp.Greatest) and len(arguments) < 2:
        raise ExpressionError(f"{sql_of(node)} needs at least two arguments")
    found = _common(node, [type_of(argument, columns) for argument in arguments])
    if isinstance(node, exp.Least | exp.Greatest):
        _has_order(node, found)
    return found


def _nullif(node: exp.Expr, columns: Mapping[str, str]) -> str:
    found = type_of(node.this, columns)
    _has_order(node, _common(node, (found, type_of(node.expression, columns))))
    return found


def _cast(node: exp.Expr, columns: Mapping[str, str]) -> str:
    source, target = type_of(node.this, columns), _target(node)
    group = _group(source)
    if group == "string" and target == "timestamp":
        if not isinstance(node.this, exp.Literal):
            raise ExpressionError(
                f"{sql_of(node)}: a time without a date would be read as a time of today; "
                "declare the field as a timestamp in the stream"
            )
        if micros_of_text(node.this.name) is None:
            raise ExpressionError(
                f"{sql_of(node)}: is not a time; expected '2026-03-29', '2026-03-29 01:30:00' (in UTC), or "
                "'2026-03-29 01:30:00+02:00'. For the local time of a zone, write to_utc_timestamp(timestamp '...', "
                "'Europe/Berlin')"
            )
    elif source not in (target, NULL) and not {target, _group(target)} & _CASTS.get(group, set()):
        raise ExpressionError(f"{sql_of(node)}: {with_article(source)} can't become {with_article(target)}")
    return target


_CASTS = {
    "number": {"number", "string", "boolean", "timestamp"},
    "string": {"string", "number", "boolean"},
    "boolean": {"boolean", "number", "string"},
    "timestamp": {"timestamp", "string", "long", "double"},
}
_CAST_TARGETS = {
    exp.DType.BIGINT: "long",
    exp.DType.INT: "integer",
    exp.DType.DOUBLE: "double",
    exp.DType.BOOLEAN: "boolean",
    exp.DType.TEXT: "string",
    exp.DType.TIMESTAMPTZ: "timestamp",
}


def _target(node: exp.Expr) -> str:
    to = node.args["to"]
    if to.this == exp.DType.DECIMAL:
        sizes = [int(parameter.name) for parameter in to.expressions]
        precision, scale = [*sizes, *(10, 0)[len(sizes) :]][:2]
        try:
            return decimal_type(precision, scale)
        except ValueError as error:
            raise ExpressionError(f"{sql_of(to)}: {error}") from error
    if to.this not in _CAST_TARGETS:
        raise ExpressionError(
            f"{sql_of(node)}: {sql_of(to).lower()} is not a type here; expected one of: {', '.join(SCALAR_NAMES)}"
        )
    return _CAST_TARGETS[to.this]


def _whole(node: exp.Expr, columns: Mapping[str, str]) -> str:
    found = _numeric(node, node.this, columns)
    if not is_decimal(found):
        return "long"
    precision, scale = decimal_digits(found)
    return decimal_type(min(precision - scale + 1, PRECISION_MAX) if scale else precision, 0)


def _round(node: exp.Expr, columns: Mapping[str, str]) -> str:
    found = _numeric(node, node.this, columns)
    places = node.args.get("decimals")
    kept = _whole_literal(places) if places is not None else 0
    if kept is None:
        raise ExpressionError(f"{sql_of(node)}: the number of places must be written out, as round(x, 2)")
    if abs(kept) > PRECISION_MAX:
        raise ExpressionError(f"{sql_of(node)}: the number of places must be from -{PRECISION_MAX} to {PRECISION_MAX}")
    if not is_decimal(found):
        return found
    precision, scale = decimal_digits(found)
    whole = precision - scale + 1
    if kept < 0:
        return decimal_type(min(max(whole, 1 - kept), PRECISION_MAX), 0)
    return decimal_type(min(whole + min(scale, kept), PRECISION_MAX), min(scale, kept))


def _concat(node: exp.Expr, columns: Mapping[str, str]) -> str:
    _strings(node, list(node.iter_expressions()), columns)
    return "string"


def _bits(node: exp.Expr, columns: Mapping[str, str]) -> str:
    return _common(node, [_whole_number(node, type_of(one, columns)) for one in node.iter_expressions()])


def _call(node: exp.Expr, columns: Mapping[str, str]) -> str:
    return _typed(CALLS[node.name.lower()], node, node.expressions, columns)


def _typed(function: Function, node: exp.Expr, operands: Sequence[exp.Expr], columns: Mapping[str, str]) -> str:
    """Return the type of a function's value, by its signature."""
    if len(operands) < function.count_min or (function.count_max is not None and len(operands) > function.count_max):
        raise ExpressionError(f"{sql_of(node)}: expected {function.call}")
    found = []
    for at, operand in enumerate(operands):
        argument = function.argument(at)
        if argument.written is None:
            found.append(type_of(operand, columns))
            _fits(node, argument, found[-1])
    written_arguments(function, node, operands)
    if ARRAY in [one.type for one in function.arguments] or function.result in (OF_ALL, STRUCT):
        return _of_nested(function, node, operands, found)
    if function.result in (COMMON, FIRST):
        return _common(node, found) if function.result == COMMON else found[0]
    return function.result


def _of_nested(function: Function, node: exp.Expr, operands: Sequence[exp.Expr], found: Sequence[str]) -> str:
    """Return the type of the value of a function of arrays or structs."""

    def common(types: Iterable[str]) -> str:
        return _common(node, types)

    try:
        if function.result not in (OF_ALL, STRUCT):
            refuse_elements(function, found)
        if function.name in SOUGHT:
            common([element_of(found[0]) or NULL, found[1]])
        if function.result in (ELEMENT, OF_ALL, STRUCT):
            return nested_result(function, operands, found, common)
    except ExpressionError:
        raise
    except ValueError as error:
        raise ExpressionError(f"{sql_of(node)}: {error}") from error
    return found[0] if function.result == FIRST else function.result


def _member(node: exp.Expr, columns: Mapping[str, str]) -> str:
    found = type_of(node.this, columns)
    members, name = members_of(found), node.expression.name
    if not isinstance(node.expression, exp.Identifier) or name not in members:
        of = f"has the members {', '.join(members)}" if members else f"is {with_article(found)}, which has no members"
        raise ExpressionError(f"{sql_of(node)}: {sql_of(node.this)} {of}")
    return members[name]


def written_arguments(function: Function, node: exp.Expr, operands: Sequence[exp.Expr]) -> dict[int, object]:
    """Return index -> value of the arguments that must be written out. Raises ExpressionError if one is an expression, or has a
    value that the function doesn't accept."""
    found: dict[int, object] = {}
    for at, argument in enumerate(function.arguments):
        if argument.written is None:
            continue
        shown = _written_text(argument, operands[at]) if at < len(operands) else _default_text(argument)
        if shown is None:
            example = "HOUR" if argument.is_word else "'...'" if argument.type == "string" else "2"
            raise ExpressionError(f"{sql_of(node)}: '{argument.name}' must be written out, as {example}")
        try:
            found[at] = argument.written(shown)
        except ValueError as error:
            raise ExpressionError(f"{sql_of(node)}: '{argument.name}' {error}") from error
    if function.together is not None:
        try:
            function.together(*found.values())
        except ValueError as error:
            raise ExpressionError(f"{sql_of(node)} {error}") from error
    return found


def _written_text(argument: Argument, operand: exp.Expr) -> str | None:
    if argument.is_word:
        return operand.name if isinstance(operand, exp.Var) else None
    if argument.type == "string":
        return operand.name if isinstance(operand, exp.Literal) and operand.is_string else None
    number = _whole_literal(operand)
    return None if number is None else str(number)


def _default_text(argument: Argument) -> str:
    assert argument.default is not None, "it may be left out"
    return argument.default.strip("'")


def _fits(node: exp.Expr, argument: Argument, found: str) -> None:
    match argument.type:
        case "any":
            return
        case "double" | "plain" | "number" if _group(found) != "number":
            raise ExpressionError(f"{sql_of(node)}: expected a number, got {with_article(found)}")
        case "plain" if is_decimal(found):
            raise ExpressionError(
                f"{sql_of(node)}: does not accept decimals; write a cast to double around {with_article(found)}"
            )
        case "double" | "plain" | "number":
            return
        case "array" if kind_of(found) != ARRAY:
            raise ExpressionError(f"{sql_of(node)}: expected an array, got {with_article(found)}")
        case "array":
            return
        case "whole" | "long":
            _whole_number(node, found)
        case _:
            _expect(node, found, argument.type)


def _whole_number(node: exp.Expr, found: str) -> str:
    if found not in WHOLE_RANGES:
        raise ExpressionError(f"{sql_of(node)}: expected an integer or long, got {with_article(found)}")
    return found


def _aggregate(node: exp.Expr, columns: Mapping[str, str]) -> str:
    assert isinstance(node, exp.AnonymousAggFunc)
    try:
        call = read_call(node)
    except ValueError as error:
        raise ExpressionError(f"{sql_of(node)}: {error}") from error
    accepts_null = call.function.accepts_null and not call.is_distinct
    types = tuple(type_of(one, columns) if accepts_null else _not_null(node, one, columns) for one in call.columns)
    try:
        if call.is_distinct:
            require_order(types[0])
        return call.function.result_type(types)
    except ValueError as error:
        raise ExpressionError(f"{sql_of(node)}: {error}") from error


def _filtered(node: exp.Expr, columns: Mapping[str, str]) -> str:
    found = type_of(node.expression.this, columns)
    if found != "boolean":
        raise ExpressionError(f"{sql_of(node)}: expected a condition after 'where', got {with_article(found)}")
    return type_of(node.this, columns)


def _has_order(node: exp.Expr, found: str) -> None:
    try:
        require_order(found)
    except ValueError as error:
        raise ExpressionError(f"{sql_of(node)}: {error}") from error


def _not_null(node: exp.Expr, operand: exp.Expr, columns: Mapping[str, str]) -> str:
    found = type_of(operand, columns)
    if found == NULL:
        raise ExpressionError(f"{sql_of(node)}: {sql_of(operand)} is always null; write a cast around it")
    return found


_Rule = Callable[[exp.Expr, Mapping[str, str]], str]
_RULES: tuple[tuple[tuple[type[exp.Expr], ...], _Rule], ...] = (
    ((exp.Column,), lambda node, columns: "timestamp" if node.name in WINDOW_TIME_OF else columns[node.name]),
    ((exp.Paren,), lambda node, columns: type_of(node.this, columns)),
    ((exp.Literal,), _literal),
    ((exp.Null,), lambda node, columns: NULL),
    ((exp.Boolean,), lambda node, columns: "boolean"),
    ((exp.Neg,), _exactly_signed),
    (ARITHMETIC, _arithmetic),
    ((*BITS, exp.BitwiseNot), _bits),
    ((*COMPARISONS, exp.Between, exp.In), _comparison),
    ((exp.Is,), _is),
    ((exp.Like,), _like),
    ((exp.And, exp.Or, exp.Not), _logical),
    ((exp.Case,), _case),
    ((exp.DPipe,), _concat),
    ((exp.Anonymous,), _call),
    ((exp.Filter,), _filtered),
    ((exp.Dot,), _member),
    ((exp.AnonymousAggFunc,), _aggregate),
)
"""Rule for the type of each kind of node. Functions of the table have the rules of their signatures."""
_RESULTS: dict[str, _Rule] = {
    "signed": _exactly_signed,
    "rounded": _round,
    "whole": _whole,
    "arithmetic": _arithmetic,
    "same": _same,
    "chosen": _case,
    "nullif": _nullif,
    "cast": _cast,
}
"""Rules to which the result type of a function in the table can refer."""


def _rule_for(function: Function) -> _Rule:
    """Return the rule for the nodes that the parser makes for calls of a function."""
    return _RESULTS.get(function.result) or (
        lambda node, columns: _typed(function, node, list(node.iter_expressions()), columns)
    )


_RULE_OF: dict[type[exp.Expr], _Rule] = {
    **{function.node: _rule_for(function) for function in TABLE if function.node is not None},
    **{kind: rule for kinds, rule in _RULES for kind in kinds},
}


def _common(node: exp.Expr, operands: Iterable[str]) -> str:
    """Return the type to which operands of these types are widened, as Spark does. Raises ExpressionError, which shows `node`, if
    they have none: only numbers are widened, and a string and a number, for example, have no common type.

    The arguments are types, so that no rule computes the type of an operand twice: for nested operands, the time would double
    with each level."""
    common = NULL
    for found in operands:
        if found in (NULL, common):
            continue
        if common == NULL:
            common = found
        elif _group(found) == _group(common) == "number":
            common = _wider(common, found)
        else:
            raise ExpressionError(
                f"{sql_of(node)}: {with_article(common)} and {with_article(found)} don't fit together; write a cast around "
                "one of them"
            )
    return common


def _wider(left: str, right: str) -> str:
    if "double" in (left, right):
        return "double"
    if not (is_decimal(left) or is_decimal(right)):
        return "long"
    (p1, s1), (p2, s2) = decimal_digits(left), decimal_digits(right)
    whole, scale = max(p1 - s1, p2 - s2), max(s1, s2)
    return decimal_type(min(whole + scale, PRECISION_MAX), max(min(scale, PRECISION_MAX - whole), 0))


def _numeric(node: exp.Expr, operand: exp.Expr, columns: Mapping[str, str]) -> str:
    found = type_of(operand, columns)
    if _group(found) != "number":
        raise ExpressionError(f"{sql_of(node)}: expected a number, got {with_article(found)}")
    return found


def _strings(node: exp.Expr, operands: Sequence[exp.Expr], columns: Mapping[str, str]) -> None:
    for operand in operands:
        _expect(node, type_of(operand, columns), "string")


def _expect(node: exp.Expr, found: str, expected: str) -> None:
    if found not in (expected, NULL):
        raise ExpressionError(f"{sql_of(node)}: expected {with_article(expected)}, got {with_article(found)}")


def _group(name: str) -> str:
    return "number" if is_number(name) else name


def _whole_literal(node: exp.Expr) -> int | None:
    """Return the value of an integer that is written out. None if the node is anything else."""
    literal = node.this if isinstance(node, exp.Neg) else node
    if isinstance(literal, exp.Literal) and not literal.is_string and literal.name.isdigit():
        return -int(literal.name) if isinstance(node, exp.Neg) else int(literal.name)
    return None


def _digits_in(operand: exp.Expr, found: str) -> tuple[int, int]:
    """Return the precision and scale of an operand of type `found`. For Spark, an integer that is written out has as many
    digits as it shows. Any other number has the maximum of its type."""
    number = _whole_literal(operand)
    return decimal_digits(found) if number is None or is_decimal(found) else (len(str(abs(number))), 0)


def _adjusted(precision: int, scale: int) -> str:
    """Adjust a precision over 38 digits like Spark: keep the integer part, and shorten the fraction, but not below six digits."""
    if precision > PRECISION_MAX:
        whole = precision - scale
        scale = max(PRECISION_MAX - whole, min(scale, 6))
        precision = PRECISION_MAX
    return decimal_type(precision, scale)
