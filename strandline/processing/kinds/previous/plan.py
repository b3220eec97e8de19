"""The plan of windows of a record and the record before it."""

from __future__ import annotations

from typing import Any

from strandline.processing.kinds.previous.shape import PreviousShape
from strandline.processing.kinds.windows.window_plan import Argument, WindowForm, WindowPlan


class PreviousPlan(WindowPlan):
    """Windows of two records."""

    why_no_offset = "windows begin and end with records; remove it"
    forms = (
        WindowForm(
            "previous",
            "previous",
            (Argument("within", "within"),),
            ("previous", "within"),
            is_made_by_rows=True,
        ),
    )

    def shape(self, window: Any) -> PreviousShape:
        return self.of(window.previous.within)

    def of(self, within_ms: int) -> PreviousShape:
        """Return the windows for a maximum time between two records."""
        return PreviousShape(within_ms + 1, 1)


PLAN = PreviousPlan()
