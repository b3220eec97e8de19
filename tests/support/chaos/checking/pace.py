"""Speed of event time in a chaos job, and sizes that depend on it.

The job's document, its load, and the checker use these window sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

SHORT, LONG = "short", "long"
"""The stages of the first job."""
AGAIN, ALL = "again", "all"
"""The stages of the second and of the third."""
DELAY_MS = IDLE_MS = 10_000
MAX_AHEAD_MS = 300_000


@dataclass(frozen=True)
class Windows:
    """The windows of a stage: of this size, one begins after each `every_ms`."""

    size_ms: int
    every_ms: int

    def last_end(self, up_to_ms: int) -> int:
        """The end of the last one that ends at or before that."""
        return (up_to_ms - self.size_ms) // self.every_ms * self.every_ms + self.size_ms


@dataclass(frozen=True)
class Pace:
    speed: int
    """Seconds of event time in a second."""
    short_ms: int
    """The size of the windows of the first stage."""
    long_ms: int

    @property
    def sizes_ms(self) -> dict[str, int]:
        """Stage -> size of its windows."""
        return {SHORT: self.short_ms, LONG: self.long_ms}


PACES = {pace.speed: pace for pace in (Pace(1, 2_000, 10_000), Pace(20, 10_000, 60_000))}
"""By speed. At 1, silence lasts as long in event time as by the clock, so `idle_timeout` decides what is late; at 20, windows
close several times a second."""
