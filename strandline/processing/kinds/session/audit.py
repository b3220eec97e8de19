"""Sessions in the audit's query, by window functions over each key's rows."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.processing.audit_queries.window_query import TIME, WindowQuery
from strandline.processing.kinds.session.shape import SessionShape


class SessionQuery(WindowQuery):
    """Computes sessions by the rules of `SessionShape`.

    1. Number the chains of each key. A row begins a chain if it is the gap or more after the row before it.
    2. Find the first cut of each chain, and the next cut after each row.
    3. Rows of one chain with the same next cut are a session.
    """

    def windows(self, table: str, days: Sequence[tuple[int, int]]) -> str:
        shape = self.stage.shape
        assert isinstance(shape, SessionShape), "chosen by the kind of the windows"
        pane, cut, gap = shape.pane_ms, shape.cut_ms, shape.gap_ms
        in_order = self._over(order=f"ORDER BY {TIME}")
        begins = f"CASE WHEN {TIME} - lag({TIME}) {in_order} < {gap} THEN 0 ELSE 1 END"
        found = f"SELECT *, {begins} AS begins FROM {table}"
        found = f"SELECT *, sum(begins) {in_order} AS chain FROM ({found})"
        found = f"SELECT *, min({TIME}) {self._over('chain')} // {pane} * {pane} + {cut} AS first_cut FROM ({found})"
        next_cut = f"CASE WHEN {TIME} < first_cut THEN first_cut ELSE ({TIME} // {cut} + 1) * {cut} END"
        found = f"SELECT *, {next_cut} AS cut FROM ({found})"
        of_session = self._over("chain", "cut")
        ends = f"least(max({TIME}) {of_session} + {gap}, cut)"
        return f"SELECT *, min({TIME}) {of_session} AS start_ms, {ends} AS end_ms FROM ({found})"

    def _over(self, *columns: str, order: str = "") -> str:
        by = ", ".join([*self.keys, *columns])
        return f"OVER ({f'PARTITION BY {by} ' if by else ''}{order})"


query_of = SessionQuery.of
