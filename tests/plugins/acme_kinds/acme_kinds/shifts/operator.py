"""The operator of windows of shifts: each shift is one pane."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from acme_kinds.shifts.shape import DAY_MS, ShiftShape

from strandline.processing.columns.codes import Codes
from strandline.processing.operators.panes import Panes
from strandline.processing.operators.windows import WindowOperator
from strandline.processing.pipelines.stages import Stage


@dataclass(frozen=True)
class ShiftPanes(Panes):
    """The shifts, numbered from that of 1970-01-01."""

    shape: ShiftShape

    def of(self, event_us: Codes) -> Codes:
        days, times_us = np.divmod(event_us, 1000 * DAY_MS)
        starts_us = 1000 * np.array(self.shape.starts_ms, np.int64)
        return days * len(starts_us) + np.searchsorted(starts_us, times_us, side="right") - 1

    def at(self, at_ms: int) -> int:
        return self.shape.number_at(at_ms)

    def starts_ms(self, panes: Codes) -> Codes:
        days, shifts = np.divmod(panes, len(self.shape.starts_ms))
        starts: Codes = days * DAY_MS + np.array(self.shape.starts_ms, np.int64)[shifts]
        return starts


class ShiftOperator(WindowOperator):
    """One stage of windows of shifts."""

    def __init__(self, stage: Stage, types: dict[str, str]) -> None:
        super().__init__(stage, types)
        assert isinstance(stage.shape, ShiftShape), "chosen by the kind of the windows"
        self._panes = ShiftPanes(stage.shape)


operator_of = ShiftOperator
