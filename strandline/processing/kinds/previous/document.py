"""The field `previous` of a window."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration
from strandline.core.documents import Path


class PreviousSpec(DocumentModel):
    """Windows of one record and the record of the same key before it, in the order of event time."""

    within: Duration
    """Maximum time between the two records. A record without an earlier one within this time has a window of its own."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.within == 0:
            yield ("within",), "no record would have a previous one; expected at least 1ms"


class WindowFields(DocumentModel):
    """Fields that the kind adds to `window`."""

    previous: PreviousSpec | None = None
    """{within}; instead of tumbling."""
