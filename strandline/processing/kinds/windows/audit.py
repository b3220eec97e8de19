"""Tumbling and sliding windows in the audit's query."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.processing.audit_queries.window_query import TIME, WindowQuery


class EqualWindowQuery(WindowQuery):
    """Windows of one length, which begin at equal distances."""

    def windows(self, table: str, days: Sequence[tuple[int, int]]) -> str:
        return f"SELECT *, start_ms + {self.stage.shape.size_ms} AS end_ms FROM ({self._starts(table)})"

    def _starts(self, table: str) -> str:
        shape = self.stage.shape
        size, every = shape.size_ms, shape.every_ms
        rest = f"{TIME} % {every}"
        if shape.offset_ms:
            rest = f"({TIME} + {every - shape.offset_ms % every}) % {every}"
        if size == every:
            return f"SELECT *, {TIME} - {rest} AS start_ms FROM {table}"
        windows = f"CAST(range(({size - 1} - {rest}) // {every} + 1) AS BIGINT[])"
        return f"SELECT *, {TIME} - {rest} - {every} * unnest({windows}) AS start_ms FROM {table} WHERE {rest} < {size}"


query_of = EqualWindowQuery.of
