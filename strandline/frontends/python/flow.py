"""Pipelines in Python: `stream("turbines").event_time("ts", delay="10s").where("load < 10")...pipeline("turbine-health")`.

Nothing here knows what a step means. Each method adds what a YAML document would say, in the same words, and `pipeline` has
the one model read it. So both give the same canonical document, and mistakes are told in the same sentences, with the file
and line of the call instead of those of the document. Nothing is ever changed: each method returns a new object.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, Unpack

from strandline.core.documents import Path, YamlDocument
from strandline.core.stream import StreamSpec
from strandline.frontends.python.pipeline import Pipeline
from strandline.frontends.python.windows import DurationLike, Windows, duration_text

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


class PipelineFields(TypedDict, total=False):
    """The fields of a `pipeline:` document beside its name, input, event time and steps."""

    start: str
    """Of `input`: where a new job begins: `earliest`, `latest` or a log time in ISO 8601."""
    end: str
    """Of `input`: where it ends, which makes it a batch: `latest`, or a log time."""
    late: Literal["dead_letter", "drop"]
    on_error: Literal["dead_letter", "crash"]
    guarantee: Literal["exactly_once", "at_least_once", "none"]
    recovery: Literal["rewind", "snapshot"]
    checkpoint: Mapping[str, Any]
    dead_letters: Mapping[str, Any]


@dataclass(frozen=True)
class CallPlace:
    """Where in a program something was said."""

    file: str
    line: int


@dataclass(frozen=True)
class _Step:
    document: Mapping[str, Any]
    place: CallPlace


@dataclass(frozen=True)
class Stream:
    """A stream: its name alone, when it is registered elsewhere, or its whole document."""

    name: str
    document: Mapping[str, Any] | None
    """The `stream:` document; None: only its name is known."""
    _place: CallPlace

    def event_time(
        self,
        field: str | None = None,
        *,
        delay: DurationLike | None = None,
        watermark: Literal["partitions", "newest"] | None = None,
        from_log: bool = False,
        else_log: bool = False,
        **limits: Unpack[_Limits],
    ) -> Flow:
        """Say what tells when a record happened; steps come behind it.

        `field`: a timestamp of the stream, with `delay`, the disorder allowed. `from_log`: the time of arrival instead;
        `else_log`: beside `field`, for records that lack it. `idle_timeout`, `max_ahead`: None is never; left out, the
        document's defaults hold.
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
        return Flow(self, said, _called_from(), ())

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


class _Limits(TypedDict, total=False):
    """The bounds of event time that may be None, which is never."""

    idle_timeout: DurationLike | None
    """After so long a silence a partition no longer holds the others back."""
    max_ahead: DurationLike | None
    """A record further than this in the future of its arrival is a dead letter."""


def stream(name: str, *, schema: Mapping[str, Any] | None = None, **fields: Unpack[StreamFields]) -> Stream:
    """A stream to read. With `schema` (field -> type, as in the YAML document) and what else the document has, it can be
    registered, and pipelines over it can be checked and run at the desk; without, it is one that is registered elsewhere."""
    document = None
    if schema is not None or fields:
        document = {"stream": name, **({} if schema is None else {"schema": dict(schema)}), **fields}
    return Stream(name, document, _called_from())


@dataclass(frozen=True)
class Flow:
    """What is said of a pipeline so far: its stream, its event time, and its steps in order."""

    stream: Stream
    _event_time: Mapping[str, Any]
    _event_time_place: CallPlace
    _steps: tuple[_Step, ...]
    _from: str | None = None
    """What the next step takes from, if not the one before it."""

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
        name: str,
        by: Sequence[str] = (),
        aggregate: Mapping[str, str] | None = None,
        **named: str,
    ) -> Flow:
        """Collect records by time and by the fields `by`: result field -> expression with an aggregate function.

        `aggregate` is for names that are no Python names, or those of other parameters; both may be given.
        """
        if isinstance(by, str):
            raise TypeError(f"by={by!r} is one text; write by=[{by!r}]")
        keys = {"by": list(by)} if by else {}
        aggregates = {**(aggregate or {}), **named}
        return self._with({"window": {"name": name, **windows.fields, **keys, "aggregate": aggregates}})

    def emit(self, *places: Mapping[str, Any], name: str | None = None, **more: Unpack[Places]) -> Flow:
        """Send what comes so far to these places: results of the window, or before the first window each record.

        `emit(elasticsearch="turbine-minute", stream="minutes")`; a mapping as `{"elasticsearch": "other"}` serves where one
        kind is needed twice. `name`: of the stage, where records are emitted.
        """
        emits = [dict(place) for place in places] + [{kind: place} for kind, place in more.items()]
        last = self._steps[-1] if self._steps else None
        if (
            self._from is None
            and last is not None
            and "window" in last.document
            and "emit" not in last.document
            and name is None
        ):
            beside = replace(last, document={**last.document, "emit": emits})
            return replace(self, _steps=(*self._steps[:-1], beside))
        return self._with({"emit": emits} | ({} if name is None else {"name": name}))

    def named(self, name: str) -> Flow:
        """Give the step before a name, by which others may take what it gives. A window has one already."""
        if not self._steps:
            raise ValueError(f"there is no step yet that could be called {name!r}")
        last = self._steps[-1]
        return replace(self, _steps=(*self._steps[:-1], replace(last, document={**last.document, "name": name})))

    def take_from(self, name: str) -> Flow:
        """Go on with what the step of this name gave, or the stream: a branch begins."""
        return replace(self, _from=name)

    def step(self, document: Mapping[str, Any]) -> Flow:
        """A step as a YAML document has it, for one that has no method here."""
        return self._with(dict(document))

    def pipeline(self, name: str, **fields: Unpack[PipelineFields]) -> Pipeline:
        """The whole pipeline, read by the model. Raises InvalidDocument with every mistake that its text alone shows, each
        with the file and line of the call that made it."""
        place = _called_from()
        more: dict[str, Any] = dict(fields)
        range_: dict[str, Any] = {name: more.pop(name) for name in ("start", "end") if name in more}
        data = {
            "pipeline": name,
            "input": {"stream": self.stream.name, **range_},
            "event_time": dict(self._event_time),
            "steps": [dict(step.document) for step in self._steps],
            **more,
        }
        lines: dict[Path, int] = {
            (): place.line,
            ("input",): place.line,
            ("event_time",): self._event_time_place.line,
            **{("steps", number): step.place.line for number, step in enumerate(self._steps)},
        }
        document = YamlDocument("pipeline", name, data, place.file, lines)
        return Pipeline(document, next(iter(self.stream.yaml_documents()), None))

    def _with(self, document: Mapping[str, Any]) -> Flow:
        taken = {} if self._from is None else {"from": self._from}
        return replace(self, _steps=(*self._steps, _Step({**document, **taken}, _called_from())), _from=None)


def _called_from() -> CallPlace:
    """Where the program called the method that asks."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(_OWN_MODULES):
        frame = frame.f_back
    return CallPlace(frame.f_code.co_filename, frame.f_lineno)
