"""Stages of a checked pipeline and emissions of records, as plain data. Light to import, because every Python worker needs it.

Each class has an `identity`: the JSON value of all that its results depend on. It doesn't contain positions in the document or
sinks, so an unrelated edit of the document doesn't change it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from strandline.processing.pipelines.event_time import RECORDS, WindowShape
from strandline.processing.pipelines.row_step import Column, DuplicateFilter, Identity, RowStep, duplicate_filter_of
from strandline.results.index_settings import IndexSettings
from strandline.results.sinks.registry import sink_of


@dataclass(frozen=True)
class Emit:
    """A sink of a stage. Two sinks are the same if kind and name are equal."""

    kind: str
    name: str
    index: IndexSettings = field(default=IndexSettings(), compare=False)
    """Settings of the indices, if the sink is an index."""
    options: str = field(default="", compare=False)
    """JSON: the options of a sink of a package."""


LEFT, RIGHT = 0, 1
"""Inputs of a join."""

LINEAGE = "@records_{}"
"""Name of an internal column with the numbers of the records that a result contains. See `Stage.with_lineage`."""
NumberColumns = tuple[tuple[str, str], ...]
"""(name, type) of columns with numbers of records."""


@dataclass(frozen=True)
class RecordPath:
    """The path of one stream's records to a stage."""

    stream: int
    """Index of the stream among the inputs of the pipeline."""
    steps: tuple[RowStep, ...]
    """All steps from the stream to the stage."""

    @property
    def identity(self) -> Identity:
        return {"stream": self.stream, "steps": identities(self.steps)}


@dataclass(frozen=True)
class StageInput:
    """The input of a stage: records of streams, or the results of another stage."""

    columns: tuple[tuple[str, str], ...]
    """(name, type) of each column that the stage can read."""
    paths: tuple[RecordPath, ...] = ()
    """For records, one path for each stream, in the order of the streams."""
    stage: int | None = None
    """For results, the index of their stage. None for records."""
    before_post_steps: bool = False
    """True if the results are read before the `post_steps` of their stage."""
    steps: tuple[RowStep, ...] = ()
    """For results, the steps between the two stages."""

    @property
    def first_steps(self) -> tuple[RowStep, ...]:
        """Steps to the stage. If records of several streams are read, the steps of the first path."""
        return self.paths[0].steps if self.paths else self.steps

    @property
    def all_steps(self) -> tuple[RowStep, ...]:
        """Steps of all paths."""
        return _steps_of(self.paths) + self.steps

    @property
    def dedupe(self) -> DuplicateFilter | None:
        """Dedupe on a path of the records. None if there is none."""
        return duplicate_filter_of(_steps_of(self.paths))

    @property
    def identity(self) -> Identity:
        if self.stage is None:
            return {"records": identities(self.paths)}
        return {
            "stage": self.stage,
            "before_post_steps": self.before_post_steps,
            "steps": identities(self.steps),
        }


@dataclass(frozen=True)
class RecordStage:
    """An emission of records, without a window: one result for each record that reaches it."""

    name: str
    fields: tuple[tuple[str, str], ...]
    """(name, type) of each column, in its order."""
    emits: tuple[Emit, ...]
    paths: tuple[RecordPath, ...]
    """One path for each stream whose records reach the stage, in the order of the streams."""
    number: int
    """Index of the step in the document."""

    @property
    def streams(self) -> tuple[str, ...]:
        """Streams that the stage emits to."""
        return _streams(self.emits)

    @property
    def steps_before(self) -> tuple[RowStep, ...]:
        """All steps on the paths to the stage."""
        return _steps_of(self.paths)

    @property
    def dedupe(self) -> DuplicateFilter | None:
        """Dedupe on the path to the stage. None if there is none."""
        return duplicate_filter_of(self.steps_before)

    @property
    def state_identity(self) -> list[Identity]:
        """All that the state of the stage's `dedupe` depends on. Empty if there is no `dedupe`."""
        dedupe = self.dedupe
        if dedupe is None:
            return []
        steps = next(path.steps for path in self.paths if dedupe in path.steps)
        return identities(steps[: steps.index(dedupe) + 1])

    @property
    def field_types(self) -> dict[str, str]:
        """Field of the result -> type."""
        return dict(self.fields)

    @property
    def emit_number(self) -> int:
        """Index of the step in the document that lists the sinks."""
        return self.number

    @property
    def identity(self) -> Identity:
        return {
            "name": self.name,
            "fields": [list(one) for one in self.fields],
            "paths": identities(self.paths),
        }


@dataclass(frozen=True)
class Stage:
    """One window, with the steps between the emission before it and itself."""

    name: str
    windows: WindowShape
    """Where the windows begin and end, regardless of what the stage reads; see `shape`."""
    by: tuple[str, ...]
    by_types: tuple[str, ...]
    aggregates: tuple[Column, ...]
    emits: tuple[Emit, ...]
    inputs: tuple[StageInput, ...]
    """One for a window, two for a join."""
    number: int
    """Index of the step in the document."""
    post_steps: tuple[RowStep, ...] = ()
    """Steps between the window and a later `emit`. Stages after this one read the rows that these steps keep."""
    emitted: tuple[tuple[str, str], ...] | None = None
    """(name, type) of each field after these steps. None if there are no such steps."""
    later_emit_number: int | None = None
    """Index of the step in the document that lists the sinks. None if the window's own step lists them."""
    revise_ms: int = 0
    """Time in ms after the end of a window, in event time, for which late records revise its result. The field REVISION of the
    result counts them. 0 if late records don't revise results."""

    packages: tuple[tuple[str, str], ...] = ()
    """(aggregate function of a package, the package with its release)."""
    kind_package: str = ""
    """Package of the kind, with its release. Empty for a kind of Strandline."""

    keyword: ClassVar[str] = "window"
    """Field of the step in the document."""
    has_aggregates: ClassVar[bool] = True
    """True if results are aggregates of the rows of a window, which come when the window closes."""

    @property
    def kind(self) -> str:
        """Name of the kind in the registry."""
        return self.windows.kind

    @property
    def path(self) -> str:
        """Path of the step in the document, for messages and dead letters."""
        return f"steps[{self.number}].{self.keyword}"

    @property
    def emit_number(self) -> int:
        """Index of the step in the document that lists the sinks."""
        return self.number if self.later_emit_number is None else self.later_emit_number

    @property
    def reads(self) -> tuple[int, ...]:
        """Indices of the stages that the inputs read, each once; RECORDS for records."""
        return tuple(dict.fromkeys(RECORDS if one.stage is None else one.stage for one in self.inputs))

    @property
    def record_paths(self) -> tuple[tuple[int, RecordPath], ...]:
        """(input, path) of each path of records to the stage."""
        return tuple((at, path) for at, one in enumerate(self.inputs) for path in one.paths)

    @property
    def result_inputs(self) -> tuple[tuple[int, StageInput], ...]:
        """(input, its content) of each input that reads results of another stage."""
        return tuple((at, one) for at, one in enumerate(self.inputs) if one.stage is not None)

    @property
    def size_ms(self) -> int:
        """Length of a window in ms; maximum for windows made by records."""
        return self.windows.size_ms

    @property
    def every_ms(self) -> int:
        """See `WindowShape.spacing_ms`."""
        return self.windows.spacing_ms

    @property
    def shape(self) -> WindowShape:
        """The windows, with what the stage reads and for how long late records revise its results."""
        horizon_ms = self.windows.memory_ms + (0 if self.dedupe is None else self.dedupe.within_ms)
        return replace(self.windows, reads=self.reads, horizon_ms=horizon_ms, revise_ms=self.revise_ms)

    @property
    def dedupe(self) -> DuplicateFilter | None:
        """Dedupe on a path of records to the stage. None if there is none."""
        return duplicate_filter_of(self.steps_before)

    @property
    def deduped_sides(self) -> list[int]:
        """Inputs whose records pass a `dedupe`."""
        return [side for side, path in self.record_paths if duplicate_filter_of(path.steps) is not None]

    @property
    def overlaps(self) -> bool:
        """See `WindowShape.overlaps`."""
        return self.windows.overlaps

    @property
    def streams(self) -> tuple[str, ...]:
        """Streams that the stage emits to."""
        return _streams(self.emits)

    @property
    def steps_before(self) -> tuple[RowStep, ...]:
        """All steps on the paths to the stage, from the streams or from the stage before."""
        return tuple(step for one in self.inputs for step in one.all_steps)

    @property
    def identifying(self) -> tuple[str, ...]:
        """Columns that identify a result among those of the same window."""
        return (*self.by, *self.windows.numbering)

    @property
    def why_not_revised(self) -> str:
        """Reason why late records can't revise results, with the remedy. Empty if they can."""
        if self.windows.needs_whole_keys:
            return (
                "with 'late: {revise: ...}' a window must be tumbling, sliding, or cumulative, because a late record can move "
                "the beginning and end of other windows; raise the delay instead"
            )
        return ""

    @property
    def why_no_updates(self) -> str:
        """Reason why open windows can't be written to `NAME.open`. Empty if they can."""
        if any(step.functions for step in self.post_steps):
            return "shows windows in another thread, which can't call functions of packages"
        return ""

    @property
    def compared_windows(self) -> object:
        """The windows, as far as an upgrade compares them. See `upgrade_facts` for other facts."""
        return self.windows

    @property
    def upgrade_facts(self) -> dict[str, object]:
        """Facts that only this kind of stage has, whose changes an upgrade reports: name in a sentence -> value."""
        return {}

    @property
    def needs_whole_keys(self) -> bool:
        """True if all rows of a key are needed together to compute a window, or a revision of its result."""
        return self.windows.needs_whole_keys or self.revise_ms > 0

    @property
    def window_types(self) -> dict[str, str]:
        """Field -> type of the window's own results: the `by` fields, then the aggregates."""
        fields = dict(zip(self.by, self.by_types, strict=True))
        return fields | {column.name: column.type for column in self.aggregates}

    @property
    def field_types(self) -> dict[str, str]:
        """Field of the result -> type, after the steps before its emission. It includes all `by` fields."""
        return self.window_types if self.emitted is None else dict(self.emitted)

    @property
    def value_types(self) -> dict[str, str]:
        """Field of the result -> type, without the `by` fields."""
        return {name: kind for name, kind in self.field_types.items() if name not in self.by}

    def with_lineage(self, given: Sequence[NumberColumns]) -> tuple[Stage, NumberColumns]:
        """Return the stage whose results also contain the numbers of their records, and the columns with these numbers.

        `given`: for each input, its columns with numbers of records. Other columns of the results don't change.
        """
        made = tuple(
            Column(LINEAGE.format(at), f"records_of(`{name}`)", "array<long>") for at, (name, _) in enumerate(given[0])
        )
        columns = tuple((one.name, one.type) for one in made)
        stage = replace(
            self,
            aggregates=(*self.aggregates, *made),
            inputs=self._inputs_with(given),
            emitted=self._emitted_with(columns),
        )
        return stage, columns

    def _inputs_with(self, given: Sequence[NumberColumns]) -> tuple[StageInput, ...]:
        return tuple(replace(one, columns=(*one.columns, *more)) for one, more in zip(self.inputs, given, strict=True))

    def _emitted_with(self, columns: NumberColumns) -> tuple[tuple[str, str], ...] | None:
        return None if self.emitted is None else (*self.emitted, *columns)

    @property
    def identity(self) -> Identity:
        """Everything that the stage's results depend on, except the stages that it reads."""
        return {
            "name": self.name,
            "windows": self.windows.identity,
            "revise_ms": self.revise_ms,
            "by": [list(pair) for pair in zip(self.by, self.by_types, strict=True)],
            "aggregates": [list(column) for column in self.aggregates],
            **({"packages": [list(one) for one in self.packages]} if self.packages else {}),
            **({"kind_package": self.kind_package} if self.kind_package else {}),
            "inputs": identities(self.inputs),
            "post_steps": identities(self.post_steps),
        }


def _steps_of(paths: Iterable[RecordPath]) -> tuple[RowStep, ...]:
    return tuple(step for path in paths for step in path.steps)


def identities(parts: Iterable[RowStep | RecordPath | StageInput]) -> list[Identity]:
    """Return the identities of these parts, without the steps that change no value."""
    found = []
    for one in parts:
        identity, package = one.identity, one.kind_package if isinstance(one, RowStep) else ""
        if identity is not None:
            found.append({**identity, "kind_package": package} if package else identity)
    return found


def _streams(emits: tuple[Emit, ...]) -> tuple[str, ...]:
    return tuple(emit.name for emit in emits if sink_of(emit).is_stream)


def first_dedupe(stages: Iterable[RecordStage | Stage]) -> DuplicateFilter | None:
    """Return the `dedupe` before one of these stages. None if there is none."""
    return next((stage.dedupe for stage in stages if stage.dedupe is not None), None)
