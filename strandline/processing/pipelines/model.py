"""The `pipeline:` document: all that its text alone can tell. `checker.check` compares it with the stream that it reads."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    Tag,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue, models_json_schema
from pydantic_core import CoreSchema

from strandline.core.described import docstrings_of
from strandline.core.documents import Path, did_you_mean
from strandline.core.field_types import TYPE_NAMES, normal_type
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.stream import (
    FIELD_NAMES_SCHEMA,
    MAPPING,
    WORD,
    DocumentModel,
    Duration,
    FieldName,
    LogPlace,
    Name,
    StreamSpec,
    check_name,
    names_alike,
    word_or_mapping,
)
from strandline.core.times.durations import format_duration, format_place
from strandline.core.times.time_zones import zone_names
from strandline.ledger.states import WatermarkPolicy
from strandline.processing.pipelines.calendars import DAY_MS, days_begin_at_multiples
from strandline.processing.pipelines.event_time import EventTimeSource
from strandline.processing.pipelines.joins.join_spec import JoinSpec
from strandline.processing.pipelines.step_graph import STREAM, graph_problems, sources
from strandline.results.index_settings import REPLICAS_DEFAULT, IndexSettings
from strandline.results.names import check_emit_name
from strandline.results.records.partition_labels import INPUTS_MAX


def _expression_text(value: object) -> object:
    if not isinstance(value, str) or not value.strip():
        shown = "no value" if value is None else repr(value)
        raise ValueError(f"expected an expression as text, got {shown}")
    return value


ExpressionText = Annotated[str, BeforeValidator(_expression_text), WithJsonSchema({"type": "string", "minLength": 1})]
"""An expression of Spark SQL, as written."""


class InputSpec(DocumentModel):
    """Where records come from."""

    NOT_SUPPORTED: ClassVar[dict[str, str]] = {
        "files": "files are read by way of a stream: strandline batch run FILE --input DATA puts them into it, or strandline "
        "ingest; name the stream, with 'end: latest'",
        "query": "a query over several streams is not supported; name them in 'inputs', and unite them with 'from: [a, b]'",
    }
    stream: Name
    """The stream to read."""
    start: LogPlace = "earliest"
    """Where a new job begins: `earliest`, at the oldest record of the log; `latest`, after the newest; or at the first record
    with this log time or a later one."""
    end: LogPlace | None = None
    """Where a batch ends, which closes all windows there: `latest`, after the record that is the newest when it begins; or before
    the first record with this log time or a later one. Null: the job has no end."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.end is None:
            return
        if self.end == "earliest":
            yield ("end",), "expected latest, or a time: a batch that ends at the oldest record reads nothing"
        elif self.start == "latest":
            yield ("start",), "a batch that begins after the newest record reads nothing; expected earliest, or a time"
        elif isinstance(self.start, int) and isinstance(self.end, int) and self.start >= self.end:
            yield ("end",), f"expected a time after the start, {format_place(self.start)}"


class EventTimeSpec(DocumentModel):
    """What says when it happened, and how much disorder is allowed."""

    field: str | None = None
    """A timestamp field of the stream. It is required there, unless `else` says what holds without it."""
    from_log: Literal["log"] | None = Field(default=None, alias="from")
    """Instead of `field`: event time is log time, that of arrival."""
    else_log: Literal["log"] | None = Field(default=None, alias="else")
    """Beside `field`: event time of a record that lacks it is its log time."""
    delay: Duration = 0
    """How far the watermark stays behind the event time reached. A record below the watermark is late. Needed with `field`."""
    watermark: WatermarkPolicy = "partitions"
    """Whose event time counts: `partitions`, that of the partition furthest behind; or `newest`, the latest of all; or
    `emissions`, of a stream of results: as far as the job that emits them has closed its windows."""
    idle_timeout: Duration | None = Field(default=60_000, json_schema_extra={"default": "1m"})
    """A partition that is silent this long no longer holds the others back; when all are, event time runs on by itself. Null is
    never."""
    max_ahead: Duration | None = Field(default=300_000, json_schema_extra={"default": "5m"})
    """A record further than this in the future of its arrival is a dead letter; null is never."""

    @property
    def source(self) -> EventTimeSource:
        """Where the event time of a record stands."""
        return EventTimeSource(self.field, or_log=self.else_log is not None)

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if (self.field is None) == (self.from_log is None):
            yield (), "expected one of 'field: NAME', a timestamp field, and 'from: log', the time of arrival"
        if self.else_log is not None and self.field is None:
            yield ("else",), "is for records that lack the field, and there is no 'field'; remove it"
        if self.field is not None and "delay" not in self.model_fields_set:
            yield (
                ("delay",),
                "is missing; expected: how far the watermark stays behind the event time reached, as '10s'",
            )
        if self.idle_timeout == 0:
            yield (
                ("idle_timeout",),
                "expected at least 1ms, or null for never; event time would always run on by itself",
            )


class StreamInputSpec(InputSpec):
    """One of several streams, with an event time of its own."""

    event_time: EventTimeSpec
    """When it happened: {field, delay}."""


class SlidingSpec(DocumentModel):
    """Windows that overlap."""

    size: Duration
    """How long each is."""
    every: Duration
    """How far apart they begin, counted from 1970-01-01 UTC."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.every == 0:
            yield ("every",), "windows that all begin at once; expected at least 1ms"
        elif self.every > self.size:
            yield (
                ("every",),
                f"{format_duration(self.every)} is more than the size of {format_duration(self.size)}: records between two "
                "windows would be in none",
            )


class CumulativeSpec(DocumentModel):
    """Windows that begin together and end one step after the other."""

    size: Duration
    """How long the longest is; they begin at its multiples since 1970-01-01 UTC."""
    step: Duration
    """How much longer each is than the one before."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.step == 0:
            yield ("step",), "windows that all end at once; expected at least 1ms"
        elif self.size == 0 or self.size % self.step:
            yield (
                ("size",),
                f"{format_duration(self.size)} is not a multiple of the step of {format_duration(self.step)}, so the last window "
                "would end at no step",
            )


class SessionSpec(DocumentModel):
    """Windows that records bound: each ends when no record of its key follows for a while."""

    gap: Duration
    """A record that comes so much later than the last one, or later still, begins a new session."""
    max: Duration = Field(default=3_600_000, json_schema_extra={"default": "1h"})
    """How long a session is at most, its last gap included; what goes on is cut."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.gap == 0:
            yield ("gap",), "each record would be a session of its own; expected at least 1ms"
        elif self.max < self.gap:
            yield (
                ("max",),
                f"{format_duration(self.max)} is less than the gap of {format_duration(self.gap)}, which each session lasts; "
                "expected at least as much",
            )


_HAVING = "a condition on results is a step behind the window: 'where: CONDITION'"


class CountSpec(DocumentModel):
    """Windows that hold so many records of a key each, in the order of event time."""

    size: Annotated[int, Field(ge=1, le=10_000_000)]
    """How many."""
    max: Duration
    """At its multiples since 1970-01-01 UTC counting begins anew, and what is not filled is closed: else a start would have to
    count from the first record of all."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.max == 0:
            yield ("max",), "counting would begin anew at once; expected at least 1ms"


class WindowSpec(DocumentModel):
    """Windows of event time: tumbling, which follow each other, sliding, which overlap, or cumulative, which grow, counted from
    1970-01-01 UTC; sessions, which end when no record comes for a while; or windows of so many records each."""

    KINDS: ClassVar[tuple[str, ...]] = ("tumbling", "sliding", "cumulative", "session", "count")
    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [kind]} for kind in KINDS]})
    NOT_SUPPORTED: ClassVar[dict[str, str]] = {
        "hopping": "windows that overlap are 'sliding: {size: 1m, every: 10s}'",
        "size": "stands in the kind of window: tumbling: 1m, or sliding: {size: 1m, every: 10s}",
        "group_by": "the fields of the key are 'by: [...]'",
        "having": _HAVING,
    }
    name: FieldName
    """The stage's name: in results, status and dead letters."""
    tumbling: Duration | None = None
    """The size; instead of sliding."""
    sliding: SlidingSpec | None = None
    """{size, every}; instead of tumbling."""
    cumulative: CumulativeSpec | None = None
    """{size, step}; instead of tumbling."""
    session: SessionSpec | None = None
    """{gap, max}; instead of tumbling."""
    count: CountSpec | None = None
    """{size, max}; instead of tumbling."""
    offset: Duration | None = None
    """Of windows that neither are sessions nor count: so much later they begin."""
    tz: str | None = None
    """Of windows of whole days, or that grow for whole days: the time zone whose days they are, as Europe/Berlin; else UTC's."""
    by: list[str] = Field(default_factory=list)
    """The fields that make the key; none means one result a window."""
    aggregate: dict[FieldName, ExpressionText] = Field(min_length=1, json_schema_extra=FIELD_NAMES_SCHEMA)
    """Result field -> expression with an aggregate function."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if sum(getattr(self, kind) is not None for kind in self.KINDS) != 1:
            yield (), f"a window has exactly one of: {', '.join(self.KINDS)}"
        if self.tumbling == 0:
            yield ("tumbling",), "a window of no length holds nothing; expected at least 1ms"
        elif self.every_ms and not self.ends_anywhere and self.offset_ms >= self._begin_apart_ms:
            yield (
                ("offset",),
                f"expected less than the {format_duration(self._begin_apart_ms)} from one window to the next",
            )
        if self.offset and self.session is not None:
            yield ("offset",), "sessions begin with a record; remove it"
        if self.offset and self.count is not None:
            yield ("offset",), "counting begins at multiples of 'max'; remove it"
        yield from self._time_zone()
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

    @property
    def ends_anywhere(self) -> bool:
        """Whether records say where they begin and end."""
        return self.session is not None or self.count is not None

    @property
    def _begin_apart_ms(self) -> int:
        return self.every_ms if self.cumulative is None else self.cumulative.size

    def _time_zone(self) -> Iterator[tuple[Path, str]]:
        if self.tz is None:
            return
        if self.tz not in zone_names():
            yield ("tz",), f"'{self.tz}' is not a time zone{did_you_mean(self.tz, zone_names())}"
        lengths = [self.tumbling] if self.tumbling else []
        if self.sliding is not None:
            lengths = [self.sliding.every, self.sliding.size]
        if self.cumulative is not None:
            lengths = [self.cumulative.size]
        if not lengths or any(length % DAY_MS for length in lengths):
            yield (
                ("tz",),
                "a time zone says when days begin, so it needs windows of whole days, as 'tumbling: 1d', 'sliding: {size: 7d, "
                "every: 1d}' or 'cumulative: {size: 1d, step: 1h}'; parts of a day are moved by 'offset'",
            )
        elif self.sliding is not None and self.sliding.size % self.sliding.every:
            yield (
                ("sliding", "size"),
                f"{format_duration(self.sliding.size)} of days of a time zone is not a multiple of 'every', "
                f"{format_duration(self.sliding.every)}",
            )
        elif self.cumulative is not None and self.tz in zone_names():
            step_ms = self.cumulative.step
            if not days_begin_at_multiples(self.tz, self.offset_ms, step_ms, self.offset_ms % step_ms):
                yield (
                    ("cumulative", "step"),
                    f"days of {self.tz} do not always begin where a step of {format_duration(step_ms)} does; expected one that "
                    "fits, as 1h or 15m",
                )

    @property
    def size_ms(self) -> int:
        """How long a window is; a session, a cumulative one or one that counts at most."""
        if self.session is not None:
            return self.session.max
        if self.count is not None:
            return self.count.max
        overlapping = self.sliding or self.cumulative
        return overlapping.size if overlapping is not None else self.tumbling or 0

    @property
    def offset_ms(self) -> int:
        """How much later than the multiples of `every_ms` windows begin."""
        return self.offset or 0

    @property
    def every_ms(self) -> int:
        """How far apart windows begin, cumulative ones end; sessions no closer than their gap."""
        if self.session is not None:
            return self.session.gap
        if self.cumulative is not None:
            return self.cumulative.step
        return self.sliding.every if self.sliding is not None else self.size_ms


REPLICAS_MAX = 100
REFRESH_INTERVAL_MS_MIN = 100
"""More often costs more than the writing itself."""
UPDATES_MS_MIN = 5_000
"""More often would be much writing for what is only in passing."""


def _replicas(value: object) -> object:
    if isinstance(value, str) and (found := re.fullmatch(r"(\d{1,3})-(\d{1,3}|all)", value)):
        if found[2] == "all" or int(found[1]) <= int(found[2]):
            return value
    elif isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= REPLICAS_MAX:
        return value
    raise ValueError(
        f"{value!r} is no number of replicas; write one from 0 to {REPLICAS_MAX}, or bounds within which it follows the number "
        f"of nodes, as 0-1 or 0-all"
    )


def _policy_name(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"[^\s,_\x00-\x1f][^\s,\x00-\x1f]{0,254}", value):
        return value
    raise ValueError(
        f"{value!r} is not the name of a lifecycle policy: a text without spaces and commas, not '_' first"
    )


class IndexSpec(DocumentModel):
    """An emission to Elasticsearch. `turbine-minute` is short for `{name: turbine-minute}`."""

    name: Name
    """An alias in Elasticsearch; the indices are `NAME-yyyy.MM` by the window's end."""
    shards: Annotated[int, Field(ge=1, le=1024)] = 1
    """Of each index."""
    replicas: Annotated[int | str, BeforeValidator(_replicas)] = REPLICAS_DEFAULT
    """Of each shard: a number, or bounds within which it follows the number of nodes, as 0-1 or 0-all."""
    refresh_interval: Duration | None = None
    """How long a result may take until searches find it; null leaves it to Elasticsearch."""
    lifecycle: Annotated[str, BeforeValidator(_policy_name)] | None = None
    """A policy of Elasticsearch's index lifecycle management, which must exist there."""
    updates: Duration | None = None
    """Of windows: how often those that are still open are shown, in the index `NAME.open`; null is never."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        long_form = handler.resolve_ref_schema(super().__get_pydantic_json_schema__(core_schema, handler))
        return {"anyOf": [long_form["properties"]["name"], long_form]}

    @model_validator(mode="before")
    @classmethod
    def _from_short_form(cls, value: object) -> object:
        if isinstance(value, dict | cls):
            return value
        return {"name": check_name(value)}  # type: ignore[arg-type]

    @model_serializer(mode="wrap")
    def _in_short_form(self, handler: SerializerFunctionWrapHandler) -> object:
        long_form = handler(self)
        return self.name if self == IndexSpec(name=self.name) else long_form

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.refresh_interval is not None and self.refresh_interval < REFRESH_INTERVAL_MS_MIN:
            yield ("refresh_interval",), f"expected at least {format_duration(REFRESH_INTERVAL_MS_MIN)}"
        if self.updates is not None and self.updates < UPDATES_MS_MIN:
            yield (
                ("updates",),
                f"expected at least {format_duration(UPDATES_MS_MIN)}: each writes what has changed meanwhile",
            )
        try:
            check_emit_name(self.name)
        except ValueError as error:
            yield (), str(error)

    @property
    def settings(self) -> IndexSettings:
        """For the indices."""
        return IndexSettings(self.shards, self.replicas, self.refresh_interval, self.lifecycle, self.updates)


class FilesSpec(DocumentModel):
    """An emission to files by day, which count by a manifest."""

    path: str
    """An absolute directory that all who write share, or a URI (`s3://`, `gs://`, `hdfs://`)."""
    format: Literal["parquet"] = "parquet"
    """How they are written."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        scheme, _, rest = self.path.partition("://")
        if not (self.path.startswith("/") or (rest and re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme))):
            yield ("path",), "expected an absolute directory, or a URI as s3://bucket/results"
        elif rest and ("@" in rest.partition("/")[0] or "?" in rest):
            yield ("path",), "may hold no credentials or settings, which come from the environment of the processes"


class SqlSpec(DocumentModel):
    """An emission to a table. The database is that of `STRANDLINE_SQL_SINK_URL`."""

    table: Annotated[str, Field(pattern=r"^([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}$")]
    """Its name, which may begin with the schema and a dot."""


class SinkSpec(DocumentModel):
    """An emission to a sink that a package brings: an entry point of the group `strandline.sinks`."""

    use: FieldName
    """The entry point's name."""
    name: Name
    """The place there."""
    options: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """What the sink makes of it. No secrets."""


class MapSpec(DocumentModel):
    """Fields that a Python function of an installed package computes."""

    function: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$", max_length=200)]
    """`package.module:function`. The setting ALLOW_FUNCTIONS must name it or its module."""
    reads: list[str] = Field(min_length=1)
    """The fields that it gets, as the columns of a RecordBatch of Arrow."""
    columns: dict[FieldName, str] = Field(min_length=1, json_schema_extra=FIELD_NAMES_SCHEMA)
    """The fields that it gives: name -> type; with a `?` behind the type no value is an answer."""
    deterministic: bool
    """Must be true: the same record gives the same values in each run, whatever records are beside it."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if not self.deterministic:
            yield (
                ("deterministic",),
                "must be true: a result is the same in every replay, so the same record must give the same values whenever, and "
                "with whatever other records, the function is called",
            )
        for name, kind in self.columns.items():
            try:
                if normal_type(kind.removesuffix("?")) is None:
                    yield ("columns", name), f"'{kind}' is not a type; expected one of: {', '.join(TYPE_NAMES)}"
            except ValueError as error:
                yield ("columns", name), f"{kind}: {error}"


def _as_pairs(value: object) -> object:
    """`site_id` and `[country, plant]` are short for the mapping of each name to itself."""
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        if len(set(names)) < len(names):
            raise ValueError("a name stands twice")
        return {name: name for name in names}
    return value


_PAIRS_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
            {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1},
        ]
    }
)


class EnrichSpec(DocumentModel):
    """Adds fields of a lookup to records, by the row that has their key."""

    lookup: Name
    """Which."""
    key: Annotated[dict[str, str], BeforeValidator(_as_pairs), Field(min_length=1), _PAIRS_SCHEMA]
    """The column that holds the key, which is called as the lookup's; a list of several; or {field of the lookup: column}."""
    add: Annotated[dict[FieldName, str], BeforeValidator(_as_pairs), Field(min_length=1), _PAIRS_SCHEMA]
    """The lookup's fields that become columns: a list, or {column: field of the lookup}."""
    optional: bool = False
    """Whether a record without a row goes on, with nulls; else it is a dead letter."""


class DedupeSpec(DocumentModel):
    """Leaves out records that come again, as senders send them that heard no answer."""

    by: list[str] = Field(min_length=1)
    """The fields that are equal in a record and its repeats. The stream's key is among them."""
    within: Duration
    """How far apart in event time a record and its repeat may be: less than this."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.within == 0:
            yield ("within",), "no two records would be compared; expected at least 1ms"
        for number, name in enumerate(self.by):
            if name in self.by[:number]:
                yield ("by", number), f"'{name}' stands twice"


class DistinctSpec(DocumentModel):
    """Leaves out, in a batch, every record whose fields another one before it had."""

    by: list[str] = Field(min_length=1)
    """The fields. The stream's key is among them."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        for number, name in enumerate(self.by):
            if name in self.by[:number]:
                yield ("by", number), f"'{name}' stands twice"


EmitKind = Literal["elasticsearch", "stream", "files", "sql", "sink"]
EMIT_KINDS: tuple[EmitKind, ...] = ("elasticsearch", "stream", "files", "sql", "sink")


class EmitSpec(DocumentModel):
    """One place where a window's results go."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})
    NOT_SUPPORTED: ClassVar[dict[str, str]] = {"kafka": "a topic of results is a stream: {stream: NAME}"}

    elasticsearch: IndexSpec | None = None
    """An alias in Elasticsearch; the indices are `NAME-yyyy.MM` by the window's end. A name, or {name, shards, replicas,
    refresh_interval, lifecycle, updates}."""
    stream: Name | None = None
    """A stream, which other jobs may read; one JSON document a result."""
    files: FilesSpec | None = None
    """Parquet files by day: {path, format}."""
    sql: SqlSpec | None = None
    """A table of a SQL database: {table}."""
    sink: SinkSpec | None = None
    """A sink that a package brings: {use, name, options}."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if sum(getattr(self, kind) is not None for kind in EMIT_KINDS) != 1:
            yield (), f"expected exactly one of: {', '.join(EMIT_KINDS)}"
        if self.stream is not None and self.stream.endswith(".dead-letter"):
            yield ("stream",), "names that end in '.dead-letter' belong to the jobs; choose another"

    @property
    def kind(self) -> EmitKind:
        """Which sink."""
        return next((kind for kind in EMIT_KINDS if getattr(self, kind) is not None), "elasticsearch")

    @property
    def name(self) -> str:
        """The sink's name for the results."""
        if self.files is not None:
            return self.files.path
        if self.sql is not None:
            return self.sql.table
        if self.sink is not None:
            return f"{self.sink.use}:{self.sink.name}"
        return self.elasticsearch.name if self.elasticsearch is not None else self.stream or ""

    @property
    def options(self) -> str:
        """Of a sink that a package brings, as JSON."""
        return json.dumps(self.sink.options, sort_keys=True) if self.sink is not None else ""

    @property
    def index_settings(self) -> IndexSettings:
        """Of the indices; those of a stream are never asked for."""
        return self.elasticsearch.settings if self.elasticsearch is not None else IndexSettings()


def _places(value: object) -> object:
    if value == "updates":
        raise ValueError(
            "results that come before their window closes are said of a place: write "
            "[{elasticsearch: {name: NAME, updates: 10s}}]"
        )
    return value


class StepSpec(DocumentModel):
    """One step: `derive`, `where`, `map`, `select`, `drop`, `enrich`, `dedupe`, `distinct`, `window` or `join` with or without
    `emit` beside it, or `emit` alone. Each may say by `from` what it takes; a join says it by `left` and `right`."""

    VERBS: ClassVar[tuple[str, ...]] = (
        "derive",
        "where",
        "map",
        "select",
        "drop",
        "enrich",
        "dedupe",
        "distinct",
        "window",
        "join",
    )
    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": [verb]} for verb in VERBS]
            + [
                {
                    "required": ["emit"],
                    "not": {"anyOf": [{"required": ["window"]}, {"required": ["join"]}]},
                }  # type: ignore[dict-item]
            ]
        },
    )

    NOT_SUPPORTED: ClassVar[dict[str, str]] = {
        "lookup": "fields of a lookup come by 'enrich: {lookup: NAME, key: FIELD}'",
        "filter": "to keep some records, write 'where: CONDITION'",
        "aggregate": "aggregates stand in a window: 'window: {name: NAME, tumbling: 1m, by: [...], aggregate: {...}}'",
        "having": _HAVING,
        "sort": "results have no order in an index, a table or a stream: sort where they are read, or at the desk with pipeline "
        "run --sort; for the first few of a window, top_n(x, n)",
        "cogroup": "to group the records of several streams by one key, unite them with 'from: [a, b]', and let each aggregate "
        "say which it takes: count(*) filter (where side = 'a')",
    }
    derive: dict[FieldName, ExpressionText] | None = Field(
        default=None, min_length=1, json_schema_extra=FIELD_NAMES_SCHEMA
    )
    """New fields: name -> expression over the fields before this step."""
    where: ExpressionText | None = None
    """Keeps the records for which this is true."""
    map: MapSpec | None = None
    """New fields by a Python function: {function, reads, columns, deterministic}."""
    select: list[str] | None = Field(default=None, min_length=1)
    """Keeps these fields alone, in this order."""
    drop: list[str] | None = Field(default=None, min_length=1)
    """Leaves these fields out."""
    enrich: EnrichSpec | None = None
    """Adds fields of a lookup: {lookup, key, add}."""
    dedupe: DedupeSpec | None = None
    """Leaves repeats out: {by, within}."""
    distinct: DistinctSpec | None = None
    """Of a batch: leaves repeats out, however far apart they are: {by}."""
    window: WindowSpec | None = None
    """Collects records by time and key."""
    join: JoinSpec | None = None
    """Puts rows of two ways together: {name, left, right, on, within}."""
    emit: Annotated[list[EmitSpec] | None, BeforeValidator(_places)] = Field(default=None, min_length=1)
    """Where results go: beside `window` or behind it those of the window; before the first window one for each record."""
    name: FieldName | None = None
    """By which further steps may take `from` it. Of an `emit` of records also the stage's name; else that is called like the
    first place, with `_` for what no name may hold. A window has its name inside `window`."""
    source: str | Annotated[list[str], Field(min_length=1)] | None = Field(default=None, alias="from")
    """The name of a step above, or of a stream, from which it takes; without it, the step before. A list unites: the records of
    each, with the fields that all have."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        verbs = [verb for verb in self.VERBS if getattr(self, verb) is not None]
        if self.emit is not None and verbs and verbs not in (["window"], ["join"]):
            yield (
                ("emit",),
                f"'emit' stands beside 'window' or 'join', or in a step of its own, not beside '{verbs[0]}'",
            )
        elif len(verbs) != 1 and not (self.emit is not None and not verbs):
            found = f"has {' and '.join(verbs)}" if verbs else "has none"
            yield (), f"a step is exactly one of {', '.join(self.VERBS)}, emit, and this one {found}"
        elif self.name is not None and self.window is not None:
            yield ("name",), "a window's name stands inside 'window'; remove this one"
        elif self.name is not None and self.join is not None:
            yield ("name",), "a join's name stands inside 'join'; remove this one"
        if self.join is not None and self.source is not None:
            yield ("from",), "a join says by 'left' and 'right' what it takes; remove this"

    @property
    def stage_name(self) -> str | None:
        """The name of the stage, if this step is a window or a join."""
        stage = self.window or self.join
        return None if stage is None else stage.name

    @property
    def taken(self) -> tuple[str, ...]:
        """The names of what it takes from; none: the step before."""
        if self.source is None:
            return ()
        return (self.source,) if isinstance(self.source, str) else tuple(self.source)

    @property
    def own_name(self) -> str | None:
        """By which others may take from it."""
        return self.stage_name or self.name

    @property
    def names_taken(self) -> list[tuple[Path, str]]:
        """The names of what it takes from, and where each stands; none: the step before."""
        if self.join is not None:
            return [(("join", "left"), self.join.left), (("join", "right"), self.join.right)]
        if len(self.taken) == 1:
            return [(("from",), self.taken[0])]
        return [(("from", number), name) for number, name in enumerate(self.taken)]

    @property
    def record_stage_name(self) -> str:
        """The name of the stage, if this step is an emission of records."""
        assert self.emit, "asked of an emission"
        name = self.name or re.sub(r"[^A-Za-z0-9_]", "_", self.emit[0].name).strip("_") or "records"
        return f"emit_{name}" if name[0].isdigit() else name


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
    steps: list[StepSpec] = Field(min_length=1)
    """What is done, in order: each step takes what the one before it gives, or the one that it names in `from`."""
    late: Annotated[
        Annotated[Literal["dead_letter", "drop"], Tag(WORD)] | Annotated[LateSpec, Tag(MAPPING)],
        Discriminator(word_or_mapping),
    ] = "dead_letter"
    """What becomes of a late record: one whose event time is below the watermark. Or `{revise: DURATION}`: one that is no further
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

    @classmethod
    def from_document(cls, data: dict[str, object], *, is_strict: bool = True) -> Self:
        """As stored: one without `idle_timeout` has none. So were those stored that were submitted before it had a default."""
        event_time, inputs = data.get("event_time"), data.get("inputs")
        if isinstance(event_time, dict):
            data = {**data, "event_time": {"idle_timeout": None, **event_time}}
        if isinstance(inputs, list):
            data = {**data, "inputs": [_without_default(one) for one in inputs]}
        return super().from_document(data, is_strict=is_strict)

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
        return list(dict.fromkeys(step.enrich.lookup for step in self.steps if step.enrich is not None))

    def stage_names(self) -> list[str]:
        """Of all windows and joins, and of all emissions of records."""
        windows = [step.stage_name for step in self.steps if step.stage_name is not None]
        return list(dict.fromkeys([*windows, *(stage for stage, _ in self.emissions())]))

    def emits_records_to(self, stream: str) -> bool:
        """Whether it emits records to this stream, not results of windows."""
        windows = {step.stage_name for step in self.steps}
        return any(emit.stream == stream and stage not in windows for stage, emit in self.emissions())

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
            if read.event_time.max_ahead is None:  # null says never here; left out it would say the default
                one["event_time"]["max_ahead"] = None
        return data


def _without_default(read: Any) -> Any:
    """A stored input: without `idle_timeout` it has none."""
    if not isinstance(read, dict) or not isinstance(read.get("event_time"), dict):
        return read
    return {**read, "event_time": {"idle_timeout": None, **read["event_time"]}}


def json_schema() -> dict[str, object]:
    """Return the JSON Schema (draft 2020-12) of one document: a stream, a lookup or a pipeline. For editors and the API.

    It tells the form. What fields mean to each other (a window that divides, a column that exists) `check` tells.
    """
    specs: list[type[DocumentModel]] = [StreamSpec, LookupSpec, PipelineSpec]
    _, schema = models_json_schema([(spec, "validation") for spec in specs], by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Strandline document",
        "oneOf": [{"$ref": f"#/$defs/{spec.__name__}"} for spec in specs],
        "$defs": schema["$defs"],
    }
