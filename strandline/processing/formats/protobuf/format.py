"""Protobuf messages."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from strandline.core.streams.format import NamedFile
from strandline.processing.formats.format import Format, FormatReader, ReaderRequest

if TYPE_CHECKING:
    from strandline.core.document_model import DocumentModel
    from strandline.core.streams.format import StreamDocument


class MessageTypes(NamedTuple):
    """The types of the messages of a stream."""

    descriptors: str | None
    """Set of file descriptors in base64. None if each message names its schema."""
    message: str | None
    """Full name of the type. None if messages can have any type."""


class ProtobufFormat(Format):
    name = "protobuf"
    module = "google.protobuf"
    options_description = (
        "Options of the format protobuf: the message type, or message types of the schema registry that records name."
    )
    requires_options = True
    files: Mapping[str, NamedFile] = {"descriptor_file": NamedFile("descriptor", is_text=False)}
    content_type = b"application/x-protobuf"
    explodes = True
    has_schema = True

    def options(self) -> type[DocumentModel]:
        from strandline.processing.formats.protobuf.document import ProtobufSpec

        return ProtobufSpec

    def read_options(self, stream: StreamDocument) -> Hashable:
        return MessageTypes(stream.options.descriptor, stream.options.message)

    def uses_registry(self, options: Any) -> bool:
        return bool(options.descriptors is None)

    def reader(self, request: ReaderRequest) -> FormatReader:
        from strandline.processing.formats.protobuf.reader import ProtobufMessages, RegisteredProtobufMessages

        descriptors, message = request.options
        if descriptors is not None and message is not None:
            return ProtobufMessages(request.fields, request.explode, descriptors, message)
        assert request.schemas is not None
        return RegisteredProtobufMessages(request.fields, request.explode, message, request.schemas)


FORMAT = ProtobufFormat()
