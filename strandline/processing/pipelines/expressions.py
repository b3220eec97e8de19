"""Expressions of Spark SQL, parsed and checked before Spark sees them.

An expression must give the same value in the first run and in every replay, so what it may hold is an allow-list:
operators, casts and functions whose value depends on their arguments alone, and aggregates that don't depend on the
order of rows. Spark gets text that is generated from the parsed tree, with every column quoted: nothing that the
parser did not understand can reach Spark. The types follow Spark's rules, because the index mapping is strict.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import sqlglot
from sqlglot import Token, TokenType, exp
from sqlglot.errors import SqlglotError

from strandline.core.documents import did_you_mean
from strandline.core.field_types import PRECISION_MAX, TYPE_NAMES, decimal_type, digits_of, is_number, kind_of

LENGTH_MAX = 4_000
_SPARK = sqlglot.Dialect.get_or_raise("spark")
_SIGNED_PRECISION_MAX = 34
"""Spark negates a decimal in the precision of IEEE 754 decimal128."""
_NULL = "null"


class ExpressionError(ValueError):
    """An expression that is refused. The text says what and where in the expression, and what to write instead."""


@dataclass(frozen=True)
class Expression:
    """A parsed expression that holds only what is allowed."""

    text: str
    tree: exp.Expr
    columns: tuple[str, ...]
    """The columns it reads, in the order of their first use."""
    sql: str
    """Normalised Spark SQL: every column quoted, no comments."""
    is_aggregate: bool


def parse_expression(text: str) -> Expression:
    """Return the one expression that `text` holds. Raises ExpressionError."""
    if len(text) > LENGTH_MAX:
        raise ExpressionError(f"is longer than {LENGTH_MAX:,} characters; split it over several derive steps")
    try:
        tokens = _SPARK.tokenize(text)
        _refuse_doubled_quotes(tokens)
        # An expression, not a statement: else a column named `load` or `cache` would begin a command.
        trees = [tree for tree in _SPARK.parser().parse_into(exp.Condition, tokens, text) if tree is not None]
        if len(trees) != 1:
            raise ExpressionError(f"expected one expression, got {len(trees)}; remove the ';'")
        tree = trees[0]
        _refuse_unknown_nodes(tree)
        aggregates = list(tree.find_all(*_AGGREGATES))
        _refuse_misplaced_aggregates(tree, aggregates)
        columns = tuple(dict.fromkeys(column.name for column in tree.find_all(exp.Column)))
        sql = tree.sql(dialect="spark", identify=True, comments=False)
    except SqlglotError as error:
        raise ExpressionError(_syntax_sentence(error)) from error
    except RecursionError as error:
        raise ExpressionError("is nested too deeply; split it over several derive steps") from error
    return Expression(text=text, tree=tree, columns=columns, sql=sql, is_aggregate=bool(aggregates))


def infer_type(expression: Expression, columns: Mapping[str, str]) -> str:
    """Return the type of the value as Spark 4 has it: string, long, integer, double, boolean, timestamp, decimal(p,s).

    `columns` maps every column in sight to its type. Raises ExpressionError for a column that isn't there, for operands
    that don't go together (there are no silent conversions between text, numbers and times), and for a bare null.
    """
    refuse_unknown_columns(expression, columns)
    try:
        found = _type_of(expression.tree, columns)
    except RecursionError as error:
        raise ExpressionError("is nested too deeply; split it over several derive steps") from error
    if found == _NULL:
        raise ExpressionError("is always null and has no type; write cast(null as ...) or remove it")
    return found


def refuse_unknown_columns(expression: Expression, known: Mapping[str, object]) -> None:
    """Raise ExpressionError for the first column that isn't in `known`, with its place and what might be meant."""
    for column in expression.tree.find_all(exp.Column):
        if column.name not in known:
            raise ExpressionError(
                f"unknown column '{column.name}'{_place(column.this)}{did_you_mean(column.name, known)}"
            )


def type_of(tree: exp.Expr, columns: Mapping[str, str]) -> str:
    """The type of a checked tree's value, `null` for a bare null. Raises ExpressionError as `infer_type`."""
    return _type_of(tree, columns)


def common_type(operands: Sequence[exp.Expr], columns: Mapping[str, str]) -> str:
    """The one type that all operands can take, `null` when all are bare nulls."""
    return _common(operands[0], operands, columns)


def digits_in_arithmetic(operand: exp.Expr, columns: Mapping[str, str]) -> tuple[int, int]:
    """Precision and scale with which an operand goes into decimal arithmetic: a whole number that is written out has as many
    digits as it has, any other number as many as its type can hold."""
    found = _type_of(operand, columns)
    exact = _literal_digits(operand)
    return (exact, 0) if exact and not _is_decimal(found) else _digits(found)


# What may stand in an expression

_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ)
_AGGREGATES = (exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max, exp.StddevPop, exp.VariancePop)
_TO_DOUBLE = (exp.Sqrt, exp.Pow, exp.Ln, exp.Exp)
_TO_STRING = (exp.Lower, exp.Upper, exp.Trim)
FUNCTIONS = (
    "abs", "avg", "cast", "ceil", "coalesce", "concat", "count", "exp", "floor", "greatest", "if", "least", "length",
    "ln", "lower", "ltrim", "max", "min", "mod", "nullif", "pow", "round", "rtrim", "sqrt", "stddev_pop", "substring",
    "sum", "trim", "try_cast", "upper", "var_pop",
)  # fmt: skip
"""The functions that an expression may call, by the names to write."""
_ALLOWED = frozenset(
    (
        *_ARITHMETIC, *_COMPARISONS, *_AGGREGATES, *_TO_DOUBLE, *_TO_STRING,
        exp.Abs, exp.And, exp.Between, exp.Boolean, exp.Case, exp.Cast, exp.Ceil, exp.Coalesce, exp.Column, exp.Concat,
        exp.DPipe, exp.DataType, exp.DataTypeParam, exp.Floor, exp.Greatest, exp.Identifier, exp.If, exp.In, exp.Is,
        exp.Least, exp.Length, exp.Like, exp.Literal, exp.Neg, exp.Not, exp.Null, exp.Nullif, exp.Or, exp.Paren,
        exp.Round, exp.Star, exp.Substring, exp.TryCast,
    )
)  # fmt: skip
_ARGUMENTS: dict[type[exp.Expr], frozenset[str]] = {
    exp.Column: frozenset({"this"}),
    exp.Ceil: frozenset({"this"}),
    exp.Floor: frozenset({"this"}),
    exp.Round: frozenset({"this", "decimals"}),
    exp.Trim: frozenset({"this", "position"}),
    exp.In: frozenset({"this", "expressions"}),
    exp.Length: frozenset({"this"}),
    exp.Like: frozenset({"this", "expression", "negate"}),
    exp.Count: frozenset({"this", "big_int"}),
    exp.Min: frozenset({"this"}),
    exp.Max: frozenset({"this"}),
    exp.Cast: frozenset({"this", "to", "_type"}),
    exp.TryCast: frozenset({"this", "to", "safe", "_type"}),
    exp.Between: frozenset({"this", "low", "high"}),
    exp.Identifier: frozenset({"this", "quoted"}),
}
"""Where a node has more forms than the ones we know: the arguments that it may have."""
_UNSTEADY = {
    "rand", "randn", "random", "uuid", "now", "current_timestamp", "current_date", "current_time", "localtimestamp",
    "unix_timestamp", "shuffle", "monotonically_increasing_id", "spark_partition_id", "input_file_name",
}  # fmt: skip
_BY_ORDER = {
    "first", "last", "first_value", "last_value", "any_value", "collect_list", "collect_set", "array_agg",
    "array_unique_agg", "listagg", "string_agg", "group_concat",
}  # fmt: skip


def _refuse_doubled_quotes(tokens: Sequence[Token]) -> None:
    """Spark reads 'it''s' as one text with a quote in it, the parser as two texts: refused, not guessed."""
    for token, following in itertools.pairwise(tokens):
        if token.token_type == following.token_type == TokenType.STRING and token.end + 1 == following.start:
            raise ExpressionError(
                f"a doubled quote at character {following.start + 1} is not supported; write \\' for a quote "
                "inside text, or put the text in the other kind of quotes"
            )


def _refuse_unknown_nodes(tree: exp.Expr) -> None:
    for node in tree.walk():
        if type(node) not in _ALLOWED:
            raise ExpressionError(_refusal(node))
    for node in tree.walk():
        allowed = _ARGUMENTS.get(type(node))
        extra = [name for name, value in node.args.items() if value and allowed is not None and name not in allowed]
        if extra:
            raise ExpressionError(f"{_sql(node)}{_place(node)} has a form that is not supported here")
        if node.error_messages():
            raise ExpressionError(f"{_sql(node)}{_place(node)} lacks an argument")
        if isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count):
            raise ExpressionError("'*' stands only in count(*)")


def _refusal(node: exp.Expr) -> str:
    """Why this kind of node can't stand in an expression."""
    if isinstance(node, exp.Query | exp.Subquery | exp.Exists):
        return "a query can't stand in an expression; an expression sees the columns of its own row only"
    if isinstance(node, exp.Window):
        return f"{_sql(node)}: 'over' is not supported; a window step collects rows"
    if isinstance(node, exp.Filter):
        return f"{_sql(node)}: 'filter' is not supported; write sum(case when ... then ... end)"
    if isinstance(node, exp.Distinct):
        return f"{_sql(node.parent or node)}: 'distinct' is not supported in an aggregate"
    if isinstance(node, exp.Alias | exp.Aliases):
        return f"{_sql(node)}: the name stands before the ':', not in the expression"
    if isinstance(node, exp.Func):
        name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
        name = str(node.meta.get("name") or name).lower()
        place = _place(node)
        if name in _UNSTEADY:
            return f"{name}(){place} gives another value in each run, and a result must be the same in every replay"
        if name in _BY_ORDER:
            return f"{name}(){place} depends on the order of records, which a replay may change; use min or max"
        return f"unknown function '{name}'{place}{did_you_mean(_SYNONYMS.get(name, name), FUNCTIONS)}"
    if isinstance(node, exp.Command | exp.DDL | exp.DML):
        return "expected an expression, got a statement"
    return f"{_sql(node)} is not supported in an expression"


_SYNONYMS = {
    "mean": "avg",
    "std": "stddev_pop",
    "stddev": "stddev_pop",
    "variance": "var_pop",
    "stddev_samp": "stddev_pop",
}


def _refuse_misplaced_aggregates(tree: exp.Expr, aggregates: Sequence[exp.Expr]) -> None:
    for aggregate in aggregates:
        if aggregate.find_ancestor(*_AGGREGATES):
            raise ExpressionError(
                f"{_sql(aggregate)} stands inside another aggregate; use a second window step for that"
            )
    if aggregates:
        for column in tree.find_all(exp.Column):
            if not column.find_ancestor(*_AGGREGATES):
                raise ExpressionError(
                    f"'{column.name}'{_place(column.this)} stands outside an aggregate; a window has many values "
                    f"of it, so write for example max({column.name})"
                )


def _syntax_sentence(error: SqlglotError) -> str:
    details = getattr(error, "errors", None) or [{}]
    described = str(details[0].get("description") or "").rstrip(".").removeprefix("Invalid expression / ")
    if not described or "<class" in described:
        described = "a part is missing or unfinished"
    column = details[0].get("col")
    near = details[0].get("highlight")
    place = f" near {near!r}, at character {column}" if near and column else ""
    return f"is not an expression of Spark SQL: {described[0].lower()}{described[1:]}{place}"


def _place(node: exp.Expr) -> str:
    start = node.meta.get("start")
    return "" if start is None else f" at character {start + 1}"


def _sql(node: exp.Expr) -> str:
    sql: str = node.sql(dialect="spark", comments=False)
    return sql if len(sql) <= 80 else f"{sql[:77]}..."


# Types


def _type_of(node: exp.Expr, columns: Mapping[str, str]) -> str:
    for kinds, rule in _RULES:
        if isinstance(node, kinds):
            return rule(node, columns)
    raise ExpressionError(f"{_sql(node)}: its type can't be told; write a cast around it")


def _column(node: exp.Expr, columns: Mapping[str, str]) -> str:
    return columns[node.name]


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


def _negative(node: exp.Expr, columns: Mapping[str, str]) -> str:
    return _exactly_signed(node, columns)


def _exactly_signed(node: exp.Expr, columns: Mapping[str, str]) -> str:
    found = _numeric(node, node.this, columns)
    if _is_decimal(found) and _digits(found)[0] > _SIGNED_PRECISION_MAX:
        raise ExpressionError(
            f"{_sql(node)}: Spark rounds a {found} to {_SIGNED_PRECISION_MAX} digits when it changes its sign; "
            f"write it as cast(... as decimal({_SIGNED_PRECISION_MAX},s)), with fewer places"
        )
    return found


def _arithmetic(node: exp.Expr, columns: Mapping[str, str]) -> str:
    left = _numeric(node, node.this, columns)
    right = _numeric(node, node.expression, columns)
    if isinstance(node, exp.IntDiv):
        if "double" in (left, right):
            raise ExpressionError(f"{_sql(node)}: 'div' is for whole numbers; write floor(a / b)")
        return "long"
    if "double" in (left, right):
        return "double"
    if not (_is_decimal(left) or _is_decimal(right)):
        if isinstance(node, exp.Div):
            return "double"
        return "long" if "long" in (left, right) else "integer"
    # Spark takes a literal whole number with as many digits as it has, and a column with all its type can have.
    exact_left, exact_right = _literal_digits(node.this), _literal_digits(node.expression)
    p1, s1 = (exact_left, 0) if exact_left and not _is_decimal(left) else _digits(left)
    p2, s2 = (exact_right, 0) if exact_right and not _is_decimal(right) else _digits(right)
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
    _common(node, (node.this, node.expression), columns)
    return "boolean"


def _between(node: exp.Expr, columns: Mapping[str, str]) -> str:
    _common(node, (node.this, node.args["low"], node.args["high"]), columns)
    return "boolean"


def _in(node: exp.Expr, columns: Mapping[str, str]) -> str:
    _common(node, (node.this, *node.expressions), columns)
    return "boolean"


def _is(node: exp.Expr, columns: Mapping[str, str]) -> str:
    found = _type_of(node.this, columns)
    if not isinstance(node.expression, exp.Null):
        _expect(node, found, "boolean")
    return "boolean"


def _logical(node: exp.Expr, columns: Mapping[str, str]) -> str:
    for operand in node.iter_expressions():
        _expect(node, _type_of(operand, columns), "boolean")
    return "boolean"


def _like(node: exp.Expr, columns: Mapping[str, str]) -> str:
    _strings(node, (node.this, node.expression), columns)
    return "boolean"


def _case(node: exp.Expr, columns: Mapping[str, str]) -> str:
    branches = node.args["ifs"] if isinstance(node, exp.Case) else [node]
    for branch in branches:
        if node.this is not None and isinstance(node, exp.Case):
            _common(node, (node.this, branch.this), columns)
        else:
            _expect(node, _type_of(branch.this, columns), "boolean")
    values = [branch.args["true"] for branch in branches]
    other = node.args.get("default") or node.args.get("false")
    return _common(node, [*values, other] if other is not None else values, columns)


def _same(node: exp.Expr, columns: Mapping[str, str]) -> str:
    arguments = [node.this, *node.expressions]
    if isinstance(node, exp.Least | exp.Greatest) and len(arguments) < 2:
        raise ExpressionError(f"{_sql(node)} needs at least two arguments")
    return _common(node, arguments, columns)


def _nullif(node: exp.Expr, columns: Mapping[str, str]) -> str:
    _common(node, (node.this, node.expression), columns)
    return _type_of(node.this, columns)


def _cast(node: exp.Expr, columns: Mapping[str, str]) -> str:
    source, target = _type_of(node.this, columns), _target(node)
    group = _group(source)
    if group == "string" and target == "timestamp":
        if not (isinstance(node.this, exp.Literal) and re.fullmatch(r"\d{4}-\d\d-\d\d([T ].*)?", node.this.name)):
            raise ExpressionError(
                f"{_sql(node)}: text without a date would be read as today's; "
                "declare the field as a timestamp in the stream"
            )
    elif source not in (target, _NULL) and target not in _CASTS[group] and _group(target) not in _CASTS[group]:
        raise ExpressionError(f"{_sql(node)}: {_a(source)} can't become {_a(target)}")
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
            raise ExpressionError(f"{_sql(to)}: {error}") from error
    if to.this not in _CAST_TARGETS:
        raise ExpressionError(
            f"{_sql(node)}: {_sql(to).lower()} is not a type here; expected one of: {', '.join(TYPE_NAMES)}"
        )
    return _CAST_TARGETS[to.this]


def _absolute(node: exp.Expr, columns: Mapping[str, str]) -> str:
    return _exactly_signed(node, columns)


def _whole(node: exp.Expr, columns: Mapping[str, str]) -> str:
    found = _numeric(node, node.this, columns)
    if not _is_decimal(found):
        return "long"
    precision, scale = _digits(found)
    return decimal_type(min(precision - scale + 1, PRECISION_MAX) if scale else precision, 0)


def _round(node: exp.Expr, columns: Mapping[str, str]) -> str:
    found = _numeric(node, node.this, columns)
    places = node.args.get("decimals")
    kept = _whole_literal(places) if places is not None else 0
    if kept is None:
        raise ExpressionError(f"{_sql(node)}: the number of places must be written out, as round(x, 2)")
    if not _is_decimal(found):
        return found
    precision, scale = _digits(found)
    whole = precision - scale + 1
    if kept < 0:
        return decimal_type(min(max(whole, 1 - kept), PRECISION_MAX), 0)
    return decimal_type(min(whole + min(scale, kept), PRECISION_MAX), min(scale, kept))


def _to_double(node: exp.Expr, columns: Mapping[str, str]) -> str:
    for operand in node.iter_expressions():
        _numeric(node, operand, columns)
    return "double"


def _to_string(node: exp.Expr, columns: Mapping[str, str]) -> str:
    _strings(node, list(node.iter_expressions()), columns)
    return "string"


def _length(node: exp.Expr, columns: Mapping[str, str]) -> str:
    _strings(node, (node.this,), columns)
    return "integer"


def _substring(node: exp.Expr, columns: Mapping[str, str]) -> str:
    _strings(node, (node.this,), columns)
    for place in (node.args.get("start"), node.args.get("length")):
        if place is not None:
            _expect(node, _type_of(place, columns), "integer")
    return "string"


def _count(node: exp.Expr, columns: Mapping[str, str]) -> str:
    if node.this is None:
        raise ExpressionError("count() needs an argument; write count(*)")
    if not isinstance(node.this, exp.Star):
        _type_of(node.this, columns)
    return "long"


def _sum(node: exp.Expr, columns: Mapping[str, str]) -> str:
    found = _numeric(node, node.this, columns)
    if _is_decimal(found):
        precision, scale = _digits(found)
        return decimal_type(min(precision + 10, PRECISION_MAX), scale)
    return "double" if found == "double" else "long"


def _average(node: exp.Expr, columns: Mapping[str, str]) -> str:
    found = _numeric(node, node.this, columns)
    if not _is_decimal(found):
        return "double"
    precision, scale = _digits(found)
    return decimal_type(min(precision + 4, PRECISION_MAX), min(scale + 4, PRECISION_MAX))


def _extreme(node: exp.Expr, columns: Mapping[str, str]) -> str:
    return _type_of(node.this, columns)


_Rule = Callable[[exp.Expr, Mapping[str, str]], str]
_RULES: tuple[tuple[tuple[type[exp.Expr], ...], _Rule], ...] = (
    ((exp.Column,), _column),
    ((exp.Paren,), lambda node, columns: _type_of(node.this, columns)),
    ((exp.Literal,), _literal),
    ((exp.Null,), lambda node, columns: _NULL),
    ((exp.Boolean,), lambda node, columns: "boolean"),
    ((exp.Neg,), _negative),
    (_ARITHMETIC, _arithmetic),
    (_COMPARISONS, _comparison),
    ((exp.Between,), _between),
    ((exp.In,), _in),
    ((exp.Is,), _is),
    ((exp.Like,), _like),
    ((exp.And, exp.Or, exp.Not), _logical),
    ((exp.Case, exp.If), _case),
    ((exp.Coalesce, exp.Least, exp.Greatest), _same),
    ((exp.Nullif,), _nullif),
    ((exp.Cast,), _cast),
    ((exp.Abs,), _absolute),
    ((exp.Ceil, exp.Floor), _whole),
    ((exp.Round,), _round),
    (_TO_DOUBLE, _to_double),
    ((*_TO_STRING, exp.Concat, exp.DPipe), _to_string),
    ((exp.Length,), _length),
    ((exp.Substring,), _substring),
    ((exp.Count,), _count),
    ((exp.Sum,), _sum),
    ((exp.Avg,), _average),
    ((exp.StddevPop, exp.VariancePop), _to_double),
    ((exp.Min, exp.Max), _extreme),
)
"""Kinds of node and the rule for the type of their value; the first that fits."""


def _common(node: exp.Expr, operands: Iterator[exp.Expr] | Sequence[exp.Expr], columns: Mapping[str, str]) -> str:
    """The one type that all operands can take without loss of kind, as Spark widens numbers."""
    common = _NULL
    for operand in operands:
        found = _type_of(operand, columns)
        if found in (_NULL, common):
            continue
        if common == _NULL:
            common = found
        elif _group(found) == _group(common) == "number":
            common = _wider(common, found)
        else:
            raise ExpressionError(
                f"{_sql(node)}: {_a(common)} and {_a(found)} don't go together; write a cast around one of them"
            )
    return common


def _wider(left: str, right: str) -> str:
    if "double" in (left, right):
        return "double"
    if not (_is_decimal(left) or _is_decimal(right)):
        return "long"
    (p1, s1), (p2, s2) = _digits(left), _digits(right)
    whole, scale = max(p1 - s1, p2 - s2), max(s1, s2)
    return decimal_type(min(whole + scale, PRECISION_MAX), max(min(scale, PRECISION_MAX - whole), 0))


def _numeric(node: exp.Expr, operand: exp.Expr, columns: Mapping[str, str]) -> str:
    found = _type_of(operand, columns)
    if _group(found) != "number":
        raise ExpressionError(f"{_sql(node)}: expected a number, got {_a(found)}")
    return found


def _strings(node: exp.Expr, operands: Sequence[exp.Expr], columns: Mapping[str, str]) -> None:
    for operand in operands:
        _expect(node, _type_of(operand, columns), "string")


def _expect(node: exp.Expr, found: str, expected: str) -> None:
    if found not in (expected, _NULL):
        raise ExpressionError(f"{_sql(node)}: expected {_a(expected)}, got {_a(found)}")


def _group(name: str) -> str:
    return "number" if is_number(name) else name


def _a(name: str) -> str:
    return name if name == _NULL else f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _is_decimal(name: str) -> bool:
    return kind_of(name) == "decimal"


def _digits(name: str) -> tuple[int, int]:
    """Precision and scale of a number type, whole numbers as Spark sees them next to a decimal."""
    return digits_of(name) or ((20, 0) if name == "long" else (10, 0))


def _whole_literal(node: exp.Expr) -> int | None:
    """The value of a whole number that is written out, else None."""
    literal = node.this if isinstance(node, exp.Neg) else node
    if isinstance(literal, exp.Literal) and not literal.is_string and literal.name.isdigit():
        return -int(literal.name) if isinstance(node, exp.Neg) else int(literal.name)
    return None


def _literal_digits(node: exp.Expr) -> int | None:
    """The digits of a literal whole number, else None."""
    number = _whole_literal(node)
    return None if number is None else len(str(abs(number)))


def _adjusted(precision: int, scale: int) -> str:
    """Spark's answer to more than 38 digits: keep the whole part, give up fraction, but not below six places."""
    if precision > PRECISION_MAX:
        whole = precision - scale
        scale = max(PRECISION_MAX - whole, min(scale, 6))
        precision = PRECISION_MAX
    return decimal_type(precision, scale)
