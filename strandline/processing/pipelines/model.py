"""The `pipeline:` document and its check against the stream that it reads.

`PipelineSpec` is what the text alone can tell; `check` adds what the stream tells, and returns the `CheckedPipeline`
that processing compiles. Nothing here starts Spark: a pipeline is right or wrong before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import models_json_schema

from strandline.core.documents import Document, Path, did_you_mean, path_text
from strandline.core.durations import format_duration
from strandline.core.errors import InvalidDocument, Problem
from strandline.core.stream import FIELD_NAMES_SCHEMA, DocumentModel, Duration, FieldName, Name, StreamSpec, names_alike
from strandline.processing.pipelines.expressions import (
    ExpressionError,
    infer_type,
    parse_expression,
    refuse_unknown_columns,
)
from strandline.processing.slices.watermark import EventTimeRule
from strandline.results.document import WINDOW_FIELDS, check_emit_name


def _expression_text(value: object) -> object:
    if not isinstance(value, str) or not value.strip():
        shown = "no value" if value is None else repr(value)
        raise ValueError(
            f"expected an expression as text, got {shown}; one with a comma inside {{...}} must stand in quotes"
        )
    return value


ExpressionText = Annotated[str, BeforeValidator(_expression_text), WithJsonSchema({"type": "string", "minLength": 1})]
"""An expression of Spark SQL, as written."""


class InputSpec(DocumentModel):
    """Where records come from."""

    LATER: ClassVar[dict[str, str]] = {
        "files": "bounded inputs of files are not supported yet; read a stream",
        "query": "a query over several streams is not supported yet; read one stream",
    }
    stream: Name
    """The stream to read."""
    start: Literal["earliest", "latest"] = "earliest"
    """Where a new job begins: at the oldest record of the log, or after the newest."""


class EventTimeSpec(DocumentModel):
    """Which field says when it happened, and how much disorder is allowed."""

    field: str
    """A required timestamp field of the stream."""
    delay: Duration
    """A record may be this much older than the newest one; an older one is late."""
    idle_timeout: Duration | None = None
    """After this long without records event time runs on by itself, so that windows close; null is never."""
    max_ahead: Duration | None = Field(default=300_000, json_schema_extra={"default": "5m"})
    """A record further than this in the future of its arrival is a dead letter; null is never."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.idle_timeout == 0:
            yield (
                ("idle_timeout",),
                "expected at least 1ms, or null for never; event time would always run on by itself",
            )


class WindowSpec(DocumentModel):
    """A tumbling window: equal pieces of event time, counted from 1970-01-01 UTC."""

    LATER: ClassVar[dict[str, str]] = {
        "sliding": "sliding windows are not supported yet; only 'tumbling' is",
        "session": "session windows are not supported yet; only 'tumbling' is",
    }
    name: FieldName
    """The stage's name: in results, status and dead letters."""
    tumbling: Duration
    """The size."""
    by: list[str] = Field(default_factory=list)
    """The fields that make the key; none means one result a window."""
    aggregate: dict[FieldName, ExpressionText] = Field(min_length=1, json_schema_extra=FIELD_NAMES_SCHEMA)
    """Result field -> expression with an aggregate function."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.tumbling == 0:
            yield ("tumbling",), "a window of no length holds nothing; expected at least 1ms"
        places: list[tuple[str, Path]] = [(name, ("by", number)) for number, name in enumerate(self.by)]
        places += [(name, ("aggregate", name)) for name in self.aggregate]
        paths: dict[str, Path] = {}
        for name, path in places:
            if name in paths:
                yield path, f"'{name}' stands twice among the fields of the result; choose another name"
            if name.startswith("_"):
                yield path, f"'{name}' begins with '_', and Elasticsearch keeps such names for itself; choose another"
            paths.setdefault(name, path)
        for name, message in names_alike(paths):
            yield paths[name], message


EmitKind = Literal["elasticsearch", "stream", "counting"]


class EmitSpec(DocumentModel):
    """One place where a window's results go."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    elasticsearch: Name | None = None
    """An alias in Elasticsearch; the indices are `NAME-yyyy.MM` by the window's end."""
    stream: Name | None = None
    """A stream, which other jobs may read; one JSON document a result."""
    counting: Name | None = None
    """A sink that only counts: for benchmarks."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if sum(name is not None for name in (self.elasticsearch, self.stream, self.counting)) != 1:
            yield (), "expected exactly one of: elasticsearch, stream"
        if self.stream is not None and self.stream.endswith(".dead-letter"):
            yield ("stream",), "names that end in '.dead-letter' belong to the jobs; choose another"
        if self.elasticsearch is not None:
            try:
                check_emit_name(self.elasticsearch)
            except ValueError as error:
                yield ("elasticsearch",), str(error)

    @property
    def kind(self) -> EmitKind:
        """Which sink."""
        if self.stream is not None:
            return "stream"
        return "elasticsearch" if self.elasticsearch is not None else "counting"

    @property
    def name(self) -> str:
        """The sink's name for the results."""
        return self.elasticsearch or self.stream or self.counting or ""


class StepSpec(DocumentModel):
    """One step: `derive`, `where`, or `window` with `emit` beside it."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": [verb]} for verb in ("derive", "where", "window")]},
    )

    LATER: ClassVar[dict[str, str]] = {
        verb: f"'{verb}' is not supported yet; only derive, where and window are"
        for verb in ("enrich", "dedupe", "join", "lookup", "sort", "distinct")
    }
    derive: dict[FieldName, ExpressionText] | None = Field(
        default=None, min_length=1, json_schema_extra=FIELD_NAMES_SCHEMA
    )
    """New fields: name -> expression over the fields before this step."""
    where: ExpressionText | None = None
    """Keeps the records for which this is true."""
    window: WindowSpec | None = None
    """Collects records by time and key."""
    emit: list[EmitSpec] | None = Field(default=None, min_length=1)
    """Where the window's results go; beside `window`."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        verbs = [verb for verb in ("derive", "where", "window") if getattr(self, verb) is not None]
        if len(verbs) != 1:
            found = f"has {' and '.join(verbs)}" if verbs else "has none"
            yield (), f"a step is exactly one of derive, where, window, and this one {found}"
        elif self.emit is not None and self.window is None:
            yield ("emit",), f"'emit' stands beside 'window', not beside '{verbs[0]}'"


class CheckpointSpec(DocumentModel):
    """How often a slice is committed. Fewer and larger slices cost less; results come as late as a slice is long."""

    every: Duration | None = None
    """The shortest time between two slices; null is the control service's setting."""
    records: Annotated[int, Field(ge=1)] | None = None
    """A slice is cut before it would hold clearly more; null is the control service's setting."""


class PipelineSpec(DocumentModel):
    """A pipeline: one stream in, steps, results out."""

    pipeline: Name
    """The name, and the name of the job."""
    input: InputSpec
    """Where records come from: {stream: NAME}."""
    event_time: EventTimeSpec
    """When it happened: {field, delay}."""
    steps: list[StepSpec] = Field(min_length=1)
    """What is done, in order."""
    late: Literal["dead_letter", "drop"] = "dead_letter"
    """What becomes of a record whose windows are closed."""
    on_error: Literal["dead_letter", "crash"] = "dead_letter"
    """What becomes of a record that can't be used; crash stops the job at its slice."""
    guarantee: Literal["exactly_once", "at_least_once", "none"] = "exactly_once"
    """What a failure may do to results: nothing; repeat some; or leave records out of open windows."""
    recovery: Literal["rewind", "snapshot"] = "rewind"
    """How a start comes to the state of open windows: it reads the log again, or goes on from Spark's checkpoint on disk."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """How often progress is recorded: {every, records}."""

    def as_document(self) -> dict[str, object]:
        data = super().as_document()
        if self.event_time.max_ahead is None:  # null says never here; left out it would say the default
            data["event_time"]["max_ahead"] = None  # type: ignore[index]
        return data


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


def json_schema() -> dict[str, object]:
    """Return the JSON Schema (draft 2020-12) of one document: a stream or a pipeline. For editors and the API.

    It tells the form. What fields mean to each other (a window that divides, a column that exists) `check` tells.
    """
    _, schema = models_json_schema([(StreamSpec, "validation"), (PipelineSpec, "validation")], by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Strandline document",
        "oneOf": [{"$ref": "#/$defs/StreamSpec"}, {"$ref": "#/$defs/PipelineSpec"}],
        "$defs": schema["$defs"],
    }


def check(pipeline: PipelineSpec, stream: StreamSpec, document: Document | None = None) -> CheckedPipeline:
    """Return the pipeline with all that the stream adds to it: types, stages, the columns to read.

    Called when a job is submitted and again when its runner starts. `document`, where the pipeline was just read from
    one, gives the problems their lines. Raises InvalidDocument with every problem found.
    """
    return _Check(pipeline, stream, document).run()


class _Check:
    """One check; walks the steps in order and knows the columns in sight at each."""

    def __init__(self, pipeline: PipelineSpec, stream: StreamSpec, document: Document | None) -> None:
        self.pipeline = pipeline
        self.stream = stream
        self.document = document or Document("pipeline", pipeline.pipeline, {}, source="<stored>")
        self.problems: list[Problem] = []
        self.columns: dict[str, str | None] = dict(stream.types)
        """The columns in sight and their types; None where an error was reported already."""
        self.pending: list[Derive | Where] = []
        self.stages: list[Stage] = []
        self.columns_read: set[str] = set()

    def run(self) -> CheckedPipeline:
        """1. The stream and its event time. 2. Each step in order. 3. The windows together. 4. All problems at once."""
        event_time = self.pipeline.event_time
        self._event_time()
        for number, step in enumerate(self.pipeline.steps):
            path: Path = ("steps", number)
            if step.derive is not None:
                self._derive(path, step.derive)
            elif step.where is not None:
                self._where((*path, "where"), step.where)
            elif step.window is not None:
                self._window(path, step.window, step.emit or [])
        self._windows_together()
        if self.problems:
            raise InvalidDocument(self.problems)
        return CheckedPipeline(
            spec=self.pipeline,
            stream=self.stream,
            stages=tuple(self.stages),
            columns_needed=tuple(name for name in self.stream.fields if name in self.columns_read),
            event_time_field=event_time.field,
            delay_ms=event_time.delay,
            idle_timeout_ms=event_time.idle_timeout,
            max_ahead_ms=event_time.max_ahead,
        )

    def _add(self, path: Path, message: str) -> None:
        self.problems.append(self.document.problem(path, message))

    def _event_time(self) -> None:
        if self.pipeline.input.stream != self.stream.stream:
            self._add(("input", "stream"), f"reads '{self.pipeline.input.stream}', not '{self.stream.stream}'")
        name = self.pipeline.event_time.field
        path = ("event_time", "field")
        field = self.stream.fields.get(name)
        if field is None:
            known = [n for n, f in self.stream.fields.items() if f.type == "timestamp"] or self.stream.fields
            self._add(path, f"'{name}' is not a field of stream '{self.stream.stream}'{did_you_mean(name, known)}")
        elif field.type != "timestamp":
            self._add(path, f"'{name}' is a {field.type}; event time needs a field of type timestamp")
        elif not field.required:
            self._add(path, f"'{name}' is optional in stream '{self.stream.stream}'; event time must be required")
        else:
            self.columns_read.add(name)

    def _expression(self, path: Path, text: str, *, aggregate: bool) -> Column | None:
        """The named expression, or None once its problem is reported (or lies in a column that was reported)."""
        try:
            expression = parse_expression(text)
            if aggregate and not expression.is_aggregate:
                raise ExpressionError(f"has no aggregate function; write for example max({text})")
            if not aggregate and expression.is_aggregate:
                raise ExpressionError("aggregates stand in a window's 'aggregate' only")
            refuse_unknown_columns(expression, self.columns)
            types = {name: kind for name in expression.columns if (kind := self.columns[name]) is not None}
            if not self.stages:
                self.columns_read.update(name for name in expression.columns if name in self.stream.fields)
            if len(types) < len(expression.columns):
                return None
            return Column(str(path[-1]), expression.sql, infer_type(expression, types))
        except ExpressionError as error:
            self._add(path, f"{error} (in: {text})")
            return None

    def _derive(self, path: Path, derive: dict[str, str]) -> None:
        columns = []
        for name, text in derive.items():
            column = self._expression((*path, "derive", name), text, aggregate=False)
            if column:
                columns.append(column)
        before = {name.lower(): name for name in self.columns}
        for name in derive:
            if other := before.get(name.lower()):
                self._add((*path, "derive", name), f"there is a column '{other}' already; choose another name")
        self.columns |= dict.fromkeys(derive) | {column.name: column.type for column in columns}
        self.pending.append(Derive(path_text((*path, "derive")), tuple(columns)))

    def _where(self, path: Path, text: str) -> None:
        column = self._expression(path, text, aggregate=False)
        if column and column.type != "boolean":
            self._add(path, f"expected a condition that is true or false, got a {column.type} (in: {text})")
        elif column:
            self.pending.append(Where(path_text(path), column.sql))

    def _window(self, path: Path, window: WindowSpec, emits: list[EmitSpec]) -> None:
        inner: Path = (*path, "window")
        for number, name in enumerate(window.by):
            self._key((*inner, "by", number), name)
        aggregates = {
            name: self._expression((*inner, "aggregate", name), text, aggregate=True)
            for name, text in window.aggregate.items()
        }
        by_types = {name: self.columns.get(name) for name in window.by}
        self.columns = by_types | {name: column.type if column else None for name, column in aggregates.items()}
        self.stages.append(
            Stage(
                name=window.name,
                size_ms=window.tumbling,
                by=tuple(window.by),
                by_types=tuple(kind or "" for kind in by_types.values()),
                aggregates=tuple(column for column in aggregates.values() if column),
                emits=tuple(Emit(emit.kind, emit.name) for emit in emits),
                pre_steps=tuple(self.pending),
                step=path_text(path),
            )
        )
        self.pending = []
        self._emits(path, window, emits)

    def _emits(self, path: Path, window: WindowSpec, emits: list[EmitSpec]) -> None:
        """What a stage must keep to that emits to a stream."""
        for position, emit in enumerate(emits):
            if emit.stream is not None and emit.stream == self.pipeline.input.stream:
                self._add(
                    (*path, "emit", position, "stream"),
                    f"'{emit.stream}' is what this pipeline reads; it would read its own results. Choose another name",
                )
        if not any(emit.stream is not None for emit in emits):
            return
        places: list[tuple[str, Path]] = [(name, ("by", number)) for number, name in enumerate(window.by)]
        places += [(name, ("aggregate", name)) for name in window.aggregate]
        for name, inner in places:
            if name.lower() in WINDOW_FIELDS:
                self._add(
                    (*path, "window", *inner),
                    f"'{name}' is what the window's times are called in a stream of results; choose another name",
                )

    def _key(self, path: Path, name: str) -> None:
        """One field of a window's `by`. A later window's key comes from the window before it: it merges its results."""
        before = self.stages[-1] if self.stages else None
        if before and name not in before.by:
            allowed = f"some of: {', '.join(before.by)}" if before.by else "an empty list"
            self._add(path, f"'{name}' is not in 'by' of window '{before.name}' before it; expected {allowed}")
        elif name not in self.columns:
            self._add(path, f"unknown column '{name}'{did_you_mean(name, self.columns)}")
        elif self.columns[name] == "double":
            self._add(
                path, f"'{name}' is a double, which makes no reliable key; use a string, a whole number or a decimal"
            )
        elif not before and name in self.stream.fields:
            self.columns_read.add(name)

    def _windows_together(self) -> None:
        """What only the windows as a whole show: names, sizes, keys, sinks, and the retention that they need."""
        windows = [(number, step) for number, step in enumerate(self.pipeline.steps) if step.window is not None]
        if not windows:
            self._add(("steps",), "has no window; expected at least one step 'window: {...}'")
            return
        last, last_step = windows[-1]
        if not last_step.emit:
            self._add(
                ("steps", last),
                "the last window must emit; write 'emit: [{elasticsearch: NAME}]' or '[{stream: NAME}]' beside 'window'",
            )
        for number in range(last + 1, len(self.pipeline.steps)):
            self._add(
                ("steps", number), "stands after the last window, where it changes nothing; move it before or remove"
            )
        self._names_distinct(windows)
        for (number, step), (_, before) in zip(windows[1:], windows, strict=False):
            assert step.window is not None
            assert before.window is not None
            self._cascade(("steps", number, "window"), step.window, before.window)
        self._retention()

    def _names_distinct(self, windows: list[tuple[int, StepSpec]]) -> None:
        stages: dict[str, str] = {}
        sinks: set[tuple[str, str]] = set()
        for number, step in windows:
            assert step.window is not None
            name = step.window.name
            if other := stages.get(name.lower()):
                self._add(
                    ("steps", number, "window", "name"), f"there is a window '{other}' already; choose another name"
                )
            stages.setdefault(name.lower(), name)
            for position, emit in enumerate(step.emit or []):
                if (emit.kind, emit.name) in sinks:
                    self._add(
                        ("steps", number, "emit", position, emit.kind),
                        f"'{emit.name}' is emitted to already; each window needs a name of its own",
                    )
                sinks.add((emit.kind, emit.name))

    def _cascade(self, path: Path, window: WindowSpec, before: WindowSpec) -> None:
        if before.tumbling and window.tumbling % before.tumbling:
            self._add(
                (*path, "tumbling"),
                f"{format_duration(window.tumbling)} of window '{window.name}' is not a multiple of "
                f"{format_duration(before.tumbling)} of window '{before.name}' before it, whose windows would straddle",
            )

    def _retention(self) -> None:
        needed_ms = self.pipeline.event_time.delay + sum(stage.size_ms for stage in self.stages)
        if self.stream.retention_ms < needed_ms:
            self._add(
                ("steps",),
                f"the windows and the delay reach back {format_duration(needed_ms)}, and stream '{self.stream.stream}' "
                f"keeps records for {format_duration(self.stream.retention_ms)} only; raise its retention to "
                f"{format_duration(needed_ms)} at least",
            )
