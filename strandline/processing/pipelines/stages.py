"""The stages of a checked pipeline (its windows, and its emissions of records) and the steps between them, as plain data. Light
to import: every Python worker needs it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from strandline.processing.pipelines.event_time import (
    RECORDS,
    CountShape,
    CumulativeDayShape,
    CumulativeShape,
    DayShape,
    JoinShape,
    SameWindowShape,
    SessionShape,
    WindowShape,
)
from strandline.results.index_settings import IndexSettings
from strandline.results.names import ROWS_JOINED, WINDOW_NUMBER

if TYPE_CHECKING:  # its pydantic takes a fifth of a second to import
    from strandline.processing.pipelines.joins.join_spec import JoinType
    from strandline.processing.pipelines.model.emissions import EmitKind


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
class Select:
    """Keeps these columns alone, in this order: what `select` and `drop` do."""

    step: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class MapRows:
    """Adds the columns that a Python function of an installed package computes."""

    step: str
    function: str
    """`package.module:function`."""
    reads: tuple[str, ...]
    """The columns that it gets."""
    columns: tuple[tuple[str, str], ...]
    """(name, type) of those that it gives."""
    may_be_null: tuple[str, ...]
    """Those of them in which no value is an answer."""
    package: str
    """The package that the function is of, with its release. A part of what the pipeline computes."""


@dataclass(frozen=True)
class Enrich:
    """Adds fields of the row of a lookup that has the record's key."""

    step: str
    lookup: str
    key: tuple[tuple[str, str], ...]
    """(field of the lookup, column whose value it must have), in the order of the lookup's key."""
    columns: tuple[Column, ...]
    """The new columns; `sql` names the lookup's field."""
    optional: bool
    """Whether a record without a row goes on, with nulls; else it is a dead letter."""

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return tuple(column for _, column in self.key)


WHOLE_RANGE_MS = 36_525 * 86_400_000
"""A hundred years: no two records are further apart, since none is from before 1970 or far ahead of its arrival."""


@dataclass(frozen=True)
class Dedupe:
    """Keeps of records with equal values the first in the log, as long as their event times are close. It needs what came before,
    so it is done behind the exchange, to the rows that the steps behind it have left: `operators/repeats.py`."""

    step: str
    by: tuple[str, ...]
    """The columns whose values say that two records are one. The stream's key is among them, so such records are in one
    partition."""
    within_ms: int
    """Records whose event times are less than this apart are compared; of a `distinct`, WHOLE_RANGE_MS."""

    @property
    def is_distinct(self) -> bool:
        """Whether all records of a batch are compared."""
        return self.within_ms == WHOLE_RANGE_MS


RowStep = Derive | Where | Select | MapRows | Enrich | Dedupe


def dedupe_of(steps: Iterable[RowStep]) -> Dedupe | None:
    """The one of these steps that leaves repeats out, if there is one."""
    return next((step for step in steps if isinstance(step, Dedupe)), None)


@dataclass(frozen=True)
class Emit:
    """One sink of a stage. Two are the same sink when kind and name are."""

    kind: EmitKind
    name: str
    index: IndexSettings = field(default=IndexSettings(), compare=False)
    """Of the indices, where it is an alias of the index."""
    options: str = field(default="", compare=False)
    """JSON: what the document says to a sink that somebody else made."""


LEFT, RIGHT = 0, 1
"""The sides of a join."""


@dataclass(frozen=True)
class Way:
    """The way of one stream's records to a window or an emission."""

    stream: int
    """The place of the stream among those that the pipeline reads."""
    steps: tuple[RowStep, ...]
    """All steps from the stream on."""
    side: int = LEFT
    """Of a join."""


class ResultsTaken(NamedTuple):
    """What a stage takes of another one."""

    side: int
    """Of a join."""
    stage: int
    """The place of the other."""
    takes_window: bool
    """Whether its results as they are, not what the `post_steps` there leave of them."""
    steps: tuple[RowStep, ...]
    """Between the two."""


@dataclass(frozen=True)
class RecordStage:
    """An emission of records, which needs no window: one result for each record that comes so far."""

    name: str
    fields: tuple[tuple[str, str], ...]
    """(name, type) of each column at its place, in their order."""
    emits: tuple[Emit, ...]
    pre_steps: tuple[RowStep, ...]
    """All steps before it, from the stream on: of the first way, if there are several."""
    step: str
    """Where it stands in the document, as `steps[1]`."""
    ways: tuple[Way, ...] = field(default=(), repr=False)
    """One for each stream whose records come here, in the order of the streams; none where it is the first stream alone."""

    @property
    def record_ways(self) -> tuple[Way, ...]:
        """The same, where it is the only one, too."""
        return self.ways or (Way(0, self.pre_steps),)

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that it emits to."""
        return _streams(self.emits)

    @property
    def steps_before(self) -> tuple[RowStep, ...]:
        """All steps on the ways to it."""
        return _steps_of(self.record_ways)

    @property
    def dedupe(self) -> Dedupe | None:
        """What leaves repeats out before it, of the records of one stream."""
        return dedupe_of(self.steps_before)

    @property
    def field_types(self) -> dict[str, str]:
        """Field of the result -> type."""
        return dict(self.fields)


@dataclass(frozen=True)
class Stage:
    """One window, with the steps between the emission before it and itself."""

    name: str
    size_ms: int
    """How long a window is; of sessions, and of windows that count, at most."""
    by: tuple[str, ...]
    by_types: tuple[str, ...]
    aggregates: tuple[Column, ...]
    emits: tuple[Emit, ...]
    pre_steps: tuple[RowStep, ...]
    """Of a first stage all steps from the stream on (of the first way, if there are several); else those behind the emission of
    the stage before."""
    step: str
    """Where it stands in the document, as `steps[1]`."""
    slide_ms: int | None = None
    """How far apart sliding windows begin, or cumulative ones end; None for tumbling ones."""
    post_steps: tuple[RowStep, ...] = ()
    """Those between the window and an `emit` behind it. A further stage takes up what they leave."""
    emitted: tuple[tuple[str, str], ...] | None = None
    """(name, type) of each field behind these steps; None: there are none."""
    emit_step: str | None = None
    """Where its `emit` stands in the document, if not beside the window."""
    gap_ms: int | None = None
    """Of sessions: how long no record may follow; None for other windows."""
    offset_ms: int = 0
    """So much later than the multiples since 1970 windows begin; or in a day."""
    zone: str | None = None
    """The time zone whose days they are, or with whose days they begin; None for UTC, where windows may have any length."""
    is_cumulative: bool = False
    """Whether windows begin together, each multiple of their greatest size, and end one step after the other."""
    takes: int | None = field(default=None, repr=False)
    """The place of the stage whose results it takes, where it is not the one before: see `WindowShape.takes`."""
    takes_window: bool = field(default=False, repr=False)
    """Whether it takes the results of that window as they are, not what the `post_steps` there leave of them."""
    ways: tuple[Way, ...] = field(default=(), repr=False)
    """Of a first stage, as of a RecordStage; of a join those to its left side, then those to its right."""
    came: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """(name, type) of each column behind the ways, where `ways` says some; a join needs none of them."""
    count: int | None = field(default=None, repr=False)
    """Of windows that count: how many rows each holds; None for other windows."""
    revise_ms: int = field(default=0, repr=False)
    """For so long after its end, in event time, late records revise a window's result, whose field REVISION counts them; 0: they
    don't."""

    @property
    def record_ways(self) -> tuple[Way, ...]:
        """Of a first stage: the ways of records to it."""
        return self.ways or (Way(0, self.pre_steps),)

    def results_taken(self, at: int) -> list[ResultsTaken]:
        """Of which stages it takes results. `at`: its own place."""
        taken = at - 1 if self.takes is None else self.takes
        return [] if taken == RECORDS else [ResultsTaken(LEFT, taken, self.takes_window, self.pre_steps)]

    @property
    def every_ms(self) -> int:
        """How far apart the windows begin: a tumbling window after each other; sessions no closer than their gap. Of cumulative
        ones, how far apart they end."""
        if self.gap_ms is not None:
            return self.gap_ms
        return self.size_ms if self.slide_ms is None else self.slide_ms

    @property
    def shape(self) -> WindowShape:
        """Where its windows begin and end."""
        more = self._of_shape
        if self.gap_ms is not None:
            return SessionShape(self.size_ms, self.gap_ms, **more)
        if self.count is not None:
            return CountShape(self.size_ms, 1, count=self.count, **more)
        if self.zone is not None:
            of_days = CumulativeDayShape if self.is_cumulative else DayShape
            return of_days(self.size_ms, self.every_ms, self.offset_ms, zone=self.zone, **more)
        kind = CumulativeShape if self.is_cumulative else WindowShape
        return kind(self.size_ms, self.every_ms, self.offset_ms, **more)

    @property
    def _of_shape(self) -> _OfShape:
        """What every shape says."""
        horizon_ms = 0 if self.dedupe is None else self.dedupe.within_ms
        return _OfShape(takes=self.takes, takes_too=None, horizon_ms=horizon_ms, revise_ms=self.revise_ms)

    @property
    def dedupe(self) -> Dedupe | None:
        """What leaves repeats out of the records that it takes, of those of one stream."""
        return dedupe_of(self.steps_before)

    @property
    def overlaps(self) -> bool:
        """Whether a record may be in several windows."""
        return self.gap_ms is None and self.every_ms < self.size_ms

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that it emits to."""
        return _streams(self.emits)

    @property
    def steps_before(self) -> tuple[RowStep, ...]:
        """All steps on the ways to it, from the stage before."""
        return _steps_of(self.record_ways)

    @property
    def identifying(self) -> tuple[str, ...]:
        """The columns that tell one of its results from the others of the same window."""
        return self.by if self.count is None else (*self.by, WINDOW_NUMBER)

    @property
    def needs_whole_keys(self) -> bool:
        """Whether a window, or a revision of its result, can be told only from all rows of its key together."""
        return self.gap_ms is not None or self.count is not None or self.revise_ms > 0

    @property
    def window_types(self) -> dict[str, str]:
        """Field -> type, as the window gives them: the by fields, then the aggregates."""
        fields = dict(zip(self.by, self.by_types, strict=True))
        return fields | {column.name: column.type for column in self.aggregates}

    @property
    def field_types(self) -> dict[str, str]:
        """Field of the result -> type, behind the steps that stand before its emission. All by fields are among them."""
        return self.window_types if self.emitted is None else dict(self.emitted)

    @property
    def value_types(self) -> dict[str, str]:
        """Those of its fields that are no by fields."""
        return {name: kind for name, kind in self.field_types.items() if name not in self.by}


class _OfShape(TypedDict):
    takes: int | None
    takes_too: int | None
    horizon_ms: int
    revise_ms: int


class JoinedColumn(NamedTuple):
    """A field of joined rows: the column of one side's row."""

    name: str
    side: int
    column: str
    type: str


@dataclass(frozen=True)
class JoinStage(Stage):
    """A join of the rows of two sides, by the `by` fields, which both have. A window in whatever goes by when results are final:
    each result has a window of its own (`JoinShape`), or that of both rows where these must be in one window. `pre_steps` are
    those of the left side; there are no aggregates."""

    right_steps: tuple[RowStep, ...] = ()
    """All steps from the stream to the right side: of the first way, if there are several."""
    streams_joined: tuple[str, ...] = ()
    """The names of the streams that the pipeline reads, by their place: where rows stand in the log is a part of their identity.
    An only one stands twice, as stages of it have always said it."""
    type: JoinType = "inner"
    """Which rows without a partner are results, too: none, those of the left side, those of both."""
    columns: tuple[JoinedColumn, ...] = ()
    """The fields beside the `by` fields."""
    before_ms: int = 0
    after_ms: int = 0
    """So much before and after a row of the left side its partners may be."""
    in_windows: bool = False
    """Whether partners are instead in one tumbling window of `size_ms`."""
    max_rows: int = 0
    """So many rows of a side that have one key are joined of those within reach of each other; one more is a dead letter."""
    right_takes: int | None = field(default=None, repr=False)
    """The place of the stage whose results are on the right; None: records are. What is on the left `takes` says."""
    right_takes_window: bool = field(default=False, repr=False)
    """As `takes_window`, of the right side."""
    same_windows: WindowShape | None = field(default=None, repr=False)
    """The windows of both sides, where partners have one window and are results of it; None: that is not asked."""

    is_latest: bool = field(default=False, repr=False)
    """Whether a row of the left side has one partner, the latest that is not later."""

    @property
    def shape(self) -> WindowShape:
        if self.same_windows is not None:
            return SameWindowShape(self.size_ms, self.same_windows.every_ms, of=self.same_windows, **self._of_shape)
        if self.in_windows:
            return WindowShape(self.size_ms, self.size_ms, **self._of_shape)
        return JoinShape(
            self.size_ms,
            1,
            before_ms=self.before_ms,
            after_ms=self.after_ms,
            is_latest=self.is_latest,
            **self._of_shape,
        )

    @property
    def _of_shape(self) -> _OfShape:
        left, right = (self.place_taken(side) for side in (LEFT, RIGHT))
        return {**super()._of_shape, "takes_too": None if left == right else right}

    @property
    def added_later(self) -> tuple[object, ...]:
        """What its text leaves out, so that joins that say nothing of it kept their digests."""
        more = self.right_takes_window, self.same_windows, self.is_latest
        return (self.right_takes is not None, self.right_takes, *more)

    def place_taken(self, side: int) -> int:
        """The place of the stage whose results are on this side, or RECORDS."""
        place = self.takes if side == LEFT else self.right_takes
        return RECORDS if place is None else place

    @property
    def of_results(self) -> tuple[int, ...]:
        """The sides that are results of windows."""
        return tuple(side for side in (LEFT, RIGHT) if self.place_taken(side) != RECORDS)

    def steps_of(self, side: int) -> tuple[RowStep, ...]:
        """Those on the (first) way to this side."""
        return self.pre_steps if side == LEFT else self.right_steps

    def results_taken(self, at: int) -> list[ResultsTaken]:
        windows = self.takes_window, self.right_takes_window
        return [
            ResultsTaken(side, self.place_taken(side), windows[side], self.steps_of(side)) for side in self.of_results
        ]

    @property
    def record_ways(self) -> tuple[Way, ...]:
        """Those to the sides that are records."""
        if self.ways:
            return self.ways
        return tuple(Way(0, self.steps_of(side), side) for side in (LEFT, RIGHT) if side not in self.of_results)

    @property
    def steps_before(self) -> tuple[RowStep, ...]:
        return _steps_of(self.record_ways) + tuple(step for side in self.of_results for step in self.steps_of(side))

    @property
    def needs_whole_keys(self) -> bool:
        """Who meets whom is told only from all rows of a key."""
        return True

    @property
    def deduped_sides(self) -> list[int]:
        """The sides that a `dedupe` stands before, on the way from the one stream whose repeats it leaves out."""
        return [way.side for way in self.record_ways if dedupe_of(way.steps) is not None]

    @property
    def identifying(self) -> tuple[str, ...]:
        return (*self.by, ROWS_JOINED)

    @property
    def window_types(self) -> dict[str, str]:
        return dict(zip(self.by, self.by_types, strict=True)) | {one.name: one.type for one in self.columns}

    def keeps(self, side: int) -> bool:
        """Whether rows of this side that have no partner are results, too."""
        return self.type == "full" or (self.type == "left" and side == LEFT)

    def hold_ms(self, side: int) -> int:
        """How long after a row of this side a partner can come, at most."""
        return self.after_ms if side == LEFT else self.before_ms


def own_shape(stage: Stage) -> WindowShape:
    """The windows that its results have, whatever it takes."""
    if isinstance(stage, JoinStage) and stage.same_windows is not None:
        return stage.same_windows
    return replace(stage.shape, takes=None, takes_too=None, horizon_ms=0)


def _steps_of(ways: Iterable[Way]) -> tuple[RowStep, ...]:
    return tuple(step for way in ways for step in way.steps)


def _streams(emits: tuple[Emit, ...]) -> tuple[str, ...]:
    return tuple(emit.name for emit in emits if emit.kind == "stream")


def first_dedupe(stages: Iterable[RecordStage | Stage]) -> Dedupe | None:
    """The `dedupe` that stands before one of these stages, if there is one."""
    return next((stage.dedupe for stage in stages if stage.dedupe is not None), None)
