"""Meaning of queries: each query is a sequence of steps after the relation that it reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import Token, TokenType

from strandline.core.documents import NODES_MAX, Path, did_you_mean
from strandline.frontends.sql.joins import Sides, joined_steps, names_selected
from strandline.frontends.sql.nodes import EVENT_TIME, Node, SqlStep, TimeClaim, united
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
from strandline.frontends.sql.tokens import SqlText
from strandline.frontends.steps import form_of
from strandline.processing.kinds.windows.window_plan import WindowForm
from strandline.processing.pipelines.expressions import ExpressionError, column_text, parse_expression

WINDOW_COLUMNS = ("window_start", "window_end", "window_time")
"""Columns that a windowing function adds to its rows. Every result has these times, even if they are not selected."""
_CONSTANTS = ("null", "true", "false")
_CONDITIONS = frozenset((
    "and", "or", "not", "between", "is", "in", "like", "rlike", "=", "==", "<>", "!=", "<", ">", "<=", ">=", "<=>",
))  # fmt: skip
_AROUND = _CONDITIONS | {"(", ")", ",", "case", "when", "then", "else", "end"}
"""Tokens around an operand that binds all of it: `>` in `a - b > c` binds all of `a - b`, but `*` would bind only `b`."""


@dataclass
class StepCount:
    """Number of steps of all jobs of a text. Each job has the steps of the views that it reads, so a short text can have many."""

    steps: int = 0
    nodes: int = 0


class Relations:
    """Relations of one job. Each view is one node, even if several queries read it."""

    def __init__(self, sql: SqlText, views: Mapping[str, NamedQuery], counts: StepCount) -> None:
        """Args: views: Views of the text, in its order. counts: Number of steps of all jobs of the text, which is increased."""
        self._sql = sql
        self._views = views
        self._streams: dict[str, Node] = {}
        self._known: dict[str, Node] = {}
        self._counts = counts

    def of_insert(self, query: Query, stage: str) -> Node:
        """Return the relation whose rows an insert writes. `stage`: name of its windows if the query gives them none."""
        for view in self._needed_views(query):
            if view.name not in self._known:
                self._known[view.name] = self._named(view, self._known)
        return self._query(query, self._known, stage)

    def _needed_views(self, query: Query) -> list[NamedQuery]:
        """Return the views that the query reads, directly or through other views, in the order of the text."""
        order = {name: number for number, name in enumerate(self._views)}
        needed: set[str] = set()
        open_: list[tuple[Query, int]] = [(query, len(order))]
        while open_:
            one, limit = open_.pop()
            for relation in _names_in(one):
                view = self._views.get(relation.name)
                if view is None:
                    continue
                if order[view.name] >= limit:
                    raise self._sql.error(relation.at, f"view '{view.name}' is created after its use; move it before")
                if view.name in needed:
                    continue
                needed.add(view.name)
                open_.append((view.query, order[view.name]))
        return [view for name, view in self._views.items() if name in needed]

    def _named(self, one: NamedQuery, known: Mapping[str, Node]) -> Node:
        node = self._query(one.query, known, one.name)
        node.name = node.name or one.name
        return node

    def _query(self, query: Query, known: Mapping[str, Node], name: str) -> Node:
        for number, one in enumerate(query.named):
            if any(one.name == other.name for other in query.named[:number]):
                raise self._sql.error(one.at, f"there is a query '{one.name}' already; choose another name")
            known = {**known, one.name: self._named(one, known)}
        source = query.source
        if isinstance(source, WindowRelation | JoinRelation):
            stage = (source.alias if isinstance(source, WindowRelation) else None) or name
            if not stage:
                raise self._sql.error(
                    source.at,
                    "the window needs a name for its results: write table(...) as NAME, or make the query a view",
                )
            if isinstance(source, JoinRelation):
                return self._joined(query, source, known, stage)
            return self._windowed(query, source, self._relation(source.source, known), stage)
        return self._plain(query, self._relation(source, known))

    def _relation(self, relation: Relation, known: Mapping[str, Node]) -> Node:
        match relation:
            case QueryRelation():
                return self._query(relation.query, known, relation.alias or "")
            case UnionRelation():
                return self._united(relation, known)
            case WindowRelation():
                raise self._sql.error(
                    relation.at,
                    "a windowing function can't read a windowing function; group the rows of the inner one first",
                )
            case JoinRelation():
                raise AssertionError("the reader returns a join only after 'from', so this is a bug; report the query")
            case StepRelation():
                takes = [self._relation(one, known) for one in (relation.source, relation.beside) if one is not None]
                places: dict[Path, int] = {(relation.verb,): relation.at}
                places |= {(relation.verb, name): at for name, at in relation.places.items()}
                step = self._step(relation.at, {relation.verb: relation.fields}, places)
                name = relation.fields.get("name") if relation.verb == "join" else None
                return self._node(
                    takes,
                    relation.at,
                    [step],
                    is_stage=relation.verb == "join",
                    name=name if isinstance(name, str) else None,
                )
        if relation.name in known:
            return known[relation.name]
        if relation.name not in self._streams:
            self._streams[relation.name] = self._node([], relation.at, [], name=relation.name)
        return self._streams[relation.name]

    def _node(
        self,
        takes: Sequence[Node],
        at: int,
        steps: list[SqlStep],
        *,
        is_stage: bool = False,
        claims: tuple[TimeClaim, ...] = (),
        name: str | None = None,
    ) -> Node:
        self._counts.nodes += 1
        is_windowed = is_stage or any(one.is_windowed for one in takes)
        return Node(tuple(takes), at, steps, self._counts.nodes, is_windowed, claims, name=name)

    def _united(self, union: UnionRelation, known: Mapping[str, Node]) -> Node:
        if len(union.queries) == 1:
            return self._query(union.queries[0], known, "")
        shown = [", ".join(names) for one in union.queries if (names := names_selected(one)) is not None]
        for one in union.queries:
            names = names_selected(one)
            if names is not None and ", ".join(names) != shown[0]:
                raise self._sql.error(
                    one.at,
                    "unites columns by name, so each part must select the same columns in one order: "
                    f"'{', '.join(names)}' here, and '{shown[0]}' before",
                )
        return self._node(united([self._query(one, known, "") for one in union.queries]), union.at, [])

    def _joined(self, query: Query, join: JoinRelation, known: Mapping[str, Node], name: str) -> Node:
        """Return the node of a query over two relations."""
        if query.group_by is not None or query.having is not None:
            raise self._sql.error(
                join.at, "groups joined rows; make the join a view, and group the rows of tumble(table VIEW, ...)"
            )
        windows = [_window_of_side(one) for one in (join.left, join.right)]
        for side, window in zip((join.left, join.right), windows, strict=True):
            if window is not None and set(window.fields) != {"tumbling"}:
                raise self._sql.error(side.at, "a join of windows needs tumble(...) without offset and time zone")
        left, right = (
            self._relation(window.source if window is not None else side, known)
            for side, window in zip((join.left, join.right), windows, strict=True)
        )
        sizes = [None if window is None else window.fields["tumbling"] for window in windows]
        sides = Sides((_qualifiers(join.left), _qualifiers(join.right)), (sizes[0], sizes[1]))
        steps, condition = joined_steps(self._sql, query, join, sides, name)
        self._count(join.at, len(steps))
        claims: list[TimeClaim] = []
        for node, window, said in zip((left, right), windows, condition.times, strict=True):
            column = said if window is None else (window.time_column, window.time_at)
            if node.is_windowed:
                if column is not None and column[0] != "window_time":
                    raise self._sql.error(
                        column[1], "the time of a window's result is the end of its window: write window_time"
                    )
                continue
            claims += [] if column is None else self._claims(node, *column)
        return self._node([left, right], query.at, steps, is_stage=True, claims=tuple(claims), name=name)

    def _claims(self, node: Node, column: str, at: int) -> list[TimeClaim]:
        """Return claims that this column of the streams is the event time of the node's rows. Raises InvalidDocument if a step
        before the node computes this column."""
        streams = node.streams
        if column != EVENT_TIME and any(column in _made_by(step.document) for one in node.way() for step in one.steps):
            differs = "; if the streams have different columns, write event_time" if len(streams) > 1 else ""
            raise self._sql.error(
                at,
                f"'{column}' is computed before, but event time is a column of the stream, with its name in the "
                f"stream{differs}",
            )
        return [TimeClaim(str(stream.name), column, at) for stream in streams]

    def _step(self, at: int, document: dict[str, Any], places: dict[Path, int]) -> SqlStep:
        self._count(at, 1)
        return SqlStep(document, places)

    def _count(self, at: int, steps: int) -> None:
        self._counts.steps += steps
        if self._counts.steps > NODES_MAX:
            raise self._sql.error(at, f"makes more than {NODES_MAX:,} steps; split the text into several files")

    def _plain(self, query: Query, before: Node) -> Node:
        """Return the node of a query without a window: conditions, new columns, a selection of columns."""
        if query.group_by is not None:
            raise self._sql.error(
                query.group_by[0].at,
                "groups all rows of a stream, so a result would never be final; read from table(tumble(table "
                "NAME, descriptor(COLUMN), interval '1' minute)), and group by window_start, window_end",
            )
        if query.having is not None:
            raise self._sql.error(query.having.at, "'having' is for groups; write 'where'")
        names = _qualifiers(query.source)
        steps: list[SqlStep] = []
        if query.where is not None:
            if before.is_windowed:
                self._refuse_window_columns(query.where)
            steps.append(self._where(query.where, names))
        derive: dict[str, str] = {}
        places: dict[Path, int] = {}
        kept: list[tuple[str, int]] = []
        star: Star | None = None
        for item in query.items:
            if isinstance(item, Star):
                if star is not None:
                    raise self._sql.error(item.at, "'*' occurs twice; remove one")
                if item.relation is not None and item.relation not in names:
                    raise self._sql.error(
                        item.at, f"no relation here has the name '{item.relation}'{did_you_mean(item.relation, names)}"
                    )
                star = item
                continue
            column = self._column(item.value, names)
            if column is not None and item.name in (None, column):
                if before.is_windowed and column in WINDOW_COLUMNS:
                    continue  # every result has these columns
                kept.append((column, item.at))
                continue
            if before.is_windowed:
                self._refuse_window_columns(item.value)
            name = self._name_of(item)
            if name in derive:
                raise self._sql.error(item.at, f"there is a column '{name}' already; choose another name")
            derive[name] = self._text(item.value, names)
            places[("derive", name)] = item.at
            kept.append((name, item.at))
        if derive:
            steps.append(self._step(query.at, {"derive": derive}, places))
        if star is None:
            if not kept:
                raise self._sql.error(query.items[0].at, "selects only the window's times; add a column")
            chosen = [name for name, _ in kept]
            steps.append(
                self._step(
                    query.at,
                    {"select": chosen},
                    {("select", number): at for number, (_, at) in enumerate(kept)},
                )
            )
        elif plain := [one for one in kept if one[0] not in derive]:
            raise self._sql.error(plain[0][1], f"'*' contains '{plain[0][0]}' already; remove one")
        elif star.without:
            steps.append(
                self._step(
                    star.at,
                    {"drop": [name for name, _ in star.without]},
                    {("drop", number): at for number, (_, at) in enumerate(star.without)},
                )
            )
        if not steps:
            return before
        return self._node([before], query.at, steps)

    def _windowed(self, query: Query, source: WindowRelation, before: Node, name: str) -> Node:
        """Return the node of a query over a windowing function: a condition, a window, a condition on its results."""
        names, form = _qualifiers(source), _form_of(source)
        steps: list[SqlStep] = []
        if query.where is not None:
            self._refuse_window_columns(query.where)
            if form.is_made_by_rows:
                within = "(table (select * from NAME where ...), ...)"
                raise self._sql.error(
                    query.where.at,
                    f"drops rows from windows that these rows have made; write {form.function}{within}",
                )
            steps.append(self._where(query.where, names))
        by = self._keys(query, source, names)
        aggregate: dict[str, str] = {}
        calls: dict[tuple[str, ...], str] = {}
        places: dict[Path, int] = {
            **{("window", "by", number): at for number, (_, at) in enumerate(by)},
            **{("window", kind): source.at for kind in source.fields},
            ("window", "name"): source.at,
        }
        keys = [one for one, _ in by]
        selected: set[str] = set()
        for item in query.items:
            if isinstance(item, Star):
                raise self._sql.error(
                    item.at, "'*' has columns that the query doesn't group by; name the keys, and aggregates"
                )
            column = self._column(item.value, names)
            if column is not None and column in (*keys, *WINDOW_COLUMNS):
                if item.name not in (None, column):
                    raise self._sql.error(
                        item.at,
                        f"'{column}' keeps its name in results; remove 'as {item.name}', or derive it before",
                    )
                selected.add(column)
                continue
            if column is not None and item.name is None:
                raise self._sql.error(
                    item.at,
                    f"'{column}' has many values in a window; group by it too, or select one value, as "
                    f"max({column}) as {column}",
                )
            result = self._name_of(item)
            if result in aggregate:
                raise self._sql.error(item.at, f"there is a column '{result}' already; choose another name")
            aggregate[result] = self._text(item.value, names)
            places[("window", "aggregate", result)] = item.at
            calls.setdefault(self._words(self._unqualified(item.value.tokens, names)), result)
        for key, at in by:
            if key not in selected:
                raise self._sql.error(at, f"groups by '{key}', which identifies the result; select it too")
        if not aggregate:
            raise self._sql.error(query.at, "has no aggregate; select one, as count(*) as n")
        window = {"name": name, **source.fields, **({"by": keys} if keys else {}), "aggregate": aggregate}
        steps.append(self._step(query.at, {"window": window}, {("window",): query.at, **places}))
        if query.having is not None:
            self._refuse_window_columns(query.having)
            steps.append(self._having(query.having, calls, names))
        claims: list[TimeClaim] = []
        if not before.is_windowed:
            claims += self._claims(before, source.time_column, source.time_at)
        elif source.time_column != "window_time":
            raise self._sql.error(
                source.time_at,
                "the time of a window's result is its last moment: write descriptor(window_time)",
            )
        return self._node([before], query.at, steps, is_stage=True, claims=tuple(claims))

    def _keys(self, query: Query, source: WindowRelation, names: frozenset[str]) -> list[tuple[str, int]]:
        """Return the columns that the query groups by, except those of the window."""
        groups = query.group_by or ()
        columns = [(self._column(one, names), one) for one in groups]
        if not any(column in ("window_start", "window_end") for column, _ in columns):
            at = groups[0].at if groups else query.at
            raise self._sql.error(
                at,
                "groups without the window, so a result would never be final; group by window_start, window_end",
            )
        form = _form_of(source)
        if form.needs_end and not any(column == "window_end" for column, _ in columns):
            raise self._sql.error(
                groups[0].at,
                f"groups all windows of {form.function}(...) that begin together, but a result belongs to one "
                "window; group by window_start, window_end",
            )
        found: list[tuple[str, int]] = []
        for column, expression in columns:
            if column is None:
                raise self._sql.error(
                    expression.at,
                    f"groups by {self._shown(expression)}; name it in an inner query, and group by that column",
                )
            if column in WINDOW_COLUMNS:
                continue
            found.append((column, expression.at))
        keys = [column for column, _ in found]
        if form.has_partitions and set(keys) != set(source.partition_by):
            by = f"write {form.function}(table NAME partition by ({', '.join(keys)}), ...)"
            raise self._sql.error(
                source.at,
                "'partition by' and 'group by' must have the same columns: those of the sessions and of their "
                f"results; {by if keys else 'remove it, or also group by that column'}",
            )
        return found

    def _where(self, condition: Expression, names: frozenset[str]) -> SqlStep:
        return self._step(condition.at, {"where": self._text(condition, names)}, {("where",): condition.at})

    def _having(self, condition: Expression, calls: Mapping[tuple[str, ...], str], names: frozenset[str]) -> SqlStep:
        """Return the step for the condition on results. Selected aggregates, and values computed from them, are replaced by
        their names."""
        tokens = self._unqualified(condition.tokens, names)
        words = self._words(tokens)
        lengths: dict[str, list[int]] = {}
        for one in sorted(calls, key=len, reverse=True):
            if not _compares(one):
                lengths.setdefault(one[0], []).append(len(one))
        instead: dict[int, str] = {}
        at = 0
        while at < len(tokens):
            ends = (end for end in _ends(words, at, lengths.get(words[at], ())) if words[at:end] in calls)
            end = next(ends, None)
            if end is not None:
                instead |= {at: column_text(calls[words[at:end]]), **dict.fromkeys(range(at + 1, end), "")}
            at = end or at + 1
        text = self._sql.written(tokens, instead)
        try:
            has_aggregate = parse_expression(text).is_aggregate
        except ExpressionError:
            has_aggregate = False  # the check reports the error
        if has_aggregate:
            raise self._sql.error(
                condition.at,
                "'having' can use only selected values; select the aggregate, as count(*) as n, and use its "
                "name here, as having n > 10",
            )
        return self._step(condition.at, {"where": text}, {("where",): condition.at})

    def _refuse_window_columns(self, expression: Expression) -> None:
        for token in expression.tokens:
            if token.token_type != TokenType.STRING and self._word(token) in WINDOW_COLUMNS:
                raise self._sql.error(
                    token.start,
                    f"'{self._word(token)}' can't be used in expressions; each result has the times of its "
                    "window, as window.start and window.end",
                )

    def _name_of(self, item: Item) -> str:
        if item.name is None:
            raise self._sql.error(
                item.at, f"{self._shown(item.value)} needs a name for the field of the result; write 'as NAME'"
            )
        return item.name

    def _shown(self, expression: Expression) -> str:
        text = self._sql.written(expression.tokens)
        return text if len(text) <= 60 else f"{text[:57]}..."

    def _column(self, expression: Expression, names: frozenset[str]) -> str | None:
        """Return the column if the expression is a single column. None otherwise."""
        tokens = self._unqualified(expression.tokens, names)
        if len(tokens) != 1:
            return None
        token = tokens[0]
        if token.token_type == TokenType.IDENTIFIER:
            return token.text
        raw = self._sql.raw(token)
        is_name = raw.isidentifier() and raw.lower() not in _CONSTANTS
        return raw if is_name and token.token_type != TokenType.STRING else None

    def _text(self, expression: Expression, names: frozenset[str]) -> str:
        return self._sql.written(self._unqualified(expression.tokens, names))

    def _words(self, tokens: Sequence[Token]) -> tuple[str, ...]:
        """Return the tokens in a form for comparison: columns are case-sensitive, functions and SQL words aren't."""
        return tuple(
            self._sql.raw(token)
            if token.token_type in (TokenType.VAR, TokenType.IDENTIFIER)
            and (following is None or following.token_type != TokenType.L_PAREN)
            else self._word(token)
            for token, following in itertools.zip_longest(tokens, tokens[1:])
        )

    def _word(self, token: Token) -> str:
        raw = self._sql.raw(token)
        return raw if token.token_type == TokenType.STRING else raw.lower()

    def _unqualified(self, tokens: tuple[Token, ...], names: frozenset[str]) -> tuple[Token, ...]:
        """Return the tokens without the name of the relation before a column: `t.power` becomes `power`. After another dot, a
        name is the member of a struct: `t.site.name` becomes `site.name`. So does `site.name` if no relation has the name
        `site`."""
        if all(token.token_type != TokenType.DOT for token in tokens):
            return tokens
        found: list[Token] = []
        at = 0
        while at < len(tokens):
            token = tokens[at]
            follows = at + 2 < len(tokens) and tokens[at + 1].token_type == TokenType.DOT
            if follows and token.token_type in (TokenType.VAR, TokenType.IDENTIFIER) and token.text in names:
                at += 2
            found.append(tokens[at])
            at += 1
            while at + 1 < len(tokens) and tokens[at].token_type == TokenType.DOT:
                found += tokens[at : at + 2]
                at += 2
        return tuple(found)


def _form_of(source: WindowRelation) -> WindowForm:
    """Return the form of the windowing function."""
    written = form_of(source.fields)
    assert written is not None, "read as such a function"
    return written.form


def _qualifiers(relation: Relation) -> frozenset[str]:
    """Return the names that can qualify the columns of the relation: its alias, or its own name if it has none."""
    alias = None if isinstance(relation, JoinRelation | UnionRelation) else relation.alias
    inner = relation.source if isinstance(relation, WindowRelation | StepRelation) else relation
    name = alias or (inner.name if isinstance(inner, NamedRelation) else None)
    return frozenset() if name is None else frozenset((name,))


def _made_by(step: Mapping[str, Any]) -> list[Any]:
    """Return the names of the columns that a step adds to its rows. The document can have any form."""
    added = (step.get("derive"), step.get("enrich", {}).get("add"), step.get("map", {}).get("columns"))
    return [name for names in added for name in (names if isinstance(names, dict | list) else [names])]


def _window_of_side(relation: Relation) -> WindowRelation | None:
    """Return the windowing function of a side of a join, given directly or as `(select * from table(tumble(...)))`. None if it
    is another relation."""
    if isinstance(relation, QueryRelation):
        query = relation.query
        is_whole = query.items == (Star((), query.items[0].at),) and not query.named
        is_whole = is_whole and query.where is None and query.group_by is None and query.having is None
        return query.source if is_whole and isinstance(query.source, WindowRelation) else None
    return relation if isinstance(relation, WindowRelation) else None


def _ends(words: tuple[str, ...], at: int, lengths: Sequence[int]) -> Iterator[int]:
    """Yield possible ends of the operand that begins at word `at`, the longest first. An operand has one of `lengths` if no
    operator around it binds a part of it. Otherwise it is the call that begins there, with its filter."""
    if at == 0 or words[at - 1] in _AROUND:
        for length in lengths:
            if at + length == len(words) or (at + length < len(words) and words[at + length] in _AROUND):
                yield at + length
    end = _bracket_end(words, at + 1)
    if end is not None:
        yield (_bracket_end(words, end + 1) if words[end : end + 1] == ("filter",) else None) or end


def _bracket_end(words: tuple[str, ...], at: int) -> int | None:
    """Return the end of the bracket that opens at word `at`. None if no bracket opens there, or if it isn't closed."""
    if at >= len(words) or words[at] != "(":
        return None
    depth = 0
    for end in range(at, len(words)):
        depth += (words[end] == "(") - (words[end] == ")")
        if depth == 0:
            return end + 1
    return None


def _compares(words: tuple[str, ...]) -> bool:
    """Return True if the words are a comparison or a condition: operators around it could bind a part of it."""
    depth = 0
    for word in words:
        depth += (word in ("(", "[", "case")) - (word in (")", "]", "end"))
        if depth == 0 and word in _CONDITIONS:
            return True
    return False


def _names_in(query: Query) -> Iterator[NamedRelation]:
    """Yield the relations that a query names, except those of its own `with`."""
    own = {one.name for one in query.named}
    for one in query.named:
        yield from _names_in(one.query)
    source: Relation = query.source
    open_ = [source]
    while open_:
        source = open_.pop()
        if isinstance(source, WindowRelation):
            open_.append(source.source)
        elif isinstance(source, StepRelation):
            open_ += [source.source, *([] if source.beside is None else [source.beside])]
        elif isinstance(source, JoinRelation):
            open_ += [source.left, source.right]
        elif isinstance(source, UnionRelation):
            open_ += [QueryRelation(one, None, one.at) for one in source.queries]
        elif isinstance(source, QueryRelation):
            yield from (relation for relation in _names_in(source.query) if relation.name not in own)
        elif source.name not in own:
            yield source
