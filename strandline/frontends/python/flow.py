"""Pipelines in Python: `stream("turbines").event_time("ts", delay="10s").where("load < 10")...pipeline("turbine-health")`.

Nothing here knows what a step means. Each method adds what a YAML document would say, in the same words, and `pipeline` has
the one model read it. So both give the same canonical document, and mistakes are told in the same sentences, with the file
and line of the call instead of those of the document. Nothing is ever changed: each method returns a new object.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from strandline.core.documents import Path, YamlDocument
from strandline.core.streams.stream import StreamSpec
from strandline.frontends.document_text import RANGE_FIELDS
from strandline.frontends.python.layout import CallPlace, Step, Taken, laid_out
from strandline.frontends.python.pipeline import Pipeline
from strandline.frontends.python.windows import DurationLike, Windows, duration_text

if TYPE_CHECKING:  # what reads rows is loaded when some are read
    from strandline.core.lookups.lookup import LookupSpec

_OWN_MODULES = "strandline.frontends."


class Places(TypedDict, total=False):
    """Where results go, in the words of a document's `emit`."""

    elasticsearch: str | Mapping[str, Any]
    """An alias in Elasticsearch, or `{name, shards, replicas, refresh_interval, lifecycle}`."""
    stream: str
    """A stream, which other pipelines may read."""
    files: Mapping[str, Any]
    """Parquet files by day: `{path, format}`."""
    sql: Mapping[str, Any]
    """A table: `{table}`."""
    sink: Mapping[str, Any]
    """A sink that a package brings: `{use, name, options}`."""


class StreamFields(TypedDict, total=False):
    """The fields of a `stream:` document beside its name and schema."""

    partitions: int
    format: str
    key: str
    retention: str
    durability: Literal["log", "spool"]
    explode: str
    raw: Mapping[str, Any]
    csv: Mapping[str, Any]
    avro: Mapping[str, Any]
    protobuf: Mapping[str, Any]
    mqtt: Mapping[str, Any]
    http: Mapping[str, Any]
    udp: Mapping[str, Any]
    tcp: Mapping[str, Any]
    poll: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    gateways: Mapping[str, Mapping[str, Any]]


class PipelineFields(TypedDict, total=False):
    """The fields of a `pipeline:` document beside its name, input and steps."""

    event_time: Mapping[str, Any]
    """Of the one stream behind which no `.event_time(...)` stands, in a document's words: `{"field": "ts", "delay": "10s"}`."""
    start: str
    """Of `input`: where a new job begins: `earliest`, `latest` or a log time in ISO 8601."""
    end: str
    """Of `input`: where it ends, which makes it a batch: `latest`, or a log time."""
    late: Literal["dead_letter", "drop"] | Mapping[str, Any]
    """Or `{"revise": "30m"}`: for so long late records revise results."""
    on_error: Literal["dead_letter", "crash"]
    guarantee: Literal["exactly_once", "at_least_once", "none"]
    recovery: Literal["rewind", "snapshot"]
    checkpoint: Mapping[str, Any]
    dead_letters: Mapping[str, Any]


class _Limits(TypedDict, total=False):
    """The bounds of event time that may be None, which is never."""

    idle_timeout: DurationLike | None
    """After so long a silence a partition no longer holds the others back."""
    max_ahead: DurationLike | None
    """A record more than this ahead of its arrival is a dead letter."""


@dataclass(frozen=True)
class Lookup:
    """A lookup with its rows, by whose key records are enriched."""

    name: str
    document: Mapping[str, Any]
    _place: CallPlace

    def yaml_documents(self) -> list[YamlDocument]:
        """The document with the place where it was said."""
        return [YamlDocument("lookup", self.name, dict(self.document), self._place.file, {(): self._place.line})]

    @property
    def spec(self) -> LookupSpec:
        """The model of the document. Raises InvalidDocument for a wrong one."""
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
    """A lookup: its fields, as those of a stream, the field or the fields by which a row is found, and its rows."""
    said = more if rows is None else {"rows": [dict(row) for row in rows], **more}
    keys = key if isinstance(key, str) else list(key)
    return Lookup(name, {"lookup": name, "schema": dict(schema), "key": keys, **said}, _called_from())


@dataclass(frozen=True)
class _Read:
    """A stream that the pipeline reads."""

    stream: Stream
    event_time: Mapping[str, Any]
    """Empty: nothing has said it yet."""
    place: CallPlace = field(compare=False)
    range: Mapping[str, Any]
    """The RANGE_FIELDS that are said of it alone."""


class Rows:
    """What steps may stand behind: a stream, with which a flow begins, or the flow so far."""

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
        """Say what tells when a record of the stream happened, before its steps or behind them.

        `field`: a timestamp of the stream, with `delay`, the disorder allowed. `from_log`: the time of arrival instead;
        `else_log`: beside `field`, for records that lack it. `idle_timeout`, `max_ahead`: None is never; left out, the
        document's defaults hold. `start`, `end`: where a new job begins to read the stream, and where a batch
        ends.
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
        """New fields: name -> expression over the fields before this step."""
        return self._with({"derive": {**(expressions or {}), **named}})

    def where(self, condition: str) -> Flow:
        """Keep the records, or behind a window its results, for which this is true."""
        return self._with({"where": condition})

    def select(self, *fields: str) -> Flow:
        """Keep these fields alone, in this order."""
        return self._with({"select": list(fields)})

    def drop(self, *fields: str) -> Flow:
        """Leave these fields out."""
        return self._with({"drop": list(fields)})

    def dedupe(self, *, by: Sequence[str], within: DurationLike) -> Flow:
        """Leave out records that come again: those with equal `by` fields whose event times are less than `within` apart. The
        stream's key is among the fields."""
        if isinstance(by, str):
            raise TypeError(f"by={by!r} is one text; write by=[{by!r}]")
        return self._with({"dedupe": {"by": list(by), "within": duration_text(within)}})

    def distinct(self, *, by: Sequence[str]) -> Flow:
        """Of a batch: leave out every record whose `by` fields another one before it had. The stream's key is among them."""
        if isinstance(by, str):
            raise TypeError(f"by={by!r} is one text; write by=[{by!r}]")
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
        """Collect records by time and by the fields `by`: result field -> expression with an aggregate function.

        `aggregate`, or in short `agg`, is for names that are no Python names, or those of other parameters; both may be given.
        (`agg="count(*)"`, a text, is a result field of that name.) Without `name` the window is called like the first place to
        which its results go, as in SQL.
        """
        if isinstance(by, str):
            raise TypeError(f"by={by!r} is one text; write by=[{by!r}]")
        if isinstance(windows, str):
            raise TypeError(f"{windows!r} is a text; write tumbling({windows!r}), sliding(...) or session(...)")
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
        """Add fields of a lookup: `key` is the field that holds its key, and `add` names those that are added, or `{field: field
        of the lookup}`. A record without a row is a dead letter, or with `optional` has nulls."""
        name = lookup if isinstance(lookup, str) else lookup.name
        said = {"lookup": name, "key": _plain(key), "add": _plain(add), **({"optional": True} if optional else {})}
        flow = self._with({"enrich": said})
        known = () if isinstance(lookup, str) or lookup in flow._lookups else (lookup,)
        return replace(flow, _lookups=(*flow._lookups, *known))

    def map(
        self, function: str, *, reads: Sequence[str], columns: Mapping[str, str], deterministic: Literal[True]
    ) -> Flow:
        """New fields, name -> type, by a Python function `package.module:function` of the fields that it reads. You say that the
        same record gives the same values in each run."""
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
        """Put rows of this flow, on the left, and of another together that are equal in the fields `on`.

        `before`, `after`: how long before or after the row on the left that on the right may be; `within`: both; `tumbling`
        instead: both are in one window of this size; or `same_window`: both are results of one window. `latest`: of the rows on
        the right only the latest that is not later. `kind`: `left` and `full` also give rows without a partner. `add`, and
        other names: fields of the joined row, `left.FIELD` or `right.FIELD`. `other` may be the name of a step or stream.
        """
        if isinstance(on, str):
            raise TypeError(f"on={on!r} is one text; write on=[{on!r}]")
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
        """Go on with the rows of this flow and of others, with the fields that all of them have, by name. Keeps duplicates."""
        together = self.beside(*others)
        return replace(together, _at=tuple(taken for rows in (self, *others) for taken in rows._flow()._at))

    def beside(self, *others: Rows) -> Flow:
        """This flow, and others in the same pipeline: their streams, and their steps behind those here. Goes on with what this
        one gave. Raises ValueError where they read one stream by two event times."""
        flow = self._flow()
        reads, steps, lookups = list(flow._reads), list(flow._steps), list(flow._lookups)
        for other in (rows._flow() for rows in others):
            for read in other._reads:
                if any(read.stream.name == one.stream.name and read != one for one in reads):
                    raise ValueError(f"stream '{read.stream.name}' is read in two ways; say its event time once")
                reads += [] if read in reads else [read]
            places = {step.key: at for at, step in enumerate(steps)}
            for step in other._steps:
                if step.key in places:
                    steps[places[step.key]] = steps[places[step.key]].with_more(step)
                else:
                    steps.append(step)
            lookups += [one for one in other._lookups if one not in lookups]
        return replace(flow, _reads=tuple(reads), _steps=tuple(steps), _lookups=tuple(lookups))

    def emit(self, *places: Mapping[str, Any], name: str | None = None, **more: Unpack[Places]) -> Flow:
        """Send what comes so far to these places: results of the window or the join, or before the first one each record.

        `emit(elasticsearch="turbine-minute", stream="minutes")`; a mapping as `{"elasticsearch": "other"}` serves where one
        kind is needed twice. `name`: of the stage, where records are emitted.
        """
        emits = [dict(place) for place in places] + [{kind: place} for kind, place in more.items()]
        flow = self._flow()
        last = flow._last()
        if last is not None and name is None and last.is_stage and "emit" not in last.document:
            return flow._instead(last, {**last.document, "emit": emits})
        return self._with({"emit": emits} | ({} if name is None else {"name": name}))

    def take_from(self, *names: str) -> Flow:
        """Go on with what the step of this name gave, or the stream: a branch begins. Several names unite."""
        return replace(self._flow(), _at=tuple(Taken(said=name) for name in names))

    def step(self, document: Mapping[str, Any]) -> Flow:
        """A step as a YAML document has it, for one that has no method here."""
        return self._with(dict(document))

    def pipeline(self, name: str, **fields: Unpack[PipelineFields]) -> Pipeline:
        """The whole pipeline, read by the model. Raises InvalidDocument with every mistake that its text alone shows, each
        with the file and line of the call that made it; ValueError for a stream whose event time nothing says."""
        place, flow = _called_from(), self._flow()
        more: dict[str, Any] = dict(fields)
        time = more.pop("event_time", None)
        streams = flow._with_event_time(time, place)._reads if time is not None else flow._reads
        if untimed := [read.stream.name for read in streams if not read.event_time]:
            raise ValueError(
                f"nothing says the event time of stream '{untimed[0]}'; write .event_time('ts', delay='10s') behind the stream, "
                f"with the field that holds it, or .pipeline({name!r}, event_time={{'field': 'ts', 'delay': '10s'}})"
            )
        range_ = {name: more.pop(name) for name in RANGE_FIELDS if name in more}
        steps = laid_out(flow._steps, [read.stream.name for read in streams])
        lines: dict[Path, int] = {
            (): place.line,
            **{("steps", number): step.place.line for number, step in enumerate(flow._steps)},
        }
        inputs = [{"stream": read.stream.name, **range_, **read.range} for read in streams]
        if len(inputs) == 1:
            reads: dict[str, Any] = {"input": inputs[0], "event_time": dict(streams[0].event_time)}
            lines |= {("input",): place.line, ("event_time",): streams[0].place.line}
        else:
            times = [dict(read.event_time) for read in streams]
            reads = {"inputs": [{**one, "event_time": time} for one, time in zip(inputs, times, strict=True)]}
            lines |= {("inputs", number): read.place.line for number, read in enumerate(streams)}
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
    """What is said of a pipeline so far: its streams, each with its event time, its steps in order, and what the next one
    takes."""

    _reads: tuple[_Read, ...]
    _steps: tuple[Step, ...]
    _at: tuple[Taken, ...]
    _lookups: tuple[Lookup, ...] = ()

    def named(self, name: str) -> Flow:
        """Give the step before a name, by which others may take what it gives."""
        last = self._last()
        if last is None:
            raise ValueError(f"there is no step yet that could be called {name!r}")
        window = last.document.get("window")
        if isinstance(window, Mapping) and "name" not in window:
            return self._instead(last, {**last.document, "window": {"name": name, **window}})
        return self._instead(last, {**last.document, "name": name})

    def _flow(self) -> Flow:
        return self

    def _with_event_time(
        self, event_time: Mapping[str, Any], place: CallPlace, range_: Mapping[str, Any] | None = None
    ) -> Flow:
        """The same with this event time of the one stream that has none yet."""
        untimed = [read for read in self._reads if not read.event_time]
        if len(untimed) != 1:
            names = ", ".join(f"'{read.stream.name}'" for read in untimed or self._reads)
            raise ValueError(
                f"the event time of {names} is said already; say it once"
                if not untimed
                else f"one event time for the streams {names}; write .event_time(...) behind each of them"
            )
        (old,) = untimed
        timed = replace(old, event_time=event_time, place=place, range=range_ or {})
        return replace(self, _reads=tuple(timed if read is old else read for read in self._reads))

    def _one(self, verb: str) -> Taken:
        if len(self._at) != 1:
            raise ValueError(
                f"a {verb} takes the rows of one step on each side; give those that are united a step, as where()"
            )
        return self._at[0]

    def _last(self) -> Step | None:
        """The step whose rows come here; None: a stream, several, or one that was named."""
        keys = [taken.key for taken in self._at]
        return next((step for step in self._steps if keys == [step.key]), None)

    def _instead(self, old: Step, document: Mapping[str, Any]) -> Flow:
        return replace(
            self, _steps=tuple(replace(one, document=document) if one is old else one for one in self._steps)
        )


@dataclass(frozen=True)
class Stream(Rows):
    """A stream: its name alone, when it is registered elsewhere, or its whole document."""

    name: str
    document: Mapping[str, Any] | None
    """The `stream:` document; None: only its name is known."""
    _place: CallPlace

    def yaml_documents(self) -> list[YamlDocument]:
        """The document with the place where it was said; none where only the name is known."""
        if self.document is None:
            return []
        return [YamlDocument("stream", self.name, dict(self.document), self._place.file, {(): self._place.line})]

    @property
    def spec(self) -> StreamSpec:
        """The model of the document. Raises InvalidDocument for a wrong one, LookupError where only the name is known."""
        for document in self.yaml_documents():
            return StreamSpec.parse(document)
        raise LookupError(f"only the name of stream '{self.name}' is known; give stream() its schema")

    def _flow(self) -> Flow:
        return Flow((_Read(self, {}, _called_from(), {}),), (), (Taken(stream=self.name),))


def stream(name: str, *, schema: Mapping[str, Any] | None = None, **fields: Unpack[StreamFields]) -> Stream:
    """A stream to read. With `schema` (field -> type, as in the YAML document) and what else the document has, it can be
    registered, and pipelines over it can be checked and run at the desk; without, it is one that is registered elsewhere."""
    document = None
    if schema is not None or fields:
        document = {"stream": name, **({} if schema is None else {"schema": dict(schema)}), **fields}
    return Stream(name, document, _called_from())


def _plain(names: str | Sequence[str] | Mapping[str, str]) -> object:
    return names if isinstance(names, str) else dict(names) if isinstance(names, Mapping) else list(names)


def _called_from() -> CallPlace:
    """Where the program called the method that asks."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(_OWN_MODULES):
        frame = frame.f_back
    return CallPlace(frame.f_code.co_filename, frame.f_lineno)
