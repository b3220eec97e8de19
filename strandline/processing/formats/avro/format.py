"""Records in Avro's binary encoding."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from strandline.core.documents import Path
from strandline.core.json_paths import parse_json_path, path_in_element
from strandline.core.streams.format import NamedFile
from strandline.processing.formats.format import Format, FormatReader, ReaderRequest

if TYPE_CHECKING:
    from strandline.core.document_model import DocumentModel
    from strandline.core.streams.format import StreamDocument
    from strandline.processing.formats.inference.sample import Proposed, Sample


class AvroFormat(Format):
    name = "avro"
    module = "fastavro"
    options_description = "Options of the format avro: the schema, or schemas of the schema registry that records name."
    requires_options = True
    files: Mapping[str, NamedFile] = {"schema_file": NamedFile("schema", is_text=True)}
    content_type = b"application/avro"
    explodes = True
    has_schema = True
    sample_rank = 1
    file_suffix = ".avro"
    file_name = "a file of Avro"

    def options(self) -> type[DocumentModel]:
        from strandline.processing.formats.avro.document import AvroSpec

        return AvroSpec

    def problems(self, stream: StreamDocument) -> Iterator[tuple[Path, str]]:
        """Yield the problems of fields that a union makes ambiguous."""
        if stream.options.written_by is None:
            return
        from strandline.core.schemas.avro_schemas import meanings_at, read_avro_schema

        schema = read_avro_schema(stream.options.written_by)
        array = None if stream.explode_path is None else parse_json_path(stream.explode_path)
        for name, field in stream.fields.items():
            path = (name,) if field.path is None else parse_json_path(field.path)
            try:
                meanings_at(schema, path, field.type, field.unit or "ms")
                if array is not None:
                    meanings_at(schema, (*array, 0, *path_in_element(path, array)), field.type, field.unit or "ms")
            except ValueError as error:
                yield ("schema", name), str(error)

    def read_options(self, stream: StreamDocument) -> Hashable:
        """Return the schema of all records as JSON. None if each record names its schema."""
        schema: str | None = stream.options.written_by
        return schema

    def uses_registry(self, options: Any) -> bool:
        return options is None

    def reader(self, request: ReaderRequest) -> FormatReader:
        from strandline.processing.formats.avro.reader import AvroRecords, RegisteredAvroRecords

        if request.options is not None:
            return AvroRecords(request.fields, request.explode, request.options)
        assert request.schemas is not None
        return RegisteredAvroRecords(request.fields, request.explode, request.schemas)

    def propose(self, name: str, sample: Sample) -> Proposed | None:
        from strandline.processing.formats.avro.sample import propose

        return propose(name, sample)

    def file_records(self, file: BinaryIO, options: Any, name: str) -> Iterator[bytes]:
        from strandline.processing.formats.avro.files import file_records

        return file_records(file, options, name)


FORMAT = AvroFormat()
