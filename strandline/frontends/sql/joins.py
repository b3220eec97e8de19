"""The clause `join`: Flink's interval join and window join, as a join of a document.

```
from orders as o join shipments as s
on o.order_id = s.order_id and s.ts between o.ts - interval '5' minute and o.ts + interval '1' hour
```

`asof join` joins only the latest row, and its upper bound is the time of the row:
`s.ts between o.ts - interval '1' hour and o.ts`. The time of a window's result is `window_time`. Results of two windows are
joined if `window_start` and `window_end` are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import Token, TokenType

from strandline.core.documents import Path
from strandline.core.errors import InvalidDocument
from strandline.core.times.durations import format_duration, parse_duration_ms
from strandline.frontends.sql.nodes import SqlStep
from strandline.frontends.sql.statements import Comparison, Expression, Item, JoinRelation, Query, ShiftedColumn, Star
from strandline.frontends.sql.tokens import Cursor, SqlText
from strandline.frontends.sql.values import read_duration
from strandline.processing.pipelines.expressions import column_text

_TYPES = {"join": "inner", "inner": "inner", "left": "left", "full": "full"}
_WINDOW_TIMES = ("window_start", "window_end")
_TURNED = {TokenType.GTE: True, TokenType.LTE: False}
_OFFSETS = {TokenType.PLUS: 1, TokenType.DASH: -1}
_MAY_LACK = {"inner": (), "left": (1,), "full": (0, 1)}
"""Sides that can be missing in a joined row."""
_OF_BOTH_TOKENS = 10
"""Number of tokens of `coalesce(o.id, s.id)`."""
_FORM = "s.ts between o.ts - interval '5' minute and o.ts + interval '1' hour"


# Reading


def read_join_type(cursor: Cursor) -> tuple[str, bool]:
    """Read `[asof] [inner | left | full] [outer] join`. Return the type, and whether it is `asof`. Raises InvalidDocument for
    another join."""
    is_latest = cursor.takes_words("asof")
    word = cursor.word()
    if word == "right":
        raise cursor.error("'right join' is not supported; exchange the sides, and write 'left join'")
    if word not in _TYPES:
        raise cursor.error(f"'{word} join' is not supported; write 'join', 'left join' or 'full join', and 'on'")
    if word != "join":
        cursor.take()
        cursor.takes_words("outer")
    cursor.expect_words("join")
    return _TYPES[word], is_latest


def read_on(cursor: Cursor) -> tuple[Comparison, ...]:
    """Read the conditions after `on`, joined by `and`."""
    is_in_brackets = cursor.takes(TokenType.L_PAREN)
    found = _comparisons(cursor)
    while cursor.takes_words("and"):
        found += _comparisons(cursor)
    if is_in_brackets:
        cursor.expect(TokenType.R_PAREN, ")")
    return tuple(found)


def _comparisons(cursor: Cursor) -> list[Comparison]:
    first = _shifted_column(cursor)
    if cursor.takes_words("between"):
        low = _shifted_column(cursor)
        cursor.expect_words("and")
        return [Comparison(low, first, is_equal=False), Comparison(first, _shifted_column(cursor), is_equal=False)]
    kind = cursor.kind()
    if kind in (TokenType.LT, TokenType.GT):
        raise cursor.error(
            "bounds in time are inclusive; write <= or >=, or 'between' with a bound of one millisecond less"
        )
    if kind == TokenType.EQ or kind in _TURNED:
        cursor.take()
        second = _shifted_column(cursor)
        low, high = (second, first) if _TURNED.get(kind, False) else (first, second)
        return [Comparison(low, high, is_equal=kind == TokenType.EQ)]
    raise cursor.expected(
        f"'=' between columns of both sides, or bounds in time, as {_FORM}; put other conditions into 'where'"
    )


def _without_side(sql: SqlText, at: int, column: str) -> InvalidDocument:
    return sql.error(
        at, f"'{column}' can be a column of both sides of the join; write NAME.{column}, with the name of its side"
    )


def _shifted_column(cursor: Cursor) -> ShiftedColumn:
    side, at = cursor.name("a column of one side, as o.ts")
    if cursor.kind() == TokenType.L_PAREN:
        raise cursor.sql.error(
            at, f"'{side}(...)' is an expression, but 'on' compares columns; derive a column in a query of that side"
        )
    if not cursor.takes(TokenType.DOT):
        raise _without_side(cursor.sql, at, side)
    column, _ = cursor.name("a column")
    ms = 0
    while (sign := _OFFSETS.get(cursor.kind())) is not None:  # type: ignore[arg-type]
        cursor.take()
        ms += sign * parse_duration_ms(read_duration(cursor))
    return ShiftedColumn(side, column, ms, at)


# Meaning


@dataclass(frozen=True)
class Sides:
    """Both sides of a join."""

    names: tuple[frozenset[str], frozenset[str]]
    """Names of each side that can qualify its columns."""
    windows: tuple[str | None, str | None]
    """Size of the windows of each side. None if it has none."""

    def of(self, sql: SqlText, name: str, at: int) -> int:
        """Return 0 for the left side, 1 for the right side."""
        is_left, is_right = (name in names for names in self.names)
        if is_left and is_right:
            raise sql.error(at, f"both sides have the name '{name}'; give each its own name, as '{name} as a'")
        if not is_left and not is_right:
            raise sql.error(at, f"no side has the name '{name}'")
        return 0 if is_left else 1


@dataclass(frozen=True)
class JoinCondition:
    """Condition of a join, from `on`."""

    on: dict[str, int]
    """Fields that are equal on both sides -> offset in the text."""
    near: dict[str, Any]
    """`within`, `tumbling`, or `same_window`."""
    times: tuple[tuple[str, int] | None, tuple[str, int] | None]
    """Column of event time of each side, if it is named, and its offset."""


def condition_of(sql: SqlText, join: JoinRelation, sides: Sides) -> JoinCondition:
    """Return the condition. Raises InvalidDocument if a document can't express it."""
    on: dict[str, int] = {}
    bounds: dict[str, int] = {}
    times: list[tuple[str, int] | None] = [None, None]
    window_times: set[str] = set()
    for one in join.condition:
        moments = {sides.of(sql, moment.side, moment.at): moment for moment in (one.low, one.high)}
        if len(moments) < 2:
            raise sql.error(
                one.low.at,
                "compares columns of one side; move it to 'where' in a query of that side, and join that query",
            )
        left, right = moments[0], moments[1]
        if one.is_equal and not (left.ms or right.ms):
            if left.column != right.column:
                raise sql.error(
                    one.low.at,
                    f"'{left.column}' and '{right.column}' need the same name; derive it in a query of one "
                    f"side, as select *, {right.column} as {left.column}",
                )
            if left.column in _WINDOW_TIMES:
                window_times.add(left.column)
            else:
                on[left.column] = one.low.at
            continue
        if one.is_equal:
            raise sql.error(one.low.at, f"is not a range of time; write {_FORM}")
        for side, moment in moments.items():
            known = times[side]
            if known is not None and known[0] != moment.column:
                raise sql.error(
                    moment.at, f"the event time of this side is '{known[0]}' above; bounds must use one column"
                )
            times[side] = (moment.column, moment.at)
        bound = "after" if one.low is right else "before"
        bounds[bound] = min(one.high.ms - one.low.ms, bounds.get(bound, one.high.ms - one.low.ms))
        if bounds[bound] < 0:
            raise sql.error(
                one.low.at,
                "excludes rows at the same time; include the row's own time in the bounds, and filter rows by 'where'",
            )
    near = _near(sql, join, sides, bounds, window_times)
    if join.is_latest:
        if near.get("within", {}).keys() != {"before"}:
            raise sql.error(
                join.at,
                "joins the latest row that is not later, so it needs the maximum age of that row: and r.ts "
                "between l.ts - interval '1' hour and l.ts",
            )
        near["latest"] = True
    if not on:
        raise sql.error(join.at, "needs a column that is equal on both sides; write on o.order_id = s.order_id and ...")
    return JoinCondition(on, near, (times[0], times[1]))


def _near(
    sql: SqlText, join: JoinRelation, sides: Sides, bounds: Mapping[str, int], window_times: set[str]
) -> dict[str, Any]:
    left, right = sides.windows
    if left is None and right is None and window_times == set(_WINDOW_TIMES) and not bounds:
        return {"same_window": True}
    if left is None and right is None:
        if window_times:
            raise sql.error(
                join.at,
                "joins results of one window, so both window_start and window_end must be equal, without other "
                "bounds in time",
            )
        if set(bounds) != {"before", "after"}:
            raise sql.error(
                join.at,
                "needs bounds in time, because a stream has no end; write the maximum difference before and "
                f"after: and {_FORM}",
            )
        return {"within": {name: format_duration(bounds[name]) for name in ("before", "after") if bounds[name]}}
    if left is None or right is None or parse_duration_ms(left) != parse_duration_ms(right):
        raise sql.error(join.at, "joins windows, so both sides must use tumble(...) with the same size")
    if bounds or window_times != set(_WINDOW_TIMES):
        raise sql.error(
            join.at,
            "joins rows of one window, so window_start and window_end must be equal on both sides, without "
            "other bounds in time",
        )
    return {"tumbling": left}


def joined_steps(
    sql: SqlText, query: Query, join: JoinRelation, sides: Sides, name: str
) -> tuple[list[SqlStep], JoinCondition]:
    """Return the steps of the join and of its query: a condition, and new columns computed from the selected ones."""
    condition = condition_of(sql, join, sides)
    columns = _Columns(sql, sides, condition, _MAY_LACK[join.type])
    computed: list[Item] = []
    for item in query.items:
        if isinstance(item, Star):
            raise sql.error(
                item.at, "'*' has columns of both sides with the same name; name the columns, as o.amount, s.carrier"
            )
        if not columns.add(item):
            computed.append(item)
    for column, at in condition.on.items():
        if column not in columns.selected:
            raise sql.error(
                at, f"'{column}' determines which rows are joined, so each joined row has it; select it too"
            )
    document: dict[str, Any] = {"name": name, "on": list(condition.on), **condition.near}
    document |= {"type": join.type} if join.type != "inner" else {}
    document |= {"add": columns.added} if columns.added else {}
    places: dict[Path, int] = {("join",): join.at, **{("join", "add", one): at for one, at in columns.places.items()}}
    places |= {("join", "on", number): at for number, at in enumerate(condition.on.values())}
    steps = [SqlStep({"join": document}, places)]
    if query.where is not None:
        steps.append(SqlStep({"where": columns.text(query.where)}, {("where",): query.where.at}))
    derive: dict[str, str] = {}
    derived_at: dict[Path, int] = {}
    for item in computed:
        if item.name is None:
            raise sql.error(item.at, "needs a name for the field of the result; write 'as NAME'")
        if item.name in derive or item.name in columns.added:
            raise sql.error(item.at, f"there is a column '{item.name}' already; choose another name")
        derive[item.name] = columns.text(item.value)
        derived_at["derive", item.name] = item.at
    return steps + ([SqlStep({"derive": derive}, derived_at)] if derive else []), condition


class _Columns:
    """Columns of the joined rows."""

    def __init__(self, sql: SqlText, sides: Sides, condition: JoinCondition, may_lack: Sequence[int]) -> None:
        self._sql = sql
        self._sides = sides
        self._on = condition.on
        self._is_near = "within" in condition.near
        self._may_lack = may_lack
        self.added: dict[str, str] = {}
        """Name -> `left.FIELD` or `right.FIELD`."""
        self.places: dict[str, int] = {}
        self.selected: set[str] = set()
        """Selected columns of `on`."""

    def add(self, item: Item) -> bool:
        """Add an item that is a column. Return False if it is another expression."""
        tokens = item.value.tokens
        if len(tokens) == 1 and _is_name(self._sql, tokens[0]):
            side, column = None, tokens[0].text
            if column not in (*self._on, *_WINDOW_TIMES, "window_time"):
                raise _without_side(self._sql, item.at, column)
        elif len(tokens) == 3 and tokens[1].token_type == TokenType.DOT:
            side, column = self._sides.of(self._sql, tokens[0].text, tokens[0].start), tokens[2].text
        elif item.name is not None and item.name == self._of_both(tokens):
            side, column = None, item.name
        else:
            return False
        if column in (*_WINDOW_TIMES, "window_time"):
            if item.name not in (None, column):
                raise self._sql.error(item.at, f"'{column}' keeps its name in results; remove 'as {item.name}'")
            if side is not None and (self._is_near or side in self._may_lack):
                raise self._sql.error(
                    item.at,
                    f"'{self._sql.written(tokens)}' is of one side, but joined rows have their own windows; "
                    f"write {column}",
                )
            return True  # every result has these columns
        if column in self._on and (side is None or item.name in (None, column)):
            if side in self._may_lack:
                raise self._lacking(
                    tokens, f"write {self._sql.written(tokens)} as NAME, or {self._written_of_both(column)}"
                )
            if item.name not in (None, column):
                raise _without_side(self._sql, item.at, column)
            self.selected.add(column)
            return True
        name = item.name or column
        if name in self.added:
            raise self._sql.error(item.at, f"there is a column '{name}' already; choose another name")
        self.added[name] = f"{'right' if side else 'left'}.{column}"
        self.places[name] = item.at
        return True

    def text(self, expression: Expression) -> str:
        """Return an expression over the joined rows, in which columns such as `o.amount` have the names under which they are
        selected."""
        tokens = expression.tokens
        names = {taken: name for name, taken in self.added.items()}
        instead: dict[int, str] = {}
        at = 0
        while at < len(tokens):
            if (merged := self._of_both(tokens[at : at + _OF_BOTH_TOKENS])) is not None:
                instead |= {at: column_text(merged), **dict.fromkeys(range(at + 1, at + _OF_BOTH_TOKENS), "")}
                at += _OF_BOTH_TOKENS - 1
            elif (
                at + 2 < len(tokens) and tokens[at + 1].token_type == TokenType.DOT and _is_name(self._sql, tokens[at])
            ):
                side, column = self._sides.of(self._sql, tokens[at].text, tokens[at].start), tokens[at + 2].text
                is_of_both = column in self._on and side not in self._may_lack
                shown = column if is_of_both else names.get(f"{'right' if side else 'left'}.{column}")
                if shown is None and column in self._on:
                    written = self._sql.written(tokens[at : at + 3])
                    raise self._lacking(tokens[at : at + 3], f"also select {written} as NAME")
                if shown is None:
                    raise self._sql.error(
                        tokens[at].start,
                        f"uses '{tokens[at].text}.{column}', which is not selected; select it too, or use it in "
                        "a query of that side",
                    )
                instead |= {at: column_text(shown), at + 1: "", at + 2: ""}
                at += 2
            else:
                self._refuse_new_name(tokens, at)
            at += 1
        return self._sql.written(tokens, instead)

    def _refuse_new_name(self, tokens: Sequence[Token], at: int) -> None:
        """Raise InvalidDocument if token `at` is a name without a side that a selected column gets by `as` (`b` in `o.a
        as b`). In SQL it can also mean a column `b` of a side, so the text must say which.
        """
        token = tokens[at]
        is_name = token.token_type in (TokenType.VAR, TokenType.IDENTIFIER)
        is_member = at > 0 and tokens[at - 1].token_type == TokenType.DOT
        is_call = at + 1 < len(tokens) and tokens[at + 1].token_type == TokenType.L_PAREN
        if not is_name or is_member or is_call or token.text not in self.added:
            return
        side, _, column = self.added[token.text].partition(".")
        if column != token.text:
            raise self._sql.error(
                token.start,
                f"'{token.text}' is the name of '{column}' of the {side} side in results, but can also be a "
                f"column of a side; write NAME.{column}, with the name of its side",
            )

    def _of_both(self, tokens: Sequence[Token]) -> str | None:
        """Return the column of `on` in `coalesce(o.id, s.id)`: the column of the joined row. None for other expressions."""
        words = [token.text for token in tokens]
        if len(words) != _OF_BOTH_TOKENS or words[0].lower() != "coalesce" or words[1::2] != ["(", ".", ",", ".", ")"]:
            return None
        sides = {self._sides.of(self._sql, words[at], tokens[at].start) for at in (2, 6)}
        return words[4] if words[4] == words[8] and words[4] in self._on and len(sides) == 2 else None

    def _written_of_both(self, column: str) -> str:
        left, right = (f"{min(names)}.{column}" for names in self._sides.names)
        return f"coalesce({left}, {right}) as {column}" if 0 in self._may_lack else left

    def _lacking(self, tokens: Sequence[Token], remedy: str) -> InvalidDocument:
        return self._sql.error(
            tokens[0].start,
            f"'{self._sql.written(tokens)}' is null if that side has no row. Then '{tokens[2].text}' of a "
            f"joined row is that of the other side; {remedy}",
        )


def _is_name(sql: SqlText, token: Token) -> bool:
    return token.token_type == TokenType.IDENTIFIER or (
        token.token_type != TokenType.STRING and sql.raw(token).isidentifier()
    )


def names_selected(query: Query) -> Sequence[str] | None:
    """Return the names of the columns that a query selects, in their order. None if it selects `*`."""
    names: list[str] = []
    for item in query.items:
        if isinstance(item, Star):
            return None
        names.append(item.name or item.value.tokens[-1].text)
    return names
