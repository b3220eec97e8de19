"""The plan of cumulative windows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strandline.core.documents import Path
from strandline.processing.kinds.cumulative.shape import CumulativeShape
from strandline.processing.kinds.windows.plan import late_offset
from strandline.processing.kinds.windows.window_plan import Argument, WindowForm, WindowPlan
from strandline.processing.pipelines.stages import Stage
from strandline.processing.pipelines.straddling import straddling_problems


class CumulativePlan(WindowPlan):
    """Windows that begin together."""

    kind_in_time_zone = "cumulative_days"
    forms = (
        WindowForm(
            "cumulative",
            "cumulate",
            (Argument("step", "step"), Argument("size", "size")),
            ("cumulative", "size", "step"),
            needs_end=True,
        ),
    )

    def shape(self, window: Any) -> CumulativeShape:
        return CumulativeShape(window.cumulative.size, window.cumulative.step, window.offset_ms)

    def contradictions(self, window: Any) -> Iterator[tuple[Path, str]]:
        if window.offset_ms >= window.cumulative.size:
            yield late_offset(window.cumulative.size)

    def problems_after(self, window: Any, stage: Stage, before: Stage) -> Iterator[tuple[Path, str]]:
        size, step = window.cumulative.size, window.cumulative.step
        yield from straddling_problems(stage, before, [(("cumulative", "size"), size), (("cumulative", "step"), step)])


PLAN = CumulativePlan()
