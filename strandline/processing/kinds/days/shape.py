"""Windows of days of a time zone: where they begin and end."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.processing.pipelines.calendars import DAY_MS, day_of, day_start_ms, longer_ms_max
from strandline.processing.pipelines.event_time import WindowShape


@dataclass(frozen=True)
class DayShape(WindowShape):
    """Windows of days of a time zone. `size_ms` and `every_ms` are numbers of days; the days are counted from 1970-01-01 in the
    zone.

    A day begins when clocks show `offset_ms` after midnight. A window in which clocks are changed is shorter or longer than
    `size_ms`.
    """

    zone: str = "UTC"
    kind = "days"

    @property
    def time_zone(self) -> str | None:
        return self.zone

    def start_ms(self, number: int) -> int:
        """Return the beginning of the window with this number."""
        return day_start_ms(self.zone, self.offset_ms, number * (self.every_ms // DAY_MS))

    def end_ms(self, number: int) -> int:
        """Return the end of the window with this number. Another window begins there."""
        return self.start_ms(number + self.size_ms // self.every_ms)

    def number_at(self, at_ms: int) -> int:
        """Return the number of the last window that begins at or before this time."""
        return day_of(self.zone, self.offset_ms, at_ms) // (self.every_ms // DAY_MS)

    @property
    def reach_ms(self) -> int:
        return self.size_ms + longer_ms_max(self.zone)

    @property
    def grid_ms(self) -> int:
        """1, because days don't begin at multiples of a duration."""
        return 1

    def last_end(self, at_ms: int) -> int:
        return self.last_start(at_ms)

    def last_start(self, at_ms: int) -> int:
        return self.start_ms(self.number_at(at_ms))

    def first_end(self, after_ms: int) -> int:
        return self.start_ms(self.number_at(after_ms) + 1)

    def first_begin(self, after_ms: int) -> int:
        return self.start_ms(self.number_at(after_ms) + 1 - self.size_ms // self.every_ms)

    def last_end_holding(self, event_ms: int) -> int:
        return self.end_ms(self.number_at(event_ms))

    def __str__(self) -> str:
        return f"{super().__str__()}, in {self.zone}"
