"""Pipelines in Python: `stream("turbines").event_time("ts", delay="10s").where("load < 10")...pipeline("turbine-health")`.

No code here interprets a step. Each method adds the fields of a YAML document, with the same names, and `pipeline` has the same
model read them. So both produce the same canonical document and the same messages, with the file and line of the call instead
of the document. All objects are immutable: each method returns a new object.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from strandline.core.documents import Path, YamlDocument
from strandline.core.streams.stream import StreamSpec
from strandline.frontends.document_text import RANGE_FIELDS
from strandline.frontends.python.layout import CallSite, Step, Taken, laid_out
from strandline.frontends.python.pipeline import Pipeline
from strandline.frontends.python.windows import DurationLike, Windows, duration_text

if TYPE_CHECKING:  # modules that read rows are imported on demand
    from strandline.core.lookups.lookup import LookupSpec

_OWN_MODULES = "strandline.frontends."


class SinkOptions(TypedDict, total=False):
    """Sinks of results, with the fields of a document's `emit`."""

    elasticsearch: str | Mapping[str, Any]
    """Alias in Elasticsearch, or `{name, shards, replicas, refresh_interval, lifecycle}`."""
    stream: str
    """Stream, which other pipelines can read."""
    files: Mapping[str, Any]
    """Parquet files by day: `{path, format}`."""
    sql: Mapping[str, Any]
    """SQL table: `{table}`."""
    sink: Mapping[str, Any]
    """Sink of a package: `{use, name, options}`."""


class StreamFields(TypedDict, total=False):
    """Fields of a `stream:` document, except its name and schema."""

    partitions: int
    format: str
    key: str
    retention: str
    durability: Literal["log", "spool"]
    format_options: Mapping[str, Any]
    charset: str
    explode: str | Mapping[str, Any]
    embedded: Sequence[Mapping[str, Any]]
    metadata: Mapping[str, str]
    missing: Sequence[str | float]
    raw: Mapping[str, Any]
    csv: Mapping[str, Any]
    avro: Mapping[str, Any]
    protobuf: Mapping[str, Any]
    struct: Mapping[str, Any]
    mqtt: Mapping[str, Any]
    http: Mapping[str, Any]
    udp: Mapping[str, Any]
    tcp: Mapping[str, Any]
    poll: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    gateways: Mapping[str, Mapping[str, Any]]


class PipelineFields(TypedDict, total=False):
    """Fields of a `pipeline:` document, except its name, input, and steps."""

    event_time: Mapping[str, Any]
    """Event time of the single stream without `.event_time(...)`, as in a document: `{"field": "ts", "delay": "10s"}`."""
    start: str
    """Start of a new job in the log, in `input`: `earliest`, `latest`, or a log time in ISO 8601."""
    end: str
    """End of the range, in `input`: `latest`, or a log time. A pipeline with an end is a batch."""
    late: Literal["dead_letter", "drop"] | Mapping[str, Any]
    """Treatment of late records. With `{"revise": "30m"}`, they revise results for this time."""
    on_error: Literal["dead_letter", "crash"]
    guarantee: Literal["exactly_once", "at_least_once", "none"]
    recovery: Literal["rewind", "snapshot"]
    placement: Literal["own", "pool"]
    checkpoint: Mapping[str, Any]
    dead_letters: Mapping[str, Any]


class _Limits(TypedDict, total=False):
    """Limits of event time. None disables a limit."""

    idle_timeout: DurationLike | None
    """Time without records after which a partition no longer holds back the watermark."""
    max_ahead: DurationLike | None
    """Maximum time that a record can be ahead of its arrival. Beyond it, the record becomes a dead letter."""


@dataclass(frozen=True)
class Lookup:
    """A lookup with its rows, which enrich records by their key."""

    name: str
    document: Mapping[str, Any]
    _place: CallSite

    def yaml_documents(self) -> list[YamlDocument]:
        """Return the document with the position of the call."""
        return [YamlDocument("lookup", self.name, dict(self.document), self._place.file, {(): self._place.line})]

    @property
    def spec(self) -> LookupSpec:
        """Model of the document. Raises InvalidDocument."""
        from strandline.core.lookups.lookup import LookupSpec

        return LookupSpec.parse(self.yaml_documents()[0])


def lookup(
    name: str,
    *,
    schema: Mapping[str, Any],
    key: str | Sequence[str],
    rows: Sequence[Mapping[str, Any]] | None = None,
    **more: Any,
) -> Lookup:
    """Return a lookup: its fields, as those of a stream, its key fields, and its rows."""
    said = more if rows is None else {"rows": [dict(row) for row in rows], **more}
    keys = key if isinstance(key, str) else list(key)
    return Lookup(name, {"lookup": name, "schema": dict(schema), "key": keys, **said}, _called_from())


@dataclass(frozen=True)
class _Read:
    """A stream that the pipeline reads."""

    stream: Stream
    event_time: Mapping[str, Any]
    """Event time of the stream. Empty while it isn't set."""
    call_site: CallSite = field(compare=False)
    range: Mapping[str, Any]
    """RANGE_FIELDS that are set for this stream only."""


class Rows:
    """Rows that steps can follow: a stream, or the flow so far."""

    def _flow(self) -> Flow:
        raise NotImplementedError

    def event_time(
        self,
        field: str | None = None,
        *,
        delay: DurationLike | None = None,
        watermark: Literal["partitions", "newest", "emissions"] | None = None,
        from_log: bool = False,
        else_log: bool = False,
        start: str | None = None,
        end: str | None = None,
        **limits: Unpack[_Limits],
    ) -> Flow:
        """Set the event time of the stream, before or after its steps.

        Args:
            `field`: A timestamp of the stream.
            `delay`: Permitted disorder of `field`.
            `from_log`: True to use the time of arrival instead.
            `else_log`: True to use the time of arrival for records without `field`.
            `idle_timeout`, `max_ahead`: None disables the limit. Default: as in documents.
            `start`, `end`: Start of a new job in the stream, and end of a batch.
        """
        said: dict[str, Any] = {} if field is None else {"field": field}
        said |= {"from": "log"} if from_log else {}
        said |= {"else": "log"} if else_log else {}
        said |= {} if delay is None else {"delay": duration_text(delay)}
        said |= {} if watermark is None else {"watermark": watermark}
        said |= {
            name: None if value is None else duration_text(value)  # type: ignore[arg-type]
            for name, value in limits.items()
        }
        range_ = {name: value for name, value in (("start", start), ("end", end)) if value is not None}
        return self._flow()._with_event_time(said, _called_from(), range_)

    def derive(self, expressions: Mapping[str, str] | None = None, /, **named: str) -> Flow:
        """Add fields: name -> expression over the fields before this step."""
        return self._with({"derive": {**(expressions or {}), **named}})

    def where(self, condition: str) -> Flow:
        """Keep the records for which the condition is true; after a window, its results."""
        return self._with({"where": condition})

    def select(self, *fields: str) -> Flow:
        """Keep only these fields, in this order."""
        return self._with({"select": list(fields)})

    def drop(self, *fields: str) -> Flow:
        """Remove these fields."""
        return self._with({"drop": list(fields)})

    def dedupe(self, *, by: Sequence[str], within: DurationLike) -> Flow:
        """Drop duplicates: records with equal `by` fields whose event times are less than `within` apart. `by` must contain the
        stream's key."""
        if isinstance(by, str):
            raise TypeError(f"by={by!r} is a single string; write by=[{by!r}]")
        return self._with({"dedupe": {"by": list(by), "within": duration_text(within)}})

    def distinct(self, *, by: Sequence[str]) -> Flow:
        """Drop every record of a batch whose `by` fields equal those of an earlier record. `by` must contain the stream's key."""
        if isinstance(by, str):
            raise TypeError(f"by={by!r} is a single string; write by=[{by!r}]")
        return self._with({"distinct": {"by": list(by)}})

    def window(
        self,
        windows: Windows,
        *,
        name: str | None = None,
        by: Sequence[str] = (),
        aggregate: Mapping[str, str] | None = None,
        agg: Mapping[str, str] | str | None = None,
        **named: str,
    ) -> Flow:
        """Aggregate records by time and by the fields `by`: result field -> expression with an aggregate function.

        `aggregate`, or its short form `agg`, is for names that aren't Python names, or that are names of other parameters. Both
        can be used. (`agg="count(*)"`, a string, is a result field with the name `agg`.) Without `name`, the window gets the
        name of its first sink, as in SQL.
        """
        if isinstance(by, str):
            raise TypeError(f"by={by!r} is a single string; write by=[{by!r}]")
        if isinstance(windows, str):
            raise TypeError(f"{windows!r} is a string; write tumbling({windows!r}), sliding(...) or session(...)")
        called = {} if name is None else {"name": name}
        keys = {"by": list(by)} if by else {}
        short = {"agg": agg} if isinstance(agg, str) else agg or {}
        aggregates = {**(aggregate or {}), **short, **named}
        return self._with({"window": {**called, **windows.fields, **keys, "aggregate": aggregates}})

    def enrich(
        self,
        lookup: Lookup | str,
        *,
        key: str | Sequence[str] | Mapping[str, str],
        add: Sequence[str] | Mapping[str, str],
        optional: bool = False,
    ) -> Flow:
        """Add fields of a lookup. A record without a row becomes a dead letter; with `optional`, it gets nulls.

        Args:
            `key`: Field that contains the key of the lookup.
            `add`: Fields to add, or `{field: field of the lookup}`.
        """
        name = lookup if isinstance(lookup, str) else lookup.name
        said = {"lookup": name, "key": _plain(key), "add": _plain(add), **({"optional": True} if optional else {})}
        flow = self._with({"enrich": said})
        known = () if isinstance(lookup, str) or lookup in flow._lookups else (lookup,)
        return replace(flow, _lookups=(*flow._lookups, *known))

    def map(
        self, function: str, *, reads: Sequence[str], columns: Mapping[str, str], deterministic: Literal[True]
    ) -> Flow:
        """Add fields, name -> type, computed by a Python function `package.module:function` from the fields in `reads`.

        Args: deterministic: Your confirmation that the function returns the same values for the same record in each run.
        """
        said = {"function": function, "reads": list(reads), "columns": dict(columns), "deterministic": deterministic}
        return self._with({"map": said})

    def join(
        self,
        other: Rows | str,
        *,
        name: str,
        on: Sequence[str],
        within: DurationLike | None = None,
        before: DurationLike | None = None,
        after: DurationLike | None = None,
        tumbling: DurationLike | None = None,
        same_window: Literal[True] | None = None,
        latest: Literal[True] | None = None,
        kind: Literal["inner", "left", "full"] | None = None,
        max_rows: int | None = None,
        add: Mapping[str, str] | None = None,
        **named: str,
    ) -> Flow:
        """Join rows of this flow (left) with rows of another flow (right) that are equal in the fields `on`.

        Args:
            `other`: The other flow, or the name of a step or stream.
            `before`, `after`: Maximum time that the right row can be before or after the left row.
            `within`: Both limits in one.
            `tumbling`: Size of the windows in which both rows must be, instead of these limits.
            `same_window`: True if both rows are results of one window.
            `latest`: True to join only the latest right row that isn't later than the left row.
            `kind`: `left` and `full` also return rows without a partner.
            `add`, `named`: Fields of the joined row, `left.FIELD` or `right.FIELD`.
        """
        if isinstance(on, str):
            raise TypeError(f"on={on!r} is a single string; write on=[{on!r}]")
        near: dict[str, Any] = {} if within is None else {"within": duration_text(within)}
        sides = {"before": before, "after": after}
        if said := {side: duration_text(one) for side, one in sides.items() if one is not None}:
            near["within"] = said
        near |= {} if tumbling is None else {"tumbling": duration_text(tumbling)}
        near |= {} if same_window is None else {"same_window": same_window}
        near |= {} if latest is None else {"latest": latest}
        added = {**(add or {}), **named}
        document = {"name": name, "on": list(on), **near, **({} if kind is None else {"type": kind})}
        document |= ({"add": added} if added else {}) | ({} if max_rows is None else {"max_rows": max_rows})
        left = self._flow()
        right = Taken(said=other) if isinstance(other, str) else other._flow()._one("join")
        both = left if isinstance(other, str) else left.beside(other)
        return replace(both, _at=(left._one("join"), right))._with({"join": document})

    def union(self, *others: Rows) -> Flow:
        """Continue with the rows of this flow and of others, with their common fields, by name. Keeps duplicates."""
        together = self.beside(*others)
        return replace(together, _at=tuple(taken for rows in (self, *others) for taken in rows._flow()._at))

    def beside(self, *others: Rows) -> Flow:
        """Add the streams and steps of other flows to the pipeline, after those of this flow. Continue with the rows of this
        flow.

        Raises ValueError if the flows read a stream with different event times.
        """
        flow = self._flow()
        reads, steps, lookups = list(flow._reads), list(flow._steps), list(flow._lookups)
        for other in (rows._flow() for rows in others):
            for read in other._reads:
                if any(read.stream.name == one.stream.name and read != one for one in reads):
                    raise ValueError(f"stream '{read.stream.name}' has two event times; set its event time once")
                reads += [] if read in reads else [read]
            sinks = {step.key: at for at, step in enumerate(steps)}
            for step in other._steps:
                if step.key in sinks:
                    steps[sinks[step.key]] = steps[sinks[step.key]].with_more(step)
                else:
                    steps.append(step)
            lookups += [one for one in other._lookups if one not in lookups]
        return replace(flow, _reads=tuple(reads), _steps=tuple(steps), _lookups=tuple(lookups))

    def emit(self, *sinks: Mapping[str, Any], name: str | None = None, **more: Unpack[SinkOptions]) -> Flow:
        """Emit the results of the window or join to these sinks; before the first window or join, emit each record. Example:
        `emit(elasticsearch="turbine-minute", stream="minutes")`. A mapping, as `{"elasticsearch": "other"}`, is for a second
        sink of a kind. `name`: name of the stage that emits records."""
        emits = [dict(place) for place in sinks] + [{kind: place} for kind, place in more.items()]
        flow = self._flow()
        last = flow._last()
        if last is not None and name is None and last.is_stage and "emit" not in last.document:
            return flow._instead(last, {**last.document, "emit": emits})
        return self._with({"emit": emits} | ({} if name is None else {"name": name}))

    def take_from(self, *names: str) -> Flow:
        """Begin a branch: continue with the output of the step with this name, or with the stream. Several names are united."""
        return replace(self._flow(), _at=tuple(Taken(said=name) for name in names))

    def step(self, document: Mapping[str, Any]) -> Flow:
        """Add a step in the form of a YAML document, for steps without a method."""
        return self._with(dict(document))

    def pipeline(self, name: str, **fields: Unpack[PipelineFields]) -> Pipeline:
        """Return the pipeline, whose document is valid on its own. Raises ValueError if a stream has no event time.

        Raises InvalidDocument with every error in the document, each with the file and line of its call.
        """
        place, flow = _called_from(), self._flow()
        more: dict[str, Any] = dict(fields)
        time = more.pop("event_time", None)
        streams = flow._with_event_time(time, place)._reads if time is not None else flow._reads
        if untimed := [read.stream.name for read in streams if not read.event_time]:
            raise ValueError(
                f"stream '{untimed[0]}' has no event time; write .event_time('ts', delay='10s') after the stream, "
                f"with its field, or .pipeline({name!r}, event_time={{'field': 'ts', 'delay': '10s'}})"
            )
        range_ = {name: more.pop(name) for name in RANGE_FIELDS if name in more}
        steps = laid_out(flow._steps, [read.stream.name for read in streams])
        lines: dict[Path, int] = {
            (): place.line,
            **{("steps", number): step.call_site.line for number, step in enumerate(flow._steps)},
        }
        inputs = [{"stream": read.stream.name, **range_, **read.range} for read in streams]
        if len(inputs) == 1:
            reads: dict[str, Any] = {"input": inputs[0], "event_time": dict(streams[0].event_time)}
            lines |= {("input",): place.line, ("event_time",): streams[0].call_site.line}
        else:
            times = [dict(read.event_time) for read in streams]
            reads = {"inputs": [{**one, "event_time": time} for one, time in zip(inputs, times, strict=True)]}
            lines |= {("inputs", number): read.call_site.line for number, read in enumerate(streams)}
        document = YamlDocument(
            "pipeline", name, {"pipeline": name, **reads, "steps": steps, **more}, place.file, lines
        )
        known = [one for read in streams for one in read.stream.yaml_documents()]
        return Pipeline(document, (*known, *(one for lookup in flow._lookups for one in lookup.yaml_documents())))

    def _with(self, document: Mapping[str, Any]) -> Flow:
        flow = self._flow()
        step = Step(document, _called_from(), flow._at)
        return replace(flow, _steps=(*flow._steps, step), _at=(Taken(key=step.key),))


@dataclass(frozen=True)
class Flow(Rows):
    """A pipeline under construction: its streams with their event times, its steps in order, and the input of the next step."""

    _reads: tuple[_Read, ...]
    _steps: tuple[Step, ...]
    _at: tuple[Taken, ...]
    _lookups: tuple[Lookup, ...] = ()

    def named(self, name: str) -> Flow:
        """Name the last step, so that others can use its output."""
        last = self._last()
        if last is None:
            raise ValueError(f"there is no step yet that could have the name {name!r}")
        window = last.document.get("window")
        if isinstance(window, Mapping) and "name" not in window:
            return self._instead(last, {**last.document, "window": {"name": name, **window}})
        return self._instead(last, {**last.document, "name": name})

    def _flow(self) -> Flow:
        return self

    def _with_event_time(
        self, event_time: Mapping[str, Any], place: CallSite, range_: Mapping[str, Any] | None = None
    ) -> Flow:
        """Return a copy of the flow in which the only stream without event time has this one. Raises ValueError if no
        stream, or more than one, is without event time.

        Args: place: Position of the call, for errors. range_: Start and end of this stream (RANGE_FIELDS).
        """
        untimed = [read for read in self._reads if not read.event_time]
        if len(untimed) != 1:
            names = ", ".join(f"'{read.stream.name}'" for read in untimed or self._reads)
            raise ValueError(
                f"the event time of {names} is set already; set it once"
                if not untimed
                else f"the streams {names} need one event time each; write .event_time(...) after each of them"
            )
        (old,) = untimed
        timed = replace(old, event_time=event_time, call_site=place, range=range_ or {})
        return replace(self, _reads=tuple(timed if read is old else read for read in self._reads))

    def _one(self, verb: str) -> Taken:
        if len(self._at) != 1:
            raise ValueError(
                f"a {verb} needs one step as the input of each side; add a step after a union, for example where()"
            )
        return self._at[0]

    def _last(self) -> Step | None:
        """Return the step whose rows come here. None after a stream, after several steps, and after a name."""
        keys = [taken.key for taken in self._at]
        return next((step for step in self._steps if keys == [step.key]), None)

    def _instead(self, old: Step, document: Mapping[str, Any]) -> Flow:
        return replace(
            self, _steps=tuple(replace(one, document=document) if one is old else one for one in self._steps)
        )


@dataclass(frozen=True)
class Stream(Rows):
    """A stream: only its name if it is registered elsewhere, or its whole document."""

    name: str
    document: Mapping[str, Any] | None
    """The `stream:` document. None if only its name is known."""
    _place: CallSite

    def yaml_documents(self) -> list[YamlDocument]:
        """Return the document with the position of the call. Empty if only the name is known."""
        if self.document is None:
            return []
        return [YamlDocument("stream", self.name, dict(self.document), self._place.file, {(): self._place.line})]

    @property
    def spec(self) -> StreamSpec:
        """Model of the document. Raises InvalidDocument; LookupError if only the name is known."""
        for document in self.yaml_documents():
            return StreamSpec.parse(document)
        raise LookupError(f"only the name of stream '{self.name}' is known; pass a schema to stream()")

    def _flow(self) -> Flow:
        return Flow((_Read(self, {}, _called_from(), {}),), (), (Taken(stream=self.name),))


def stream(name: str, *, schema: Mapping[str, Any] | None = None, **fields: Unpack[StreamFields]) -> Stream:
    """Return a stream to read. With `schema` (field -> type, as in the YAML document) and `fields`, it can be registered. Then
    pipelines over it can also be checked and run locally. Without them, the stream is registered elsewhere."""
    document = None
    if schema is not None or fields:
        document = {"stream": name, **({} if schema is None else {"schema": dict(schema)}), **fields}
    return Stream(name, document, _called_from())


def _plain(names: str | Sequence[str] | Mapping[str, str]) -> object:
    return names if isinstance(names, str) else dict(names) if isinstance(names, Mapping) else list(names)


def _called_from() -> CallSite:
    """Return the position of the call in the program."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(_OWN_MODULES):
        frame = frame.f_back
    return CallSite(frame.f_code.co_filename, frame.f_lineno)
