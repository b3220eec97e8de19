"""Schemas and records of Avro and Protobuf for the tests, and a replacement of a schema registry."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any
from urllib.parse import unquote

import fastavro
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from strandline.core.record_headers import REASON_DECODE
from strandline.core.schemas.message_types import read_descriptor_set
from strandline.processing.formats.record_fields import Rejection
from strandline.processing.formats.with_schema.registered_schemas import RegisteredSchema, SchemaKind

TYPES = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "sint64": FieldDescriptorProto.TYPE_SINT64,
}


def avro_record(schema: Any, record: Mapping[str, Any]) -> bytes:
    written = BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), record)
    return written.getvalue()


def numbered(number: int, record: bytes, indexes: bytes = b"") -> bytes:
    """The record in Confluent's wire format."""
    return b"\0" + number.to_bytes(4, "big") + indexes + record


def proto_file(package: str, **messages: Mapping[str, str]) -> FileDescriptorProto:
    """A file of proto3. A field is its type, the name of a message of the file or a full one, after `repeated` or `optional`."""
    file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for number, (field_name, text) in enumerate(fields.items(), 1):
            mark, _, type_name = text.rpartition(" ")
            field = message.field.add(name=field_name, number=number, label=3 if mark == "repeated" else 1)
            if type_name in TYPES:
                field.type = TYPES[type_name]
            else:
                field.type = FieldDescriptorProto.TYPE_MESSAGE
                field.type_name = type_name if type_name.startswith(".") else f".{package}.{type_name}"
            if mark == "optional":
                field.proto3_optional = True
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field_name}")
            if type_name.startswith(".google.protobuf."):
                imported = type_name.rpartition(".")[2].lower()
                path = f"google/protobuf/{'wrappers' if imported.endswith('value') else imported}.proto"
                if path not in file.dependency:
                    file.dependency.append(path)
    return file


def descriptor_text(*files: FileDescriptorProto) -> str:
    return base64.b64encode(FileDescriptorSet(file=files).SerializeToString()).decode()


def message_class(descriptors: str, name: str) -> Any:
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(read_descriptor_set(descriptors, name))


class SchemasInMemory:
    """Knows the schemas that were passed to it."""

    def __init__(self, **schemas: RegisteredSchema) -> None:
        """`schemas`: as `avro_7`."""
        self._schemas = schemas

    def schema(self, kind: SchemaKind, number: int) -> RegisteredSchema | Rejection:
        return self._schemas.get(f"{kind}_{number}") or Rejection(REASON_DECODE, f"no schema {number}")


class RegistryServer:
    """A schema registry with Confluent's interface, at `url`: it says what `schemas` and `versions` hold."""

    def __init__(self) -> None:
        self.schemas: dict[tuple[int, str], dict[str, Any]] = {}
        """By number, and the form that is asked for (`serialized` or nothing)."""
        self.versions: dict[tuple[str, int], dict[str, Any]] = {}
        """By subject and version."""
        self.asked: list[tuple[str, str | None]] = []
        """The path of each request, and its authorization."""
        self.is_away = False
        """True to accept connections and answer nothing."""
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append((self.path, self.headers.get("authorization")))
                if registry.is_away:
                    self.close_connection = True
                    return
                found = registry.answer(self.path)
                body = json.dumps(
                    found or {"error_code": registry.code_of_none(self.path), "message": "not found"}
                ).encode()
                self.send_response(200 if found else 404)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, path: str) -> dict[str, Any] | None:
        where, _, query = path.partition("?")
        parts = [unquote(part) for part in where.split("/")]
        if parts[1] == "subjects":
            return self.versions.get((parts[2], int(parts[4])))
        number = parts[3] if len(parts) > 3 else "-1"
        return self.schemas.get((int(number), query.removeprefix("format=")))

    def code_of_none(self, path: str) -> int:
        """To Confluent's registry a number that is no int of Java is no path at all."""
        number = path.partition("?")[0].rpartition("/ids/")[2]
        return 404 if number.isdecimal() and int(number) >= 2**31 else 40403

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
