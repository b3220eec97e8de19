"""Cumulative windows in the audit's query."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.processing.audit_queries.window_query import TIME, WindowQuery


class CumulativeQuery(WindowQuery):
    """The query of cumulative windows. The windows that begin together, in steps up to `size_ms`, contain a row if they begin
    at or before the row and end after it."""

    def windows(self, table: str, days: Sequence[tuple[int, int]]) -> str:
        shape = self.stage.shape
        size, step = shape.size_ms, shape.every_ms
        rest = f"({TIME} + {size - shape.offset_ms % size}) % {size}"
        ends = f"CAST(range({rest} // {step} + 1, {size // step} + 1) AS BIGINT[])"
        return (
            f"SELECT *, {TIME} - {rest} AS start_ms, {TIME} - {rest} + {step} * unnest({ends}) AS end_ms FROM {table}"
        )


query_of = CumulativeQuery.of
