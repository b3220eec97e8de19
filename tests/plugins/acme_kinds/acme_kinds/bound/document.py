"""The field `bound` of a step."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import FieldName
from strandline.core.documents import Path


class BoundSpec(DocumentModel):
    """A new field with the value of another one, kept between two limits."""

    field: str
    """The field whose value it has."""
    into: FieldName
    """Name of the new field."""
    low: float
    """Smallest value."""
    high: float
    """Largest value."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.low > self.high:
            yield ("low",), f"{self.low} is more than 'high', {self.high}; exchange them"


class Fields(DocumentModel):
    """Fields that the kind adds to a step."""

    bound: BoundSpec | None = None
    """A value kept between two limits: {field, into, low, high}."""
