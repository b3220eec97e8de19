"""Windows of days of a time zone in the audit's query, which gets the start and the end of each window from Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strandline.processing.audit_queries.table import Database, Table
from strandline.processing.audit_queries.window_query import TIME, WindowQuery
from strandline.processing.kinds.days.shape import DayShape


class DayQuery(WindowQuery):
    """Windows of days, and cumulative windows that begin with days."""

    def days(self, database: Database, table: Table) -> Sequence[tuple[int, int]]:
        return list(_days(database, table, self._whole()))

    def _whole(self) -> DayShape:
        """Return the windows of whole days, in which the windows of the stage are."""
        shape = self.stage.shape
        assert isinstance(shape, DayShape), "chosen by the kind of the windows"
        return shape

    def windows(self, table: str, days: Sequence[tuple[int, int]]) -> str:
        known = ", ".join(map(str, days)) or "(0, 0)"
        found = (
            f"SELECT * FROM {table} AS rows, (VALUES {known}) AS days(start_ms, last_ms) "
            f"WHERE {TIME} >= start_ms AND {TIME} < last_ms"
        )
        return f"SELECT *, {self._ends()} AS end_ms FROM ({found})"

    def _ends(self) -> str:
        """Return the SQL expression of the end of each window that contains a row, in the window of days from `start_ms` to
        `last_ms`."""
        return "last_ms"


def _days(database: Database, table: Table, shape: DayShape) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each window that can contain a row."""
    found: set[int] = set()
    more = shape.size_ms // shape.every_ms
    for batch in database.query(f"SELECT DISTINCT {TIME} // {shape.every_ms} AS about FROM {table.sql}"):
        for about in batch.column(0).to_pylist():
            found.update(range(about - 1 - more, about + 2))
    for number in sorted(found):
        yield shape.start_ms(number), shape.end_ms(number)


query_of = DayQuery.of
