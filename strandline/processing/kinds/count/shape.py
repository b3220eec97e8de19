"""Windows that count records: where they begin and end."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.core.times.durations import format_duration
from strandline.processing.pipelines.event_time import AnywhereShape
from strandline.results.names import WINDOW_NUMBER


@dataclass(frozen=True)
class CountShape(AnywhereShape):
    """Windows that contain `count` records of one key, in the order of event time. A window ends 1 ms after the millisecond of
    its last record.

    Counting starts again at each multiple of `size_ms` since 1970, and windows that aren't full end there. `every_ms` is 1,
    because windows can end anywhere.
    """

    count: int = 1
    kind = "count"

    @property
    def spacing_ms(self) -> int:
        return self.size_ms

    @property
    def numbering(self) -> tuple[str, ...]:
        return (WINDOW_NUMBER,)

    @property
    def identity(self) -> dict[str, object]:
        return {**super().identity, "count": self.count}

    def first_start(self, after_ms: int) -> int:
        """Return the beginning of the period that contains `after_ms`: windows that end later depend on no record before it."""
        return after_ms // self.size_ms * self.size_ms

    def last_end_holding(self, event_ms: int) -> int:
        return (event_ms // self.size_ms + 1) * self.size_ms

    def __str__(self) -> str:
        return f"of {self.count:,} records, within {format_duration(self.size_ms)}"
