"""The `pipeline:` document: all that its text alone can tell. `checker.check` compares it with the stream that it reads."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, SerializeAsAny, Tag
from pydantic.json_schema import models_json_schema

from strandline.core.described import docstrings_of
from strandline.core.document_model import MAPPING, WORD, DocumentModel, OpenModel, word_or_mapping
from strandline.core.document_values import Duration, Name
from strandline.core.documents import Path
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.states import WatermarkPolicy
from strandline.processing.pipelines.model.emissions import EmitSpec
from strandline.processing.pipelines.model.inputs import EventTimeSpec, InputSpec, StreamInputSpec
from strandline.processing.pipelines.model.steps import StepSpec
from strandline.processing.pipelines.step_graph import STREAM, graph_problems, sources
from strandline.results.records.partition_labels import INPUTS_MAX
from strandline.results.sinks.registry import sink_of


class CheckpointSpec(DocumentModel):
    """`checkpoint` of a pipeline's document: how long and how large its slices get. Each slice ends with one checkpoint. Fewer
    and larger slices cost less; results come as late as a slice is long."""

    every: Duration | None = None
    """The shortest time between two slices; null is the control service's setting."""
    records: Annotated[int, Field(ge=1)] | None = None
    """A slice is cut before it would hold clearly more; null is the control service's setting."""


class DeadLettersSpec(DocumentModel):
    """`dead_letters` of a pipeline's document: whether they can be searched for. The dead-letter stream has them in any case."""

    index: bool = False
    """Whether the newest are also in the index `JOB.dead-letters`."""
    kept: Duration = Field(default=2_592_000_000, json_schema_extra={"default": "30d"})
    """Older ones go from the index."""
    newest: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000
    """The index holds about so many at most."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.kept == 0:
            yield ("kept",), "an index that keeps nothing; expected at least 1ms, or index: false"


class LateSpec(DocumentModel):
    """`late` of a pipeline's document, where late records revise results that are emitted already."""

    revise: Duration
    """So far behind the watermark a record still counts. What comes later is a dead letter."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.revise == 0:
            yield ("revise",), "no late record would count; expected at least 1ms, or 'late: dead_letter'"


class PipelineSpec(DocumentModel):
    """A pipeline: one stream in or several, steps, results out."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["input", "event_time"]}, {"required": ["inputs"]}]}
    )
    NOT_SUPPORTED: ClassVar[dict[str, str]] = {
        "allowed_lateness": "for results that late records revise, write 'late: {revise: DURATION}'",
        "watermark": "stands in 'event_time', as its 'delay' does",
        "delay": "stands in 'event_time', as {field: ts, delay: 10s}",
        "sink": "results go where a step's 'emit' says, as emit: [{elasticsearch: NAME}]",
    }
    pipeline: Name
    """The name, and the name of the job."""
    input: InputSpec | None = None
    """Where records come from: {stream: NAME}."""
    event_time: EventTimeSpec | None = None
    """When it happened: {field, delay}, as {field: ts, delay: 10s}; {from: log} is the time of arrival."""
    inputs: Annotated[list[StreamInputSpec], Field(min_length=1, max_length=INPUTS_MAX)] | None = None
    """Instead of `input` and `event_time`: several streams, each {stream, start, event_time}."""
    steps: list[SerializeAsAny[StepSpec]] = Field(min_length=1)
    """What is done, in order: each step takes what the one before it gives, or the one that it names in `from`."""
    late: Annotated[
        Annotated[Literal["dead_letter", "drop"], Tag(WORD)] | Annotated[LateSpec, Tag(MAPPING)],
        Discriminator(word_or_mapping),
    ] = "dead_letter"
    """What becomes of a late record: one whose event time is below the watermark. Or `{revise: DURATION}`: one that is no farther
    below it revises the results that it belongs to."""
    on_error: Literal["dead_letter", "crash"] = "dead_letter"
    """What becomes of a record that can't be used; crash stops the job at its slice."""
    guarantee: Literal["exactly_once", "at_least_once", "none"] = "exactly_once"
    """What a failure may do to results: nothing; repeat some; or leave records out of open windows."""
    recovery: Literal["rewind", "snapshot"] = "rewind"
    """How a start comes to the state of open windows: it reads the log again, or goes on from Spark's checkpoint on disk."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """How often progress is recorded: {every, records}."""
    dead_letters: DeadLettersSpec = DeadLettersSpec()
    """Whether dead letters can be searched for: {index, kept, newest}."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        for name in ("input", "event_time"):
            if self.inputs is None and getattr(self, name) is None:
                yield (name,), f"is missing; expected: {docstrings_of(type(self))[name]}"
            elif self.inputs is not None and getattr(self, name) is not None:
                yield (name,), "stands beside 'inputs', which says it for each stream; remove one of them"
        if self.inputs is None and (self.input is None or self.event_time is None):
            return
        streams = self.streams
        for at, stream in enumerate(streams):
            if stream in streams[:at]:
                yield (
                    ("inputs", at, "stream"),
                    f"'{stream}' is read already; name it once, and let several steps take 'from: {stream}'",
                )
        for at, read in enumerate(self.reads):
            if self.is_batch and read.end is None:
                yield (
                    (*self.path_of_input(at), "end"),
                    "is missing: another of the streams has an end, and a batch ends in all of them; add one, as 'end: latest'",
                )
        yield from graph_problems(self.steps, list(dict.fromkeys(streams)))

    @property
    def reads(self) -> list[StreamInputSpec]:
        """What it reads, in the order of the document, whichever form that has."""
        if self.inputs is not None:
            return self.inputs
        assert self.input is not None and self.event_time is not None, "checked when the document was read"
        return [
            StreamInputSpec.model_construct(
                stream=self.input.stream, start=self.input.start, end=self.input.end, event_time=self.event_time
            )
        ]

    @property
    def revise_ms(self) -> int:
        """So far behind the watermark a record still counts, and revises what is emitted; 0: it is late."""
        return self.late.revise if isinstance(self.late, LateSpec) else 0

    @property
    def is_batch(self) -> bool:
        """Whether its job ends by itself: it reads its streams up to a place, and closes all windows there."""
        return any(one.end is not None for one in self.reads)

    @property
    def streams(self) -> list[str]:
        """The streams that it reads, in the order of the document."""
        return [one.stream for one in self.reads]

    def path_of_input(self, at: int) -> Path:
        """Where in the document that input stands whose place is `at`."""
        return ("input",) if self.inputs is None else ("inputs", at)

    def path_of_event_time(self, at: int) -> Path:
        """Where in the document the event time of that input stands."""
        return ("event_time",) if self.inputs is None else ("inputs", at, "event_time")

    @property
    def sources(self) -> list[tuple[int, ...]]:
        """For each step the places of those from which it takes; `step_graph.STREAM` and below: it takes a stream's records."""
        return sources(self.steps, self.streams)

    @property
    def has_branches(self) -> bool:
        """Whether a step takes from another than the one before it."""
        return any(taken != (at - 1,) for at, taken in enumerate(self.sources))

    def emissions(self) -> Iterator[tuple[str, EmitSpec]]:
        """(stage, place) of each emission. An `emit` behind a window, or a join, is of that stage."""
        stages: list[str | None] = []
        for step, taken in zip(self.steps, self.sources, strict=True):
            behind = None if taken[0] <= STREAM else stages[taken[0]]
            stages.append(step.stage_name or behind)
            for emit in step.emit or []:
                yield stages[-1] or step.record_stage_name, emit

    def lookups(self) -> list[str]:
        """The lookups that it uses, each once."""
        return list(dict.fromkeys(lookup for step in self.steps for lookup in step.lookups))

    def stage_names(self) -> list[str]:
        """Of all windows and joins, and of all emissions of records."""
        windows = [step.stage_name for step in self.steps if step.stage_name is not None]
        return list(dict.fromkeys([*windows, *(stage for stage, _ in self.emissions())]))

    def emits_records_to(self, stream: str) -> bool:
        """Whether it emits records to this stream, not results of windows."""
        windows = {step.stage_name for step in self.steps}
        return any(
            sink_of(emit).is_stream and emit.name == stream and stage not in windows for stage, emit in self.emissions()
        )

    def reading_results(self, emitted: Container[str]) -> Self:
        """The pipeline with the defaults for streams of results, which are `emitted`, where the document doesn't say: `watermark:
        newest`, beside other streams `emissions`, and no `idle_timeout`. Whole emissions come, so the newest result is never
        ahead of one that is still to come; and between two of them silence says nothing, nor while the other job is away."""

        def with_defaults(time: EventTimeSpec, watermark: WatermarkPolicy) -> EventTimeSpec:
            defaults = {"watermark": watermark, "idle_timeout": None}
            unsaid = {name: value for name, value in defaults.items() if name not in time.model_fields_set}
            return time.model_copy(update=unsaid)

        if self.inputs is None:
            assert self.input is not None and self.event_time is not None, "checked when the document was read"
            if self.input.stream not in emitted:
                return self
            return self.model_copy(update={"event_time": with_defaults(self.event_time, "newest")})
        inputs = [
            one.model_copy(update={"event_time": with_defaults(one.event_time, "emissions")})
            if one.stream in emitted
            else one
            for one in self.inputs
        ]
        return self.model_copy(update={"inputs": inputs})

    def as_document(self) -> dict[str, Any]:
        data: dict[str, Any] = super().as_document()
        written = [data] if self.inputs is None else data["inputs"]
        for read, one in zip(self.reads, written, strict=True):
            for name in ("idle_timeout", "max_ahead"):  # null is never, and a missing value is the default
                one["event_time"].setdefault(name, getattr(read.event_time, name))
        return data


def json_schema() -> dict[str, object]:
    """Return the JSON Schema (draft 2020-12) of one document: a stream, a lookup or a pipeline. For editors and the API.

    It tells the form. What fields mean to each other (a window that divides, a column that exists) `check` tells.
    """
    specs: list[type[DocumentModel]] = [StreamSpec, LookupSpec, PipelineSpec]
    _, schema = models_json_schema([(spec, "validation") for spec in specs], by_alias=True)
    for model in OpenModel.__subclasses__():
        if (extended := model.extended()) is not model:
            added = extended.model_json_schema(by_alias=True)
            schema["$defs"] |= {**added.pop("$defs", {}), **schema["$defs"], model.__name__: added}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Strandline document",
        "oneOf": [{"$ref": f"#/$defs/{spec.__name__}"} for spec in specs],
        "$defs": schema["$defs"],
    }
