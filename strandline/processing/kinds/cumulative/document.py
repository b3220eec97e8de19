"""The field `cumulative` of a window."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration
from strandline.core.documents import Path
from strandline.core.times.durations import format_duration
from strandline.processing.kinds.windows.limits import too_many


class CumulativeSpec(DocumentModel):
    """Windows that begin together and end one step after the other."""

    size: Duration
    """How long the longest is; they begin at its multiples since 1970-01-01 UTC."""
    step: Duration
    """How much longer each is than the one before."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.step == 0:
            yield ("step",), "windows that all end at once; expected at least 1ms"
        elif self.size == 0 or self.size % self.step:
            yield (
                ("size",),
                f"{format_duration(self.size)} is not a multiple of the step of {format_duration(self.step)}, so the last window "
                "would end at no step",
            )
        elif (problem := too_many(self.size, self.step)) is not None:
            yield ("step",), problem


class WindowFields(DocumentModel):
    """Fields that the kind adds to `window`."""

    cumulative: CumulativeSpec | None = None
    """{size, step}; instead of tumbling."""
