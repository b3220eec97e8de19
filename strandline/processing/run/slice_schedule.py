"""Time of the next slice of a member of a pool. Results don't depend on it: a slice is recorded as it was cut.

A slice costs nearly the same for any number of records. So a member whose results all come from windows with known ends has few
slices: one when a window can close, and one after a maximum time. Other members have slices at a fixed interval.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median_low

from strandline.ledger.states import CheckpointRow
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
_ARRIVAL_MS_MAX = 2_000
"""Maximum time in ms for which a slice waits for the last records of a window that could have closed."""
_WINDOWS_REMEMBERED = 16


@dataclass
class Closings:
    """Times at which the windows of a pipeline can close.

    A watermark is never ahead of the time at which records arrive. So a window can't close before the wall clock reaches its end
    and the delay. The records that close it may need longer to arrive: devices often send once per second. A slice before them
    would be in vain. So the time that they needed is learned from the last windows. If a clock is wrong, slices come too often,
    or nearly as seldom as QUIET_S.
    """

    windows: Sequence[WindowShape]
    delay_ms: int
    """Delay of the watermark."""
    wall_ms: Callable[[], float] = lambda: time.time() * 1_000
    _arrivals_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOWS_REMEMBERED), init=False)
    """For each of the last windows, how long after its end and the delay the records that closed it were in the log. 0 if the
    first slice that could close it did."""
    _end_ms: int | None = field(default=None, init=False)
    """The next end of a window."""
    _in_vain_ms: int | None = field(default=None, init=False)
    """When the last slice was planned that could have closed that window, but the records that close it weren't in the log. None
    if there was none."""

    def due_s(self, quiet_s: float, now_s: float, last: CheckpointRow, planned_ms: int) -> float:
        """Return the time of the next slice in seconds. Call it once after each slice.

        `quiet_s`: when it is due if no window can close before. `now_s`: the present time on the same clock. `last`: the last
        checkpoint. `planned_ms`: when its slice was planned.
        """
        close_s = now_s + self._wait_s(last, planned_ms)
        is_near = now_s < quiet_s <= close_s <= quiet_s + _NEAR_S
        return close_s if is_near else min(quiet_s, close_s)

    def _wait_s(self, last: CheckpointRow, planned_ms: int) -> float:
        """Return the time in seconds until a slice can close a window."""
        if last.closes_ms is None:
            return _OVERDUE_S
        if self._end_ms is not None and last.closes_ms >= self._end_ms:
            self._arrivals_ms.append(self._arrival_ms(self._end_ms + self.delay_ms, last.latest_log_ms or 0))
        self._end_ms = min(shape.first_end(last.closes_ms) for shape in self.windows)
        can_close_ms = self._end_ms + self.delay_ms
        self._in_vain_ms = planned_ms if planned_ms >= can_close_ms else None
        left_ms = can_close_ms - self.wall_ms()
        # A failing attempt adds a longer time, so the median rises until most attempts succeed.
        waited = [one for one in self._arrivals_ms if one > 0]
        return max(_OVERDUE_S, (left_ms + (median_low(waited) if waited else 0)) / 1_000)

    def _arrival_ms(self, can_close_ms: int, latest_log_ms: int) -> float:
        """Return how long the records needed that closed the window which could close from `can_close_ms` on.

        They came after the last slice in vain. If the pool was busy, the next slice was planned late, and contains much later
        records. So they count as if they had come when it should have been planned.
        """
        if self._in_vain_ms is None:
            return 0
        arrived_ms = min(latest_log_ms, self._in_vain_ms + 1_000 * _OVERDUE_S)
        return min(_ARRIVAL_MS_MAX, max(0, arrived_ms - can_close_ms))


def closings_of(pipeline: CheckedPipeline, delay_ms: int) -> Closings | None:
    """Return when the windows of this pipeline can close. None if it emits records, updates of open windows, or windows whose
    ends depend on their records."""
    shapes = [stage.shape for stage in pipeline.stages]
    shows_open = any(getattr(emit.value, "updates", None) for _, emit in pipeline.spec.emissions())
    if pipeline.record_stages or shows_open or not shapes or any(shape.ends_move for shape in shapes):
        return None
    return Closings(shapes, delay_ms)
