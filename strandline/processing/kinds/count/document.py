"""The field `count` of a window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration
from strandline.core.documents import Path


class CountSpec(DocumentModel):
    """Windows that contain a number of records of one key, in the order of event time."""

    size: Annotated[int, Field(ge=1, le=10_000_000)]
    """Number of records."""
    max: Duration
    """Length of a period. At its multiples since 1970-01-01 UTC, counting starts again, and windows that aren't full are closed.
    Without this limit, a start would have to count from the first record of the stream."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.max == 0:
            yield ("max",), "counting would start again immediately; expected at least 1ms"


class WindowFields(DocumentModel):
    """Fields that the kind adds to `window`."""

    count: CountSpec | None = None
    """{size, max}; instead of tumbling."""
