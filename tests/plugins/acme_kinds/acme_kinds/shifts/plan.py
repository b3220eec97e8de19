"""The plan of windows of shifts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from acme_kinds.shifts.shape import DAY_MS, ShiftShape

from strandline.core.documents import Path
from strandline.processing.kinds.windows.window_plan import Argument, WindowForm, WindowPlan


class ShiftPlan(WindowPlan):
    """Windows from one time of the day to the next."""

    why_no_offset = "shifts begin at the times that they name; remove it"
    forms = (WindowForm("shifts", "shifts", (Argument("starts", type="value"),)),)

    def shape(self, window: Any) -> ShiftShape:
        starts_ms = tuple(_after_midnight_ms(time) for time in window.shifts)
        longest_ms = max(end - start for start, end in pairwise((*starts_ms, starts_ms[0] + DAY_MS)))
        return ShiftShape(longest_ms, longest_ms, starts_ms[0], starts_ms=starts_ms)

    def contradictions(self, window: Any) -> Iterator[tuple[Path, str]]:
        yield from super().contradictions(window)
        for number, (before, time) in enumerate(pairwise(window.shifts), 1):
            if time <= before:
                yield ("shifts", number), f"'{time}' isn't later than '{before}' before it; sort the times, each once"


def _after_midnight_ms(time: str) -> int:
    hours, minutes = map(int, time.split(":"))
    return (60 * hours + minutes) * 60_000


PLAN = ShiftPlan()
