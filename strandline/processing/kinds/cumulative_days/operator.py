"""The operator of cumulative windows whose whole windows are days of a time zone."""

from __future__ import annotations

import numpy as np

from strandline.processing.columns.codes import Codes
from strandline.processing.kinds.cumulative.operator import CumulativeOperator
from strandline.processing.kinds.cumulative_days.shape import CumulativeDayShape
from strandline.processing.kinds.days.panes import DayPanes
from strandline.processing.pipelines.stages import Stage


class CumulativeDayOperator(CumulativeOperator):
    """One stage of cumulative windows of days."""

    def __init__(self, stage: Stage, types: dict[str, str]) -> None:
        super().__init__(stage, types)
        assert isinstance(stage.shape, CumulativeDayShape), "chosen by the kind of the windows"
        self._days = DayPanes(stage.shape.whole)

    def _whole(self, panes: Codes) -> tuple[Codes, Codes]:
        numbers, codes = np.unique(self._days.of(self._panes.starts_ms(panes) * 1000), return_inverse=True)
        first, behind = (self._panes.of(self._days.starts_ms(numbers + more) * 1000) for more in (0, 1))
        return first[codes], behind[codes]


operator_of = CumulativeDayOperator
