"""The field `cumulative` of a window."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration
from strandline.core.documents import Path
from strandline.core.times.durations import format_duration
from strandline.processing.kinds.windows.limits import too_many


class CumulativeSpec(DocumentModel):
    """Windows that begin together. Each ends one step after the one before."""

    size: Duration
    """Length of the longest window. Windows begin at its multiples since 1970-01-01 UTC."""
    step: Duration
    """Difference in length between a window and the next shorter window."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.step == 0:
            yield ("step",), "all windows would end at the same time; expected at least 1ms"
        elif self.size == 0 or self.size % self.step:
            yield (
                ("size",),
                f"{format_duration(self.size)} is not a multiple of the step of {format_duration(self.step)}, so the last window "
                "would not end at a step",
            )
        elif (problem := too_many(self.size, self.step)) is not None:
            yield ("step",), problem


class WindowFields(DocumentModel):
    """Fields that the kind adds to `window`."""

    cumulative: CumulativeSpec | None = None
    """{size, step}; instead of tumbling."""
