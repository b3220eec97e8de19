"""The `lookup:` document: a table that enriches records by a key, its fields, and its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import FIELD_NAMES_SCHEMA, FieldName, Name, names_alike
from strandline.core.documents import COLUMNS_MAX, Path, did_you_mean
from strandline.core.field_types import JSON_TYPE, is_nested
from strandline.core.lookups.source import LookupSource
from strandline.core.streams.fields import FieldSpec


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class LookupSpec(DocumentModel):
    """A table whose rows are found by a key. Each version is kept as long as a replay can need it."""

    NOT_SUPPORTED: ClassVar[dict[str, str]] = {
        "table": "rows of a SQL table come from 'source: {sql: {database: NAME, query: select ...}}'",
        "stream": "the latest records of a stream come from 'source: {stream: NAME}'",
        "refresh": "rows in a document don't change until it is applied again; rows of a 'source' are read "
        "again at the interval 'every'",
    }
    lookup: Name
    """Name of the lookup."""
    fields: dict[FieldName, FieldSpec] = Field(
        alias="schema", min_length=1, max_length=COLUMNS_MAX, json_schema_extra=FIELD_NAMES_SCHEMA
    )
    """Field name -> type, or {type, required, min, max, unit, text}, as in the schema of a stream."""
    key: Annotated[list[str], BeforeValidator(_as_list)] = Field(min_length=1, json_schema_extra={"minItems": 1})
    """Field or fields by which a row is found. No two rows can have equal keys."""
    rows: list[dict[str, Any]] | None = None
    """Rows of the lookup: field -> value."""
    file: str | None = None
    """File of rows next to the document: `.csv`, `.ndjson`, or `.parquet`. The command line reads it."""
    packed: str | None = None
    """Rows of a file as the command line sends them: JSON objects, one per line, compressed by zlib, in base64."""
    source: LookupSource | None = None
    """Source of the rows that Strandline follows: the latest records of a stream, or a query of a database."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        given = [name for name in ("rows", "file", "packed", "source") if getattr(self, name) is not None]
        if len(given) != 1:
            found = f"has {' and '.join(given)}" if given else "has none"
            yield (), f"a lookup must have exactly one of rows, file, and source; this lookup {found}"
        elif self.file is not None:
            yield (
                ("file",),
                "must be read by the command line, and wasn't; apply the document with strandline apply",
            )
        for name, message in names_alike(self.fields):
            yield ("schema", name), message
        for name, field in self.fields.items():
            if field.type == JSON_TYPE or field.path is not None or is_nested(field.type):
                yield (
                    ("schema", name),
                    "a row is flat: remove 'json', 'from', arrays, and structs, and list their members as fields",
                )
        for number, name in enumerate(self.key):
            path: Path = ("key", number) if len(self.key) > 1 else ("key",)
            if name not in self.fields:
                yield path, f"'{name}' is not a field of the schema{did_you_mean(name, self.fields)}"
            elif name in self.key[:number]:
                yield path, f"'{name}' occurs twice"
            elif self.fields[name].type == "double":
                yield (
                    path,
                    f"'{name}' is a double, which isn't a reliable key; use a string, an integer, or a decimal",
                )
            elif not self.fields[name].required:
                yield path, f"'{name}' is optional, but a row without its key can't be found; remove 'required: false'"

    @property
    def types(self) -> dict[str, str]:
        """Field name -> type in expressions, in the order of the schema."""
        return {name: field.type for name, field in self.fields.items()}

    def without_rows(self) -> dict[str, object]:
        """Return the document of a version for the ledger, without its rows. The ledger stores rows by their content."""
        return {name: value for name, value in self.as_document().items() if name not in ("rows", "file", "packed")}

    @classmethod
    def described(cls, document: dict[str, Any]) -> Self:
        """Return the lookup of a document that `without_rows` returned, without its rows. Raises InvalidDocument."""
        return cls.from_document(document if "source" in document else {**document, "rows": []})
