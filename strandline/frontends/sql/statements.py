"""Statements of a SQL text, as its reader returns them. Positions are character offsets in the text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlglot import Token


@dataclass(frozen=True)
class Option:
    """`key = value` of a `with (...)`: the parts of the key, and the value as plain data."""

    key: tuple[str, ...]
    value: Any
    at: int


@dataclass(frozen=True)
class ColumnDefinition:
    name: str
    type: str
    is_optional: bool
    options: tuple[Option, ...]
    at: int


@dataclass(frozen=True)
class CreateStream:
    """A stream or a lookup: columns and options."""

    kind: str
    name: str
    columns: tuple[ColumnDefinition, ...]
    options: tuple[Option, ...]
    at: int


@dataclass(frozen=True)
class Expression:
    """A value in its written form."""

    tokens: tuple[Token, ...]

    @property
    def at(self) -> int:
        return self.tokens[0].start


@dataclass(frozen=True)
class Item:
    """One entry of a `select`: a value with or without a name."""

    value: Expression
    name: str | None
    at: int


@dataclass(frozen=True)
class Star:
    """`*`, or `* except (a, b)`."""

    without: tuple[tuple[str, int], ...]
    at: int
    relation: str | None = None
    """`t` of `t.*`. None for `*`."""


@dataclass(frozen=True)
class NamedRelation:
    """A stream, a view, or a query of `with`."""

    name: str
    alias: str | None
    at: int


@dataclass(frozen=True)
class QueryRelation:
    query: Query
    alias: str | None
    at: int


@dataclass(frozen=True)
class WindowRelation:
    """`table(tumble(table s, descriptor(ts), interval '1' minute))`, with the fields of a document's window."""

    source: Relation
    time_column: str
    time_at: int
    fields: dict[str, Any]
    alias: str | None
    at: int
    partition_by: tuple[str, ...] = ()
    """Columns of `partition by`, for sessions."""


@dataclass(frozen=True)
class StepRelation:
    """`table(enrich(table s, lookup => 'sites', ...))`: a step without a clause in queries."""

    source: Relation
    verb: str
    fields: dict[str, Any]
    places: dict[str, int]
    alias: str | None
    at: int
    beside: Relation | None = None
    """Right side of a join."""


@dataclass(frozen=True)
class ShiftedColumn:
    """A column of one side of a join, plus an offset in time."""

    side: str
    column: str
    ms: int
    at: int


@dataclass(frozen=True)
class Comparison:
    """`low = high` if `is_equal` is True, otherwise `low <= high`."""

    low: ShiftedColumn
    high: ShiftedColumn
    is_equal: bool


@dataclass(frozen=True)
class JoinRelation:
    """`left join right on ...`."""

    left: Relation
    right: Relation
    type: str
    condition: tuple[Comparison, ...]
    at: int
    is_latest: bool = False
    """True for `asof join`."""


@dataclass(frozen=True)
class UnionRelation:
    """`... union all ...`."""

    queries: tuple[Query, ...]
    at: int


Relation = NamedRelation | QueryRelation | WindowRelation | StepRelation | JoinRelation | UnionRelation


@dataclass(frozen=True)
class NamedQuery:
    """A view, or a query of `with`."""

    name: str
    query: Query
    at: int


@dataclass(frozen=True)
class Query:
    named: tuple[NamedQuery, ...]
    items: tuple[Item | Star, ...]
    source: Relation
    where: Expression | None
    group_by: tuple[Expression, ...] | None
    having: Expression | None
    at: int


@dataclass(frozen=True)
class SinkEntry:
    """Sink of an insert: an entry of a document's `emit`."""

    kind: str
    name: str
    options: tuple[Option, ...]
    at: int


@dataclass(frozen=True)
class Insert:
    places: tuple[SinkEntry, ...]
    stage: tuple[str, int] | None
    query: Query
    at: int


@dataclass(frozen=True)
class CreateJob:
    name: str
    options: tuple[Option, ...]
    inserts: tuple[Insert, ...]
    at: int


@dataclass
class Script:
    """Content of a whole text."""

    streams_and_jobs: list[CreateStream | CreateJob] = field(default_factory=list)
    views: dict[str, NamedQuery] = field(default_factory=dict)
    """Views in their order. A view can read earlier views."""
