"""Expressions of Spark SQL, parsed and checked before Spark sees them.

An expression must have the same value in the first run and in every replay, so only these parts are allowed:

- operators, casts, and functions whose value depends only on their arguments;
- aggregates that depend only on their rows and on the log positions of these rows.

Spark receives SQL that is generated from the parsed tree, with every column quoted. So nothing that the parser didn't
understand can reach Spark. The types of the allowed parts are in `expression_types`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import ClassVar

import sqlglot
from sqlglot import Token, TokenType, exp
from sqlglot.errors import SqlglotError

from strandline.core.documents import did_you_mean
from strandline.core.errors import FunctionUnusable
from strandline.processing.aggregates.contract import AggregateFunction
from strandline.processing.aggregates.registry import BUILT_IN, package_functions, packages_of
from strandline.processing.aggregates.registry import BY_NAME as AGGREGATES
from strandline.processing.aggregates.registry import INTERNAL as INTERNAL_AGGREGATES
from strandline.processing.pipelines.aggregate_nodes import call_node, function_of
from strandline.processing.pipelines.functions.array_functions import struct_call
from strandline.processing.pipelines.functions.table import BY_NAME, CALLS, OTHER_NAMES, TABLE
from strandline.results.writer import WINDOW_END, WINDOW_START

LENGTH_MAX = 4_000
BRACKETS_DEEP_MAX = 24
"""Maximum depth of brackets, and of `case ... end`."""
OPERATORS_DEEP_MAX = 150
"""Levels of the parsed tree: `a + b + c` has three. With BRACKETS_DEEP_MAX, every process has enough stack for accepted
expressions."""
TYPE_CALLS_DEEP_MAX = 3
"""Maximum depth of types as functions; `double(int(x))` has two. The parser first tries each as a type, so its work doubles with
each level."""
WINDOW_TIMES = {"window_start": WINDOW_START, "window_end": WINDOW_END}
"""Function without arguments -> internal column that it reads: start and end of the window whose result the row is."""
WINDOW_TIME_OF = {column: name for name, column in WINDOW_TIMES.items()}
_SPLIT = "split it over several derive steps"
_SPARK = sqlglot.Dialect.get_or_raise("spark")
_WORD = re.compile(r"[^\W\d]\w*")


def _plain_call(name: str) -> Callable[[list[exp.Expr]], exp.Expr]:
    return lambda arguments: exp.Anonymous(this=name, expressions=arguments)


class _Parser(_SPARK.parser_class):  # type: ignore[misc, name-defined]
    """Spark's parser, with plain calls for functions of the table and for aggregates, whose arguments keep their positions."""

    FUNCTIONS: ClassVar = {
        **_SPARK.parser_class.FUNCTIONS,
        **{name.upper(): _plain_call(name) for name in CALLS},
        **{other.upper(): _plain_call(name) for other, name in OTHER_NAMES.items()},
        **{name.upper(): call_node(function.name) for name, function in AGGREGATES.items()},
        "STRUCT": _plain_call("struct"),
    }
    FUNCTION_PARSERS: ClassVar = {
        name: parse for name, parse in _SPARK.parser_class.FUNCTION_PARSERS.items() if name.lower() not in AGGREGATES
    }


@cache
def _parser_class() -> type[_Parser]:
    """Return the parser that also knows the aggregate functions of packages. No package replaces a built-in function."""
    added = package_functions().keys() - BY_NAME.keys() - OTHER_NAMES.keys()

    class WithPackages(_Parser):
        FUNCTIONS: ClassVar = {**_Parser.FUNCTIONS, **{name.upper(): call_node(name) for name in added}}
        FUNCTION_PARSERS: ClassVar = {
            name: parse for name, parse in _Parser.FUNCTION_PARSERS.items() if name.lower() not in added
        }

    return WithPackages


@cache
def _stored_parser_class() -> type[_Parser]:
    """Return the parser of normalised expressions, which can also call internal functions."""

    class WithInternal(_parser_class()):  # type: ignore[misc]  # a class that is made once
        FUNCTIONS: ClassVar = {
            **_parser_class().FUNCTIONS,
            **{name.upper(): call_node(name) for name in INTERNAL_AGGREGATES},
        }

    return WithInternal


_TYPE_TOKENS = _SPARK.parser_class.TYPE_TOKENS
_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END}


class ExpressionError(ValueError):
    """An expression that is refused. The message has the problem, its position in the expression, and the remedy."""


@dataclass(frozen=True)
class Expression:
    """A parsed expression that contains only allowed parts."""

    text: str
    tree: exp.Expr
    columns: tuple[str, ...]
    """Columns that the expression reads, in the order of their first use."""
    sql: str
    """Normalised Spark SQL: every column quoted, no comments."""
    is_aggregate: bool


@lru_cache(maxsize=1_024)
def parse_expression(text: str) -> Expression:
    """Return the single expression in `text`. Raises ExpressionError. Cached: the pipelines of many jobs contain the same
    expressions. Callers must not change the tree."""
    if len(text) > LENGTH_MAX:
        raise ExpressionError(f"is longer than {LENGTH_MAX:,} characters; split it over several derive steps")
    try:
        tokens = _SPARK.tokenize(text)
        _refuse_doubled_quotes(tokens)
        _refuse_deep_brackets(tokens)
        # Parsed as an expression, not as a statement: else a column named `load` or `cache` would begin a command.
        trees = [
            tree for tree in _parser_class()(dialect=_SPARK).parse_into(exp.Condition, tokens, text) if tree is not None
        ]
        if len(trees) != 1:
            raise ExpressionError(f"expected one expression, got {len(trees)}; remove the ';'")
        _refuse_deep_tree(trees[0])
        tree = _with_calls(trees[0])
        _refuse_unknown_nodes(tree, text)
        aggregates = list(tree.find_all(exp.AnonymousAggFunc))
        for call in aggregates:
            function_of(call)  # raises for a function that can't be used
        _refuse_misplaced_aggregates(tree, aggregates)
        columns = tuple(dict.fromkeys(column.name for column in tree.find_all(exp.Column)))
        sql = _written(tree)
    except SqlglotError as error:
        raise ExpressionError(_syntax_message(error)) from error
    except FunctionUnusable as error:
        raise ExpressionError(str(error)) from error
    except RecursionError as error:
        raise ExpressionError("is nested too deeply; split it over several derive steps") from error
    return Expression(text=text, tree=tree, columns=columns, sql=sql, is_aggregate=bool(aggregates))


def column_text(name: str) -> str:
    """Return the column as an expression reads it: in backticks if the word could be something else, like `true`."""
    is_plain = _WORD.fullmatch(name) and [one.token_type for one in _SPARK.tokenize(name)] == [TokenType.VAR]
    return name if is_plain else f"`{name}`"


def tree_of(sql: str) -> exp.Expr:
    """Return the tree of a normalised expression, as `parse_expression` made it."""
    parser = _stored_parser_class()(dialect=_SPARK)
    return _with_calls(parser.parse_into(exp.Condition, _SPARK.tokenize(sql), sql)[0])


@lru_cache(maxsize=1_024)
def aggregate_calls_in(sql: str) -> tuple[exp.AnonymousAggFunc, ...]:
    """Return the calls of aggregate functions in a normalised expression. Cached: callers must not change them."""
    return tuple(tree_of(sql).find_all(exp.AnonymousAggFunc))


def packages_called(texts: Iterable[str]) -> dict[str, str]:
    """Return aggregate function -> its package with the release, for functions of packages that these normalised expressions
    call."""
    return packages_of(call.name for text in texts for call in aggregate_calls_in(text))


def _written(tree: exp.Expr) -> str:
    """Return the SQL that `tree_of` reads as this tree again, because it is what is computed. Missing brackets are added if the
    tree's own SQL would be read differently. Raises ExpressionError if brackets don't help."""
    sql = _sql_with_window_times(tree)
    if _is_read_as(sql, tree):
        return sql
    for node in list(tree.find_all(*_BINDS_TIGHTER)):
        if isinstance(node.parent, _BINDS_TIGHTER[type(node)]):
            brackets = exp.Paren()
            node.replace(brackets)
            brackets.set("this", node)
    sql = _sql_with_window_times(tree)
    if not _is_read_as(sql, tree):
        raise ExpressionError(
            f"would be read as {sql_of(tree)}, which means something else; add brackets around "
            "the parts that belong together. If a string has a digit after \\0, leave out the digit"
        )
    return sql


def _sql_with_window_times(tree: exp.Expr) -> str:
    """Return the SQL of the tree, with `window_start()` and `window_end()` as they are written."""

    def as_call(node: exp.Expr) -> exp.Expr:
        name = WINDOW_TIME_OF.get(node.name) if isinstance(node, exp.Column) else None
        return node if name is None else exp.Anonymous(this=name)

    has_any = any(column.name in WINDOW_TIME_OF for column in tree.find_all(exp.Column))
    sql: str = (tree.transform(as_call) if has_any else tree).sql(dialect="spark", identify=True, comments=False)
    return sql


def _is_read_as(sql: str, tree: exp.Expr) -> bool:
    try:
        return _meaning(tree_of(sql)) == _meaning(tree)
    except SqlglotError:
        return False


def _meaning(part: object) -> object:
    """Return the meaning of a part of a tree. Brackets, quotes, and the form of a cast don't change the meaning."""
    if isinstance(part, exp.Paren):
        return _meaning(part.this)
    if isinstance(part, exp.DataType):
        return part.sql(dialect="spark")
    if isinstance(part, list):
        return [_meaning(one) for one in part]
    if not isinstance(part, exp.Expr):
        return part
    kind = exp.Cast if isinstance(part, exp.Cast) else type(part)
    return kind, {name: _meaning(value) for name, value in part.args.items() if value and name != "quoted"}


def refuse_unknown_columns(expression: Expression, known: Mapping[str, object]) -> None:
    """Raise ExpressionError for the first column that isn't in `known`, with its position and a suggestion."""
    for column in expression.tree.find_all(exp.Column):
        if column.name in WINDOW_TIME_OF and column.name not in known:
            raise ExpressionError(
                f"{WINDOW_TIME_OF[column.name]}() is only allowed in the steps after a window. Before a window, use the event "
                "time; in 'aggregate', a field that an earlier step derives"
            )
        if column.name not in known:
            raise ExpressionError(
                f"unknown column '{column.name}'{_place(column.this)}{did_you_mean(column.name, known)}"
            )


# Parts that an expression can contain

ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod)
COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ)
BITS = (exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor)
_BINDS_TIGHTER: dict[type[exp.Expr], tuple[type[exp.Expr], ...]] = {
    exp.Mod: (exp.Neg, exp.BitwiseNot),
    exp.Not: COMPARISONS,
    exp.BitwiseNot: (exp.BitwiseNot,),
}
"""Node -> nodes around it that would bind to only a part of it if it were written without brackets: `-mod(a, b)` would be written
as `-a % b`. And `~~` is another operator."""
FUNCTIONS = tuple(sorted((*BY_NAME, *(one.name for one in BUILT_IN))))
"""Names of the functions that an expression can call."""
_ALLOWED = frozenset(
    (
        *ARITHMETIC, *COMPARISONS, *BITS, *(one.node for one in TABLE if one.node is not None),
        exp.And, exp.Anonymous, exp.AnonymousAggFunc, exp.Between, exp.BitwiseNot, exp.Boolean, exp.Case, exp.Column, exp.DPipe,
        exp.DataType, exp.DataTypeParam, exp.Distinct, exp.Dot, exp.Filter, exp.Identifier, exp.In, exp.Is, exp.Like, exp.Literal,
        exp.Neg, exp.Not, exp.Null, exp.Or, exp.Paren, exp.Star, exp.Var, exp.Where,
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
    exp.Distinct: frozenset({"expressions"}),
    exp.Cast: frozenset({"this", "to", "_type"}),
    exp.TryCast: frozenset({"this", "to", "safe", "_type"}),
    exp.Between: frozenset({"this", "low", "high"}),
    exp.Identifier: frozenset({"this", "quoted"}),
}
"""Allowed arguments of nodes that have more forms than the supported ones."""
_UNSTEADY = {
    "rand", "randn", "random", "uuid", "now", "current_timestamp", "current_date", "current_time", "localtimestamp",
    "unix_timestamp", "shuffle", "monotonically_increasing_id", "spark_partition_id", "input_file_name",
}  # fmt: skip
_BY_ORDER = {
    "any_value", "collect_set", "array_agg",
    "array_unique_agg", "listagg", "string_agg", "group_concat",
}  # fmt: skip


def _refuse_doubled_quotes(tokens: Sequence[Token]) -> None:
    """Refuse doubled quotes: Spark reads 'it''s' as one string that contains a quote, but the parser reads two strings."""
    for token, following in itertools.pairwise(tokens):
        if token.token_type == following.token_type == TokenType.STRING and token.end + 1 == following.start:
            raise ExpressionError(
                f"a doubled quote at character {following.start + 1} is not supported; write \\' for a quote "
                "inside a string, or use the other kind of quotes around it"
            )


def _refuse_deep_brackets(tokens: Sequence[Token]) -> None:
    """Refuse deep brackets before parsing, because they make parsing expensive."""
    opened: list[bool] = []
    """True for each open bracket that follows the name of a type."""
    before = None
    for token in tokens:
        if token.token_type in _OPENING:
            opened.append(before in _TYPE_TOKENS)
        elif token.token_type in _CLOSING and opened:
            opened.pop()
        before = token.token_type
        for depth, depth_max, what in (
            (len(opened), BRACKETS_DEEP_MAX, "brackets"),
            (sum(opened), TYPE_CALLS_DEEP_MAX, "types, as double(...),"),
        ):
            if depth > depth_max:
                raise ExpressionError(
                    f"has more than {depth_max} {what} within each other at character {token.start + 1}; {_SPLIT}"
                )


def _refuse_deep_tree(tree: exp.Expr) -> None:
    level, depth = [tree], 0
    while level:
        depth += 1
        if depth > OPERATORS_DEEP_MAX:
            raise ExpressionError(f"is nested too deeply, more than {OPERATORS_DEEP_MAX} levels; {_SPLIT}")
        level = [child for node in level for child in node.iter_expressions()]


def _refuse_unknown_nodes(tree: exp.Expr, text: str) -> None:
    for node in tree.walk():
        is_known = not isinstance(node, exp.Anonymous) or node.name.lower() in CALLS
        if isinstance(node, exp.AnonymousAggFunc):
            is_known = isinstance(node.this, str)
        if type(node) not in _ALLOWED or not is_known:
            raise ExpressionError(_refusal(node, text))
    for node in tree.walk():
        allowed = _ARGUMENTS.get(type(node))
        extra = [name for name, value in node.args.items() if value and allowed is not None and name not in allowed]
        if extra:
            raise ExpressionError(f"{sql_of(node)}{_place(node)} has a form that is not supported here")
        if node.error_messages():
            raise ExpressionError(f"{sql_of(node)}{_place(node)} lacks an argument")
        if isinstance(node, BITS) and any(
            isinstance(one, BITS) and type(one) is not type(node) for one in _sides(node)
        ):
            raise ExpressionError(f"{sql_of(node)}: its meaning depends on precedence; add brackets")
        if isinstance(node, exp.Star) and not _is_in_aggregate(node, lambda function: function.accepts_all_rows):
            raise ExpressionError(f"'*' is only allowed in {_FOR_ALL_ROWS}")
        if isinstance(node, exp.Distinct):
            _refuse_other_distinct(node)


def _is_in_aggregate(node: exp.Expr, has: Callable[[AggregateFunction], bool]) -> bool:
    """Return True if the node is the first argument of an aggregate function with this property."""
    call = node.parent
    return isinstance(call, exp.AnonymousAggFunc) and call.expressions[0] is node and has(function_of(call))


def _refuse_other_distinct(node: exp.Distinct) -> None:
    counted = node.expressions
    is_accepted = _is_in_aggregate(node, lambda function: function.accepts_distinct)
    if not is_accepted or len(counted) != 1 or isinstance(counted[0], exp.Star):
        raise ExpressionError(
            f"{sql_of(node.parent or node)}: 'distinct' is only allowed in {_FOR_DISTINCT}, with one argument; for "
            "combinations of values, write concat(a, '/', b)"
        )


_FOR_ALL_ROWS = ", ".join(f"{function.name}(*)" for function in BUILT_IN if function.accepts_all_rows)
_FOR_DISTINCT = ", ".join(f"{function.name}(distinct x)" for function in BUILT_IN if function.accepts_distinct)


def _refusal(node: exp.Expr, text: str) -> str:
    """Return the reason why an expression can't contain this kind of node. `text`: the whole expression as written."""
    if isinstance(node, exp.Query | exp.Subquery | exp.Exists):
        return "an expression can't contain a query; it can only read the columns of its own row"
    if isinstance(node, exp.Window):
        return f"{sql_of(node)}: 'over' is not supported; use a window step to group rows"
    if isinstance(node, exp.IgnoreNulls | exp.RespectNulls):
        return f"{sql_of(node)}: remove it, because aggregates always ignore nulls"
    if isinstance(node, exp.WithinGroup):
        return f"{sql_of(node)}: 'within group' is not supported; write percentile(x, 0.95)"
    if isinstance(node, exp.Alias | exp.Aliases):
        return f"{sql_of(node)}: write the name before the ':', not in the expression"
    if isinstance(node, exp.Func):
        place, parsed = _place(node), node.sql_name().lower()
        # The parser gives functions of other databases names of its own.
        name = text[node.meta["start"] : node.meta["end"] + 1].strip("`") if place else parsed
        if {name.lower(), parsed} & _UNSTEADY:
            return f"{name}(){place} has another value in each run, but a result must be the same in every replay"
        if {name.lower(), parsed} & _BY_ORDER:
            return f"{name}(){place} depends on the order of records, which a replay can change; use min or collect_list(x, 9)"
        if place:
            meant = _SYNONYMS.get(name.lower(), name)
            return f"unknown function '{name}'{place}{did_you_mean(meant, (*FUNCTIONS, *package_functions()))}"
    if isinstance(node, exp.Bracket):
        return f"{sql_of(node)}: brackets after an array are not supported; write element_at(x, 1), which counts from 1"
    if isinstance(node, exp.Command | exp.DDL | exp.DML):
        return "expected an expression, got a statement"
    return f"{sql_of(node)} is not supported in an expression"


def _sides(node: exp.Expr) -> tuple[exp.Expr, exp.Expr]:
    return node.this, node.expression


# Special forms of the parser, as calls of functions

_EXTRACTED = {
    "YEAR": "year", "QUARTER": "quarter", "MONTH": "month", "WEEK": "weekofyear", "DAY": "day", "DAYOFWEEK": "dayofweek",
    "DOW": "dayofweek", "DOY": "dayofyear", "HOUR": "hour", "MINUTE": "minute", "SECOND": "second",
}  # fmt: skip


def _with_calls(tree: exp.Expr) -> exp.Expr:
    """Return the tree with `time + interval '1' hour`, `extract(hour from time)` and `text rlike pattern` as calls of
    functions, and with words instead of columns where a function expects a word."""
    for node in list(tree.walk()):
        call = _call_for(node)
        if call is not node:
            call.meta.update(node.meta)
            tree = call if node is tree else tree
            node.replace(call)
    return tree


def _call_for(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.RegexpLike) and not node.args.get("flag"):
        return exp.Anonymous(this="regexp_like", expressions=[node.this, node.expression])
    if isinstance(node, exp.Anonymous) and not node.expressions and node.name.lower() in WINDOW_TIMES:
        return exp.Column(this=exp.to_identifier(WINDOW_TIMES[node.name.lower()], quoted=True))
    if isinstance(node, exp.Anonymous) and node.name.lower() == "struct":
        return struct_call(node)
    if isinstance(node, exp.Column) and node.args.get("table") is not None:
        return _member(node)
    if isinstance(node, exp.RawString):
        return exp.Literal.string(node.name)
    if isinstance(node, exp.Extract):
        return _extraction(node)
    if isinstance(node, exp.Add | exp.Sub) and isinstance(node.expression, exp.Interval):
        return _moved_time(node, node.expression)
    if isinstance(node, exp.Column) and isinstance(node.parent, exp.Anonymous):
        function, at = CALLS.get(node.parent.name.lower()), node.parent.expressions.index(node)
        if function is not None and function.argument(at).is_word and not node.this.quoted:
            return exp.Var(this=node.name.upper())
    return node


def _member(node: exp.Column) -> exp.Expr:
    """Return `s.member` as a member. The parser reads it as the column of a table."""
    first, *members = [one for name in ("catalog", "db", "table", "this") if (one := node.args.get(name)) is not None]
    found: exp.Expr = exp.Column(this=first)
    for member in members:
        found = exp.Dot(this=found, expression=member)
    return found


def _extraction(node: exp.Extract) -> exp.Expr:
    part = node.name.upper()
    if part not in _EXTRACTED:
        raise ExpressionError(f"{sql_of(node)}: expected one of: {', '.join(_EXTRACTED)}")
    return exp.Anonymous(this=_EXTRACTED[part], expressions=[node.expression])


def _moved_time(node: exp.Add | exp.Sub, interval: exp.Interval) -> exp.Expr:
    count, unit = interval.this, interval.args.get("unit")
    if (
        not isinstance(count, exp.Literal)
        or not re.fullmatch(r"-?\d{1,18}", count.name)
        or not isinstance(unit, exp.Var)
    ):
        raise ExpressionError(f"{sql_of(node)}: expected an interval of one unit, as interval '90' minute")
    number = -int(count.name) if isinstance(node, exp.Sub) else int(count.name)
    literal = exp.Literal.number(abs(number))
    signed = exp.Neg(this=literal) if number < 0 else literal
    return exp.Anonymous(this="timestampadd", expressions=[exp.Var(this=unit.name.upper()), signed, node.this])


_SYNONYMS = {
    **{other: function.name for function in BUILT_IN for other in function.names_elsewhere},
    "dateadd": "timestampadd",
    "date_add": "timestampadd",
    "datediff": "timestampdiff",
    "date_diff": "timestampdiff",
    "trunc": "date_trunc",
    "to_date": "to_timestamp",
    "from_unixtime": "date_format",
    "convert_timezone": "from_utc_timestamp",
    "charindex": "instr",
    "strpos": "instr",
}


def _refuse_misplaced_aggregates(tree: exp.Expr, aggregates: Sequence[exp.Expr]) -> None:
    for filtered in tree.find_all(exp.Filter):
        if not isinstance(filtered.this, exp.AnonymousAggFunc):
            raise ExpressionError(f"{sql_of(filtered)}: 'filter' must follow an aggregate function, as count(*)")
    for aggregate in aggregates:
        if aggregate.find_ancestor(exp.AnonymousAggFunc, exp.Where):
            raise ExpressionError(f"{sql_of(aggregate)} is inside another aggregate; use a second window step for that")
    if aggregates:
        for column in tree.find_all(exp.Column):
            if not column.find_ancestor(exp.AnonymousAggFunc, exp.Where):
                raise ExpressionError(
                    f"'{column.name}'{_place(column.this)} is not in an aggregate, but a window has many values of it; "
                    f"write for example max({column.name})"
                )


def _syntax_message(error: SqlglotError) -> str:
    details = getattr(error, "errors", None) or [{}]
    described = str(details[0].get("description") or "").rstrip(".").removeprefix("Invalid expression / ")
    if not described or "<class" in described:
        described = "a part is missing or unfinished"
    column = details[0].get("col")
    near = details[0].get("highlight")
    place = f" near {near!r}, at character {column}" if near and column else ""
    remedy = {"&&": "; write 'and'", "!": "; write 'not'"}.get(str(near), "")
    return f"is not an expression of Spark SQL: {described[0].lower()}{described[1:]}{place}{remedy}"


def _place(node: exp.Expr) -> str:
    start = node.meta.get("start")
    return "" if start is None else f" at character {start + 1}"


def sql_of(node: exp.Expr) -> str:
    """Return the node as a message quotes it."""
    sql: str = node.sql(dialect="spark", comments=False)
    return sql if len(sql) <= 80 else f"{sql[:77]}..."
