"""Windows of shifts in the audit's query."""

from __future__ import annotations

from collections.abc import Sequence

from acme_kinds.shifts.shape import DAY_MS, ShiftShape

from strandline.processing.audit_queries.window_query import TIME, WindowQuery


class ShiftQuery(WindowQuery):
    """Compare the time of the day with the beginnings of the shifts, one after the other."""

    def windows(self, table: str, days: Sequence[tuple[int, int]]) -> str:
        shape = self.stage.shape
        assert isinstance(shape, ShiftShape), "chosen by the kind of the windows"
        time = f"{TIME} % {DAY_MS}"
        first, last = shape.starts_ms[0], shape.starts_ms[-1]
        starts = " ".join(f"WHEN {time} >= {start} THEN {start}" for start in reversed(shape.starts_ms))
        ends = " ".join(f"WHEN {time} < {start} THEN {start}" for start in shape.starts_ms)
        start = f"{TIME} - {time} + CASE {starts} ELSE {last - DAY_MS} END"
        end = f"{TIME} - {time} + CASE {ends} ELSE {first + DAY_MS} END"
        return f"SELECT *, {start} AS start_ms, {end} AS end_ms FROM {table}"


query_of = ShiftQuery.of
