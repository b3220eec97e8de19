"""The check of a pipeline against the stream that it reads. Starts no Spark: a pipeline is right or wrong before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from strandline.core.documents import COLUMNS_MAX, Path, YamlDocument, did_you_mean, path_text
from strandline.core.errors import PROBLEMS_MAX, FunctionUnusable, InvalidDocument, Problem
from strandline.core.field_types import JSON_TYPE, WHOLE_RANGES, is_nested, normal_type
from strandline.core.streams.stream import StreamSpec
from strandline.core.times.durations import FOREVER_MS, format_duration
from strandline.core.times.time_zones import zone_names
from strandline.ledger.states import EventTimeRule
from strandline.processing.pipelines.calendars import days_begin_at_multiples, longer_ms_max
from strandline.processing.pipelines.checked_pipeline import CheckedInput, CheckedPipeline
from strandline.processing.pipelines.event_time import RECORDS, CumulativeShape, WindowShape, places_taken, reach_of
from strandline.processing.pipelines.expression_types import infer_type
from strandline.processing.pipelines.expressions import ExpressionError, parse_expression, refuse_unknown_columns
from strandline.processing.pipelines.functions.installed import installed_function, package_of
from strandline.processing.pipelines.graph.branches import BRANCHES_MAX, entries_of, plan_branches
from strandline.processing.pipelines.graph.join_check import join_problems, joined_columns, windows_shared
from strandline.processing.pipelines.graph.revisions import revised_stage, revision_problems
from strandline.processing.pipelines.joins.join_spec import JoinSpec
from strandline.processing.pipelines.lookups.lookup_shapes import LookupShape
from strandline.processing.pipelines.model.emissions import EmitSpec
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.model.steps import DistinctSpec, EnrichSpec, MapSpec, StepSpec
from strandline.processing.pipelines.model.windows import WindowSpec
from strandline.processing.pipelines.stages import (
    LEFT,
    RIGHT,
    WHOLE_RANGE_MS,
    Column,
    Dedupe,
    Derive,
    Emit,
    Enrich,
    JoinStage,
    MapRows,
    RecordStage,
    RowStep,
    Select,
    Stage,
    Way,
    Where,
    first_dedupe,
)
from strandline.processing.pipelines.step_graph import stream_place
from strandline.results.names import OWN_PREFIX, WINDOW_FIELDS


def check(
    pipeline: PipelineSpec,
    streams: StreamSpec | Sequence[StreamSpec],
    document: YamlDocument | None = None,
    lookups: Mapping[str, LookupShape] | None = None,
) -> CheckedPipeline:
    """Return the pipeline with what follows from its streams: types, stages, the columns to read.

    Called when a job is submitted and again when its runner starts. `streams`: those that it reads, in its order. `document`, if
    the pipeline was just read from one, gives the problems their lines. `lookups`: those that there are. Raises InvalidDocument
    with every problem found.
    """
    given = [streams] if isinstance(streams, StreamSpec) else list(streams)
    return _Check(pipeline, given, document, lookups or {}).run()


def as_far_as_known(
    pipeline: PipelineSpec, streams: Sequence[StreamSpec], lookups: Mapping[str, LookupShape]
) -> CheckedPipeline:
    """What `check` gives, without the expressions that it refuses: of a stored pipeline from before rules that are stricter now.
    It is there to be compared with the version that follows it, and can't be run."""
    return _Check(pipeline, list(streams), None, lookups).run(is_strict=False)


@dataclass(frozen=True)
class _Place:
    """What a step leaves to those that take from it."""

    columns: dict[str, str | None]
    """The usable columns and their types; None where an error was reported already."""
    ways: tuple[Way, ...] = ()
    """The ways of records to the last union, or the streams, where no window stands before."""
    pending: tuple[RowStep, ...] = ()
    """The steps since the last window, or since its emission: since `ways`, before the first window."""
    since_window: tuple[RowStep, ...] = ()
    """The steps since the last window, whatever stands between."""
    stage: int | None = None
    """The place of that window among the stages; None: there is none."""
    is_emitted: bool = False
    """Whether the way from that window leads through its emission."""

    @property
    def gives_window(self) -> bool:
        """Whether those that take from it take the results of that window as they are, and not what is emitted of it."""
        return self.stage is not None and not self.is_emitted

    def steps_taken(self) -> tuple[RowStep, ...]:
        """The steps from there, or from the stream on: of the first way, if there are several."""
        if self.stage is None:
            return self.record_ways()[0].steps
        return self.since_window if self.gives_window else self.pending

    def record_ways(self, side: int = LEFT) -> tuple[Way, ...]:
        """The ways of records up to here, in the order of the streams. `side`: of the join to which they lead."""
        return tuple(Way(way.stream, (*way.steps, *self.pending), side) for way in self.ways)


class _Check:
    """One check. Walks the steps in order and keeps the columns that each may use."""

    def __init__(
        self,
        pipeline: PipelineSpec,
        streams: Sequence[StreamSpec],
        document: YamlDocument | None,
        lookups: Mapping[str, LookupShape],
    ) -> None:
        self.pipeline = pipeline
        self.streams = streams
        self.document = document or YamlDocument(
            "pipeline", pipeline.pipeline, {}, source=f"<stored pipeline {pipeline.pipeline}>"
        )
        self.is_submitted = document is not None
        self.problems: list[Problem] = []
        self.columns: dict[str, str | None] = {}
        """These six are the `_Place` of the step at which the check is."""
        self.ways: tuple[Way, ...] = ()
        self.pending: list[RowStep] = []
        self.since_window: list[RowStep] = []
        self.stage: int | None = None
        self.is_emitted = False
        self.sources = pipeline.sources
        self.stages: list[Stage] = []
        self.record_stages: list[RecordStage] = []
        self.columns_read: list[set[str]] = [set() for _ in streams]
        """Of each stream."""
        self.dedupes: list[Path] = []
        """Where they stand."""
        self.lookups = lookups

    def run(self, *, is_strict: bool = True) -> CheckedPipeline:
        """1. The streams and their event times. 2. Each step in order. 3. The windows together. 4. All problems at once."""
        for at, stream in enumerate(self.streams):
            self._event_time(at, stream)
        from_streams = [_Place(dict(stream.types), (Way(at, ()),)) for at, stream in enumerate(self.streams)]
        places = list[_Place]()
        for number, step in enumerate(self.pipeline.steps):
            path: Path = ("steps", number)
            taken = [
                places[one] if (read := stream_place(one)) is None else from_streams[read]
                for one in self.sources[number]
            ]
            united = step.join is None and len(taken) > 1
            self._go_on_from(self._united((*path, "from"), step.taken, taken) if united else taken[0])
            if step.derive is not None:
                self._derive(path, step.derive)
            elif step.where is not None:
                self._where((*path, "where"), step.where)
            elif step.map is not None:
                self._map((*path, "map"), step.map)
            elif step.select is not None:
                self._select((*path, "select"), step.select)
            elif step.drop is not None:
                self._drop((*path, "drop"), step.drop)
            elif step.enrich is not None:
                self._enrich((*path, "enrich"), step.enrich)
            elif step.dedupe is not None:
                self._dedupe((*path, "dedupe"), step.dedupe.by, step.dedupe.within)
            elif step.distinct is not None:
                self._distinct((*path, "distinct"), step.distinct)
            elif step.window is not None:
                self._window(path, step.window, step.emit or [])
            elif step.join is not None:
                self._join(path, step.join, step.emit or [], (taken[0], taken[1]))
            elif step.emit is not None:
                self._emission(path, step)
            places.append(self._place())
            if len(self.columns) > COLUMNS_MAX:
                self._add(path, f"leads to {len(self.columns):,} columns; expected at most {COLUMNS_MAX:,} at once")
            if is_strict and (len(self.columns) > COLUMNS_MAX or len(self.problems) > PROBLEMS_MAX):
                raise InvalidDocument(self.problems)
        self._windows_together()
        if self.pipeline.revise_ms:
            self._revisions()
        if self.problems and is_strict:
            raise InvalidDocument(self.problems)
        first, *further = [self._input(at, stream) for at, stream in enumerate(self.streams)]
        rule = first.event_time_rule
        if further:
            rule = replace(rule, by_stream=tuple((one.name, one.event_time_rule) for one in (first, *further)))
        checked = CheckedPipeline(
            spec=self.pipeline,
            stream=first.stream,
            stages=tuple(self.stages),
            record_stages=tuple(self.record_stages),
            columns_needed=first.columns_needed,
            event_time_source=first.event_time_source,
            event_time_rule=replace(rule, revise_ms=self.pipeline.revise_ms),
            lookups=tuple((name, self.lookups[name].version) for name in self.pipeline.lookups()),
            further=tuple(further),
        )
        if not self.pipeline.revise_ms:
            return checked
        return replace(checked, event_time_rule=replace(checked.event_time_rule, revises=checked.digest))

    def _input(self, at: int, stream: StreamSpec) -> CheckedInput:
        event_time = self.pipeline.reads[at].event_time
        return CheckedInput(
            stream,
            tuple(name for name in stream.fields if name in self.columns_read[at]),
            event_time.source,
            EventTimeRule(event_time.delay, event_time.idle_timeout, event_time.max_ahead, event_time.watermark),
        )

    def _place(self) -> _Place:
        return _Place(
            dict(self.columns),
            self.ways,
            tuple(self.pending),
            tuple(self.since_window),
            self.stage,
            self.is_emitted,
        )

    def _go_on_from(self, place: _Place) -> None:
        self.columns, self.stage, self.is_emitted = dict(place.columns), place.stage, place.is_emitted
        self.pending, self.since_window = list(place.pending), list(place.since_window)
        self.ways = place.ways

    def _united(self, path: Path, names: Sequence[str], places: Sequence[_Place]) -> _Place:
        """What a step takes from several places: their records, with the columns that all have."""
        for number, (name, place) in enumerate(zip(names, places, strict=True)):
            if place.stage is not None:
                self._add(
                    (*path, number),
                    f"'{name}' stands behind window '{self.stages[place.stage].name}', and only records are united; emit its "
                    "results to a stream, and read that in another pipeline",
                )
                return places[0]
        ways: dict[int, Way] = {}
        columns = self._columns_of_all(path, names, [place.columns for place in places])
        chosen = Select(path_text(path), tuple(columns))
        for number, place in enumerate(places):
            for way in place.record_ways():
                if way.stream in ways:
                    stream = self.streams[way.stream].stream
                    self._add(
                        (*path, number),
                        f"'{names[number]}' has records of stream '{stream}', and so has one before it in the list: a record on "
                        "both ways would count twice. Take them on one way: 'where' with 'or', 'derive' with 'case when'",
                    )
                ways.setdefault(way.stream, Way(way.stream, (*way.steps, chosen)))
        return _Place(columns, tuple(ways[at] for at in sorted(ways)))

    def _columns_of_all(
        self, path: Path, names: Sequence[str], columns: Sequence[Mapping[str, str | None]]
    ) -> dict[str, str | None]:
        """The columns that all places have, with types; a problem for each that has several types."""
        found: dict[str, str | None] = {}
        for name, kind in columns[0].items():
            kinds = [one.get(name) for one in columns if name in one]
            if len(kinds) < len(columns):
                continue
            found[name] = None if None in kinds else kind
            other = next((at for at, one in enumerate(kinds) if one is not None and kind not in (None, one)), None)
            if other is not None:
                self._add(
                    path,
                    f"'{name}' is a {kind} in {names[0]} and a {kinds[other]} in {names[other]}, and a column has one type. "
                    f"Before the union, leave it out of one of them ('drop: [{name}]'); where it is needed, derive a column of "
                    f"another name in both, as {{{name}_2: cast({name} as {kind})}}",
                )
                found[name] = None
        if not found:
            self._add(path, f"have no field in common ({', '.join(names)}); derive fields of the same names first")
        return found

    def _read(self, name: str, ways: Sequence[Way] | None = None) -> None:
        """Note that a column is read, which may be a field of the streams on these ways: on those to this step."""
        for way in self.ways if ways is None else ways:
            if name in self.streams[way.stream].fields:
                self.columns_read[way.stream].add(name)

    def _done(self, step: RowStep) -> None:
        self.pending.append(step)
        self.since_window.append(step)

    @property
    def _window_before(self) -> Stage | None:
        """The last window on the way to this step."""
        return None if self.stage is None else self.stages[self.stage]

    def _add(self, path: Path, message: str) -> None:
        self.problems.append(self.document.problem(path, message))

    def _event_time(self, at: int, stream: StreamSpec) -> None:
        read = self.pipeline.reads[at]
        if read.stream != stream.stream:
            self._add((*self.pipeline.path_of_input(at), "stream"), f"reads '{read.stream}', not '{stream.stream}'")
        source = read.event_time.source
        name, path = source.field, (*self.pipeline.path_of_event_time(at), "field")
        if name is None:
            return
        field = stream.fields.get(name)
        if field is None:
            known = [n for n, f in stream.fields.items() if f.type == "timestamp"] or stream.fields
            self._add(path, f"'{name}' is not a field of stream '{stream.stream}'{did_you_mean(name, known)}")
        elif field.type != "timestamp":
            remedy = f"declare it as one ({name}: timestamp)"
            if field.type == "string":
                remedy += (
                    ", or, where it is written otherwise than in ISO 8601, read it in a pipeline before "
                    "(docs/formats.md, Times in other forms)"
                )
            self._add(path, f"'{name}' is a {field.type}; event time needs a field of type timestamp: {remedy}")
        elif not field.required and not source.or_log:
            self._add(
                path,
                f"'{name}' is optional in stream '{stream.stream}'; require it there, or give records without it "
                "their time of arrival by 'else: log'",
            )
        else:
            self.columns_read[at].add(name)

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
            if self.stage is None:
                for name in expression.columns:
                    self._read(name)
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
        self._are_new((*path, "derive"), derive)
        self.columns |= dict.fromkeys(derive) | {column.name: column.type for column in columns}
        self._done(Derive(path_text((*path, "derive")), tuple(columns)))

    def _map(self, path: Path, spec: MapSpec) -> None:
        """Fields that a Python function gives. Whether it may be called is asked of a document that is submitted; of a stored one
        it is asked where the function runs."""
        for number, name in enumerate(spec.reads):
            if name not in self.columns:
                self._add((*path, "reads", number), f"unknown column '{name}'{did_you_mean(name, self.columns)}")
            elif name in spec.reads[:number]:
                self._add((*path, "reads", number), f"'{name}' stands twice")
        if self.stage is None:
            for name in spec.reads:
                self._read(name)
        self._are_new((*path, "columns"), spec.columns)
        if self.is_submitted:
            try:
                installed_function(spec.function)
            except FunctionUnusable as error:
                self._add((*path, "function"), str(error))
        columns = [(name, normal_type(kind.removesuffix("?")) or kind) for name, kind in spec.columns.items()]
        may_be_null = tuple(name for name, kind in spec.columns.items() if kind.endswith("?"))
        self.columns |= dict(columns)
        self._done(
            MapRows(
                path_text(path),
                spec.function,
                tuple(spec.reads),
                tuple(columns),
                may_be_null,
                package_of(spec.function),
            )
        )

    def _are_new(self, path: Path, names: Iterable[str]) -> None:
        before = {name.lower(): name for name in self.columns}
        for name in names:
            if other := before.get(name.lower()):
                self._add((*path, name), f"there is a column '{other}' already; choose another name")

    def _where(self, path: Path, text: str) -> None:
        column = self._expression(path, text, aggregate=False)
        if column and column.type != "boolean":
            self._add(path, f"expected a condition that is true or false, got a {column.type} (in: {text})")
        elif column:
            self._done(Where(path_text(path), column.sql))

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
        if (window := self._window_before) is not None:
            self._add(
                path,
                f"stands behind window '{window.name}', and only records are enriched: a replay takes results of many "
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
            self._read(name)

    def _distinct(self, path: Path, distinct: DistinctSpec) -> None:
        """A dedupe over the whole range: only where that has an end, or what is remembered would grow for ever."""
        if not self.pipeline.is_batch:
            self._add(
                path,
                "remembers every record, so only a batch may have it: add an end to the input, as 'end: latest'; a job that goes "
                f"on leaves repeats out that come within a time: dedupe: {{by: [{', '.join(distinct.by)}], within: 1h}}",
            )
        self._dedupe(path, distinct.by, WHOLE_RANGE_MS)

    def _dedupe(self, path: Path, by: list[str], within_ms: int) -> None:
        """One for all branches, before the first window, by the stream's key at least: so that repeats are in one partition."""
        if (window := self._window_before) is not None:
            self._add(
                path, f"stands behind window '{window.name}', whose results come once each; move it before the window"
            )
        if self.dedupes:
            self._add(
                path,
                f"there is a dedupe already, {path_text(self.dedupes[0])}, and a pipeline has one: take from it by "
                "'from', or dedupe by other fields in a pipeline of its own",
            )
        self.dedupes.append(path)
        for number, name in enumerate(by):
            self._key((*path, "by", number), name)
        streams = [self.streams[way.stream] for way in self.ways]
        if len(streams) > 1:
            self._add(
                path,
                f"stands behind the union of {', '.join(one.stream for one in streams)}, and repeats are in one partition of one "
                f"stream; move it before the union, with 'from: {streams[0].stream}'",
            )
            return
        read = streams[0]
        key, stream = read.key, read.stream
        if read.partitions > 1 and key is None:
            self._add(
                path,
                f"stream '{stream}' has no key, so a record that is sent again may come to another partition, and the log has no "
                "order between partitions; give the stream a 'key', or 'partitions: 1'",
            )
        elif read.partitions > 1 and key not in by:
            self._add(
                (*path, "by"),
                f"expected '{key}' among the fields, the key of stream '{stream}', which a record that is sent again has, too: "
                f"it says in which partition both are; write [{', '.join([str(key), *by])}]",
            )
        self._done(Dedupe(path_text(path), tuple(by), within_ms))

    def _keep(self, path: Path, names: Sequence[str]) -> None:
        """Go on with these columns alone. Behind a window its `by` fields are among them: they say which result it is."""
        window = self._window_before
        lost = [name for name in window.by if name not in names] if window else []
        if window and lost:
            self._add(path, f"leaves out {', '.join(lost)}, by which window '{window.name}' groups; keep them")
            names = [*lost, *names]
        if not names:
            self._add(path, "leaves no field; expected at least one")
        self.columns = {name: self.columns[name] for name in names if name in self.columns}
        self._done(Select(path_text(path), tuple(self.columns)))

    def _emission(self, path: Path, step: StepSpec) -> None:
        """An `emit` in a step of its own: behind a window of what that gives, before the first one of records."""
        emits = tuple(Emit(emit.kind, emit.name, emit.index_settings, emit.options) for emit in step.emit or [])
        fields = tuple((name, kind) for name, kind in self.columns.items() if kind is not None)
        for name in self.columns:
            if name.startswith("_"):
                self._add(
                    path, f"'{name}' begins with '_', and no field of a result may; leave it out with 'drop: [{name}]'"
                )
        if self.stage is None:
            for name in self.columns:
                self._read(name)
            ways = self._place().record_ways()
            self.record_stages.append(
                RecordStage(
                    step.record_stage_name, fields, emits, ways[0].steps, path_text(path), _unless_only_first(ways)
                )
            )
            self._no_updates(path, step.emit or [], "shows windows that are open, and records are emitted as they come")
            self._not_to_its_input(path, step.emit or [])
            for position, emit in enumerate(step.emit or []):
                if emit.sink is not None and _unless_only_first(ways):
                    self._add(
                        (*path, "emit", position, "sink"),
                        "a sink that a package brings is told of a record's partition and offset, not of its stream, so it takes "
                        "records of a pipeline's first stream only; emit results of windows, or to another kind of place",
                    )
            self._own_names_free(path, step.emit or [], self.columns)
            return
        window = self.stages[self.stage]
        if step.name is not None:
            self._add((*path, "name"), f"results behind a window are of stage '{window.name}'; remove the name")
        if window.emits:
            self._add(
                (*path, "emit"), f"window '{window.name}' emits already; it has one place that says where results go"
            )
            return
        self.stages[self.stage] = replace(
            window, emits=emits, post_steps=tuple(self.since_window), emitted=fields, emit_step=path_text(path)
        )
        self.pending, self.is_emitted = [], True
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
        ways = self._place().record_ways() if self.stage is None else ()
        came = tuple((name, kind or "") for name, kind in self.columns.items())
        self.columns = by_types | {name: column.type if column else None for name, column in aggregates.items()}
        behind = RECORDS if self.stage is None else self.stage
        place = self._place()
        self.stages.append(
            Stage(
                name=window.name,
                size_ms=window.size_ms,
                slide_ms=window.every_ms if window.sliding or window.cumulative else None,
                is_cumulative=window.cumulative is not None,
                gap_ms=window.session.gap if window.session is not None else None,
                count=window.count.size if window.count is not None else None,
                offset_ms=window.offset_ms,
                zone=window.tz,
                by=tuple(window.by),
                by_types=tuple(kind or "" for kind in by_types.values()),
                aggregates=tuple(column for column in aggregates.values() if column),
                emits=tuple(Emit(emit.kind, emit.name, emit.index_settings, emit.options) for emit in emits),
                pre_steps=place.steps_taken(),
                step=path_text(path),
                takes=None if behind == len(self.stages) - 1 else behind,
                takes_window=place.gives_window,
                ways=_unless_only_first(ways),
                came=came if _unless_only_first(ways) else (),
            )
        )
        self.stage, self.is_emitted = len(self.stages) - 1, False
        self.pending, self.since_window = [], []
        places: list[tuple[str, Path]] = [(name, ("window", "by", number)) for number, name in enumerate(window.by)]
        places += [(name, ("window", "aggregate", name)) for name in window.aggregate]
        self._emits(path, emits, places)

    def _join(self, path: Path, join: JoinSpec, emits: list[EmitSpec], sides: tuple[_Place, _Place]) -> None:
        """Both sides have the fields of `on` in types that are equal, and what is added is there. Each is records, or results of
        a window or a join."""
        inner: Path = (*path, "join")
        columns = sides[LEFT].columns, sides[RIGHT].columns
        ways = [side.record_ways(at) if side.stage is None else () for at, side in enumerate(sides)]
        both = (*ways[LEFT], *ways[RIGHT])
        for place, message in join_problems(join, columns, lambda name: self._is_json(name, both)):
            self._add((*inner, *place), message)
        stages = [None if side.stage is None else self.stages[side.stage] for side in sides]
        same_windows = None
        if join.same_window:
            same_windows, problems = windows_shared((stages[LEFT], stages[RIGHT]))
            for place, message in problems:
                self._add((*inner, *place), message)
        added = joined_columns(join, columns)
        for name in join.on:
            self._read(name, both)
        for one in added:
            self._read(one.column, ways[one.side])
        by_types, names = {name: columns[LEFT].get(name) for name in join.on}, self.pipeline.streams
        before_ms, after_ms = join.before_ms, join.after_ms
        left = RECORDS if sides[LEFT].stage is None else sides[LEFT].stage
        self.stages.append(
            JoinStage(
                name=join.name,
                size_ms=join.tumbling or (same_windows.size_ms if same_windows else max(before_ms, after_ms) + 1),
                slide_ms=_slide_of(same_windows),
                is_cumulative=isinstance(same_windows, CumulativeShape),
                by=tuple(join.on),
                by_types=tuple(kind or "" for kind in by_types.values()),
                aggregates=(),
                emits=tuple(Emit(emit.kind, emit.name, emit.index_settings, emit.options) for emit in emits),
                pre_steps=sides[LEFT].steps_taken(),
                step=path_text(path),
                takes=left if self.stages else None,
                takes_window=sides[LEFT].gives_window,
                ways=_unless_only_first(both),
                right_steps=sides[RIGHT].steps_taken(),
                right_takes=sides[RIGHT].stage,
                right_takes_window=sides[RIGHT].gives_window,
                streams_joined=tuple(names if len(names) > 1 else names * 2),
                type=join.type,
                columns=added,
                before_ms=before_ms,
                after_ms=after_ms,
                in_windows=join.within is None,
                same_windows=same_windows,
                is_latest=bool(join.latest),
                max_rows=join.max_rows,
            )
        )
        self.columns = by_types | dict.fromkeys(join.add) | {one.name: one.type for one in added}
        self.stage, self.is_emitted = len(self.stages) - 1, False
        self.pending, self.since_window = [], []
        places: list[tuple[str, Path]] = [(name, ("join", "on", number)) for number, name in enumerate(join.on)]
        places += [(name, ("join", "add", name)) for name in join.add]
        self._emits(path, emits, places)

    def _is_json(self, name: str, ways: Sequence[Way]) -> bool:
        """Whether a column is a field that holds any JSON, of one of the streams on these ways. Among columns it is a text."""
        fields = [self.streams[way.stream].fields.get(name) for way in ways]
        return any(field is not None and field.type == JSON_TYPE for field in fields)

    def _own_names_free(self, path: Path, emits: list[EmitSpec], names: Iterable[str]) -> None:
        """Files and tables hold the platform's own columns beside the fields."""
        if any(emit.files or emit.sql for emit in emits):
            for name in names:
                if name.lower().startswith(OWN_PREFIX):
                    self._add(
                        (*path, "emit"), f"'{name}' begins like the platform's own columns ({OWN_PREFIX}); rename it"
                    )

    def _no_updates(self, path: Path, emits: list[EmitSpec], why: str) -> None:
        """These places can't show open windows."""
        for position, emit in enumerate(emits):
            if emit.index_settings.updates_ms is not None:
                self._add((*path, "emit", position, "elasticsearch", "updates"), f"{why}; remove it")

    def _not_to_its_input(self, path: Path, emits: list[EmitSpec]) -> None:
        for position, emit in enumerate(emits):
            if emit.stream is not None and emit.stream in self.pipeline.streams:
                self._add(
                    (*path, "emit", position, "stream"),
                    f"'{emit.stream}' is what this pipeline reads; it would read its own results. Choose another name",
                )

    def _emits(self, path: Path, emits: list[EmitSpec], places: list[tuple[str, Path]]) -> None:
        """The rules for a window's results. `places`: the fields, and where each stands in the step."""
        stage = self.stages[-1 if self.stage is None else self.stage]
        if isinstance(stage, JoinStage):
            self._no_updates(
                path, emits, "shows windows that are open, and a join has none: its rows are final at once"
            )
        elif any(isinstance(one, MapRows) for one in stage.post_steps):
            self._no_updates(
                path, emits, "shows windows in a thread of its own, where no function of a package is called"
            )
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
        """One field of a window's `by`: any in sight that is no double."""
        if name not in self.columns:
            self._add(path, f"unknown column '{name}'{did_you_mean(name, self.columns)}")
        elif self.columns[name] == "double":
            self._add(
                path, f"'{name}' is a double, which makes no reliable key; use a string, a whole number or a decimal"
            )
        elif is_nested(self.columns[name] or ""):
            self._add(
                path, f"'{name}' has the type {self.columns[name]}, which makes no key; group by what stands in it"
            )
        elif not self._window_before:
            if self._is_json(name, self.ways):
                self._add(
                    path, f"'{name}' is json, of which two texts may mean the same; declare the member that is the key"
                )
            self._read(name)

    def _windows_together(self) -> None:
        """The rules between windows: names, sizes, keys, sinks, and the retention that they need together."""
        windows = [(number, step) for number, step in enumerate(self.pipeline.steps) if step.stage_name is not None]
        if not windows and not self.record_stages:
            self._add(
                ("steps",),
                "has neither a window nor an 'emit'; expected at least one step 'window: {...}' or 'emit: [...]'",
            )
            return
        taken = places_taken([stage.shape for stage in self.stages])
        has_taker = {one for some in taken for one in some}
        has_branches = self.pipeline.has_branches
        for at, (number, step) in enumerate(windows):
            if at not in has_taker and not self.stages[at].emits:
                which = f"no window takes from '{step.stage_name}', so it" if has_branches else "the last window"
                verb = "window" if step.window is not None else "join"
                self._add(
                    ("steps", number),
                    f"{which} must emit; write 'emit: [{{elasticsearch: NAME}}]' or '[{{stream: NAME}}]' beside '{verb}'",
                )
        self._steps_taken(has_branches=has_branches)
        self._names_distinct()
        for at, (number, step) in enumerate(windows):
            window = step.window if step.join is None or step.join.tumbling is None else self._as_window(at)
            for before in taken[at]:
                if before != RECORDS and window is not None and (one := self._as_window(before)) is not None:
                    self._cascade(("steps", number, "window" if step.join is None else "join"), window, one)
        # What no step behind a window changes is the same before its emission and behind.
        self.stages = [self._without_needless_windows(stage) for stage in self.stages]
        if len(entries_of(plan_branches(self.stages))) > BRANCHES_MAX:
            self._add(
                ("steps",),
                f"has more than {BRANCHES_MAX} branches with keys of their own; cut it into several pipelines",
            )
        self._retention()

    def _without_needless_windows(self, stage: Stage) -> Stage:
        has_steps = [bool(one.post_steps) for one in self.stages]
        taken = {
            one.side: one.takes_window and has_steps[one.stage] for one in stage.results_taken(self.stages.index(stage))
        }
        stage = replace(stage, takes_window=taken.get(LEFT, False))
        return replace(stage, right_takes_window=taken.get(RIGHT, False)) if isinstance(stage, JoinStage) else stage

    def _as_window(self, at: int) -> WindowSpec | None:
        """What the stage at this place is to the windows behind it. None: its results begin and end anywhere."""
        steps = [step for step in self.pipeline.steps if step.stage_name is not None]
        join, stage = steps[at].join, self.stages[at]
        if join is None:
            return steps[at].window
        if join.same_window and stage.takes is not None and stage.takes != RECORDS:
            return self._as_window(stage.takes)
        return None if join.tumbling is None else WindowSpec.model_construct(name=join.name, tumbling=join.tumbling)

    def _steps_taken(self, *, has_branches: bool) -> None:
        """Each step leads to a window or an emission."""
        steps = self.pipeline.steps
        leads: set[int] = set()
        for number in reversed(range(len(steps))):
            if number in leads or steps[number].stage_name or steps[number].emit:
                leads |= {number, *self.sources[number]}
        takers = [one for one in steps if one.stage_name or one.emit]
        last_taker = "" if not takers else "window" if takers[-1].window else "join" if takers[-1].join else "emit"
        for number in range(len(steps)):
            if number not in leads:
                why = f"stands after the last {last_taker}, where it changes nothing; move it before or remove"
                if has_branches:
                    why = "leads to no window and no emit, so it changes nothing; let one take from it, or remove it"
                self._add(("steps", number), why)

    def _names_distinct(self) -> None:
        stages: dict[str, str] = {}
        steps: dict[str, str] = {}
        sinks: set[tuple[str, str]] = set()
        for number, step in enumerate(self.pipeline.steps):
            is_record_stage = (
                step.stage_name is None
                and step.emit is not None
                and any(stage.step == path_text(("steps", number)) for stage in self.record_stages)
            )
            if step.stage_name is not None or is_record_stage:
                name = step.stage_name or step.record_stage_name
                kind, path = ("window", ("window", "name")) if step.window is not None else ("stage", ("name",))
                if step.join is not None:
                    path = ("join", "name")
                if other := stages.get(name.lower()):
                    what = "choose another name" if step.stage_name is not None else "say another with 'name:'"
                    self._add(("steps", number, *path), f"there is a {kind} '{other}' already; {what}")
                elif step.own_name is not None and (other := steps.get(name.lower())):
                    self._add(("steps", number, *path), f"there is a step '{other}' already; choose another name")
                stages.setdefault(name.lower(), name)
            elif step.name is not None:
                if other := stages.get(step.name.lower()) or steps.get(step.name.lower()):
                    self._add(("steps", number, "name"), f"there is a step '{other}' already; choose another name")
                steps.setdefault(step.name.lower(), step.name)
            for position, emit in enumerate(step.emit or []):
                if (emit.kind, emit.name) in sinks:
                    self._add(
                        ("steps", number, "emit", position, emit.kind),
                        f"'{emit.name}' is emitted to already; each window needs a name of its own",
                    )
                sinks.add((emit.kind, emit.name))

    def _cascade(self, path: Path, window: WindowSpec, before: WindowSpec) -> None:
        """A result counts in the windows that hold its own window's last moment. Those begin and end where windows before them
        begin, so each of them holds equally many. Sessions begin and end anywhere; but the gap of some behind other windows is
        longer than the time from one to the next, or each result would be a session."""
        if window.count is not None:
            return
        if window.session is not None:
            apart_ms = before.every_ms + (longer_ms_max(before.tz) if before.tz in zone_names() else 0)
            if not before.ends_anywhere and window.every_ms <= apart_ms:
                self._add(
                    (*path, "session", "gap"),
                    f"{format_duration(window.every_ms)} of window '{window.name}' is no longer than the "
                    f"{format_duration(apart_ms)} from one window '{before.name}' to the next, so each of their results "
                    "would be a session of its own; expected more",
                )
            return
        if before.ends_anywhere:
            return
        lengths: list[tuple[Path, int]] = [(("tumbling",), window.size_ms)]
        if window.sliding is not None:
            lengths = [(("sliding", "size"), window.size_ms), (("sliding", "every"), window.every_ms)]
        if window.cumulative is not None:
            lengths = [(("cumulative", "size"), window.size_ms), (("cumulative", "step"), window.every_ms)]
        every = format_duration(before.every_ms)
        if before.sliding is not None:
            every = f"the {every} between the beginnings"
        if before.cumulative is not None:
            every = f"the {every} between the ends"
        for inner, length_ms in lengths:
            if before.every_ms and length_ms % before.every_ms:
                self._add(
                    (*path, *inner),
                    f"{format_duration(length_ms)} of window '{window.name}' is not a multiple of "
                    f"{every} of window '{before.name}' before it, whose windows would straddle",
                )
        if before.every_ms and not _begin_together(window, before):
            name, own = ("tz", f"days of {window.tz}") if window.tz else ("offset", "windows")
            begins = f"days of {before.tz}" if before.tz else f"a multiple of {format_duration(before.every_ms)}"
            begins += f" and {format_duration(before.offset_ms)}" if before.offset_ms else ""
            self._add(
                (*path, name),
                f"{own} of '{window.name}' begin inside of windows '{before.name}' before them ({begins}), which would straddle; "
                "say the same time zone, and an offset that fits",
            )

    def _revisions(self) -> None:
        """One window, whose result is one document that a later one can take the place of: where else late records revise is not
        known yet. Its result counts them."""
        for path, message in revision_problems(self.pipeline, self.stages, self.record_stages):
            self._add(path, message)
        self.stages = [revised_stage(stage, self.pipeline.revise_ms) for stage in self.stages]

    def _retention(self) -> None:
        # Windows wait for the stream that is furthest behind, so the longest delay counts for all.
        delay_ms = max(one.event_time.delay for one in self.pipeline.reads)
        horizons = [stage.dedupe.within_ms for stage in self.record_stages if stage.dedupe is not None]
        needed_ms = (
            delay_ms + self.pipeline.revise_ms + max([reach_of([stage.shape for stage in self.stages]), *horizons])
        )
        if (repeats := first_dedupe([*self.record_stages, *self.stages])) is not None and repeats.is_distinct:
            needed_ms -= WHOLE_RANGE_MS  # how long a batch needs its range depends on how long it runs
        for stream in self.streams:
            if stream.retention_ms != FOREVER_MS and stream.retention_ms < needed_ms:
                self._add(
                    ("steps",),
                    f"the windows and the delay reach back {format_duration(needed_ms)}, and stream '{stream.stream}' "
                    f"keeps records for {format_duration(stream.retention_ms)} only; raise its retention to "
                    f"{format_duration(needed_ms)} at least",
                )


def _unless_only_first(ways: tuple[Way, ...]) -> tuple[Way, ...]:
    """The ways, as stages name them: those of pipelines that read one stream stay as they were."""
    return () if all(way.stream == 0 for way in ways) else ways


def _slide_of(shape: WindowShape | None) -> int | None:
    return None if shape is None or shape.every_ms == shape.size_ms else shape.every_ms


def _begin_together(window: WindowSpec, before: WindowSpec) -> bool:
    """Whether, sizes aside, a window begins where one of those before it begins."""
    if before.tz is not None:
        return window.tz == before.tz and window.offset_ms == before.offset_ms
    if window.tz is not None:
        is_known = window.tz in zone_names()
        return not is_known or days_begin_at_multiples(window.tz, window.offset_ms, before.every_ms, before.offset_ms)
    return (window.offset_ms - before.offset_ms) % before.every_ms == 0
