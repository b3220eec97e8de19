"""Windows that count records in the audit's query."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.processing.audit_queries.window_query import EXACT_TIME, TIME, WindowQuery
from strandline.processing.kinds.count.shape import CountShape


class CountQuery(WindowQuery):
    """Numbers the rows of each key in their order, starting again in each period of `size_ms`. See `CountShape`."""

    def windows(self, table: str, days: Sequence[tuple[int, int]]) -> str:
        shape = self.stage.shape
        assert isinstance(shape, CountShape), "chosen by the kind of the windows"
        size = shape.size_ms
        by = ", ".join([*self.keys, f"{TIME} // {size}"])
        order = ", ".join([EXACT_TIME, *self.position_columns])
        nth = f"row_number() OVER (PARTITION BY {by} ORDER BY {order}) - 1"
        found = f"SELECT *, ({nth}) // {shape.count} AS number FROM {table}"
        window = f"OVER (PARTITION BY {by}, number)"
        period_ends = f"({TIME} // {size} + 1) * {size}"
        ends = f"CASE count(*) {window} WHEN {shape.count} THEN max({TIME}) {window} + 1 ELSE {period_ends} END"
        return f"SELECT *, min({TIME}) {window} AS start_ms, {ends} AS end_ms FROM ({found})"


query_of = CountQuery.of
