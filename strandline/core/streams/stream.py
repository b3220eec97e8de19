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

from strandline.core.charsets import Charset
from strandline.core.document_model import DocumentModel, is_stored, shown
from strandline.core.document_values import FIELD_NAMES_SCHEMA, FieldName, Name, Retention, names_alike
from strandline.core.documents import COLUMNS_MAX, Path, YamlDocument, did_you_mean
from strandline.core.errors import InvalidDocument
from strandline.core.extras import MissingExtra, require_module
from strandline.core.field_types import ANY_TYPE, JSON_TYPE, is_nested
from strandline.core.json_paths import parse_json_path
from strandline.core.streams.embedded import EMBEDDED_MAX, EmbeddedSpec
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
    """Return the name of a format. Raise ValueError if no installed part of Strandline has it, or if it needs a package that
    isn't installed. A stored document is always accepted."""
    form = form_of(name)
    if is_stored(info):
        return name
    if form.unusable is None:
        try:
            if form.module is not None:
                require_module(form.module)
        except MissingExtra as error:
            raise ValueError(str(error)) from error
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
    """Name of the stream and of the Kafka topic."""
    partitions: int = Field(default=4, ge=1, le=1000)
    """Number of partitions of the Kafka topic."""
    format: FormatName = "json"
    """Format of a record. A package can add formats.

    - `json`: a JSON object.
    - `value`: a bare number or string.
    - `raw`: bytes or text.
    - `csv`: a line of CSV.
    - `msgpack`, `cbor`: a map.
    - `influx`: a line of InfluxDB's protocol.
    - `avro`: an Avro record.
    - `protobuf`: a Protobuf message.
    - `debezium`: a change event.
    - `otlp`: a request with OpenTelemetry metrics. Each data point is a row.
    - `prometheus`: a remote write request. Each data point is a row.
    - `sparkplug`: a Sparkplug B message. Each metric is a row.
    - `senml`: a pack of SenML. Each record of the pack is a row.
    - `struct`: bytes with a declared layout.
    """


_OPTIONS = {name: model for name in FORMATS if (model := built_in_form(name).options()) is not None}
"""Format of Strandline -> model of its options."""

if TYPE_CHECKING:

    class _FormatOptions(_StreamHead):
        """Field for the options of each format."""

else:
    _FIELDS = {
        name: (model | None, Field(None, description=built_in_form(name).options_description))
        for name, model in _OPTIONS.items()
    }
    _FormatOptions = create_model("_FormatOptions", __base__=_StreamHead, __module__=__name__, **_FIELDS)


class StreamSpec(_FormatOptions):
    """A persistent stream: its topic, its schema, and its endpoints."""

    NOT_SUPPORTED: ClassVar[dict[str, str]] = {
        "event_time": "each pipeline that reads the stream specifies its event time: 'event_time: {field: NAME,"
        " delay: 10s}' there",
        "topic": "the topic has the name of the stream",
        "fields": "the fields of a record belong in 'schema: {NAME: TYPE, ...}'",
    }
    format_options: dict[str, Any] | None = None
    """Options of the format of a package."""
    explode: Explode | None = None
    """Array in a record, as `$.readings`, whose elements become rows. Or another shape of a record that is several rows, as
    `{members: $.sensors, name: sensor}`."""
    fields: dict[FieldName, FieldSpec] = Field(
        alias="schema", min_length=1, max_length=COLUMNS_MAX, json_schema_extra=FIELD_NAMES_SCHEMA
    )
    """Field name -> type, or {type, required, min, max, unit}."""
    charset: Charset = "utf-8"
    """Charset of records that are text. `utf-16` without a byte order mark is little-endian."""
    embedded: list[EmbeddedSpec] = Field(default_factory=list, max_length=EMBEDDED_MAX)
    """Strings within a record that contain JSON, as `[{at: $.payload}]`. Their members can be read as members of the record."""
    metadata: dict[str, MetadataName] = Field(default_factory=dict, max_length=50)
    """Fields that metadata of a record fill if the record lacks them: name -> metadata, as `key`, `timestamp`, `sender`,
    `file`, `topic[-1]`, `header.site`."""
    missing: list[Marker] = Field(default_factory=list, max_length=MISSING_MAX)
    """Values that mean in each field that there is no value, as `["", "n/a", nan]`."""
    key: str | None = None
    """Field whose value determines the partition. Without it, records are spread over all partitions."""
    retention: Retention = Field(default=7 * 86_400_000, json_schema_extra={"default": "7d"})
    """Time for which the log keeps a record after its arrival; `forever` for no limit."""
    durability: Literal["log", "spool"] = "log"
    """`spool` if a gateway can acknowledge from its spool while Kafka can't confirm; `log` if it can't."""
    mqtt: MqttSpec | None = None
    """MQTT topics whose messages become records of this stream."""
    http: HttpSpec | None = None
    """Values that the head of an HTTP request adds to its records."""
    udp: UdpSpec | None = None
    """A UDP port whose datagrams become records of this stream."""
    poll: list[PollSpec] | None = Field(default=None, min_length=1, max_length=COLUMNS_MAX)
    """URLs that are polled. A single URL can be written without the list."""
    tcp: TcpSpec | None = None
    """A TCP port whose lines become records of this stream."""
    gateways: dict[GatewayName, dict[str, JsonValue]] = Field(default_factory=dict, max_length=GATEWAYS_MAX)
    """Gateways of packages that write into this stream: name -> options of the gateway, as `{acme: {port: 5514}}`."""

    @property
    def form(self) -> StreamFormat:
        """The format, from the registry."""
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
        """Retention in milliseconds; FOREVER_MS for no limit."""
        return self.retention

    @property
    def event_time_parameter(self) -> str | None:
        """Field that the query parameter `event_time` fills. None if there is none."""
        if self.http is not None and self.http.event_time is not None:
            return self.http.event_time
        times = [name for name, field in self.fields.items() if field.type == "timestamp"]
        return times[0] if len(times) == 1 else None

    @property
    def explode_path(self) -> str | None:
        """Path of the array whose elements are rows, if nothing else is filled from it. None if a record is one row, or
        if `shape` describes its rows.
        """
        if isinstance(self.explode, ShapeSpec):
            is_path = self.explode.kind == "elements" and self.explode.index is None and self.explode.time is None
            return self.explode.elements if is_path else None
        return self.explode

    @property
    def shape(self) -> ShapeSpec | None:
        """Shape of records that are several rows. None if `explode_path` describes it, or if a record is one row."""
        is_path = self.explode_path is not None
        return self.explode if isinstance(self.explode, ShapeSpec) and not is_path else None

    @property
    def is_of_positions(self) -> bool:
        """True if a row is an array whose fields are read by index."""
        paths = [
            parse_json_path(path) for field in self.fields.values() for path in field.joined or [field.path or "$.x"]
        ]
        return (
            self.form.is_json and self.explode in (None, "$") and all(isinstance((*one, "")[0], int) for one in paths)
        )

    @property
    def framing(self) -> Framing:
        """Rules by which gateways find the records in a body. Raises StrandlineError if the format can't be used."""
        framing = self.form.framing()
        return framing._replace(
            is_of_arrays=framing.is_of_arrays or self.is_of_positions,
            charset=self.charset if self.charset == "utf-16" else "",
        )

    @property
    def types(self) -> dict[str, str]:
        """Field name -> type in expressions, in the order of the schema."""
        written = (JSON_TYPE, ANY_TYPE)
        return {name: "string" if field.type in written else field.type for name, field in self.fields.items()}

    def decoding_changes(self, other: StreamSpec) -> list[str]:
        """Return the settings of `other` that decode records into rows and differ from this document. Empty if none differs."""
        own_levels, other_levels = (dict(one.mqtt.fields) if one.mqtt else {} for one in (self, other))
        parts = ("format", *_OPTIONS, "format_options", "explode", "missing", "charset", "embedded", "metadata")
        changes = [name for name in parts if getattr(self, name) != getattr(other, name)]
        changes += [f"schema.{name}" for name in _differing(self.fields, other.fields)]
        changes += [f"mqtt.fields.{name}" for name in _differing(own_levels, other_levels)]
        own_headers, other_headers = (dict(one.http.headers) if one.http else {} for one in (self, other))
        changes += [f"http.headers.{name}" for name in _differing(own_headers, other_headers)]
        own_times, other_times = (one.http.event_time if one.http else None for one in (self, other))
        return changes + ["http.event_time"] * (own_times != other_times)

    def reading_changes(self, other: StreamSpec) -> list[str]:
        """Return `decoding_changes`, and `key` if the records of a key are in other partitions."""
        return self.decoding_changes(other) + ["key"] * (self.key != other.key)

    def entrances(self) -> Iterator[tuple[Path, str]]:
        """Yield the endpoints that only one stream can have: MQTT topic filters, and ports. Each with its path in the
        document, and a name for messages.
        """
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
                yield (
                    ("metadata", name),
                    f"is a string, but the field is {self.fields[name].type}; declare it as string",
                )
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
                yield ("poll", number, "url"), "occurs twice, so each response would become two records; remove one"

    def _contradictions_of_http(self, http: HttpSpec, form: StreamFormat) -> Iterator[tuple[Path, str]]:
        for number, accepted in enumerate(http.accept):
            if accepted != "untyped" and form.unusable is None and not form.is_json:
                yield (
                    ("http", "accept", number),
                    f"a {accepted} becomes a JSON object, but the stream's format is {self.format}; use 'format: json'",
                )
        for name in http.headers:
            if name not in self.fields:
                yield ("http", "headers", name), f"is not a field of the schema{did_you_mean(name, self.fields)}"
        if http.event_time is not None and self.types.get(http.event_time) != "timestamp":
            times = [name for name, kind in self.types.items() if kind == "timestamp"]
            yield ("http", "event_time"), f"is not a timestamp of the schema{did_you_mean(http.event_time, times)}"

    def _contradictions_of_key(self, key: str, form: StreamFormat) -> Iterator[tuple[Path, str]]:
        """Yield contradictions of the key. Gateways choose the partition, and read only a member of a JSON object or a topic
        level."""
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
                f"'{key}' is not a member of a JSON object, which gateways read as the key. Use a member, a "
                "field of mqtt.fields, http.headers, or poll.fields, or no key: results don't depend on it",
            )

    def _contradictions_of_nested(self, form: StreamFormat) -> Iterator[tuple[Path, str]]:
        """Yield contradictions of fields that are arrays or structs."""
        filled = {self.key, *(self.mqtt.fields if self.mqtt else ()), *(self.http.headers if self.http else ())}
        for name, field in self.fields.items():
            if not is_nested(field.type):
                continue
            if not form.has_nested:
                able = ", ".join(names_with(all_forms(), "has_nested"))
                yield (
                    ("schema", name),
                    f"{field.type} can be read from the formats {able}, but this is {self.format}; extract "
                    "values with 'from', or make rows with 'explode' if the format supports it",
                )
            if name in filled:
                yield ("schema", name), f"{field.type} can't be the key, and can't be filled from a topic or a header"

    def _is_element(self, path: str) -> bool:
        """Return True if the path is the path of an array or an object whose elements are rows."""
        if not isinstance(self.explode, ShapeSpec):
            return self.explode == path
        inner = [] if self.explode.inner is None else [parse_json_path(self.explode.inner)]
        return parse_json_path(path) in [*self.explode.containers, *inner]

    def _may_begin_with_index(self) -> bool:
        """Return True if a path can begin with an index: into an element, or into a record that is an array."""
        return self.is_of_positions or self.explode is not None

    def _contradictions_of_shape(self, shape: ShapeSpec, form: StreamFormat) -> Iterator[tuple[Path, str]]:
        """Yield contradictions of fields that the shape fills."""
        if not form.is_json and self.explode_path is None:
            yield (
                ("explode",),
                f"a shape other than 'elements' is for 'format: json', but this is {self.format}; remove it",
            )
        if shape.time is not None and self.types.get(shape.time) != "timestamp":
            times = [name for name, kind in self.types.items() if kind == "timestamp"]
            yield (
                ("explode", "time"),
                f"'{shape.time}' is not a timestamp of the schema{did_you_mean(shape.time, times)}",
            )
        elif shape.time is not None and (self.fields[shape.time].pattern or self.fields[shape.time].text):
            yield (
                ("schema", shape.time),
                "a time to which 'step' is added is a number or an ISO 8601 string; remove 'pattern' and 'text'",
            )
        for name, setting in shape.filled.items():
            if name not in self.fields:
                yield ("explode", setting), f"'{name}' is not a field of the schema{did_you_mean(name, self.fields)}"
            elif self.fields[name].source is not None:
                yield ("schema", name, "from"), f"'explode' fills the field ('{setting}'); remove 'from'"
            elif setting == "index" and self.fields[name].type not in ("long", "integer"):
                yield ("explode", setting), f"'{name}' is a {self.fields[name].type}, but the index of a row is a long"

    def _contradictions_of_options(self, form: StreamFormat) -> Iterator[tuple[Path, str]]:
        for name in _OPTIONS:
            if getattr(self, name) is not None and self.format != name:
                yield (name,), f"is for 'format: {name}', but this is {self.format}; remove it"
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

    def _contradictions_of_charset(self, form: StreamFormat) -> Iterator[tuple[Path, str]]:
        if not form.is_line:
            yield (
                ("charset",),
                f"is for records that are text, and records of format {self.format} are bytes; remove it",
            )
        if self.charset == "utf-16" and (
            self.tcp is not None or (self.udp is not None and self.udp.framing == "lines")
        ):
            entrance = "tcp" if self.tcp is not None else "udp"
            yield (
                (entrance,),
                "a line in UTF-16 can't be found by its end; send datagrams, MQTT messages, or HTTP requests",
            )

    def _contradictions_of_format(self, form: StreamFormat) -> Iterator[tuple[Path, str]]:
        found = list(self._contradictions_of_options(form))
        yield from found
        if not found:
            yield from form.problems(self)
        if self.embedded and not form.is_json:
            yield ("embedded",), f"is of 'format: json', and this is {self.format}; remove it"
        if self.charset != "utf-8":
            yield from self._contradictions_of_charset(form)
        if self.explode is not None and not form.explodes:
            able = " | ".join(names_with(all_forms(), "explodes"))
            yield ("explode",), f"is for 'format: {able}', but this is {self.format}; remove it"
        if isinstance(self.explode, ShapeSpec):
            yield from self._contradictions_of_shape(self.explode, form)
        is_bare, has_objects = form.paths == "value", form.paths == "members"
        whole = [name for name, field in self.fields.items() if field.path == "$"]
        for name, field in self.fields.items():
            has_paths = form.paths != "value"
            if field.source is not None and not has_paths and not (is_bare and field.path == "$"):
                yield ("schema", name, "from"), f"a record of format {self.format} has no members; remove it"
            if field.path == "$" and has_objects and not self._is_element("$"):
                yield ("schema", name, "from"), "is the whole record, which is not a value; name a member, as '$.temp'"
            elif field.path is not None and _begins_with_index(field.path) and not self._may_begin_with_index():
                yield (
                    ("schema", name, "from"),
                    f"begins with an index, but a record of format {self.format} is an object. Begin with a "
                    "member, as '$.temp'. If a record is an array, read each field by an index",
                )
        yield from self._contradictions_of_nested(form)
        rest = [name for name, field in self.fields.items() if field.type == JSON_TYPE]
        if rest and (not form.keeps_rest or self.explode is not None):
            what = "explode" if form.keeps_rest else f"format {self.format}"
            yield (
                ("schema", rest[0]),
                f"json is for the other members of an object, but with {what} a row has none",
            )
        for name in rest[1:]:
            yield ("schema", name), f"the members that have no other field go to '{rest[0]}' already"
        for name in rest:
            if name == self.key or (self.mqtt is not None and name in self.mqtt.fields):
                yield (
                    ("schema", name),
                    "json is not a member of the record, so it can't be the key or a level of a topic",
                )
        if is_bare and len(whole) > 1:
            yield ("schema", whole[1], "from"), f"the value goes to '{whole[0]}' already; a record has one value"


def _begins_with_index(path: str) -> bool:
    return isinstance(next(iter(parse_json_path(path)), None), int)


def _differing(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Return the names that only one of them has, or whose values differ."""
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]
