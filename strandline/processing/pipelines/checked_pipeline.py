"""A pipeline that fits its stream, as `checker.check` returns it and processing compiles it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from strandline.core.stream import StreamSpec
from strandline.processing.pipelines.event_time import EventTimeRule
from strandline.processing.pipelines.model import EmitKind, PipelineSpec


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
    """One sink of a stage."""

    kind: EmitKind
    name: str


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
    def streams(self) -> tuple[str, ...]:
        """The streams that it emits to."""
        return tuple(emit.name for emit in self.emits if emit.kind == "stream")

    @property
    def field_types(self) -> dict[str, str]:
        """Field of the result -> type: the by fields, then the aggregates."""
        fields = dict(zip(self.by, self.by_types, strict=True))
        return fields | {column.name: column.type for column in self.aggregates}


@dataclass(frozen=True)
class CheckedPipeline:
    """A pipeline that fits its stream: all that processing needs, picklable."""

    spec: PipelineSpec
    stream: StreamSpec
    stages: tuple[Stage, ...]
    columns_needed: tuple[str, ...]
    """The stream's fields that the pipeline reads, in the order of the schema."""
    event_time_field: str
    delay_ms: int
    idle_timeout_ms: int | None
    max_ahead_ms: int | None

    @property
    def job(self) -> str:
        """The job's name."""
        return self.spec.pipeline

    @property
    def reach_ms(self) -> int:
        """How far back in event time open state can go: the sizes of all windows together."""
        return sum(stage.size_ms for stage in self.stages)

    @property
    def event_time_rule(self) -> EventTimeRule:
        """How event time is treated."""
        return EventTimeRule(self.delay_ms, self.idle_timeout_ms, tuple(stage.size_ms for stage in self.stages))


def aliases_of(pipeline: CheckedPipeline) -> dict[str, tuple[str, ...]]:
    """Stage -> the aliases that it emits to."""
    return {
        stage.name: tuple(emit.name for emit in stage.emits if emit.kind == "elasticsearch")
        for stage in pipeline.stages
    }
