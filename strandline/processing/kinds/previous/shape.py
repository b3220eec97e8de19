"""Windows of a record and the record before it: where they begin and end."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.core.times.durations import format_duration
from strandline.processing.pipelines.event_time import AnywhereShape
from strandline.results.names import WINDOW_NUMBER


@dataclass(frozen=True)
class PreviousShape(AnywhereShape):
    """Each record has one window. It begins with the record of the same key before it, if that is at most `within_ms` earlier,
    and otherwise with the record itself. It ends 1 ms after the millisecond of the record.

    `size_ms` is the longest window, and `every_ms` is 1, because windows end anywhere.
    """

    kind = "previous"

    @property
    def within_ms(self) -> int:
        """Maximum time between the two records."""
        return self.size_ms - 1

    @property
    def memory_ms(self) -> int:
        """Maximum time in ms from the record before to its record. For this time, the last record of a key is kept: although its
        own window has closed, a later record can need it, also after a drain."""
        return self.within_ms

    @property
    def is_of_two(self) -> bool:
        return True

    @property
    def reach_ms(self) -> int:
        """1 ms: a window contains its own record, and `memory_ms` covers the record before it."""
        return 1

    @property
    def spacing_ms(self) -> int:
        return self.size_ms

    @property
    def numbering(self) -> tuple[str, ...]:
        """A number, because records of one key can have the same millisecond, and so equal windows."""
        return (WINDOW_NUMBER,)

    def last_open_end(self, event_ms: int) -> int:
        return event_ms + 1

    def __str__(self) -> str:
        return f"of each record and the one before it, within {format_duration(self.within_ms)}"
