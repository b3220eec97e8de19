"""Cumulative windows of days of a time zone in the audit's query."""

from __future__ import annotations

from strandline.processing.audit_queries.window_query import TIME
from strandline.processing.kinds.cumulative_days.shape import CumulativeDayShape
from strandline.processing.kinds.days.audit import DayQuery
from strandline.processing.kinds.days.shape import DayShape


class CumulativeDayQuery(DayQuery):
    """The query of cumulative windows of days. In the longest window that contains a row, each step after the row ends a window
    that contains the row, too."""

    def _whole(self) -> DayShape:
        shape = self.stage.shape
        assert isinstance(shape, CumulativeDayShape), "chosen by the kind of the windows"
        return shape.whole

    def _ends(self) -> str:
        step = self.stage.shape.every_ms
        first = f"start_ms + (({TIME} - start_ms) // {step} + 1) * {step}"
        return f"unnest(range({first}, last_ms + 1, {step}))"


query_of = CumulativeDayQuery.of
