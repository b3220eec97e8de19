"""The options `csv` of a stream."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.documents import COLUMNS_MAX, Path


class CsvSpec(DocumentModel):
    """How the lines of a stream of format csv are read."""

    delimiter: str = Field(default=",", min_length=1, max_length=1)
    """What stands between two values: one ASCII character."""
    columns: list[str] | None = Field(default=None, min_length=1, max_length=COLUMNS_MAX)
    """The names of the values of a line, in order; by default the fields of the schema. Any name that is not a field's must be
    named by a path, as `from: '$["FIC101.PV"]'`."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if not self.delimiter.isascii() or self.delimiter in '"\r\n':
            yield ("delimiter",), f"{self.delimiter!r} can't stand between values; expected one ASCII character, as ';'"
        if self.columns is not None and len(set(self.columns)) < len(self.columns):
            yield ("columns",), "has a name twice"
