"""Windows of a record and the record before it in the audit's query."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.processing.audit_queries.window_query import EXACT_TIME, TIME, WindowQuery
from strandline.processing.kinds.previous.shape import PreviousShape


class PreviousQuery(WindowQuery):
    """Windows of `PreviousShape`. A row is in its own window and, if it is near enough, in that of the row after it."""

    def windows(self, table: str, days: Sequence[tuple[int, int]]) -> str:
        shape = self.stage.shape
        assert isinstance(shape, PreviousShape), "chosen by the kind of the windows"
        within_us = 1000 * shape.within_ms
        order = ", ".join([EXACT_TIME, *self.position_columns])
        of_key = f"PARTITION BY {', '.join(self.keys)}" if self.keys else ""
        of_moment = f"PARTITION BY {', '.join([*self.keys, TIME])}"
        numbered = f"SELECT *, row_number() OVER ({of_moment} ORDER BY {order}) - 1 AS own_number FROM {table}"
        columns = [f"lag({EXACT_TIME})", f"lead({EXACT_TIME})", "lead(own_number)"]
        names = ["before_us", "after_us", "after_number"]
        seen = ", ".join(f"{one} OVER in_key AS {name}" for one, name in zip(columns, names, strict=True))
        neighbours = f"SELECT *, {seen} FROM ({numbered}) WINDOW in_key AS ({of_key} ORDER BY {order})"
        starts = f"CASE WHEN before_us >= {EXACT_TIME} - {within_us} THEN before_us // 1000 ELSE {TIME} END"
        own = f"SELECT *, {starts} AS start_ms, {TIME} + 1 AS end_ms, own_number AS number FROM neighbours"
        after = (
            f"SELECT *, {TIME} AS start_ms, after_us // 1000 + 1 AS end_ms, after_number AS number FROM neighbours "
            f"WHERE after_us - {EXACT_TIME} <= {within_us}"
        )
        return f"WITH neighbours AS ({neighbours}) {own} UNION ALL {after}"


query_of = PreviousQuery.of
