"""Windows of shifts: where they begin and end."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from strandline.processing.pipelines.event_time import WindowShape

DAY_MS = 86_400_000


@dataclass(frozen=True)
class ShiftShape(WindowShape):
    """One window for each shift of a day. `size_ms` and `every_ms` are the length of the longest one."""

    starts_ms: tuple[int, ...] = (0,)
    """When shifts begin, in ms after midnight, ascending."""
    kind = "shifts"

    @property
    def spacing_ms(self) -> int:
        """Time from a shift to the same shift of the next day: other shifts are longer or shorter."""
        return DAY_MS

    @property
    def identity(self) -> dict[str, object]:
        return {**super().identity, "starts_ms": list(self.starts_ms)}

    @property
    def grid_ms(self) -> int:
        return 1

    def number_at(self, at_ms: int) -> int:
        """Return the number of the shift that holds this instant."""
        day, time_ms = divmod(at_ms, DAY_MS)
        return day * len(self.starts_ms) + bisect_right(self.starts_ms, time_ms) - 1

    def start_ms(self, number: int) -> int:
        """Return when the shift of this number begins, and the one before it ends."""
        day, shift = divmod(number, len(self.starts_ms))
        return day * DAY_MS + self.starts_ms[shift]

    def last_end(self, at_ms: int) -> int:
        return self.start_ms(self.number_at(at_ms))

    def last_start(self, at_ms: int) -> int:
        return self.start_ms(self.number_at(at_ms))

    def first_end(self, after_ms: int) -> int:
        return self.start_ms(self.number_at(after_ms) + 1)

    def first_begin(self, after_ms: int) -> int:
        return self.start_ms(self.number_at(after_ms))

    def last_end_holding(self, event_ms: int) -> int:
        return self.start_ms(self.number_at(event_ms) + 1)

    def __str__(self) -> str:
        times = (f"{start // 3_600_000:02}:{start // 60_000 % 60:02}" for start in self.starts_ms)
        return f"shifts from {', '.join(times)}"
