"""The fields `dedupe` and `distinct` of a step."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration
from strandline.core.documents import Path


class DedupeSpec(DocumentModel):
    """Leaves out records that come again, as senders send them that heard no answer."""

    by: list[str] = Field(min_length=1)
    """The fields that are equal in a record and its repeats. The stream's key is among them."""
    within: Duration
    """How far apart in event time a record and its repeat may be: less than this."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.within == 0:
            yield ("within",), "no two records would be compared; expected at least 1ms"
        for number, name in enumerate(self.by):
            if name in self.by[:number]:
                yield ("by", number), f"'{name}' stands twice"


class DistinctSpec(DocumentModel):
    """Leaves out, in a batch, every record whose fields another one before it had."""

    by: list[str] = Field(min_length=1)
    """The fields. The stream's key is among them."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        for number, name in enumerate(self.by):
            if name in self.by[:number]:
                yield ("by", number), f"'{name}' stands twice"


class Fields(DocumentModel):
    """Fields that the kind adds to a step."""

    dedupe: DedupeSpec | None = None
    """Leaves repeats out: {by, within}."""
    distinct: DistinctSpec | None = None
    """Of a batch: leaves repeats out, however far apart they are: {by}."""
