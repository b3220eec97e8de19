"""The `stream:` document: one Kafka topic and its registration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
    create_model,
    field_validator,
)

from strandline.core.document_model import DocumentModel, is_stored, shown
from strandline.core.document_values import FIELD_NAMES_SCHEMA, FieldName, Name, Retention, names_alike
from strandline.core.documents import COLUMNS_MAX, Path, YamlDocument, did_you_mean
from strandline.core.errors import InvalidDocument
from strandline.core.field_types import ANY_TYPE, JSON_TYPE, is_nested
from strandline.core.json_paths import parse_json_path
from strandline.core.streams.entrances import HttpSpec, MqttSpec, PollSpec, TcpSpec, UdpSpec
from strandline.core.streams.fields import MISSING_MAX, FieldSpec, Marker
from strandline.core.streams.format import Framing, StreamFormat
from strandline.core.streams.format_registry import (
    FORMATS,
    all_forms,
    built_in_form,
    form_of,
    format_names,
    names_with,
)
from strandline.core.streams.metadata import MetadataName
from strandline.core.streams.shapes import Explode, ShapeSpec

GATEWAYS_MAX = 20
GatewayName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,39}$")]


def _known_format(name: str, info: ValidationInfo) -> str:
    """Return the name of a format. Raises ValueError if no installed part of Strandline has it, unless the document is stored."""
    form = form_of(name)
    if form.unusable is None or is_stored(info):
        return name
    if name in format_names():
        raise ValueError(str(form.unusable))
    *names, last = map(repr, format_names())
    raise ValueError(f"expected {', '.join(names)} or {last}, got {shown(name)}")


FormatName = Annotated[
    str,
    AfterValidator(_known_format),
    WithJsonSchema({"anyOf": [{"enum": list(FORMATS), "type": "string"}, {"type": "string"}]}),
]
"""Name of a format of Strandline or of a package."""


class _StreamHead(DocumentModel):
    """Fields of the document before the options of formats."""

    stream: Name
    """The name, and the Kafka topic."""
    partitions: int = Field(default=4, ge=1, le=1000)
    """Of the Kafka topic."""
    format: FormatName = "json"
    """What a record is: a JSON object; a bare `value`, a number or a text; `raw` bytes or text; a line of `csv`; a map in
    `msgpack` or `cbor`; a line of InfluxDB's protocol, `influx`; a record of `avro`; a message of `protobuf`; a change
    event of `debezium`; or a request with metrics of OpenTelemetry, `otlp`, or of Prometheus' remote write, `prometheus`, each
    of whose data points is a row; or a message of Sparkplug B, `sparkplug`, each of whose metrics is a row. A package can
    add formats."""


_OPTIONS = {name: model for name in FORMATS if (model := built_in_form(name).options()) is not None}
"""Format of Strandline -> the model of its options."""

if TYPE_CHECKING:

    class _FormatOptions(_StreamHead):
        """The field of the options of each format."""

else:
    _FIELDS = {
        name: (model | None, Field(None, description=built_in_form(name).options_description))
        for name, model in _OPTIONS.items()
    }
    _FormatOptions = create_model("_FormatOptions", __base__=_StreamHead, __module__=__name__, **_FIELDS)


class StreamSpec(_FormatOptions):
    """A persistent stream: its topic, its schema, and how records come in."""

    NOT_SUPPORTED: ClassVar[dict[str, str]] = {
        "event_time": "event time is said by each pipeline that reads the stream: 'event_time: {field: NAME, delay: 10s}' there",
        "topic": "the topic has the stream's name",
        "fields": "the fields of a record stand in 'schema: {NAME: TYPE, ...}'",
    }
    format_options: dict[str, Any] | None = None
    """Options of the format of a package."""
    explode: Explode | None = None
    """The array in a record, as `$.readings`, each of whose elements becomes a row; or another shape of a record that is several
    rows, as `{members: $.sensors, name: sensor}`."""
    fields: dict[FieldName, FieldSpec] = Field(
        alias="schema", min_length=1, max_length=COLUMNS_MAX, json_schema_extra=FIELD_NAMES_SCHEMA
    )
    """Field name -> type, or {type, required, min, max, unit}."""
    metadata: dict[str, MetadataName] = Field(default_factory=dict, max_length=50)
    """Fields that metadata of a record fill where the record lacks them: name -> what, as `key`, `timestamp`, `sender`, `file`,
    `topic[-1]`, `header.site`."""
    missing: list[Marker] = Field(default_factory=list, max_length=MISSING_MAX)
    """Values that mean in each field that there is no value, as `["", "n/a", nan]`."""
    key: str | None = None
    """The field whose value chooses the partition; without it records spread over all."""
    retention: Retention = Field(default=7 * 86_400_000, json_schema_extra={"default": "7d"})
    """How long the log keeps a record after its arrival; `forever` is without end."""
    durability: Literal["log", "spool"] = "log"
    """Whether a gateway may acknowledge from its spool while Kafka cannot confirm."""
    mqtt: MqttSpec | None = None
    """MQTT topics that flow into this stream."""
    http: HttpSpec | None = None
    """What the head of an HTTP request adds to its records."""
    udp: UdpSpec | None = None
    """A UDP port that flows into this stream."""
    poll: list[PollSpec] | None = Field(default=None, min_length=1, max_length=COLUMNS_MAX)
    """URLs that are asked again and again; one alone may stand there without the list."""
    tcp: TcpSpec | None = None
    """A TCP port that flows into this stream, one record a line."""
    gateways: dict[GatewayName, dict[str, JsonValue]] = Field(default_factory=dict, max_length=GATEWAYS_MAX)
    """Gateways of packages that write into this stream: name -> what the gateway needs, as `{acme: {port: 5514}}`."""

    @property
    def form(self) -> StreamFormat:
        """The format, as the registry has it."""
        return form_of(self.format)

    @property
    def options(self) -> Any:
        """Options of the format, in its model. None if the document has none, or if the format has no options. Raises
        InvalidDocument."""
        if self.format in _OPTIONS:
            return getattr(self, self.format)
        model = None if self.format_options is None else self.form.options()
        if model is None:
            return None
        return model.parse(YamlDocument("stream", self.stream, dict(self.format_options or {})))

    @property
    def retention_ms(self) -> int:
        """The retention in milliseconds; FOREVER_MS is without end."""
        return self.retention

    @property
    def event_time_parameter(self) -> str | None:
        """The field that the query's parameter `event_time` fills."""
        if self.http is not None and self.http.event_time is not None:
            return self.http.event_time
        times = [name for name, field in self.fields.items() if field.type == "timestamp"]
        return times[0] if len(times) == 1 else None

    @property
    def explode_path(self) -> str | None:
        """Path of the array whose elements are rows. None if there is none, or if the shape is another one."""
        if isinstance(self.explode, ShapeSpec):
            is_path = self.explode.kind == "elements" and self.explode.index is None
            return self.explode.elements if is_path else None
        return self.explode

    @property
    def shape(self) -> ShapeSpec | None:
        """Shape of records that are several rows. None if `explode_path` says it, or if a record is one row."""
        is_path = self.explode_path is not None
        return self.explode if isinstance(self.explode, ShapeSpec) and not is_path else None

    @property
    def is_of_positions(self) -> bool:
        """True if a row is an array, of which fields are read by index."""
        paths = [
            parse_json_path(path) for field in self.fields.values() for path in field.joined or [field.path or "$.x"]
        ]
        return (
            self.form.is_json and self.explode in (None, "$") and all(isinstance((*one, "")[0], int) for one in paths)
        )

    @property
    def framing(self) -> Framing:
        """How gateways find the records in a body. Raises StrandlineError if the format can't be used."""
        return self.form.framing()._replace(is_of_arrays=self.is_of_positions)

    @property
    def types(self) -> dict[str, str]:
        """Field name -> type in expressions, in the order of the schema."""
        written = (JSON_TYPE, ANY_TYPE)
        return {name: "string" if field.type in written else field.type for name, field in self.fields.items()}

    def decoding_changes(self, other: StreamSpec) -> list[str]:
        """What `other` says otherwise of how records become rows. Empty: each record is decoded as by this document."""
        own_levels, other_levels = (dict(one.mqtt.fields) if one.mqtt else {} for one in (self, other))
        parts = ("format", *_OPTIONS, "format_options", "explode", "missing", "metadata")
        changes = [name for name in parts if getattr(self, name) != getattr(other, name)]
        changes += [f"schema.{name}" for name in _differing(self.fields, other.fields)]
        changes += [f"mqtt.fields.{name}" for name in _differing(own_levels, other_levels)]
        own_headers, other_headers = (dict(one.http.headers) if one.http else {} for one in (self, other))
        changes += [f"http.headers.{name}" for name in _differing(own_headers, other_headers)]
        own_times, other_times = (one.http.event_time if one.http else None for one in (self, other))
        return changes + ["http.event_time"] * (own_times != other_times)

    def reading_changes(self, other: StreamSpec) -> list[str]:
        """`decoding_changes`, and whether a key's records lie elsewhere."""
        return self.decoding_changes(other) + ["key"] * (self.key != other.key)

    def entrances(self) -> Iterator[tuple[Path, str]]:
        """Yield what only one stream may have, because it decides where a record goes: path, and what it is."""
        for number, topic in enumerate(self.mqtt.topics if self.mqtt else ()):
            yield ("mqtt", "topics", number), f"MQTT topic filter {topic}"
        if self.udp is not None:
            yield ("udp", "port"), f"UDP port {self.udp.port}"
        if self.tcp is not None:
            yield ("tcp", "port"), f"TCP port {self.tcp.port}"
        for name, section in self.gateways.items():
            if (port := section.get("port")) is not None:
                yield ("gateways", name, "port"), f"port {port} of the gateway {name}"

    @field_validator("poll", mode="before")
    @classmethod
    def _one_poll_is_a_list(cls, value: object) -> object:
        return [value] if isinstance(value, dict) else value

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.stream.endswith(".dead-letter"):
            yield ("stream",), "names that end in '.dead-letter' belong to the jobs; choose another"
        for name, message in names_alike(self.fields):
            yield ("schema", name), message
        form = self.form
        if form.unusable is None:
            if self.key is not None:
                yield from self._contradictions_of_key(self.key, form)
            yield from self._contradictions_of_format(form)
        for name in self.mqtt.fields if self.mqtt else ():
            if name not in self.fields:
                yield ("mqtt", "fields", name), f"is not a field of the schema{did_you_mean(name, self.fields)}"
        for name, what in self.metadata.items():
            if name not in self.fields:
                yield ("metadata", name), f"is not a field of the schema{did_you_mean(name, self.fields)}"
            elif is_nested(self.fields[name].type) or self.fields[name].type == JSON_TYPE:
                yield ("metadata", name), f"is a text, and the field is {self.fields[name].type}; declare it as string"
            elif what == "timestamp" and (self.fields[name].type, self.fields[name].unit) != ("timestamp", "ms"):
                yield (
                    ("metadata", name),
                    "is a number of milliseconds; declare the field as timestamp, without another unit",
                )
        if self.http is not None:
            yield from self._contradictions_of_http(self.http, form)
        for number, poll in enumerate(self.poll or ()):
            for name in poll.fields:
                if name not in self.fields:
                    yield (
                        ("poll", number, "fields", name),
                        f"is not a field of the schema{did_you_mean(name, self.fields)}",
                    )
        for number, url in enumerate(poll.url for poll in self.poll or ()):
            if url in [poll.url for poll in (self.poll or ())[:number]]:
                yield ("poll", number, "url"), "stands there twice; each answer would be two records"

    def _contradictions_of_http(self, http: HttpSpec, form: StreamFormat) -> Iterator[tuple[Path, str]]:
        for number, accepted in enumerate(http.accept):
            if accepted != "untyped" and form.unusable is None and not form.is_json:
                yield (
                    ("http", "accept", number),
                    f"a {accepted} becomes a JSON object, and the stream's format is {self.format}; use 'format: json'",
                )
        for name in http.headers:
            if name not in self.fields:
                yield ("http", "headers", name), f"is not a field of the schema{did_you_mean(name, self.fields)}"
        if http.event_time is not None and self.types.get(http.event_time) != "timestamp":
            times = [name for name, kind in self.types.items() if kind == "timestamp"]
            yield ("http", "event_time"), f"is not a timestamp of the schema{did_you_mean(http.event_time, times)}"

    def _contradictions_of_key(self, key: str, form: StreamFormat) -> Iterator[tuple[Path, str]]:
        """Gateways choose the partition, and only look for a member of a JSON object or a level of the topic."""
        if key not in self.fields:
            yield ("key",), f"'{key}' is not a field of the schema{did_you_mean(key, self.fields)}"
        elif (
            (self.mqtt is not None and key in self.mqtt.fields)
            or (self.http is not None and key in self.http.headers)
            or (self.poll is not None and all(key in poll.fields for poll in self.poll))
        ):
            return
        elif not form.is_json or self.fields[key].source is not None:
            yield (
                ("key",),
                f"'{key}' is not a member of a JSON object, where gateways look for the key; take one that is, or one of "
                "mqtt.fields, http.headers or poll.fields, or none: results don't depend on it",
            )

    def _contradictions_of_nested(self, form: StreamFormat) -> Iterator[tuple[Path, str]]:
        """Of fields that are arrays or structs."""
        filled = {self.key, *(self.mqtt.fields if self.mqtt else ()), *(self.http.headers if self.http else ())}
        for name, field in self.fields.items():
            if not is_nested(field.type):
                continue
            if not form.has_nested:
                able = ", ".join(names_with(all_forms(), "has_nested"))
                yield (
                    ("schema", name),
                    f"{field.type} is read of the formats {able}, and this is {self.format}; take "
                    "values out of it by 'from', or make rows of it by 'explode' where the format can",
                )
            if name in filled:
                yield ("schema", name), f"{field.type} is no key, and comes from no topic and no header"

    def _is_element(self, path: str) -> bool:
        """Return True if the path is that of an array or an object whose elements are rows."""
        containers = self.explode.containers if isinstance(self.explode, ShapeSpec) else []
        return self.explode == path or parse_json_path(path) in containers

    def _may_begin_with_index(self) -> bool:
        """Return True if a path may begin with an index: into an element, or into a record that is an array."""
        return self.is_of_positions or self.explode is not None

    def _contradictions_of_shape(self, shape: ShapeSpec, form: StreamFormat) -> Iterator[tuple[Path, str]]:
        """Of fields that the shape fills."""
        if not form.is_json and self.explode_path is None:
            yield (
                ("explode",),
                f"a shape other than 'elements' is of 'format: json', and this is {self.format}; remove it",
            )
        for name, setting in shape.filled.items():
            if name not in self.fields:
                yield ("explode", setting), f"'{name}' is not a field of the schema{did_you_mean(name, self.fields)}"
            elif self.fields[name].source is not None:
                yield ("schema", name, "from"), f"'explode' fills the field ('{setting}'); remove 'from'"
            elif setting == "index" and self.fields[name].type not in ("long", "integer"):
                yield ("explode", setting), f"'{name}' is a {self.fields[name].type}, and the number of a row is a long"

    def _contradictions_of_options(self, form: StreamFormat) -> Iterator[tuple[Path, str]]:
        for name in _OPTIONS:
            if getattr(self, name) is not None and self.format != name:
                yield (name,), f"is of 'format: {name}', and this is {self.format}; remove it"
        own = self.format if self.format in _OPTIONS else "format_options"
        if self.format_options is not None and (own != "format_options" or form.options() is None):
            yield ("format_options",), f"the format {self.format} has none of these options; remove it"
        elif self.format_options is not None:
            try:
                _ = self.options
            except InvalidDocument as error:
                for one in error.problems:
                    yield ("format_options", *filter(None, [one.path])), one.message
        if form.requires_options and getattr(self, own) is None:
            yield (own,), f"is missing; expected: {form.options_description}"

    def _contradictions_of_format(self, form: StreamFormat) -> Iterator[tuple[Path, str]]:
        found = list(self._contradictions_of_options(form))
        yield from found
        if not found:
            yield from form.problems(self)
        if self.explode is not None and not form.explodes:
            able = " | ".join(names_with(all_forms(), "explodes"))
            yield ("explode",), f"is of 'format: {able}', and this is {self.format}; remove it"
        if isinstance(self.explode, ShapeSpec):
            yield from self._contradictions_of_shape(self.explode, form)
        is_bare, has_objects = form.paths == "value", form.paths == "members"
        whole = [name for name, field in self.fields.items() if field.path == "$"]
        for name, field in self.fields.items():
            has_paths = form.paths != "value"
            if field.source is not None and not has_paths and not (is_bare and field.path == "$"):
                yield ("schema", name, "from"), f"a record of format {self.format} has no members; remove it"
            if field.path == "$" and has_objects and not self._is_element("$"):
                yield ("schema", name, "from"), "is the whole record, which is no value; name a member, as '$.temp'"
            elif field.path is not None and _begins_with_index(field.path) and not self._may_begin_with_index():
                yield (
                    ("schema", name, "from"),
                    f"begins with an index, and a record of format {self.format} is an object; begin with a member, as '$.temp', "
                    "or read each field by an index if a record is an array",
                )
        yield from self._contradictions_of_nested(form)
        rest = [name for name, field in self.fields.items() if field.type == JSON_TYPE]
        if rest and (not form.keeps_rest or self.explode is not None):
            what = "explode" if form.keeps_rest else f"format {self.format}"
            yield (
                ("schema", rest[0]),
                f"json is for the other members of an object; with {what} there are none of a row",
            )
        for name in rest[1:]:
            yield ("schema", name), f"the members that no field takes go to '{rest[0]}' already"
        for name in rest:
            if name == self.key or (self.mqtt is not None and name in self.mqtt.fields):
                yield ("schema", name), "json is no member of the record, and so no key and no level of a topic"
        if is_bare and len(whole) > 1:
            yield ("schema", whole[1], "from"), f"the value goes to '{whole[0]}' already; a record has one value"


def _begins_with_index(path: str) -> bool:
    return isinstance(next(iter(parse_json_path(path)), None), int)


def _differing(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """The names that only one of them has, or to which they give different values."""
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]
