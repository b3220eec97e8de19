"""The options `protobuf` of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from strandline.core.document_model import DocumentModel
from strandline.core.documents import Path
from strandline.processing.formats.with_schema.beside import FROM_BESIDE


class ProtobufSpec(DocumentModel):
    """The message type with which the records of a stream of format protobuf were written."""

    NOT_SUPPORTED: ClassVar[dict[str, str]] = {
        "descriptor_file": FROM_BESIDE.format("descriptor"),
        "schema_file": "write 'descriptor_file: m.desc' and 'message', with the file that protoc writes: "
        "protoc --include_imports --descriptor_set_out=m.desc m.proto",
    }
    descriptor: str | None = None
    """Set of file descriptors in base64, from `protoc --include_imports --descriptor_set_out=FILE`."""
    message: str | None = None
    """Full name of the message type, as `acme.plant.Reading`."""
    registry: bool = False
    """True if each record begins with the id of its schema in the schema registry (Confluent's wire format)."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.registry == (self.descriptor is not None):
            yield (
                (),
                "expected either 'descriptor' (of all records) or 'registry: true' (each record names its schema)",
            )
        if self.descriptor is not None and self.message is None:
            yield ("message",), "is missing; expected: the full name of the message type"
        if self.descriptor is not None and self.message is not None:
            from strandline.core.schemas.message_types import read_descriptor_set  # only needed if a document has one

            try:
                read_descriptor_set(self.descriptor, self.message)
            except ValueError as error:
                yield ("descriptor",), str(error)
