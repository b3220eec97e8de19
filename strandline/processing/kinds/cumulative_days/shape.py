"""Cumulative windows of days of a time zone: where they begin and end."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.processing.kinds.cumulative.shape import CumulativeShape
from strandline.processing.kinds.days.shape import DayShape


@dataclass(frozen=True)
class CumulativeDayShape(CumulativeShape):
    """Cumulative windows that begin with days of a time zone. `size_ms` is a number of days. The check of the pipeline ensures
    that days begin at multiples of the step."""

    zone: str = "UTC"
    kind = "cumulative_days"

    @property
    def time_zone(self) -> str | None:
        return self.zone

    @property
    def whole(self) -> DayShape:
        """The longest windows."""
        return DayShape(self.size_ms, self.size_ms, self.offset_ms, zone=self.zone)

    @property
    def reach_ms(self) -> int:
        return self.whole.reach_ms

    @property
    def grid_ms(self) -> int:
        return 1

    def last_start(self, at_ms: int) -> int:
        return self.whole.last_start(at_ms)

    def last_end_holding(self, event_ms: int) -> int:
        return self.whole.last_end_holding(event_ms)

    def __str__(self) -> str:
        return f"{super().__str__()}, in {self.zone}"
