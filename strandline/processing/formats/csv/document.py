"""The options `csv` of a stream."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.documents import COLUMNS_MAX, Path


class CsvSpec(DocumentModel):
    """The options of the lines of a stream of format csv."""

    delimiter: str = Field(default=",", min_length=1, max_length=1)
    """Delimiter between two values: one ASCII character."""
    columns: list[str] | None = Field(default=None, min_length=1, max_length=COLUMNS_MAX)
    """Names of the values of a line in their order. The default is the fields of the schema. A name that isn't a field must be
    the path of a field, as `from: '$["FIC101.PV"]'`."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if not self.delimiter.isascii() or self.delimiter in '"\r\n':
            yield ("delimiter",), f"{self.delimiter!r} can't be a delimiter; expected one ASCII character, as ';'"
        if self.columns is not None and len(set(self.columns)) < len(self.columns):
            yield ("columns",), "contains a name twice"
