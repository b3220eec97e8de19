"""The document of a lookup with its rows."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from strandline.core.documents import Path, YamlDocument
from strandline.core.errors import InvalidDocument
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.lookups.packed_rows import TEXT_BYTES_MAX, unpack_rows
from strandline.processing.formats.lookups.rows import digest_of, encode_rows, lines_of, read_rows
from strandline.processing.operators.lookups.lookup_table import LookupTable


@dataclass(frozen=True)
class ReadLookup:
    """The document of a lookup with its checked rows. A lookup that follows a source has no rows here."""

    spec: LookupSpec
    text: bytes
    """Rows as JSON, one per line."""
    rows: pa.RecordBatch

    @property
    def digest(self) -> str:
        return digest_of(self.spec, self.text)

    @property
    def is_followed(self) -> bool:
        """True if its rows come from a source."""
        return self.spec.source is not None

    @property
    def followed_stream(self) -> str | None:
        """Stream that it follows. None if it follows none."""
        return None if self.spec.source is None else self.spec.source.stream

    def table(self, version: int = 1) -> LookupTable:
        return LookupTable(self.spec.lookup, version, self.rows, self.spec.key)


def read_lookup(document: YamlDocument) -> ReadLookup:
    """Return the lookup of a document. Raises InvalidDocument with all problems, with their lines if they are known."""
    spec = LookupSpec.parse(document)

    def refuse(path: Path, message: str) -> InvalidDocument:
        return InvalidDocument([document.problem(path, message)])

    if spec.packed is not None:
        try:
            text = unpack_rows(spec.packed)
        except ValueError as error:
            raise refuse(("packed",), str(error)) from error
    else:
        text = b"\n".join(encode_rows(spec.rows or ()))
        if len(text) > TEXT_BYTES_MAX:
            raise refuse(("rows",), f"are more than {TEXT_BYTES_MAX:,} bytes as JSON, the maximum of a lookup")
    rows = read_rows(spec, lines_of(text))
    if not isinstance(rows, list):
        return ReadLookup(spec, text, rows)

    def place_of(row: int) -> str:
        line = None if spec.packed is not None else document.line_of(("rows", row))
        return f"row {row + 1}" if line is None else f"line {line}"

    raise InvalidDocument(
        [
            document.problem(("packed",), f"{place_of(one.row)} {one.message_at(place_of)}")
            if spec.packed is not None
            else document.problem(("rows", one.row), one.message_at(place_of))
            for one in rows
        ]
    )
