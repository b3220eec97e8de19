"""The check of a pipeline against the stream that it reads. Starts no Spark: a pipeline is right or wrong before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from strandline.core.documents import COLUMNS_MAX, Path, YamlDocument, did_you_mean, path_text
from strandline.core.durations import FOREVER_MS, format_duration
from strandline.core.errors import PROBLEMS_MAX, InvalidDocument, Problem
from strandline.core.field_types import JSON_TYPE, WHOLE_RANGES
from strandline.core.stream import StreamSpec
from strandline.ledger.states import EventTimeRule
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.expression_types import infer_type
from strandline.processing.pipelines.expressions import ExpressionError, parse_expression, refuse_unknown_columns
from strandline.processing.pipelines.lookup_shapes import LookupShape
from strandline.processing.pipelines.model import EmitSpec, EnrichSpec, PipelineSpec, StepSpec, WindowSpec
from strandline.processing.pipelines.stages import (
    Column,
    Derive,
    Emit,
    Enrich,
    RecordStage,
    RowStep,
    Select,
    Stage,
    Where,
)
from strandline.results.names import OWN_PREFIX, WINDOW_FIELDS


def check(
    pipeline: PipelineSpec,
    stream: StreamSpec,
    document: YamlDocument | None = None,
    lookups: Mapping[str, LookupShape] | None = None,
) -> CheckedPipeline:
    """Return the pipeline with what follows from the stream: types, stages, the columns to read.

    Called when a job is submitted and again when its runner starts. `document`, if the pipeline was just read from one,
    gives the problems their lines. `lookups`: those that there are. Raises InvalidDocument with every problem found.
    """
    return _Check(pipeline, stream, document, lookups or {}).run()


class _Check:
    """One check. Walks the steps in order and keeps the columns that each may use."""

    def __init__(
        self,
        pipeline: PipelineSpec,
        stream: StreamSpec,
        document: YamlDocument | None,
        lookups: Mapping[str, LookupShape],
    ) -> None:
        self.pipeline = pipeline
        self.stream = stream
        self.document = document or YamlDocument("pipeline", pipeline.pipeline, {}, source="<stored>")
        self.problems: list[Problem] = []
        self.columns: dict[str, str | None] = dict(stream.types)
        """The usable columns and their types; None where an error was reported already."""
        self.pending: list[RowStep] = []
        """The steps since the last window or emission: since the stream, before the first window."""
        self.untaken: list[int] = []
        """The numbers of those that no window or emission has taken up yet."""
        self.last_taker = "emit"
        self.stages: list[Stage] = []
        self.record_stages: list[RecordStage] = []
        self.columns_read: set[str] = set()
        self.lookups = lookups

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
            elif step.select is not None:
                self._select((*path, "select"), step.select)
            elif step.drop is not None:
                self._drop((*path, "drop"), step.drop)
            elif step.enrich is not None:
                self._enrich((*path, "enrich"), step.enrich)
            elif step.window is not None:
                self._window(path, step.window, step.emit or [])
            elif step.emit is not None:
                self._emission(path, step)
            self.untaken = [] if step.window or step.emit else [*self.untaken, number]
            self.last_taker = "window" if step.window else "emit" if step.emit else self.last_taker
            if len(self.columns) > COLUMNS_MAX:
                self._add(path, f"leads to {len(self.columns):,} columns; expected at most {COLUMNS_MAX:,} at once")
            if len(self.columns) > COLUMNS_MAX or len(self.problems) > PROBLEMS_MAX:
                raise InvalidDocument(self.problems)
        self._windows_together()
        if self.problems:
            raise InvalidDocument(self.problems)
        return CheckedPipeline(
            spec=self.pipeline,
            stream=self.stream,
            stages=tuple(self.stages),
            record_stages=tuple(self.record_stages),
            columns_needed=tuple(name for name in self.stream.fields if name in self.columns_read),
            event_time_source=event_time.source,
            event_time_rule=EventTimeRule(
                event_time.delay, event_time.idle_timeout, event_time.max_ahead, event_time.watermark
            ),
            lookups=tuple((name, self.lookups[name].version) for name in self.pipeline.lookups()),
        )

    def _add(self, path: Path, message: str) -> None:
        self.problems.append(self.document.problem(path, message))

    def _event_time(self) -> None:
        if self.pipeline.input.stream != self.stream.stream:
            self._add(("input", "stream"), f"reads '{self.pipeline.input.stream}', not '{self.stream.stream}'")
        source = self.pipeline.event_time.source
        name, path = source.field, ("event_time", "field")
        if name is None:
            return
        field = self.stream.fields.get(name)
        if field is None:
            known = [n for n, f in self.stream.fields.items() if f.type == "timestamp"] or self.stream.fields
            self._add(path, f"'{name}' is not a field of stream '{self.stream.stream}'{did_you_mean(name, known)}")
        elif field.type != "timestamp":
            self._add(path, f"'{name}' is a {field.type}; event time needs a field of type timestamp")
        elif not field.required and not source.or_log:
            self._add(
                path,
                f"'{name}' is optional in stream '{self.stream.stream}'; require it there, or give records without it "
                "their time of arrival by 'else: log'",
            )
        else:
            self.columns_read.add(name)

    def _expression(self, path: Path, text: str, *, aggregate: bool) -> Column | None:
        """The named expression; None if it has a problem, which is reported, or uses a column with a reported one."""
        if len(self.problems) > PROBLEMS_MAX:
            return None
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

    def _select(self, path: Path, names: Sequence[str]) -> None:
        for number, name in enumerate(names):
            if name not in self.columns:
                self._add((*path, number), f"unknown column '{name}'{did_you_mean(name, self.columns)}")
            elif name in names[:number]:
                self._add((*path, number), f"'{name}' stands twice")
        self._keep(path, [name for name in dict.fromkeys(names) if name in self.columns])

    def _drop(self, path: Path, names: Sequence[str]) -> None:
        for number, name in enumerate(names):
            if name not in self.columns:
                self._add((*path, number), f"unknown column '{name}'{did_you_mean(name, self.columns)}")
        self._keep(path, [name for name in self.columns if name not in names])

    def _enrich(self, path: Path, enrich: EnrichSpec) -> None:
        """The lookup must be there, its whole key be given in columns of its types, and what is added be new."""
        if self.stages:
            self._add(
                path,
                f"stands behind window '{self.stages[-1].name}', and only records are enriched: a replay takes results of many "
                "slices at once, each of which may go by other rows. Move it before the window, or emit to a stream and enrich "
                "in a pipeline that reads it",
            )
        shape = self.lookups.get(enrich.lookup)
        if shape is None:
            self._add(
                (*path, "lookup"), f"there is no lookup '{enrich.lookup}'{did_you_mean(enrich.lookup, self.lookups)}"
            )
            self.columns |= dict.fromkeys(enrich.add)
            return
        self._lookup_key((*path, "key"), enrich, shape)
        added = []
        before = {name.lower(): name for name in self.columns}
        for name, field in enrich.add.items():
            if other := before.get(name.lower()):
                self._add(
                    (*path, "add"),
                    f"there is a column '{other}' already; give the lookup's field another name, as {{{name}_2: {field}}}",
                )
            if field not in shape.types:
                self._add(
                    (*path, "add"), f"lookup '{shape.name}' has no field '{field}'{did_you_mean(field, shape.types)}"
                )
            else:
                added.append(Column(name, field, shape.types[field]))
            before.setdefault(name.lower(), name)
        self.columns |= dict.fromkeys(enrich.add) | {column.name: column.type for column in added}
        key = tuple((field, enrich.key[field]) for field in shape.key if field in enrich.key)
        self.pending.append(Enrich(path_text(path), shape.name, key, tuple(added), enrich.optional))

    def _lookup_key(self, path: Path, enrich: EnrichSpec, shape: LookupShape) -> None:
        """Each field of the lookup's key has a column of its type; whole numbers of both sizes are compared."""
        if set(enrich.key) != set(shape.key):
            given = ", ".join(enrich.key)
            self._add(
                path,
                f"the key of lookup '{shape.name}' is {', '.join(shape.key)}, and this gives {given}; where a column has another "
                f"name, write {{{shape.key[0]}: NAME}}",
            )
            return
        for field, name in enrich.key.items():
            if name not in self.columns:
                self._add(path, f"unknown column '{name}'{did_you_mean(name, self.columns)}")
                continue
            kind, wanted = self.columns[name], shape.types[field]
            if kind is not None and kind != wanted and not {kind, wanted} <= WHOLE_RANGES.keys():
                self._add(
                    path,
                    f"'{name}' is a {kind}, and '{field}' of lookup '{shape.name}' a {wanted}; derive a column of that type "
                    f"first: cast({name} as {wanted})",
                )
            if name in self.stream.fields:
                self.columns_read.add(name)

    def _keep(self, path: Path, names: Sequence[str]) -> None:
        """Go on with these columns alone. Behind a window its `by` fields are among them: they say which result it is."""
        lost = [name for name in self.stages[-1].by if name not in names] if self.stages else []
        if lost:
            self._add(path, f"leaves out {', '.join(lost)}, by which window '{self.stages[-1].name}' groups; keep them")
            names = [*lost, *names]
        if not names:
            self._add(path, "leaves no field; expected at least one")
        self.columns = {name: self.columns[name] for name in names if name in self.columns}
        self.pending.append(Select(path_text(path), tuple(self.columns)))

    def _emission(self, path: Path, step: StepSpec) -> None:
        """An `emit` in a step of its own: behind a window of what that gives, before the first one of records."""
        emits = tuple(Emit(emit.kind, emit.name, emit.index_settings, emit.options) for emit in step.emit or [])
        fields = tuple((name, kind) for name, kind in self.columns.items() if kind is not None)
        for name in self.columns:
            if name.startswith("_"):
                self._add(
                    path, f"'{name}' begins with '_', and no field of a result may; leave it out with 'drop: [{name}]'"
                )
        if not self.stages:
            self.columns_read.update(name for name in self.columns if name in self.stream.fields)
            self.record_stages.append(
                RecordStage(step.record_stage_name, fields, emits, tuple(self.pending), path_text(path))
            )
            self._not_to_its_input(path, step.emit or [])
            self._own_names_free(path, step.emit or [], self.columns)
            return
        window = self.stages[-1]
        if step.name is not None:
            self._add((*path, "name"), f"results behind a window are of stage '{window.name}'; remove the name")
        if window.emits:
            self._add(
                (*path, "emit"), f"window '{window.name}' emits already; it has one place that says where results go"
            )
            return
        self.stages[-1] = replace(
            window, emits=emits, post_steps=tuple(self.pending), emitted=fields, emit_step=path_text(path)
        )
        self.pending = []
        self._emits(path, step.emit or [], [(name, ()) for name in self.columns])

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
                size_ms=window.size_ms,
                slide_ms=window.sliding.every if window.sliding is not None else None,
                by=tuple(window.by),
                by_types=tuple(kind or "" for kind in by_types.values()),
                aggregates=tuple(column for column in aggregates.values() if column),
                emits=tuple(Emit(emit.kind, emit.name, emit.index_settings, emit.options) for emit in emits),
                pre_steps=tuple(self.pending),
                step=path_text(path),
            )
        )
        self.pending = []
        places: list[tuple[str, Path]] = [(name, ("window", "by", number)) for number, name in enumerate(window.by)]
        places += [(name, ("window", "aggregate", name)) for name in window.aggregate]
        self._emits(path, emits, places)

    def _own_names_free(self, path: Path, emits: list[EmitSpec], names: Iterable[str]) -> None:
        """Files and tables hold the platform's own columns beside the fields."""
        if any(emit.files or emit.sql for emit in emits):
            for name in names:
                if name.lower().startswith(OWN_PREFIX):
                    self._add(
                        (*path, "emit"), f"'{name}' begins like the platform's own columns ({OWN_PREFIX}); rename it"
                    )

    def _not_to_its_input(self, path: Path, emits: list[EmitSpec]) -> None:
        for position, emit in enumerate(emits):
            if emit.stream is not None and emit.stream == self.pipeline.input.stream:
                self._add(
                    (*path, "emit", position, "stream"),
                    f"'{emit.stream}' is what this pipeline reads; it would read its own results. Choose another name",
                )

    def _emits(self, path: Path, emits: list[EmitSpec], places: list[tuple[str, Path]]) -> None:
        """The rules for a window's results that go to a stream. `places`: the fields, and where each stands in the step."""
        self._not_to_its_input(path, emits)
        self._own_names_free(path, emits, [name for name, _ in places])
        if not any(emit.stream is not None for emit in emits):
            return
        for name, inner in places:
            if name.lower() in WINDOW_FIELDS:
                self._add(
                    (*path, *inner),
                    f"'{name}' is what the window's times are called in a stream of results; choose another name",
                )

    def _key(self, path: Path, name: str) -> None:
        """One field of a window's `by`. A later window merges the results of the one before, so it may use only its key."""
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
            if self.stream.fields[name].type == JSON_TYPE:
                self._add(
                    path, f"'{name}' is json, of which two texts may mean the same; declare the member that is the key"
                )
            self.columns_read.add(name)

    def _windows_together(self) -> None:
        """The rules between windows: names, sizes, keys, sinks, and the retention that they need together."""
        windows = [(number, step) for number, step in enumerate(self.pipeline.steps) if step.window is not None]
        if not windows and not self.record_stages:
            self._add(
                ("steps",),
                "has neither a window nor an 'emit'; expected at least one step 'window: {...}' or 'emit: [...]'",
            )
            return
        if windows and not self.stages[-1].emits:
            self._add(
                ("steps", windows[-1][0]),
                "the last window must emit; write 'emit: [{elasticsearch: NAME}]' or '[{stream: NAME}]' beside 'window'",
            )
        for number in self.untaken:
            self._add(
                ("steps", number),
                f"stands after the last {self.last_taker}, where it changes nothing; move it before or remove",
            )
        self._names_distinct()
        for (number, step), (_, before) in zip(windows[1:], windows, strict=False):
            assert step.window is not None
            assert before.window is not None
            self._cascade(("steps", number, "window"), step.window, before.window)
        self._retention()

    def _names_distinct(self) -> None:
        stages: dict[str, str] = {}
        sinks: set[tuple[str, str]] = set()
        for number, step in enumerate(self.pipeline.steps):
            is_record_stage = (
                step.window is None
                and step.emit is not None
                and any(stage.step == path_text(("steps", number)) for stage in self.record_stages)
            )
            if step.window is not None or is_record_stage:
                name = step.window.name if step.window is not None else step.record_stage_name
                kind, path = ("window", ("window", "name")) if step.window is not None else ("stage", ("name",))
                if other := stages.get(name.lower()):
                    what = "choose another name" if step.window is not None else "say another with 'name:'"
                    self._add(("steps", number, *path), f"there is a {kind} '{other}' already; {what}")
                stages.setdefault(name.lower(), name)
            for position, emit in enumerate(step.emit or []):
                if (emit.kind, emit.name) in sinks:
                    self._add(
                        ("steps", number, "emit", position, emit.kind),
                        f"'{emit.name}' is emitted to already; each window needs a name of its own",
                    )
                sinks.add((emit.kind, emit.name))

    def _cascade(self, path: Path, window: WindowSpec, before: WindowSpec) -> None:
        """A result counts in the windows that hold its own window's last moment. Those begin and end where windows before them
        begin, so each of them holds equally many."""
        lengths: list[tuple[Path, int]] = [(("tumbling",), window.size_ms)]
        if window.sliding is not None:
            lengths = [(("sliding", "size"), window.size_ms), (("sliding", "every"), window.every_ms)]
        every = format_duration(before.every_ms)
        if before.sliding is not None:
            every = f"the {every} between the beginnings"
        for inner, length_ms in lengths:
            if before.every_ms and length_ms % before.every_ms:
                self._add(
                    (*path, *inner),
                    f"{format_duration(length_ms)} of window '{window.name}' is not a multiple of "
                    f"{every} of window '{before.name}' before it, whose windows would straddle",
                )

    def _retention(self) -> None:
        needed_ms = self.pipeline.event_time.delay + sum(stage.size_ms for stage in self.stages)
        if self.stream.retention_ms != FOREVER_MS and self.stream.retention_ms < needed_ms:
            self._add(
                ("steps",),
                f"the windows and the delay reach back {format_duration(needed_ms)}, and stream '{self.stream.stream}' "
                f"keeps records for {format_duration(self.stream.retention_ms)} only; raise its retention to "
                f"{format_duration(needed_ms)} at least",
            )
