"""The field `session` of a window."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration
from strandline.core.documents import Path
from strandline.core.times.durations import format_duration


class SessionSpec(DocumentModel):
    """Windows that records bound: each ends when no record of its key follows for a while."""

    gap: Duration
    """A record that comes so much later than the last one, or later still, begins a new session."""
    max: Duration = Field(default=3_600_000, json_schema_extra={"default": "1h"})
    """How long a session is at most, its last gap included; what goes on is cut."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.gap == 0:
            yield ("gap",), "each record would be a session of its own; expected at least 1ms"
        elif self.max < self.gap:
            yield (
                ("max",),
                f"{format_duration(self.max)} is less than the gap of {format_duration(self.gap)}, which each session lasts; "
                "expected at least as much",
            )


class WindowFields(DocumentModel):
    """Fields that the kind adds to `window`."""

    session: SessionSpec | None = None
    """{gap, max}; instead of tumbling."""
