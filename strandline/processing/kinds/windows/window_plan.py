"""The contract of the plan of a kind of windows: from the fields of a document to the shape of the windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from strandline.core.documents import Path
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.pipelines.stages import Stage

NEEDS_DAYS = (
    "a time zone determines when days begin, so it needs windows of complete days: 'tumbling: 1d', 'sliding: {size: 7d, "
    "every: 1d}', or 'cumulative: {size: 1d, step: 1h}'. To move windows of parts of a day, use 'offset'"
)


class Argument(NamedTuple):
    """An argument of a windowing function of SQL."""

    name: str
    field: str = ""
    """Field of the kind's value that has the argument. Empty if the argument is the whole value."""
    type: Literal["duration", "number", "value"] = "duration"
    is_needed: bool = True


@dataclass(frozen=True)
class WindowForm:
    """A form of windows in SQL, as a function of a relation, and in Python, as `function(...)` of `strandline`."""

    keyword: str
    """Field of `window`."""
    function: str
    """Name of the function in SQL."""
    arguments: tuple[Argument, ...]
    """Arguments of this function in their order, after the relation and the column of event time."""
    python: tuple[str, ...] = ()
    """Name of the function in Python, and the fields of the kind's value that are its arguments. Empty if Python has none."""
    is_made_by_rows: bool = False
    """True if the rows determine where windows begin and end, so that rows can't be left out afterwards."""
    has_partitions: bool = False
    """True if the relation names the key: `table NAME partition by (k)`."""
    needs_end: bool = False
    """True if several windows begin together, so that a query has to group by `window_end`."""


class WindowPlan(ABC):
    """The check of the fields of one kind of windows. In all methods, `window` is the whole `window` of the document."""

    kind_in_time_zone: ClassVar[str] = ""
    """Kind of the windows if the document has `tz`. Empty if it is the same kind."""
    has_time_zone: ClassVar[bool] = False
    """True if windows can begin with days of a time zone."""
    forms: ClassVar[tuple[WindowForm, ...]] = ()
    """How SQL and Python write the fields of the kind. A field without a form is written in YAML only."""
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
