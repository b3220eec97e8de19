"""Raw records: any text, or any bytes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

from strandline.core.documents import Path
from strandline.processing.formats.format import Format, FormatReader, ReaderRequest

if TYPE_CHECKING:
    from strandline.core.document_model import DocumentModel
    from strandline.core.streams.format import StreamDocument


class RawFormat(Format):
    name = "raw"
    options_description = "Options of the format raw: the conversion of the record to a string."
    paths = "value"
    is_line = True
    fills_in_sources = True

    def options(self) -> type[DocumentModel]:
        from strandline.processing.formats.raw.document import RawSpec

        return RawSpec

    def problems(self, stream: StreamDocument) -> Iterator[tuple[Path, str]]:
        whole = [name for name, field in stream.fields.items() if field.path == "$"]
        if all(stream.fields[name].type != "string" for name in whole or stream.fields):
            yield ("schema", *whole), "a raw record needs a field of type string, but there is none"

    def read_options(self, stream: StreamDocument) -> Hashable:
        """Return True if records are encoded in base64."""
        return stream.options is not None and stream.options.encoding == "base64"

    def reader(self, request: ReaderRequest) -> FormatReader:
        from strandline.processing.formats.raw.reader import RawValues

        return RawValues(request.fields, request.source_fields, is_base64=bool(request.options))


FORMAT = RawFormat()
