"""Cumulative windows of days of a time zone in the audit's query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from strandline.processing.audit_queries.stage_query import PLACE_IN_LOG
from strandline.processing.audit_queries.window_query import TIME, WindowQuery
from strandline.processing.kinds.days.audit import DayQuery
from strandline.processing.pipelines.stages import Stage


class CumulativeDayQuery(DayQuery):
    """A row is in each window of its days that ends later than it."""

    def _ends(self) -> str:
        step = self.stage.shape.every_ms
        first = f"start_ms + (({TIME} - start_ms) // {step} + 1) * {step}"
        return f"unnest(range({first}, last_ms + 1, {step}))"


def query_of(
    stage: Stage, side: int, types: Mapping[str, str], place_types: Sequence[pa.DataType] = PLACE_IN_LOG
) -> WindowQuery:
    """Return the query of a stage. `side`: always LEFT, because a window has one input."""
    return CumulativeDayQuery(stage, types, place_types)
