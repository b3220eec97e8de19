"""The `pipeline:` document, and the checks that need only its text. `checker.check` compares it with its streams."""

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
    """`checkpoint` of a pipeline's document: the duration and size of its slices. Each slice ends with one checkpoint. Fewer and
    larger slices cost less, but delay results by the length of a slice."""

    every: Duration | None = None
    """Minimum time between two slices. Null for the setting of the control service."""
    records: Annotated[int, Field(ge=1)] | None = None
    """Approximate maximum number of records of a slice. Null for the setting of the control service."""


class DeadLettersSpec(DocumentModel):
    """`dead_letters` of a pipeline's document: the searchable index. The dead-letter stream contains them in any case."""

    index: bool = False
    """True if the newest dead letters are also in the index `JOB.dead-letters`."""
    retention: Duration = Field(default=2_592_000_000, json_schema_extra={"default": "30d"})
    """Time after which dead letters are deleted from the index."""
    max_documents: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000
    """Approximate maximum number of dead letters in the index."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.retention == 0:
            yield ("retention",), "the index would keep nothing; expected at least 1ms, or index: false"


class LateSpec(DocumentModel):
    """`late` of a pipeline's document, if late records revise results that are already emitted."""

    revise: Duration
    """Time below the watermark in which a record still counts. Older records become dead letters."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.revise == 0:
            yield ("revise",), "no late record would count; expected at least 1ms, or 'late: dead_letter'"


class PipelineSpec(DocumentModel):
    """A pipeline: it reads one or several streams, processes their records in steps, and emits results."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["input", "event_time"]}, {"required": ["inputs"]}]}
    )
    NOT_SUPPORTED: ClassVar[dict[str, str]] = {
        "allowed_lateness": "for results that late records revise, write 'late: {revise: DURATION}'",
        "watermark": "belongs to 'event_time', as its 'delay' does",
        "delay": "belongs to 'event_time', as {field: ts, delay: 10s}",
        "sink": "the sinks are in 'emit' of a step, as emit: [{elasticsearch: NAME}]",
    }
    pipeline: Name
    """Name of the pipeline and of its job."""
    input: InputSpec | None = None
    """Stream to read: {stream: NAME}."""
    event_time: EventTimeSpec | None = None
    """Source of event time: {field, delay}, as {field: ts, delay: 10s}. {from: log} is the arrival time."""
    inputs: Annotated[list[StreamInputSpec], Field(min_length=1, max_length=INPUTS_MAX)] | None = None
    """Instead of `input` and `event_time`: several streams, each {stream, start, event_time}."""
    steps: list[SerializeAsAny[StepSpec]] = Field(min_length=1)
    """Steps in order. Each step reads the output of the step before it, or of the step in `from`."""
    late: Annotated[
        Annotated[Literal["dead_letter", "drop"], Tag(WORD)] | Annotated[LateSpec, Tag(MAPPING)],
        Discriminator(word_or_mapping),
    ] = "dead_letter"
    """Treatment of a late record, whose event time is below the watermark. `{revise: DURATION}`: a record that is at most this
    far below the watermark revises the results that contain it."""
    on_error: Literal["dead_letter", "crash"] = "dead_letter"
    """Treatment of a record that can't be processed. `crash` stops the job at its slice."""
    guarantee: Literal["exactly_once", "at_least_once", "none"] = "exactly_once"
    """Effect of a failure on results: none, some repeated results, or records missing from open windows."""
    recovery: Literal["rewind", "snapshot"] = "rewind"
    """How a start restores the state of open windows: by reading the log again, or from Spark's checkpoint on disk."""
    placement: Literal["own", "pool"] | None = None
    """Runner of the job: its own, or one that it shares with other jobs. Null for the rule of the control service. No result
    depends on it."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """How often progress is recorded: {every, records}."""
    dead_letters: DeadLettersSpec = DeadLettersSpec()
    """Search index for dead letters: {index, retention, max_documents}."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        for name in ("input", "event_time"):
            if self.inputs is None and getattr(self, name) is None:
                yield (name,), f"is missing; expected: {docstrings_of(type(self))[name]}"
            elif self.inputs is not None and getattr(self, name) is not None:
                yield (name,), "is set for each stream in 'inputs'; remove one of them"
        if self.placement == "pool" and self.recovery == "snapshot":
            yield ("placement",), "a pool doesn't run 'recovery: snapshot'; expected 'own', or 'recovery: rewind'"
        if self.inputs is None and (self.input is None or self.event_time is None):
            return
        streams = self.streams
        for at, stream in enumerate(streams):
            if stream in streams[:at]:
                yield (
                    ("inputs", at, "stream"),
                    f"'{stream}' is already listed; list it once, and let several steps read 'from: {stream}'",
                )
        for at, read in enumerate(self.reads):
            if self.is_batch and read.end is None:
                yield (
                    (*self.path_of_input(at), "end"),
                    "is missing: another stream has an end, and a batch ends in all streams; add an end, as 'end: latest'",
                )
        yield from graph_problems(self.steps, list(dict.fromkeys(streams)))

    @property
    def reads(self) -> list[StreamInputSpec]:
        """Inputs in the order of the document, in either form."""
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
        """Time below the watermark, in ms, in which a record still counts and revises results. 0 if such a record is late."""
        return self.late.revise if isinstance(self.late, LateSpec) else 0

    @property
    def is_batch(self) -> bool:
        """True if the job ends automatically: it reads its streams up to a position, and closes all windows there."""
        return any(one.end is not None for one in self.reads)

    @property
    def streams(self) -> list[str]:
        """Streams that the pipeline reads, in the order of the document."""
        return [one.stream for one in self.reads]

    def path_of_input(self, at: int) -> Path:
        """Return the path in the document of the input with this index."""
        return ("input",) if self.inputs is None else ("inputs", at)

    def path_of_event_time(self, at: int) -> Path:
        """Return the path in the document of the event time of the input with this index."""
        return ("event_time",) if self.inputs is None else ("inputs", at, "event_time")

    @property
    def sources(self) -> list[tuple[int, ...]]:
        """For each step, the indices of the steps that it reads. `step_graph.STREAM` and below are the records of a stream."""
        return sources(self.steps, self.streams)

    @property
    def has_branches(self) -> bool:
        """True if a step reads another step than the one before it."""
        return any(taken != (at - 1,) for at, taken in enumerate(self.sources))

    def emissions(self) -> Iterator[tuple[str, EmitSpec]]:
        """Yield (stage, sink) of each emission. An `emit` after a window or a join belongs to that stage."""
        stages: list[str | None] = []
        for step, taken in zip(self.steps, self.sources, strict=True):
            behind = None if taken[0] <= STREAM else stages[taken[0]]
            stages.append(step.stage_name or behind)
            for emit in step.emit or []:
                yield stages[-1] or step.record_stage_name, emit

    def lookups(self) -> list[str]:
        """Lookups that the pipeline uses, each once."""
        return list(dict.fromkeys(lookup for step in self.steps for lookup in step.lookups))

    def stage_names(self) -> list[str]:
        """Names of all windows and joins, and of all emissions of records."""
        windows = [step.stage_name for step in self.steps if step.stage_name is not None]
        return list(dict.fromkeys([*windows, *(stage for stage, _ in self.emissions())]))

    def emits_records_to(self, stream: str) -> bool:
        """Return True if it emits records, not results of windows, to this stream."""
        windows = {step.stage_name for step in self.steps}
        return any(
            sink_of(emit).is_stream and emit.name == stream and stage not in windows for stage, emit in self.emissions()
        )

    def reading_results(self, emitted: Container[str]) -> Self:
        """Return the pipeline with the defaults for streams of results, where the document doesn't set them. `emitted`: these
        streams.

        The defaults are `watermark: newest`, or `emissions` if there are several streams, and no `idle_timeout`. Only whole
        emissions are read, so the newest result is never ahead of a later one. Silence between emissions, or while the other
        job is down, has no meaning.
        """

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
            for name in ("idle_timeout", "max_ahead"):  # null means never, and a missing value means the default
                one["event_time"].setdefault(name, getattr(read.event_time, name))
        return data


def json_schema() -> dict[str, object]:
    """Return the JSON Schema (draft 2020-12) of one document: a stream, a lookup or a pipeline. For editors and the API.

    The schema describes the form. `check` checks relations between fields, for example that a column exists.
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
