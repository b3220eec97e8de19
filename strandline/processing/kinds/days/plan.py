"""The plan of windows of days of a time zone, which are tumbling or sliding windows in a document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strandline.core.documents import Path
from strandline.core.times.durations import format_duration
from strandline.processing.kinds.days.shape import DayShape
from strandline.processing.kinds.windows.plan import EqualWindowPlan
from strandline.processing.kinds.windows.window_plan import NEEDS_DAYS
from strandline.processing.pipelines.calendars import DAY_MS


class DayPlan(EqualWindowPlan):
    """Windows of whole days."""

    has_time_zone = True

    def shape(self, window: Any) -> DayShape:
        equal = super().shape(window)
        return DayShape(equal.size_ms, equal.every_ms, equal.offset_ms, zone=window.tz)

    def contradictions(self, window: Any) -> Iterator[tuple[Path, str]]:
        yield from super().contradictions(window)
        equal = super().shape(window)
        if not equal.size_ms or equal.size_ms % DAY_MS or equal.every_ms % DAY_MS:
            yield ("tz",), NEEDS_DAYS
        elif equal.size_ms % equal.every_ms:
            yield (
                ("sliding", "size"),
                f"{format_duration(equal.size_ms)} of days of a time zone is not a multiple of 'every', "
                f"{format_duration(equal.every_ms)}",
            )


PLAN = DayPlan()
