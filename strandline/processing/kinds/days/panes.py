"""Panes of windows of days."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strandline.processing.columns.codes import Codes
from strandline.processing.kinds.days.shape import DayShape
from strandline.processing.operators.panes import Panes


@dataclass(frozen=True)
class DayPanes(Panes):
    """Panes of one or more days of a time zone: each lasts from the beginning of one window to that of the next."""

    shape: DayShape

    def of(self, event_us: Codes) -> Codes:
        if not len(event_us):
            return event_us
        # The beginning of a day is looked up for each day that occurs, not for each event.
        in_utc = (event_us - 1000 * self.shape.offset_ms) // (1000 * self.shape.every_ms)
        about, codes = np.unique(in_utc, return_inverse=True)
        near = np.unique(np.concatenate([about - 1, about, about + 1]))
        starts_us = self.starts_ms(near) * 1000
        first = np.searchsorted(near, about - 1)
        found = near[first][codes]
        for following in (1, 2):
            found += event_us >= starts_us[first + following][codes]
        return found

    def at(self, at_ms: int) -> int:
        return self.shape.number_at(at_ms)

    def starts_ms(self, panes: Codes) -> Codes:
        return np.array([self.shape.start_ms(pane) for pane in panes.tolist()], np.int64)
