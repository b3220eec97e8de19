"""The fields `dedupe` and `distinct` of a step."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration
from strandline.core.documents import Path


class DedupeSpec(DocumentModel):
    """Leaves out duplicates, such as records that a sender repeats because it received no response."""

    by: list[str] = Field(min_length=1)
    """Fields that are equal in a record and its duplicates. They must include the key of the stream."""
    within: Duration
    """Limit on the difference in event time between a record and its duplicate. The difference must be smaller."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.within == 0:
            yield ("within",), "no two records would be compared; expected at least 1ms"
        for number, name in enumerate(self.by):
            if name in self.by[:number]:
                yield ("by", number), f"'{name}' is listed twice"


class DistinctSpec(DocumentModel):
    """Leaves out, in a batch, each record whose fields are equal to those of an earlier record."""

    by: list[str] = Field(min_length=1)
    """Fields to compare. They must include the key of the stream."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        for number, name in enumerate(self.by):
            if name in self.by[:number]:
                yield ("by", number), f"'{name}' is listed twice"


class Fields(DocumentModel):
    """Fields that the kind adds to a step."""

    dedupe: DedupeSpec | None = None
    """Leaves out duplicates: {by, within}."""
    distinct: DistinctSpec | None = None
    """Leaves out duplicates in a batch, whatever their difference in event time: {by}."""
