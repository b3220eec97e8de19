"""The formats of records, and what a document says of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from strandline.core.document_model import DocumentModel
from strandline.core.documents import COLUMNS_MAX, Path

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


class CsvSpec(DocumentModel):
    """How the lines of a stream of format csv are read."""

    delimiter: str = Field(default=",", min_length=1, max_length=1)
    """What stands between two values: one ASCII character."""
    columns: list[str] | None = Field(default=None, min_length=1, max_length=COLUMNS_MAX)
    """The names of the values of a line, in order; by default the fields of the schema. Any name that is not a field's must be
    named by a path, as `from: '$["FIC101.PV"]'`."""

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
