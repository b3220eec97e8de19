"""Binary records with a declared layout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from strandline.core.documents import Path, did_you_mean
from strandline.core.json_paths import parse_json_path
from strandline.core.streams.format import ANOTHER_STREAM
from strandline.processing.formats.format import Format, FormatReader, ReaderRequest
from strandline.processing.formats.struct.layout import Layout

if TYPE_CHECKING:
    from strandline.core.document_model import DocumentModel
    from strandline.core.streams.format import StreamDocument


class StructBytes(Format):
    name = "struct"
    options_description = "Options of the format struct: the layout of a binary record."
    requires_options = True
    columns_follow_paths = True
    file_suffix = ".bin"
    file_name = "a file of binary records"

    def options(self) -> type[DocumentModel]:
        from strandline.processing.formats.struct.document import StructSpec

        return StructSpec

    def problems(self, stream: StreamDocument) -> Iterator[tuple[Path, str]]:
        if stream.options is None:
            return
        names = self.read_options(stream).names
        for name, field in stream.fields.items():
            path = parse_json_path(field.path) if field.path else (name,)
            if len(path) != 1 or path[0] not in names:
                place = ("schema", name, "from") if field.path else ("schema", name)
                yield (
                    place,
                    f"'{path[-1] if path else '$'}' is not a member of struct{did_you_mean(str(path[-1:]), names)}",
                )

    def refused_changes(self, old: StreamDocument, new: StreamDocument) -> Iterator[str]:
        if self.read_options(old) != self.read_options(new):
            yield f"members of struct: a value is known by its position, and senders don't change together; {ANOTHER_STREAM}"

    def read_options(self, stream: StreamDocument) -> Layout:
        layout: Layout = stream.options.layout()
        return layout

    def reader(self, request: ReaderRequest) -> FormatReader:
        from strandline.processing.formats.struct.reader import StructRecords

        return StructRecords(request.options, request.fields)

    def file_records(self, file: BinaryIO, options: Any, name: str) -> Iterator[bytes]:
        """Yield the records, which follow each other without a separator. The rest of the file is the last record."""
        while record := file.read(options.size):
            yield record


FORMAT = StructBytes()
