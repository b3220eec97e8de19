"""The field `session` of a window."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration
from strandline.core.documents import Path
from strandline.core.times.durations import format_duration


class SessionSpec(DocumentModel):
    """Windows with a pause between them: each ends when no record of its key arrives for a while."""

    gap: Duration
    """Minimum time between the last record of a session and the first record of the next."""
    max: Duration = Field(default=3_600_000, json_schema_extra={"default": "1h"})
    """Maximum length of a session, including its last gap. A longer session is cut."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.gap == 0:
            yield ("gap",), "each record would be its own session; expected at least 1ms"
        elif self.max < self.gap:
            yield (
                ("max",),
                f"{format_duration(self.max)} is less than the gap of {format_duration(self.gap)}, but each session lasts at "
                "least that long; expected at least as much",
            )


class WindowFields(DocumentModel):
    """Fields that the kind adds to `window`."""

    session: SessionSpec | None = None
    """{gap, max}; instead of tumbling."""
