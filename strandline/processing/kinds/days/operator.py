"""The operator of windows of days. A pane is the time between the beginnings of two windows, whatever its length."""

from __future__ import annotations

from strandline.processing.kinds.days.panes import DayPanes
from strandline.processing.kinds.days.shape import DayShape
from strandline.processing.operators.windows import WindowOperator
from strandline.processing.pipelines.stages import Stage


class DayOperator(WindowOperator):
    """One stage of windows of days. The check of a pipeline ensures that the size is a multiple of the distance."""

    def __init__(self, stage: Stage, types: dict[str, str]) -> None:
        super().__init__(stage, types)
        assert isinstance(stage.shape, DayShape), "chosen by the kind of the windows"
        self._panes = DayPanes(stage.shape)


operator_of = DayOperator
