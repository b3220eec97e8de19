"""Rows of delimited values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strandline.core.documents import Path, did_you_mean
from strandline.core.json_paths import parse_json_path, path_text
from strandline.core.streams.format import ANOTHER_STREAM, ValueRows
from strandline.processing.formats.format import Format, FormatReader, ReaderRequest

if TYPE_CHECKING:
    from strandline.core.document_model import DocumentModel
    from strandline.core.streams.format import StreamDocument
    from strandline.processing.formats.inference.sample import Proposed, Sample


class CsvFormat(Format):
    name = "csv"
    options_description = "Options of the format csv: delimiter and columns."
    content_type = b"text/csv"
    untyped_body = "lines"
    paths = "columns"
    is_line = True
    sample_rank = 80

    def options(self) -> type[DocumentModel]:
        from strandline.processing.formats.csv.document import CsvSpec

        return CsvSpec

    def problems(self, stream: StreamDocument) -> Iterator[tuple[Path, str]]:
        """Yield the problems of columns: each must be a field, or the path of a field."""
        columns = self.value_rows(stream).columns
        read = {name: field.joined or [field.path or ""] for name, field in stream.fields.items() if field.source}
        paths = {parse_json_path(path): name for name, one in read.items() for path in one}
        for path, name in paths.items():
            if len(path) != 1 or path[0] not in columns:
                yield (
                    ("schema", name, "from"),
                    f"'{path_text(path)}' is not a column; expected '$.NAME' with a name of csv.columns",
                )
        for column in columns:
            if column not in stream.fields and (column,) not in paths:
                yield (
                    ("csv", "columns"),
                    f"'{column}' is not a field of the schema{did_you_mean(column, stream.fields)}",
                )

    def refused_changes(self, old: StreamDocument, new: StreamDocument) -> Iterator[str]:
        if self.value_rows(old) != self.value_rows(new):
            yield f"columns of csv: a value is known by its position, and senders don't change together; {ANOTHER_STREAM}"

    def value_rows(self, stream: StreamDocument) -> ValueRows:
        options = stream.options
        columns = options.columns if options and options.columns else stream.fields
        return ValueRows(options.delimiter if options else ",", tuple(columns))

    def read_options(self, stream: StreamDocument) -> ValueRows:
        return self.value_rows(stream)

    def reader(self, request: ReaderRequest) -> FormatReader:
        from strandline.processing.formats.csv.reader import DelimitedLines

        return DelimitedLines(request.fields, request.options.columns, request.options.delimiter)

    def propose(self, name: str, sample: Sample) -> Proposed | None:
        from strandline.processing.formats.csv.sample import propose

        return propose(name, sample)


FORMAT = CsvFormat()
