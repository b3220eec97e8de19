"""The options `avro` of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field

from strandline.core.document_model import DocumentModel
from strandline.core.documents import Path
from strandline.processing.formats.with_schema.beside import FROM_BESIDE


def _schema_text(value: object) -> object:
    """Return the JSON of a schema that is written as YAML."""
    return json.dumps(value) if isinstance(value, dict | list) else value


class AvroSpec(DocumentModel):
    """The schema with which the records of a stream of format avro were written."""

    NOT_SUPPORTED: ClassVar[dict[str, str]] = {"schema_file": FROM_BESIDE.format("schema")}
    written_by: Annotated[str, BeforeValidator(_schema_text)] | None = Field(
        default=None, alias="schema", json_schema_extra={"type": ["string", "object"]}
    )
    """Schema of all records, as a JSON string or written as YAML."""
    registry: bool = False
    """True if each record begins with the id of its schema in the schema registry (Confluent's wire format)."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.registry == (self.written_by is not None):
            yield (), "expected either 'schema' (of all records) or 'registry: true' (each record names its schema)"
        if self.written_by is not None:
            from strandline.core.schemas.avro_schemas import read_avro_schema  # only needed if a document has a schema

            try:
                read_avro_schema(self.written_by)
            except ValueError as error:
                yield ("schema",), str(error)
