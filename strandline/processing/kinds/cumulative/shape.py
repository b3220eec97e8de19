"""Cumulative windows: where they begin and end."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.processing.pipelines.event_time import WindowShape


@dataclass(frozen=True)
class CumulativeShape(WindowShape):
    """Windows that begin together. Each ends one step after the one before.

    The step is `every_ms`. The longest window has `size_ms`. At each multiple of the step a window ends, which began at the last
    multiple of `size_ms` before.
    """

    kind = "cumulative"
    begin_together = True

    @property
    def grid_ms(self) -> int:
        return self.size_ms

    def last_end(self, at_ms: int) -> int:
        return (at_ms - self.offset_ms) // self.every_ms * self.every_ms + self.offset_ms

    def last_start(self, at_ms: int) -> int:
        return (at_ms - self.offset_ms) // self.size_ms * self.size_ms + self.offset_ms

    def first_begin(self, after_ms: int) -> int:
        return self.last_start(after_ms)

    def __str__(self) -> str:
        return f"{super().__str__()}, cumulative"
