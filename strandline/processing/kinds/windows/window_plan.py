"""The contract of the plan of a kind of windows: from the fields of a document to the shape of the windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from strandline.core.documents import Path
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.pipelines.stages import Stage

NEEDS_DAYS = (
    "a time zone says when days begin, so it needs windows of whole days, as 'tumbling: 1d', 'sliding: {size: 7d, "
    "every: 1d}' or 'cumulative: {size: 1d, step: 1h}'; parts of a day are moved by 'offset'"
)


class WindowPlan(ABC):
    """How the fields of one kind of windows are checked. In all methods, `window` is the whole `window` of the document."""

    kind_in_time_zone: ClassVar[str] = ""
    """Kind of the windows if the document has `tz`. Empty if it is the same kind."""
    has_time_zone: ClassVar[bool] = False
    """True if windows can begin with days of a time zone."""
    why_no_offset: ClassVar[str] = ""
    """Reason why such windows can't begin later, with the remedy. Empty if they can."""

    @abstractmethod
    def shape(self, window: Any) -> WindowShape:
        """Return where the windows begin and end."""

    def contradictions(self, window: Any) -> Iterator[tuple[Path, str]]:
        """Yield contradictions between fields of the window: the path in the window, and a message."""
        if window.offset and self.why_no_offset:
            yield ("offset",), self.why_no_offset

    def problems_after(self, window: Any, stage: Stage, before: Stage) -> Iterator[tuple[Path, str]]:
        """Yield problems of windows that read the results of the stage `before`. See `StageSpec.problems_after`."""
        return iter(())
