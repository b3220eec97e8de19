"""Reader of queries: `select ... from ... where ... group by ... having ...`, and Flink's windowing functions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sqlglot import Token, TokenType

from strandline.core.errors import InvalidDocument
from strandline.frontends.sql.joins import read_join_type, read_on
from strandline.frontends.sql.statements import (
    Expression,
    Item,
    JoinRelation,
    NamedQuery,
    NamedRelation,
    Query,
    QueryRelation,
    Relation,
    Star,
    StepRelation,
    UnionRelation,
    WindowRelation,
)
from strandline.frontends.sql.tokens import Cursor
from strandline.frontends.sql.values import read_duration, read_value
from strandline.frontends.steps import WrittenForm, step_keywords, window_functions

QUERIES_DEEP_MAX = 24
_CLAUSES_ALWAYS = ("from", "where", "group", "having")
CLAUSES = (
    *_CLAUSES_ALWAYS, "order", "sort", "cluster", "distribute", "limit", "offset", "fetch", "window",
    "qualify", "union", "intersect", "except", "minus", "lateral", "tablesample", "pivot", "unpivot", "emit",
)  # fmt: skip
"""Words that end an expression of a query, outside of brackets."""
_OPERATORS = (
    "and",
    "or",
    "not",
    "in",
    "like",
    "between",
    "is",
    "when",
    "then",
    "else",
    "case",
    "div",
    "rlike",
    "interval",
)
_DISTINCT_FROM = (["is", "distinct"], ["not", "distinct"])
"""Words before `from` in a condition."""
JOINS = ("join", "inner", "left", "right", "full", "cross", "semi", "anti", "natural", "asof")
_REFUSED = {
    "order": "results are written as their windows close, so a query can't order them; sort them when you search them",
    "limit": "a stream has no end, so there is no last result; filter results by 'having' or 'where'",
    "fetch": "a stream has no end, so there is no last result; filter results by 'having' or 'where'",
    "offset": "a stream has no end, so there is no first result to skip; filter results by 'having' or 'where'",
    "qualify": "it needs other rows without a limit; use a window of tumble(...), hop(...), or cumulate(...)",
    "window": "named frames of 'over' need earlier rows without a limit; use a window of tumble(...), hop(...),"
    " or cumulate(...)",
    "intersect": "it needs all rows of both sides, but a stream has no end",
    "except": "it needs all rows of both sides, but a stream has no end",
    "minus": "it needs all rows of both sides, but a stream has no end",
    "emit": "each window has one result, which is emitted when the window closes; remove 'emit'. To see open windows before, "
    "write the pipeline in YAML with updates at the sink: emit: [{elasticsearch: {name: NAME, updates: 10s}}]",
    "sort": "results are written as their windows close, so a query can't order them; sort them when you search them",
    "cluster": "a query doesn't control how records are distributed; remove it",
    "distribute": "a query doesn't control how records are distributed; remove it",
    "lateral": "the stream's 'explode' makes rows of an array",
    "tablesample": "each replay would have another sample; filter records by 'where'",
    "pivot": "write a column for each value, as sum(case when kind = 'a' then n end)",
    "unpivot": "write a query for each column",
}
"""Clauses that no query can have -> reason and remedy."""
_ROW_NUMBER = (
    "a number among all rows would need every row forever, and the first row by a column is known only when no earlier row "
    "can arrive. To keep the first of duplicate records within a time, use: select * from table(dedupe(table "
    "NAME, by => array['COLUMN'], within => '1h')). For the last, or the first n, of a window, use: last(x), top_n_by(x, y, n)"
)
"""Message for Flink's deduplication query."""
_NAME = re.compile(r"[^\W\d]\w*")


def read_query(cursor: Cursor, depth: int = 0) -> Query:
    """Read the query that begins here. Raises InvalidDocument, with its position, for other text and for refused clauses."""
    if depth > QUERIES_DEEP_MAX:
        raise cursor.error(
            f"has more than {QUERIES_DEEP_MAX} nested queries; name the inner queries with 'create view'"
        )
    at = cursor.here
    named = _named_queries(cursor, depth) if cursor.takes_words("with") else ()
    parts = [_part(cursor, depth)]
    while cursor.takes_words("union"):
        if not cursor.takes_words("all"):
            raise cursor.error("'union' removes duplicates, and would need every row forever; write 'union all'")
        cursor.takes_words("by", "name")
        parts.append(_part(cursor, depth))
    _refuse_other_clauses(cursor)
    if len(parts) == 1 and not (named and parts[0].named):
        return replace(parts[0], named=named) if named else parts[0]
    return Query(named, (Star((), at),), UnionRelation(tuple(parts), at), None, None, None, at)


def _part(cursor: Cursor, depth: int) -> Query:
    """Read a query without `union`, or a query in brackets."""
    if cursor.kind() == TokenType.L_PAREN and (cursor.word(1) in ("select", "with") or _opens_bracket(cursor)):
        cursor.take()
        query = read_query(cursor, depth + 1)
        cursor.expect(TokenType.R_PAREN, ")")
        return query
    at = cursor.here
    cursor.expect_words("select")
    if cursor.word() in ("distinct", "all") and cursor.kind(1) != TokenType.COMMA:
        if cursor.word() == "distinct":
            raise cursor.error("'select distinct' would need every row forever; group by the fields within a window")
        cursor.take()
    items = _items(cursor)
    if not cursor.takes_words("from"):
        raise _expected_clause(cursor, "'from'")
    source = _relation(cursor, depth)
    if cursor.word() in JOINS:
        source = _joined(cursor, source, depth)
    where = _clause(cursor, "where", "a condition")
    group_by = _group_by(cursor)
    having = _clause(cursor, "having", "a condition")
    return Query((), items, source, where, group_by, having, at)


def _joined(cursor: Cursor, left: Relation, depth: int) -> JoinRelation:
    at = cursor.here
    kind, is_latest = read_join_type(cursor)
    right = _relation(cursor, depth)
    if cursor.word() == "for":
        raise cursor.error(
            "'for system_time as of' does not limit the age of a row; write 'asof join', and in 'on' a bound: "
            "r.ts between l.ts - interval '1' hour and l.ts"
        )
    if not cursor.takes_words("on"):
        raise cursor.expected("'on', and the conditions of the join")
    condition = read_on(cursor)
    if cursor.word() in JOINS:
        raise cursor.error("a query can have one join; name the first join with 'create view', and join that view")
    return JoinRelation(left, right, kind, condition, at, is_latest)


def _opens_bracket(cursor: Cursor) -> bool:
    return cursor.kind(1) == TokenType.L_PAREN


def _named_queries(cursor: Cursor, depth: int) -> tuple[NamedQuery, ...]:
    if cursor.word() == "recursive":
        raise cursor.error("a recursive query has no end on a stream; write the steps one after the other")
    found = []
    while True:
        name, at = cursor.name("the name of a query")
        cursor.expect_words("as")
        cursor.expect(TokenType.L_PAREN, "(")
        found.append(NamedQuery(name, read_query(cursor, depth + 1), at))
        cursor.expect(TokenType.R_PAREN, ")")
        if not cursor.takes(TokenType.COMMA):
            return tuple(found)


def _items(cursor: Cursor) -> tuple[Item | Star, ...]:
    found: list[Item | Star] = []
    while True:
        found.append(_item(cursor))
        if not cursor.takes(TokenType.COMMA):
            return tuple(found)


def _item(cursor: Cursor) -> Item | Star:
    at, relation = cursor.here, None
    if cursor.kind(1) == TokenType.DOT and cursor.kind(2) == TokenType.STAR:
        relation = cursor.take().text
        cursor.take()
    if cursor.takes(TokenType.STAR):
        without: list[tuple[str, int]] = []
        if cursor.word() in ("except", "exclude") and cursor.kind(1) == TokenType.L_PAREN:
            cursor.take(), cursor.take()
            without.append(cursor.name("a column"))
            while cursor.takes(TokenType.COMMA):
                without.append(cursor.name("a column"))
            cursor.expect(TokenType.R_PAREN, ")")
        return Star(tuple(without), at, relation)
    tokens = cursor.slice_until(_ends_item, "a column or an expression")
    _refuse_over(cursor, tokens)
    name: str | None = None
    if cursor.takes_words("as"):
        name, _ = cursor.name("a name")
    elif len(tokens) > 1 and _is_name(cursor, tokens[-1]) and _ends_value(tokens[-2]):
        name = tokens.pop().text  # `count(*) n`
    return Item(Expression(tuple(tokens)), name, at)


def _is_name(cursor: Cursor, token: Token) -> bool:
    """Return True if a token can be a name without `as`."""
    return token.token_type == TokenType.IDENTIFIER or (
        token.token_type == TokenType.VAR and bool(_NAME.fullmatch(cursor.sql.raw(token)))
    )


def _ends_value(token: Token) -> bool:
    return token.token_type in (
        TokenType.VAR, TokenType.IDENTIFIER, TokenType.NUMBER, TokenType.STRING, TokenType.R_PAREN, TokenType.END,
    )  # fmt: skip


def _refuse_over(cursor: Cursor, tokens: list[Token]) -> None:
    for token, following in itertools.pairwise(tokens):
        if token.token_type == TokenType.R_PAREN and cursor.sql.raw(following).lower() == "over":
            if cursor.sql.raw(tokens[0]).lower() == "row_number":
                raise cursor.sql.error(following.start, _ROW_NUMBER)
            raise cursor.sql.error(
                following.start,
                "'over' needs earlier rows without a limit, so a result would never be final; use a window of tumble(...), "
                "hop(...), or cumulate(...)",
            )


def _ends_item(cursor: Cursor, found: Sequence[Token]) -> bool:
    return cursor.word() == "as" or _ends_condition(cursor, found)


def _ends_condition(cursor: Cursor, found: Sequence[Token]) -> bool:
    """Return True if a clause begins here. After an operator or a dot, a word is a name: `a + offset`, `t.limit`."""
    word = cursor.word()
    if word == "group" and cursor.word(1) != "by":  # `within group (...)`, or a column
        return False
    if word == "from" and [cursor.sql.raw(token).lower() for token in found[-2:]] in _DISTINCT_FROM:
        return False
    if word in _CLAUSES_ALWAYS:
        return not found or found[-1].token_type != TokenType.DOT
    return word in CLAUSES and bool(found) and _can_end(cursor.sql.raw(found[-1]))


def _can_end(raw: str) -> bool:
    """Return True if an expression can end with this token."""
    return raw.lower() not in _OPERATORS and (raw[-1].isalnum() or raw[-1] in "_)]'\"`*")


def _clause(cursor: Cursor, word: str, what: str) -> Expression | None:
    if not cursor.takes_words(word):
        return None
    tokens = cursor.slice_until(_ends_condition, what)
    _refuse_over(cursor, tokens)
    return Expression(tuple(tokens))


def _group_by(cursor: Cursor) -> tuple[Expression, ...] | None:
    if not cursor.takes_words("group"):
        return None
    cursor.expect_words("by")
    found = []
    while True:
        if (
            cursor.word() in ("cube", "rollup", "grouping")
            and cursor.word(1) != ","
            and cursor.kind(1) != TokenType.COMMA
        ):
            raise cursor.error(f"'{cursor.word()}' is not supported; write a query for each grouping")
        found.append(Expression(tuple(cursor.slice_until(_ends_condition, "a column"))))
        if not cursor.takes(TokenType.COMMA):
            return tuple(found)


def _refuse_other_clauses(cursor: Cursor) -> None:
    word = cursor.word()
    if word in _REFUSED:
        shown = "order by" if word == "order" else word
        raise cursor.error(f"'{shown}' is not supported: {_REFUSED[word]}")
    if word in JOINS:
        raise cursor.error("a join follows the first relation of 'from', before 'where'")
    if cursor.kind() == TokenType.COMMA:
        raise cursor.error("relations separated by a comma are a join of all rows; write 'a join b on ...'")


def _expected_clause(cursor: Cursor, what: str) -> InvalidDocument:
    _refuse_other_clauses(cursor)
    return cursor.expected(what)


# Relations after `from`


def _relation(cursor: Cursor, depth: int) -> Relation:
    at = cursor.here
    if cursor.word() == "lateral":
        _refuse_other_clauses(cursor)
    if cursor.kind() == TokenType.L_PAREN:
        cursor.take()
        query = read_query(cursor, depth + 1)
        cursor.expect(TokenType.R_PAREN, ")")
        return QueryRelation(query, _alias(cursor), at)
    if cursor.word() == "table" and cursor.kind(1) == TokenType.L_PAREN:
        cursor.take(), cursor.take()
        found = _function(cursor, depth)
        cursor.expect(TokenType.R_PAREN, ")")
        return replace(found, alias=_alias(cursor), at=at)
    if cursor.kind(1) == TokenType.L_PAREN and cursor.word():
        return replace(_function(cursor, depth), alias=_alias(cursor), at=at)
    name, at = cursor.name("a stream, a view, table(...) or a query in brackets")
    if cursor.kind() == TokenType.DOT:
        raise cursor.error("streams and views have names without a dot")
    return NamedRelation(name, _alias(cursor), at)


def _alias(cursor: Cursor) -> str | None:
    if cursor.takes_words("as"):
        return cursor.name("a name")[0]
    if cursor.kind() == TokenType.IDENTIFIER or (cursor.kind() == TokenType.VAR and cursor.word()):
        if cursor.word() in (*CLAUSES, *JOINS):
            return None
        return cursor.name("a name")[0]
    return None


def step_functions() -> tuple[str, ...]:
    """Return the keywords of steps that have no clause in SQL. A query calls them as functions: `enrich(table s, key =>
    'id', ...)`.
    """
    return tuple(verb for verb in step_keywords() if verb not in _NO_FUNCTIONS)


_NO_FUNCTIONS = ("derive", "where", "select", "drop", "window", "join")


def _function(cursor: Cursor, depth: int) -> WindowRelation | StepRelation:
    function = cursor.word()
    functions = window_functions()
    if function in functions:
        return _window(cursor, depth, functions[function])
    if function in (*step_functions(), "join"):
        return _step(cursor, depth)
    raise cursor.error(
        f"'{function or cursor.sql.raw(cursor.take())}' is not a function of a relation; expected one of: "
        f"{', '.join((*functions, *step_functions(), 'join'))}"
    )


def _step(cursor: Cursor, depth: int) -> StepRelation:
    """Read a step: `enrich(table s, lookup => 'sites', key => 'site_id', add => array['rated_power'])`."""
    verb, at = cursor.word(), cursor.here
    cursor.take()
    cursor.expect(TokenType.L_PAREN, "(")
    source, beside = _data_argument(cursor, depth), None
    if verb == "join":
        cursor.expect(TokenType.COMMA, ",")
        beside = _data_argument(cursor, depth)
    fields: dict[str, Any] = {}
    places: dict[str, int] = {}
    while cursor.takes(TokenType.COMMA):
        name, name_at = cursor.name("the name of a field")
        if name in fields:
            raise cursor.sql.error(name_at, f"'{name}' occurs twice")
        cursor.expect(TokenType.FARROW, "=>")
        fields[name], places[name] = read_value(cursor), name_at
    cursor.expect(TokenType.R_PAREN, ")")
    return StepRelation(source, verb, fields, places, None, at, beside)


def _window(cursor: Cursor, depth: int, written: WrittenForm) -> WindowRelation:
    """Read a windowing function: `tumble(table s, descriptor(ts), interval '1' minute)`."""
    function, function_at = cursor.word(), cursor.here
    cursor.take()
    cursor.expect(TokenType.L_PAREN, "(")
    names, needed = written.names, written.needed
    types = {one.name: one.type for one in written.form.arguments}
    given: dict[str, Any] = {}
    partition_by: tuple[str, ...] = ()
    while True:
        name = names[len(given)] if len(given) < len(names) else ""
        if cursor.kind(1) == TokenType.FARROW:
            name = cursor.word()
            if name not in names:
                raise cursor.expected(f"one of: {', '.join(names)}")
            cursor.take(), cursor.take()
        if not name:
            raise cursor.error(f"{function}(...) has at most {len(names)} arguments: {', '.join(names)}")
        if name in given:
            raise cursor.error(f"'{name}' occurs twice")
        given[name] = _ARGUMENT_READERS[types.get(name, name)](cursor, depth)
        if name == "data":
            partition_by = _partition(cursor, has_partitions=written.form.has_partitions)
        if not cursor.takes(TokenType.COMMA):
            break
    cursor.expect(TokenType.R_PAREN, ")")
    for name in needed:
        if name not in given:
            raise cursor.sql.error(function_at, f"{function}(...) lacks '{name}'; expected {', '.join(needed)}")
    time_column, time_at = given["timecol"]
    return WindowRelation(given["data"], time_column, time_at, written.fields(given), None, function_at, partition_by)


def _data_argument(cursor: Cursor, depth: int) -> Relation:
    at = cursor.here
    cursor.takes_words("table")
    if cursor.takes(TokenType.L_PAREN):
        query = read_query(cursor, depth + 1)
        cursor.expect(TokenType.R_PAREN, ")")
        return QueryRelation(query, None, at)
    name, at = cursor.name("the name of a stream or a view, or a query in brackets")
    return NamedRelation(name, None, at)


def _partition(cursor: Cursor, *, has_partitions: bool) -> tuple[str, ...]:
    """Read the columns of `partition by k` or `partition by (k, l)`. Each combination of their values has its own sessions."""
    if cursor.word() == "partition" and not has_partitions:
        raise cursor.error("the query's 'group by' determines the key of a window; remove 'partition by'")
    if not cursor.takes_words("partition", "by"):
        return ()
    is_in_brackets = cursor.takes(TokenType.L_PAREN)
    found = [cursor.name("a column")[0]]
    while is_in_brackets and cursor.takes(TokenType.COMMA):
        found.append(cursor.name("a column")[0])
    if is_in_brackets:
        cursor.expect(TokenType.R_PAREN, ")")
    return tuple(found)


def _time_argument(cursor: Cursor, depth: int) -> tuple[str, int]:
    if cursor.takes_words("descriptor"):
        cursor.expect(TokenType.L_PAREN, "(")
        found = cursor.name("the column of event time")
        cursor.expect(TokenType.R_PAREN, ")")
        return found
    return cursor.name("descriptor(COLUMN)")


def _duration_argument(cursor: Cursor, depth: int) -> str:
    return read_duration(cursor)


def _rows_argument(cursor: Cursor, depth: int) -> int:
    at, value = cursor.here, read_value(cursor)
    if type(value) is not int:
        raise cursor.sql.error(at, "is not a number of records; expected an integer, for example 100")
    return value


def _zone_argument(cursor: Cursor, depth: int) -> str:
    return cursor.text("a time zone, as 'Europe/Berlin'")[0]


def _value_argument(cursor: Cursor, depth: int) -> object:
    return read_value(cursor)


_ARGUMENT_READERS: dict[str, Callable[[Cursor, int], Any]] = {
    "data": _data_argument,
    "timecol": _time_argument,
    "offset": _duration_argument,
    "tz": _zone_argument,
    "duration": _duration_argument,
    "number": _rows_argument,
    "value": _value_argument,
}
"""Type of an argument, or name of an argument that all kinds of windows have -> its reader."""
