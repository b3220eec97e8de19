"""The windows of a checked pipeline, and the steps between them, as plain data. Light to import: every Python worker needs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from strandline.processing.pipelines.event_time import WindowShape
from strandline.results.index_settings import IndexSettings

if TYPE_CHECKING:  # its pydantic takes a fifth of a second to import
    from strandline.processing.pipelines.model import EmitKind


class Column(NamedTuple):
    """A named expression with its normalised SQL and the type of its value."""

    name: str
    sql: str
    type: str


@dataclass(frozen=True)
class Derive:
    """Adds columns; every expression sees the columns before the step."""

    step: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Where:
    """Keeps rows for which `sql` is true (not null)."""

    step: str
    sql: str


@dataclass(frozen=True)
class Emit:
    """One sink of a stage. Two are the same sink when kind and name are."""

    kind: EmitKind
    name: str
    index: IndexSettings = field(default=IndexSettings(), compare=False)
    """Of the indices, where it is an alias of the index."""


@dataclass(frozen=True)
class Stage:
    """One window, with the steps between the stage before it and itself."""

    name: str
    size_ms: int
    by: tuple[str, ...]
    by_types: tuple[str, ...]
    aggregates: tuple[Column, ...]
    emits: tuple[Emit, ...]
    pre_steps: tuple[Derive | Where, ...]
    step: str
    """Where it stands in the document, as `steps[1]`."""
    slide_ms: int | None = None
    """How far apart sliding windows begin; None for tumbling ones."""

    @property
    def every_ms(self) -> int:
        """How far apart the windows begin: a tumbling window after each other."""
        return self.size_ms if self.slide_ms is None else self.slide_ms

    @property
    def shape(self) -> WindowShape:
        """Where its windows begin and end."""
        return WindowShape(self.size_ms, self.every_ms)

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that it emits to."""
        return tuple(emit.name for emit in self.emits if emit.kind == "stream")

    @property
    def field_types(self) -> dict[str, str]:
        """Field of the result -> type: the by fields, then the aggregates."""
        fields = dict(zip(self.by, self.by_types, strict=True))
        return fields | {column.name: column.type for column in self.aggregates}
