"""The plan of cumulative windows of days of a time zone, which are cumulative windows in a document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strandline.core.documents import Path
from strandline.core.times.durations import format_duration
from strandline.core.times.time_zones import zone_names
from strandline.processing.kinds.cumulative.plan import CumulativePlan
from strandline.processing.kinds.cumulative_days.shape import CumulativeDayShape
from strandline.processing.kinds.windows.window_plan import NEEDS_DAYS
from strandline.processing.pipelines.calendars import DAY_MS, days_begin_at_multiples


class CumulativeDayPlan(CumulativePlan):
    """Cumulative windows that begin with days."""

    has_time_zone = True

    def shape(self, window: Any) -> CumulativeDayShape:
        return CumulativeDayShape(window.cumulative.size, window.cumulative.step, window.offset_ms, zone=window.tz)

    def contradictions(self, window: Any) -> Iterator[tuple[Path, str]]:
        yield from super().contradictions(window)
        step_ms = window.cumulative.step
        if window.cumulative.size % DAY_MS:
            yield ("tz",), NEEDS_DAYS
        elif window.tz in zone_names() and not days_begin_at_multiples(
            window.tz, window.offset_ms, step_ms, window.offset_ms % step_ms
        ):
            yield (
                ("cumulative", "step"),
                f"a day of {window.tz} does not always begin at a multiple of the step of {format_duration(step_ms)}; "
                "expected a step that fits, such as 1h or 15m",
            )


PLAN = CumulativeDayPlan()
