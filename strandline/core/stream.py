"""The `stream:` document: one Kafka topic and its registration. Also the base class of both document models."""

from __future__ import annotations

import itertools
import json
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    JsonValue,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails

from strandline.core.described import Described, docstrings_of
from strandline.core.documents import COLUMNS_MAX, KINDS, NAME, NAME_FORM, Path, YamlDocument, did_you_mean
from strandline.core.errors import PROBLEMS_MAX, InvalidDocument, Problem
from strandline.core.field_types import (
    JSON_TYPE,
    TYPE_NAMES,
    TYPE_PATTERN,
    WHOLE_RANGES,
    is_nested,
    is_number,
    normal_type,
)
from strandline.core.json_paths import parse_json_path, path_in_element
from strandline.core.record_headers import HEADER_CLOUD_EVENT_PREFIX, HEADER_HTTP_PREFIX
from strandline.core.times.durations import (
    FOREVER_MS,
    format_duration,
    format_place,
    format_retention,
    parse_duration_ms,
    parse_place,
    parse_retention_ms,
)
from strandline.core.times.time_zones import zone_names

FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
FIELD_NAME_FORM = "letters, digits and '_', not a digit first, at most 200"
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
HEADERS_NOT_FOR_RECORDS = frozenset((
    "accept", "accept-encoding", "accept-language", "authorization", "cache-control", "connection", "content-encoding",
    "content-length", "content-type", "cookie", "expect", "host", "idempotency-key", "keep-alive", "origin", "pragma",
    "proxy-authorization", "referer", "te", "trailer", "transfer-encoding", "upgrade", "user-agent",
))  # fmt: skip
"""Of HTTP; lower case."""
SECRET_HEADERS = frozenset(("authorization", "cookie", "proxy-authorization", "x-api-key", "api-key", "x-auth-token"))
POLL_HEADERS_OWN = frozenset((
    "accept-encoding", "connection", "content-length", "expect", "host", "if-modified-since", "if-none-match", "range", "te",
    "transfer-encoding", "upgrade",
))  # fmt: skip
RESERVED_FIELDS = ("window", "strandline")
RESERVED_PREFIX = "_strandline"


def check_name(name: str) -> str:
    """Return `name`, or raise ValueError with the expected form. For streams, jobs and emissions."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a name; expected {NAME_FORM}")
    return name


def check_field_name(name: str) -> str:
    """Return `name`, or raise ValueError: not an identifier, or a name that results and stages use themselves."""
    if not FIELD_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a field name; expected {FIELD_NAME_FORM}")
    if name.lower() in RESERVED_FIELDS or name.lower().startswith(RESERVED_PREFIX):
        raise ValueError(f"'{name}' is reserved for Strandline's own fields; choose another name")
    return name


def names_alike(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each name that differs from an earlier one only in case, with the sentence that refuses it."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.lower(), name)) != name:
            yield name, f"'{other}' and '{name}' differ only in case, and Spark's SQL can't tell them apart"


Name = Annotated[str, BeforeValidator(check_name), WithJsonSchema({"type": "string", "pattern": f"^{NAME.pattern}$"})]
Duration = Annotated[
    int,
    BeforeValidator(parse_duration_ms),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d|w))+$", "examples": ["10s", "1h30m", "7d"]}),
]
"""Written as `10s`, kept as whole milliseconds."""
Retention = Annotated[
    int,
    BeforeValidator(parse_retention_ms),
    PlainSerializer(format_retention, return_type=str),
    WithJsonSchema(
        {"type": "string", "pattern": "^(([0-9]+(ms|s|m|h|d|w))+|forever)$", "examples": ["7d", "52w", "forever"]}
    ),
]
"""Written as a duration or `forever`, kept as whole milliseconds or FOREVER_MS."""
LogPlace = Annotated[
    Literal["earliest", "latest"] | int,
    BeforeValidator(parse_place),
    PlainSerializer(format_place, return_type=str),
    WithJsonSchema(
        {"type": "string", "pattern": "^(earliest|latest|[0-9]{4}-.*)$", "examples": ["earliest", "latest"]}
    ),
]
"""A place of a log: `earliest`, `latest` or a log time, written in ISO 8601 and kept as whole milliseconds."""


def _number(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, got {_shown(value)}")
    return value


Number = Annotated[int | float, BeforeValidator(_number)]
RecordFormatName = Literal[
    "json", "value", "raw", "csv", "msgpack", "cbor", "influx", "avro", "protobuf", "debezium", "otlp", "prometheus",
    "sparkplug",
]  # fmt: skip
FORMATS_WITH_MEMBERS = (
    "json", "msgpack", "cbor", "influx", "avro", "protobuf", "debezium", "otlp", "prometheus", "sparkplug",
)  # fmt: skip
"""The formats whose records have members, to which `from` leads."""
SPARKPLUG_NODE_LEVEL = 3
"""Where the edge node stands in a topic, `spBv1.0/GROUP/TYPE/NODE`, counted from 0."""
FORMATS_WITH_ARRAYS = ("json", "avro", "protobuf")
"""The formats whose records can be exploded: their readers can also write a record with one element alone."""
FieldName = Annotated[str, BeforeValidator(check_field_name)]
FIELD_NAMES_SCHEMA: dict[str, JsonValue] = {"propertyNames": {"pattern": f"^{FIELD_NAME.pattern}$"}}
"""For the JSON Schema of a mapping whose keys are field names."""


class ContradictionError(ValueError):
    """Contradictions between the fields of one part of a document, each with its path from that part."""

    def __init__(self, found: list[tuple[Path, str]]) -> None:
        super().__init__("; ".join(message for _, message in found))
        self.found = found


_MAY_CONTRADICT = "may_contradict"
"""In the context of a validation: whether contradictions pass."""


class DocumentModel(Described, BaseModel):
    """A part of a document: no unknown fields, no silent conversion of types, never changed once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=False)
    NOT_SUPPORTED: ClassVar[dict[str, str]] = {}
    """Fields that people look for and that are not here: name -> the sentence that says what to write instead."""

    @classmethod
    def parse(cls, document: YamlDocument, *, is_strict: bool = True) -> Self:
        """Return the model of `document`. Raises InvalidDocument with every problem found, each with its line."""
        try:
            return cls.model_validate(document.data, context={_MAY_CONTRADICT: not is_strict})
        except ValidationError as error:
            found = (problem for detail in error.errors() for problem in _problems(cls, document, detail))
            raise InvalidDocument(_first(found)) from error

    @classmethod
    def from_document(cls, data: dict[str, object], *, is_strict: bool = True) -> Self:
        """Return the model of a document as `as_document` gave it. Raises InvalidDocument. Not `is_strict`: with its
        contradictions, of a document that was stored before rules that are stricter now; to be shown and compared alone."""
        kind = next((kind for kind in KINDS if kind in data), "")
        name = str(data.get(kind, ""))
        source = f"<stored {kind} {name}>"
        return cls.parse(YamlDocument(kind=kind, name=name, data=data, source=source), is_strict=is_strict)

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        """Yield contradictions between fields that are right by themselves: the path from here, and a sentence."""
        return iter(())

    @model_validator(mode="after")
    def _refuse_contradictions(self, info: ValidationInfo) -> Self:
        if not (info.context or {}).get(_MAY_CONTRADICT) and (found := _first(self.contradictions())):
            raise ContradictionError(found)
        return self

    def as_document(self) -> dict[str, object]:
        """The document with its defaults, as plain JSON data; `from_document` reads it back as an equal model."""
        data: dict[str, object] = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return data


def check_json_path(text: object) -> object:
    """Return `text`. Raises ValueError when it is a text and not a path."""
    if isinstance(text, str):
        parse_json_path(text)
    return text


PathText = Annotated[str, BeforeValidator(check_json_path), WithJsonSchema({"type": "string", "pattern": r"^\$"})]
"""A path as `core.json_paths` reads it."""


class FieldSpec(DocumentModel):
    """One field of the schema. `double?` is short for `{type: double, required: false}`."""

    type: str = Field(json_schema_extra={"pattern": rf"^({TYPE_PATTERN}|{JSON_TYPE})\??$"})
    """string, long, integer, double, boolean, timestamp, decimal(p,s), array<...> or struct<...>; or json, for what no other
    field takes."""
    required: bool = True
    """A record without it (or with null) is a dead letter."""
    min: Number | None = None
    """The least number allowed."""
    max: Number | None = None
    """The greatest number allowed."""
    unit: Literal["s", "ms", "us", "ns"] | None = None
    """Of a timestamp that comes as a number (default ms). A string is read as ISO 8601 whatever the unit is."""
    tz: str | None = None
    """Of a timestamp: the time zone, as Europe/Berlin, whose clocks a text shows that names none (default UTC)."""
    path: PathText | None = Field(default=None, alias="from")
    """Where in the record the value stands, as `$.sensors[0].t`; without it, in the member of the field's name."""
    text: bool = False
    """Whether the value may come as text, as `"23.5"`."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        long_form = handler.resolve_ref_schema(super().__get_pydantic_json_schema__(core_schema, handler))
        return {"anyOf": [long_form["properties"]["type"], long_form]}

    @model_validator(mode="before")
    @classmethod
    def _from_short_form(cls, value: object) -> object:
        if isinstance(value, str):
            value = {"type": value}
        if not isinstance(value, dict) or not isinstance(value.get("type"), str):
            return value
        value = dict(value)
        name, mark, rest = value["type"].strip().partition("?")
        if mark and not rest:
            if value.get("required") is True:
                raise ValueError(f"'{value['type']}' is optional and 'required: true' contradicts it; keep one")
            value["required"] = False
            value["type"] = name
        value["type"] = _normal_type(value["type"])
        if value["type"] == "timestamp":
            value.setdefault("unit", "ms")
        if value["type"] == JSON_TYPE:
            if value.get("required") is True:
                raise ValueError("a record may have no member but the declared ones; remove 'required: true'")
            value["required"] = False
        return value

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        whole_range = WHOLE_RANGES.get(self.type)
        for side, limit in (("min", self.min), ("max", self.max)):
            if limit is None:
                continue
            if not is_number(self.type):
                yield (side,), f"'{side}' is for numbers, and this is a {self.type}; remove it"
            elif whole_range and (limit != int(limit) or not whole_range[0] <= limit <= whole_range[1]):
                yield (side,), f"'{side}' is {limit}, which is not a value of {self.type}"
        if self.min is not None and self.max is not None and self.min > self.max:
            yield ("min",), f"'min' {self.min} is greater than 'max' {self.max}; no record could pass"
        if self.unit is not None and self.type != "timestamp":
            yield ("unit",), f"'unit' is for timestamps, and this is a {self.type}; remove it"
        if self.tz is not None and self.type != "timestamp":
            yield ("tz",), f"'tz' is for timestamps, and this is a {self.type}; remove it"
        elif self.tz is not None and self.tz not in zone_names():
            yield ("tz",), f"'{self.tz}' is not a time zone{did_you_mean(self.tz, zone_names())}"
        if self.text and is_nested(self.type):
            yield ("text",), f"{self.type} never comes as text; remove it"
        elif self.text and self.type == "string":
            yield ("text",), "a string is text anyway; remove it"
        if self.type == JSON_TYPE and (self.text or self.path is not None):
            yield ("type",), "json is for the members that no other field takes; remove 'from' and 'text'"


MQTT_FILTER_BYTES_MAX = 65_535
"""Of a text in MQTT, in UTF-8 (5.0, section 1.5.4)."""


class MqttSpec(DocumentModel):
    """Which MQTT topics flow into the stream."""

    topics: list[str] = Field(min_length=1, max_length=COLUMNS_MAX)
    """Topic filters, as `farm/+/turbine/+`."""
    fields: dict[str, int] = Field(default_factory=dict)
    """Fields taken from the topic: name -> level, counted from 0."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        for number, topic in enumerate(self.topics):
            levels = topic.split("/")
            wild = any(("+" in level or "#" in level) and len(level) > 1 for level in levels)
            if not topic or "\0" in topic or wild or "#" in levels[:-1]:
                yield (
                    ("topics", number),
                    f"{topic!r} is not an MQTT topic filter; '+' stands for one whole level, '#' for all the last ones",
                )
                continue
            if len(topic.encode(errors="surrogatepass")) > MQTT_FILTER_BYTES_MAX:
                yield (
                    ("topics", number),
                    f"is longer than {MQTT_FILTER_BYTES_MAX:,} bytes, which MQTT can't say; shorten it",
                )
                continue
            for name, level in self.fields.items():
                if level < 0 or (level >= len(levels) and levels[-1] != "#"):
                    yield (
                        ("fields", name),
                        f"level {level} is not in {topic!r}, which has levels 0 to {len(levels) - 1}",
                    )


class HttpSpec(DocumentModel):
    """What the head of an HTTP request adds to its records."""

    headers: dict[str, str] = Field(default_factory=dict, max_length=50)
    """Fields taken from a header where a record lacks them: name -> header, as `ce-source` or `x-device`."""
    event_time: str | None = None
    """The timestamp that the query's parameter `event_time` fills; by default the schema's only one."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        for name, header in self.headers.items():
            if not HEADER_NAME.fullmatch(header):
                yield ("headers", name), f"{header!r} is not the name of an HTTP header, as 'ce-source' or 'x-device'"
            elif header.lower() in HEADERS_NOT_FOR_RECORDS:
                yield (
                    ("headers", name),
                    f"'{header}' is never kept with records: it belongs to the connection, or is a secret",
                )

    @property
    def record_headers(self) -> dict[str, str]:
        """The fields that a header fills -> that header as the record has it."""
        return {field: record_header(header) for field, header in self.headers.items()}


def record_header(header: str) -> str:
    """The header of a record that holds this header of HTTP."""
    name = header.lower()
    return HEADER_CLOUD_EVENT_PREFIX + name[3:] if name.startswith("ce-") else HEADER_HTTP_PREFIX + name


class HmacSpec(DocumentModel):
    """Which signed datagrams are taken."""

    max_age: Retention = Field(default=300_000, json_schema_extra={"default": "5m"})
    """How far a datagram's counter may be from the gateway's clock, or `forever`: then counters need not be times."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.max_age != FOREVER_MS and self.max_age < 1_000:
            yield ("max_age",), f"is {format_retention(self.max_age)}; expected 1s at least"


class UdpSpec(DocumentModel):
    """A UDP port that flows into the stream."""

    port: int = Field(ge=1, le=65_535)
    """Moves with the stack's port offset."""
    framing: Literal["datagram", "lines"] = "datagram"
    """Whether a datagram is one record, or one record a line."""
    hmac: HmacSpec | None = None
    """Take signed datagrams only, from who may write to the stream; `{}` for the default."""


class TcpSpec(DocumentModel):
    """A TCP port that flows into the stream, one record a line."""

    port: int = Field(ge=1, le=65_535)
    """Moves with the stack's port offset."""
    ack: bool = False
    """Whether the gateway answers with a line when records are confirmed."""


class SecretSpec(DocumentModel):
    """A value that stands in the gateway's settings and in no document."""

    secret: str = Field(pattern=r"^[A-Za-z0-9_-]{1,100}$")
    """Its name there."""


class PollSpec(DocumentModel):
    """A URL that is asked again and again; each answer flows into the stream."""

    NOT_SUPPORTED: ClassVar[dict[str, str]] = {"explode": "stands in the stream, beside 'poll': explode: $.items"}
    url: str
    """Of http or https. The gateway's setting STRANDLINE_POLL_HOSTS says which hosts may be asked."""
    every: Duration = Field(default=60_000, json_schema_extra={"default": "60s"})
    """How often, from 100ms to 1 day."""
    timeout: Duration = Field(default=10_000, json_schema_extra={"default": "10s"})
    """How long the whole answer may take, up to 5 minutes."""
    framing: Literal["body", "json", "lines"] = "body"
    """Whether an answer is one record, a JSON object or an array of records, or one record a line."""
    headers: dict[str, str | SecretSpec] = Field(default_factory=dict, max_length=20)
    """Headers of the request: name -> value, or `{secret: NAME}`."""
    fields: dict[str, str] = Field(default_factory=dict, max_length=50)
    """What the records lack: field -> text."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if problem := _problem_of_url(self.url):
            yield ("url",), problem
        if not 100 <= self.every <= 86_400_000:
            yield ("every",), f"is {format_duration(self.every)}; expected 100ms to 1d"
        if not 1 <= self.timeout <= 300_000:
            yield ("timeout",), f"is {format_duration(self.timeout)}; expected up to 5m"
        for name, value in self.headers.items():
            if not HEADER_NAME.fullmatch(name):
                yield ("headers", name), f"{name!r} is not the name of an HTTP header"
            elif name.lower() in POLL_HEADERS_OWN:
                yield ("headers", name), f"'{name}' is what the gateway itself sends; remove it"
            elif isinstance(value, SecretSpec):
                continue
            elif name.lower() in SECRET_HEADERS:
                yield (
                    ("headers", name),
                    "is a secret, and documents are shown to many; write {secret: NAME}",
                )
            elif not value.isascii() or not value.isprintable() or len(value) > 2_000:
                yield (
                    ("headers", name),
                    "has a value that no header can have; expected at most 2,000 printable characters",
                )


def _problem_of_url(url: str) -> str | None:
    """Why the URL can't be asked."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return f"is not a URL: {error}"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "is not a URL of http or https, as http://10.0.0.5/status"
    if parts.username is not None or parts.password is not None:
        return "holds a user or a password, and documents are shown to many; send them in headers, as {secret: NAME}"
    if (
        parts.fragment
        or not url.isascii()
        or any(not " " < character < "\x7f" for character in url)
        or len(url) > 2_000
    ):
        return (
            "holds a fragment, spaces or other characters that must be percent-encoded, or more than 2,000 characters"
        )
    return None


class CsvSpec(DocumentModel):
    """How the lines of a stream of format csv are read."""

    delimiter: str = Field(default=",", min_length=1, max_length=1)
    """What stands between two values: one ASCII character."""
    columns: list[FieldName] | None = Field(default=None, min_length=1)
    """The names of the values of a line, in order; by default the fields of the schema."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if not self.delimiter.isascii() or self.delimiter in '"\r\n':
            yield ("delimiter",), f"{self.delimiter!r} can't stand between values; expected one ASCII character, as ';'"
        if self.columns is not None and len(set(self.columns)) < len(self.columns):
            yield ("columns",), "has a name twice"


class RawSpec(DocumentModel):
    """How a whole record becomes text."""

    encoding: Literal["utf8", "base64"] = "utf8"
    """`utf8`: the record is text, and one that is none is a dead letter; `base64`: any bytes, written in base64."""


def _schema_text(value: object) -> object:
    """A schema that is written as YAML, as the JSON text that a schema is."""
    return json.dumps(value) if isinstance(value, dict | list) else value


_FROM_BESIDE = (
    "is replaced by the file's content by `strandline apply`, which reads files beside the document; to another reader of "
    "documents give the content itself, as '{}'"
)


class AvroSpec(DocumentModel):
    """By which schema the records of a stream of format avro were written."""

    NOT_SUPPORTED: ClassVar[dict[str, str]] = {"schema_file": _FROM_BESIDE.format("schema")}
    written_by: Annotated[str, BeforeValidator(_schema_text)] | None = Field(
        default=None, alias="schema", json_schema_extra={"type": ["string", "object"]}
    )
    """The schema of all records, as JSON text or written out in YAML."""
    registry: bool = False
    """Whether each record begins with the number of its schema in the schema registry (Confluent's wire format)."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.registry == (self.written_by is not None):
            yield (), "expected one of 'schema' (of all records) and 'registry: true' (each record names its schema)"
        if self.written_by is not None:
            from strandline.core.schemas.avro_schemas import read_avro_schema  # only where a document has one

            try:
                read_avro_schema(self.written_by)
            except ValueError as error:
                yield ("schema",), str(error)


class ProtobufSpec(DocumentModel):
    """By which message type the records of a stream of format protobuf were written."""

    NOT_SUPPORTED: ClassVar[dict[str, str]] = {
        "descriptor_file": _FROM_BESIDE.format("descriptor"),
        "schema_file": "write 'descriptor_file: m.desc' and 'message', with the file that protoc makes: "
        "protoc --include_imports --descriptor_set_out=m.desc m.proto",
    }
    descriptor: str | None = None
    """A set of file descriptors in base64, as `protoc --include_imports --descriptor_set_out=FILE` writes it."""
    message: str | None = None
    """The full name of the message type, as `acme.plant.Reading`."""
    registry: bool = False
    """Whether each record begins with the number of its schema in the schema registry (Confluent's wire format)."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.registry == (self.descriptor is not None):
            yield (
                (),
                "expected one of 'descriptor' (of all records) and 'registry: true' (each record names its schema)",
            )
        if self.descriptor is not None and self.message is None:
            yield ("message",), "is missing; expected: the full name of the message type"
        if self.descriptor is not None and self.message is not None:
            from strandline.core.schemas.message_types import read_descriptor_set  # only where a document has one

            try:
                read_descriptor_set(self.descriptor, self.message)
            except ValueError as error:
                yield ("descriptor",), str(error)


class StreamSpec(DocumentModel):
    """A persistent stream: its topic, its schema, and how records come in."""

    NOT_SUPPORTED: ClassVar[dict[str, str]] = {
        "event_time": "event time is said by each pipeline that reads the stream: 'event_time: {field: NAME, delay: 10s}' there",
        "topic": "the topic has the stream's name",
        "fields": "the fields of a record stand in 'schema: {NAME: TYPE, ...}'",
    }
    stream: Name
    """The name, and the Kafka topic."""
    partitions: int = Field(default=4, ge=1, le=1000)
    """Of the Kafka topic."""
    format: RecordFormatName = "json"
    """What a record is: a JSON object; a bare `value`, a number or a text; `raw` bytes or text; a line of `csv`; a map in
    `msgpack` or `cbor`; a line of InfluxDB's protocol, `influx`; a record of `avro`; a message of `protobuf`; a change
    event of `debezium`; or a request with metrics of OpenTelemetry, `otlp`, or of Prometheus' remote write, `prometheus`, each
    of whose data points is a row; or a message of Sparkplug B, `sparkplug`, each of whose metrics is a row."""
    raw: RawSpec | None = None
    """Of the format raw: how the record becomes text."""
    csv: CsvSpec | None = None
    """Of the format csv: delimiter and columns."""
    avro: AvroSpec | None = None
    """Of the format avro: the schema, or that each record names one in the schema registry."""
    protobuf: ProtobufSpec | None = None
    """Of the format protobuf: the message type, or that each record names one in the schema registry."""
    explode: PathText | None = None
    """The array in a record, as `$.readings`; each of its elements becomes a row."""
    fields: dict[FieldName, FieldSpec] = Field(
        alias="schema", min_length=1, max_length=COLUMNS_MAX, json_schema_extra=FIELD_NAMES_SCHEMA
    )
    """Field name -> type, or {type, required, min, max, unit}."""
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
    def types(self) -> dict[str, str]:
        """Field name -> type in expressions, in the order of the schema."""
        return {name: "string" if field.type == JSON_TYPE else field.type for name, field in self.fields.items()}

    def decoding_changes(self, other: StreamSpec) -> list[str]:
        """What `other` says otherwise of how records become rows. Empty: each record is decoded as by this document."""
        own_levels, other_levels = (dict(one.mqtt.fields) if one.mqtt else {} for one in (self, other))
        changes = [name for name in ("format", *_OPTIONS, "explode") if getattr(self, name) != getattr(other, name)]
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

    @field_validator("poll", mode="before")
    @classmethod
    def _one_poll_is_a_list(cls, value: object) -> object:
        return [value] if isinstance(value, dict) else value

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.stream.endswith(".dead-letter"):
            yield ("stream",), "names that end in '.dead-letter' belong to the jobs; choose another"
        for name, message in names_alike(self.fields):
            yield ("schema", name), message
        if self.key is not None:
            yield from self._contradictions_of_key(self.key)
        yield from self._contradictions_of_format()
        for name in self.mqtt.fields if self.mqtt else ():
            if name not in self.fields:
                yield ("mqtt", "fields", name), f"is not a field of the schema{did_you_mean(name, self.fields)}"
        if self.http is not None:
            yield from self._contradictions_of_http(self.http)
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

    def _contradictions_of_http(self, http: HttpSpec) -> Iterator[tuple[Path, str]]:
        for name in http.headers:
            if name not in self.fields:
                yield ("http", "headers", name), f"is not a field of the schema{did_you_mean(name, self.fields)}"
        if http.event_time is not None and self.types.get(http.event_time) != "timestamp":
            times = [name for name, kind in self.types.items() if kind == "timestamp"]
            yield ("http", "event_time"), f"is not a timestamp of the schema{did_you_mean(http.event_time, times)}"

    def _contradictions_of_key(self, key: str) -> Iterator[tuple[Path, str]]:
        """Gateways choose the partition, and only look for a member of a JSON object or a level of the topic."""
        if key not in self.fields:
            yield ("key",), f"'{key}' is not a field of the schema{did_you_mean(key, self.fields)}"
        elif (
            (self.mqtt is not None and key in self.mqtt.fields)
            or (self.http is not None and key in self.http.headers)
            or (self.poll is not None and all(key in poll.fields for poll in self.poll))
        ):
            return
        elif self.format != "json" or self.fields[key].path is not None:
            yield (
                ("key",),
                f"'{key}' is not a member of a JSON object, where gateways look for the key; take one that is, or one of "
                "mqtt.fields, http.headers or poll.fields, or none: results don't depend on it",
            )

    def _contradictions_of_sparkplug(self) -> Iterator[tuple[Path, str]]:
        """What a message says depends on those of its edge node before it."""
        levels = dict(self.mqtt.fields) if self.mqtt else {}
        if self.partitions > 1 and (self.key is None or levels.get(self.key) != SPARKPLUG_NODE_LEVEL):
            yield (
                ("key",),
                "the messages of an edge node must come to one partition: take the field of the topic's level "
                f"{SPARKPLUG_NODE_LEVEL} ('key: node', 'mqtt: {{fields: {{node: {SPARKPLUG_NODE_LEVEL}}}}}'), or 'partitions: 1'",
            )

    def _contradictions_of_avro(self, schema_text: str) -> Iterator[tuple[Path, str]]:
        """Of fields that a union makes ambiguous."""
        from strandline.core.schemas.avro_schemas import meanings_at, read_avro_schema

        schema = read_avro_schema(schema_text)
        array = None if self.explode is None else parse_json_path(self.explode)
        for name, field in self.fields.items():
            path = (name,) if field.path is None else parse_json_path(field.path)
            try:
                meanings_at(schema, path, field.type, field.unit or "ms")
                if array is not None:
                    meanings_at(schema, (*array, 0, *path_in_element(path, array)), field.type, field.unit or "ms")
            except ValueError as error:
                yield ("schema", name), str(error)

    def _contradictions_of_nested(self) -> Iterator[tuple[Path, str]]:
        """Of fields that are arrays or structs."""
        filled = {self.key, *(self.mqtt.fields if self.mqtt else ()), *(self.http.headers if self.http else ())}
        for name, field in self.fields.items():
            if not is_nested(field.type):
                continue
            if self.format not in _FORMATS_WITH_NESTED:
                yield (
                    ("schema", name),
                    f"{field.type} is read of the formats {', '.join(_FORMATS_WITH_NESTED)}, and this is {self.format}; take "
                    "values out of it by 'from', or make rows of it by 'explode' where the format can",
                )
            if name in filled:
                yield ("schema", name), f"{field.type} is no key, and comes from no topic and no header"

    def _contradictions_of_format(self) -> Iterator[tuple[Path, str]]:
        has_objects = self.format in FORMATS_WITH_MEMBERS
        for name in _OPTIONS:
            if getattr(self, name) is not None and self.format != name:
                yield (name,), f"is of 'format: {name}', and this is {self.format}; remove it"
        if self.format in ("avro", "protobuf") and getattr(self, self.format) is None:
            yield (self.format,), f"is missing; expected: {docstrings_of(type(self))[self.format]}"
        if self.format == "sparkplug":
            yield from self._contradictions_of_sparkplug()
        if self.avro is not None and self.avro.written_by is not None:
            yield from self._contradictions_of_avro(self.avro.written_by)
        for name in self.csv.columns or () if self.csv else ():
            if name not in self.fields:
                yield ("csv", "columns"), f"'{name}' is not a field of the schema{did_you_mean(name, self.fields)}"
        if self.explode is not None and self.format not in FORMATS_WITH_ARRAYS:
            yield (
                ("explode",),
                f"is of 'format: {' | '.join(FORMATS_WITH_ARRAYS)}', and this is {self.format}; remove it",
            )
        is_bare = self.format in ("value", "raw")
        whole = [name for name, field in self.fields.items() if field.path == "$"]
        for name, field in self.fields.items():
            if field.path is not None and not has_objects and not (is_bare and field.path == "$"):
                yield ("schema", name, "from"), f"a record of format {self.format} has no members; remove it"
            if field.path == "$" and has_objects:
                yield ("schema", name, "from"), "is the whole record, which is no value; name a member, as '$.temp'"
        yield from self._contradictions_of_nested()
        rest = [name for name, field in self.fields.items() if field.type == JSON_TYPE]
        keeps_rest = self.format in _FORMATS_WITH_A_REST
        if rest and (not keeps_rest or self.explode is not None):
            what = "explode" if keeps_rest else f"format {self.format}"
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
        if self.format == "raw" and all(self.fields[name].type != "string" for name in whole or self.fields):
            yield ("schema", *whole), "a raw record goes into a field of type string, and there is none"


_FORMATS_WITH_A_REST = ("json", "msgpack", "cbor", "influx")
"""Their records may have members that nobody declares."""
_FORMATS_WITH_NESTED = ("json", "msgpack", "cbor")
"""Their records may have fields that are arrays or structs."""
_OPTIONS = ("raw", "csv", "avro", "protobuf")
"""The parts of a document that belong to the format of their name."""


def _first(found: Iterable[Any]) -> list[Any]:
    """As many as an answer holds, and one more to tell that there are more."""
    return list(itertools.islice(found, PROBLEMS_MAX + 1))


def _differing(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """The names that only one of them has, or to which they give different values."""
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


_TYPES_ELSEWHERE = {
    **dict.fromkeys(("int", "int32"), "integer"),
    **dict.fromkeys(("int64", "bigint"), "long"),
    **dict.fromkeys(("float", "float32", "float64", "real", "number"), "double"),
    **dict.fromkeys(("str", "text", "varchar", "char"), "string"),
    **dict.fromkeys(("bool",), "boolean"),
    **dict.fromkeys(("date", "datetime", "time"), "timestamp"),
}
"""What other programs call our types, so that the message names ours."""


def _normal_type(text: str) -> str:
    if text == JSON_TYPE:
        return text
    try:
        found = normal_type(text)
    except ValueError as error:
        raise ValueError(f"'{text}': {error}") from None
    if found is None:
        meant = _TYPES_ELSEWHERE.get(text.lower())
        raise ValueError(
            f"'{text}' is not a type" + (f"; did you mean '{meant}'?" if meant else did_you_mean(text, TYPE_NAMES))
        )
    return found


_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "dict_type": "a mapping of names to values",
    "model_type": "a mapping of names to values",
    "list_type": "a list",
}


WORD, MAPPING = "[word]", "[mapping]"
"""Tags of a field that is one or the other; its errors name them beside the path."""
_NO_PLACES = ("[key]", WORD, MAPPING)


def word_or_mapping(value: object) -> str:
    """Which of these tags a value has."""
    return WORD if isinstance(value, str) else MAPPING


def _problems(model: type[DocumentModel], document: YamlDocument, detail: ErrorDetails) -> list[Problem]:
    path = tuple(part for part in detail["loc"] if part not in _NO_PLACES)
    error = detail.get("ctx", {}).get("error")
    if isinstance(error, ContradictionError):
        return [document.problem((*path, *inner), message) for inner, message in error.found]
    return [document.problem(path, str(error) if error else _sentence(model, path, detail))]


def _sentence(model: type[DocumentModel], path: Path, detail: ErrorDetails) -> str:
    """The message for one of pydantic's errors: what was expected, and what was found."""
    kind, value = detail["type"], detail["input"]
    owner = _model_at(model, path[:-1]) if path else None
    if kind == "missing":
        name = next((n for n, f in owner.model_fields.items() if (f.alias or n) == path[-1]), None) if owner else None
        docstring = docstrings_of(owner).get(name) if owner and name else None
        return f"is missing; expected: {docstring}" if docstring else "is missing"
    if kind == "extra_forbidden" and owner:
        if sentence := owner.NOT_SUPPORTED.get(str(path[-1])):
            return sentence
        known = [field.alias or name for name, field in owner.model_fields.items()]
        return f"unknown field '{path[-1]}'{did_you_mean(str(path[-1]), known)}"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {_shown(value)}{_remedy(model, path, kind, value)}"
    if kind == "too_short":
        return f"expected at least one entry, got {_shown(value)}"
    if kind == "too_long":
        return f"expected at most {detail['ctx']['max_length']:,} entries, got {_shown(value)}"
    if kind == "literal_error":
        return f"expected {detail['ctx']['expected']}{_or_mapping(model, path)}, got {_shown(value)}"
    return f"{detail['msg'].replace('Input should', 'should')}, got {_shown(value)}"


def _remedy(model: type[DocumentModel], path: Path, kind: str, value: object) -> str:
    """How the value would be written, where it is clear what was meant."""
    if kind == "list_type":
        return f"; write [{value}]" if isinstance(value, str) else "; write it between [ and ]" if value else ""
    if kind == "model_type" and isinstance(value, str) and (meant := _model_at(model, path)):
        name, field = next(iter(meant.model_fields.items()))
        return f"; write {{{field.alias or name}: {value}}}"
    return ""


def _or_mapping(model: type[DocumentModel], path: Path) -> str:
    """Of a field that is a word or a mapping: how the mapping is written, beside the words."""
    meant = _model_at(model, path)
    return f", or {{{next(iter(meant.model_fields))}: ...}}" if meant else ""


def _shown(value: object) -> str:
    match value:
        case None:
            return "no value"
        case bool():
            return str(value).lower()
        case dict():
            return "a mapping" if value else "an empty mapping"
        case list():
            return f"a list of {len(value)}" if value else "an empty list"
        case _:
            text = repr(value)
            return text if len(text) <= 60 else f"{text[:57]}..."


def _model_at(model: type[DocumentModel], path: Path) -> type[DocumentModel] | None:
    """The model of the value at `path`, found through the annotations."""
    here: Any = model
    for part in path:
        if isinstance(here, type) and issubclass(here, DocumentModel):
            here = next((f.annotation for n, f in here.model_fields.items() if (f.alias or n) == part), None)
        else:  # an index of a list, or a key of a dict
            here = typing.get_args(here)[-1] if typing.get_args(here) else None
        while typing.get_origin(here) in (Annotated, typing.Union, types.UnionType):
            of_union = [one for one in typing.get_args(here) if one is not types.NoneType]
            here = of_union[0 if typing.get_origin(here) is Annotated else -1]
    return here if isinstance(here, type) and issubclass(here, DocumentModel) else None
