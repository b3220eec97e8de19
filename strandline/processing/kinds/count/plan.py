"""The plan of windows that count records."""

from __future__ import annotations

from typing import Any

from strandline.processing.kinds.count.shape import CountShape
from strandline.processing.kinds.windows.window_plan import Argument, WindowForm, WindowPlan


class CountPlan(WindowPlan):
    """Windows that contain a number of records."""

    why_no_offset = "counting begins at multiples of 'max'; remove it"
    forms = (
        WindowForm(
            "count",
            "counted",
            (Argument("rows", "size", "number"), Argument("max", "max")),
            ("counted", "size", "max"),
            is_made_by_rows=True,
        ),
    )

    def shape(self, window: Any) -> CountShape:
        return CountShape(window.count.max, 1, count=window.count.size)


PLAN = CountPlan()
