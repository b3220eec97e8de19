"""Time of the next slice of a member of a pool. Results don't depend on it: a slice is recorded as it was cut.

A slice costs nearly the same for any number of records. So a member whose results all come from windows with known ends has few
slices: one when a window can close, and one after a maximum time. Other members have slices at a fixed interval.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.event_time import WindowShape

INTERVAL_S = 1.0
"""Time in seconds between two slices of a member."""
QUIET_S = 10.0
"""Time in seconds after which a member has a slice although no window can close."""
_NEAR_S = 2.0
"""Such a slice waits for the next window if the window can close within this time in seconds. It would delay the results of the
window, because a member has one slice at a time."""
_OVERDUE_S = 0.5
"""Time in seconds until the next slice if a window could have closed: its last records are on their way."""


@dataclass(frozen=True)
class Closings:
    """Times at which the windows of a pipeline can close."""

    windows: Sequence[WindowShape]
    delay_ms: int
    """Delay of the watermark."""
    wall_ms: Callable[[], float] = lambda: time.time() * 1_000

    def wait_s(self, closes_ms: int | None) -> float:
        """Return the time in seconds until a window can close. `closes_ms`: the watermark after the last slice.

        A watermark is never ahead of the time at which records arrive. So a window can't close before the wall clock reaches its
        end and the delay. If the clock is wrong, slices come too often, or nearly as seldom as QUIET_S.
        """
        if closes_ms is None:
            return _OVERDUE_S
        end_ms = min(shape.first_end(closes_ms) for shape in self.windows)
        return max(_OVERDUE_S, (end_ms + self.delay_ms - self.wall_ms()) / 1_000)

    def due_s(self, quiet_s: float, now_s: float, closes_ms: int | None) -> float:
        """Return the time of the next slice in seconds. `quiet_s`: when it is due if no window can close before. `now_s`: the
        present time on the same clock."""
        close_s = now_s + self.wait_s(closes_ms)
        is_near = now_s < quiet_s <= close_s <= quiet_s + _NEAR_S
        return close_s if is_near else min(quiet_s, close_s)


def closings_of(pipeline: CheckedPipeline, delay_ms: int) -> Closings | None:
    """Return when the windows of this pipeline can close. None if it emits records, updates of open windows, or windows whose
    ends depend on their records."""
    shapes = [stage.shape for stage in pipeline.stages]
    shows_open = any(getattr(emit.value, "updates", None) for _, emit in pipeline.spec.emissions())
    if pipeline.record_stages or shows_open or not shapes or any(shape.ends_move for shape in shapes):
        return None
    return Closings(shapes, delay_ms)
