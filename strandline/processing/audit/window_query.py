"""One window stage as one query of DuckDB: a second opinion on windows, keys and aggregates, which shares no code with the
operators but the expressions, and the hash of what is counted approximately."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.aggregates.contract import AuditRows, argument_name
from strandline.processing.audit.stored_columns import restored, stored_type
from strandline.processing.audit.table import Database, Table
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.operators.aggregate_calls import AggregateCalls
from strandline.processing.pipelines.event_time import (
    CountShape,
    CumulativeDayShape,
    CumulativeShape,
    DayShape,
    SessionShape,
    WindowShape,
)
from strandline.processing.pipelines.stages import Stage
from strandline.results.writer import PROBLEM, WINDOW_END, WINDOW_START

_TIME = "time_ms"
_EXACT_TIME = "time_us"
PLACE_IN_LOG = (pa.int32(), pa.int64(), pa.int32())
"""Where a record stands: partition, offset, element of an exploded record."""


class WindowQuery:
    """One stage: what is kept of each row, and the windows over all of them."""

    def __init__(
        self, stage: Stage, types: Mapping[str, str], place_types: Sequence[pa.DataType] = PLACE_IN_LOG
    ) -> None:
        """`types`: the columns in sight of the stage's aggregates and `by` fields. `place_types`: of the columns in whose order
        rows stand that have one event time."""
        self.stage = stage
        self._calls = AggregateCalls(stage.name, stage.aggregates, types)
        self._key_types = [arrow_type(kind) for kind in stage.by_types]
        self._keys = [f"key_{at}" for at in range(len(stage.by))]
        self._beside = list(stage.identifying[len(stage.by) :])
        self._group = ", ".join(["start_ms", "end_ms", *self._keys, *("number" for _ in self._beside)])
        calls = self._calls.calls
        self.needs_places = (
            stage.dedupe is not None or bool(stage.windows.numbering) or any(call.function.is_ordered for call in calls)
        )
        """Whether `rows` needs to know where rows stand."""
        self._places = [f"place_{at}" for at in range(len(place_types))] if self.needs_places else []
        self._computed = list(
            {column.name: column for call in calls for column in call.function.audit_columns(call)}.values()
        )
        """The columns that Python computes from arguments."""
        order = AuditRows(self._group, tuple(self._places))
        self._queries = [(call, call.function.audit_query(call, order)) for call in calls]
        arguments = [(argument_name(at), stored_type(kind)) for at, kind in enumerate(self._calls.argument_types)]
        keys = [(name, stored_type(kind)) for name, kind in zip(self._keys, self._key_types, strict=True)]
        computed = [(column.name, column.type) for column in self._computed]
        places = [(name, stored_type(kind)) for name, kind in zip(self._places, place_types, strict=False)]
        exact = [(_EXACT_TIME, pa.int64())] if stage.windows.numbering else []
        self.row_schema = pa.schema([(_TIME, pa.int64()), *exact, *keys, *arguments, *computed, *places])

    def rows(self, event_us: pa.Array, columns: dict[str, pa.Array], places: Sequence[pa.Array] = ()) -> pa.RecordBatch:
        """Records, or results of the stage before, as rows for the query: event time, keys and arguments; and, if it
        `needs_places`, where the rows stand."""
        arguments = self._calls.evaluate_arguments(columns, event_us)
        computed = [column.compute(arguments[column.argument]) for column in self._computed]
        values = [*(columns[name] for name in self.stage.by), *arguments, *computed, *places[: len(self._places)]]
        time_ms = pc.divide(event_us, 1000)
        stored = [restored(one, stored_type(one.type)) for one in values]
        exact = [event_us] if self.stage.windows.numbering else []
        return pa.RecordBatch.from_arrays([time_ms, *exact, *stored], schema=self.row_schema)

    def results(self, database: Database, table: Table, rows: str | None = None) -> Iterator[pa.RecordBatch]:
        """Every window over the table's rows, in no order: WINDOW_START, WINDOW_END, `by` fields, aggregates, PROBLEM. `rows`:
        those of them that count, in a query."""
        shape = self.stage.shape
        days = []
        if isinstance(shape, DayShape | CumulativeDayShape):
            days = list(_days(database, table, shape if isinstance(shape, DayShape) else shape.whole))
        for batch in database.query(self.sql(rows or table.sql, days)):
            yield self._finish(batch)

    def sql(self, table: str, days: Sequence[tuple[int, int]] = ()) -> str:
        """The query. `days`: start and end of each window of days of a time zone, where the windows are such or begin with such.

        1. Give each row the start and the end of its window, or one row for each window that it is in.
        2. Give it what aggregates need of it beside its group: how far it is from the least value, where it stands.
        3. Group by window and keys.
        """
        own = dict.fromkeys(column for _, query in self._queries for column in query.row_columns)
        row_columns = "".join(f", {column}" for column in own)
        values = [value for _, query in self._queries for value in query.values]
        columns = "".join(f", {value} AS value_{at}" for at, value in enumerate(values))
        rows = f"SELECT *{row_columns} FROM ({self._windows(table, days)})"
        return f"SELECT {self._group}{columns} FROM ({rows}) GROUP BY {self._group}"

    def _windows(self, table: str, days: Sequence[tuple[int, int]]) -> str:
        shape = self.stage.shape
        if isinstance(shape, DayShape | CumulativeDayShape):
            known = ", ".join(map(str, days)) or "(0, 0)"
            found = (
                f"SELECT * FROM {table} AS rows, (VALUES {known}) AS days(start_ms, last_ms) "
                f"WHERE {_TIME} >= start_ms AND {_TIME} < last_ms"
            )
            step = shape.every_ms
            first = f"start_ms + (({_TIME} - start_ms) // {step} + 1) * {step}"
            ends = "last_ms" if isinstance(shape, DayShape) else f"unnest(range({first}, last_ms + 1, {step}))"
            return f"SELECT *, {ends} AS end_ms FROM ({found})"
        if isinstance(shape, SessionShape):
            return self._sessions(table, shape)
        if isinstance(shape, CountShape):
            return self._counted(table, shape)
        if isinstance(shape, CumulativeShape):
            return _cumulative(table, shape)
        return f"SELECT *, start_ms + {shape.size_ms} AS end_ms FROM ({_starts(table, shape)})"

    def _sessions(self, table: str, shape: SessionShape) -> str:
        """As `SessionShape` says, by window functions over each key's rows.

        1. A row the gap or more behind the one before it begins a chain; number each key's chains.
        2. Find each chain's first cut, and for each row the next cut behind it.
        3. Rows of one chain with one next cut are a session.
        """
        pane, cut, gap = shape.pane_ms, shape.cut_ms, shape.gap_ms

        def over(*columns: str, order: str = "") -> str:
            by = ", ".join([*self._keys, *columns])
            return f"OVER ({f'PARTITION BY {by} ' if by else ''}{order})"

        in_order = over(order=f"ORDER BY {_TIME}")
        begins = f"CASE WHEN {_TIME} - lag({_TIME}) {in_order} < {gap} THEN 0 ELSE 1 END"
        found = f"SELECT *, {begins} AS begins FROM {table}"
        found = f"SELECT *, sum(begins) {in_order} AS chain FROM ({found})"
        found = f"SELECT *, min({_TIME}) {over('chain')} // {pane} * {pane} + {cut} AS first_cut FROM ({found})"
        next_cut = f"CASE WHEN {_TIME} < first_cut THEN first_cut ELSE ({_TIME} // {cut} + 1) * {cut} END"
        found = f"SELECT *, {next_cut} AS cut FROM ({found})"
        of_session = over("chain", "cut")
        ends = f"least(max({_TIME}) {of_session} + {gap}, cut)"
        return f"SELECT *, min({_TIME}) {of_session} AS start_ms, {ends} AS end_ms FROM ({found})"

    def _counted(self, table: str, shape: CountShape) -> str:
        """As `CountShape` says: number each key's rows in their order, anew in each period of the greatest length."""
        size = shape.size_ms
        by = ", ".join([*self._keys, f"{_TIME} // {size}"])
        order = ", ".join([_EXACT_TIME, *self._places])
        nth = f"row_number() OVER (PARTITION BY {by} ORDER BY {order}) - 1"
        found = f"SELECT *, ({nth}) // {shape.count} AS number FROM {table}"
        window = f"OVER (PARTITION BY {by}, number)"
        period_ends = f"({_TIME} // {size} + 1) * {size}"
        ends = f"CASE count(*) {window} WHEN {shape.count} THEN max({_TIME}) {window} + 1 ELSE {period_ends} END"
        return f"SELECT *, min({_TIME}) {window} AS start_ms, {ends} AS end_ms FROM ({found})"

    def _finish(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        starts, ends, *rest = batch.columns
        beside = rest[len(self._keys) : len(self._keys) + len(self._beside)]
        keys, values = rest[: len(self._keys)], iter(rest[len(self._keys) + len(beside) :])
        found = []
        for call, query in self._queries:
            computed = call.function.audit_values(call, [next(values) for _ in query.values])
            found.append(replace(computed, values=restored(computed.values, arrow_type(call.type))))
        results, problem = self._calls.results(found, batch.num_rows)
        by_fields = [restored(column, kind) for column, kind in zip(keys, self._key_types, strict=True)]
        names = [WINDOW_START, WINDOW_END, *self.stage.window_types, *self._beside, PROBLEM]
        return pa.RecordBatch.from_arrays([starts, ends, *by_fields, *results, *beside, problem], names)


def _days(database: Database, table: Table, shape: DayShape) -> Iterator[tuple[int, int]]:
    """Start and end of each window that may hold a row."""
    found: set[int] = set()
    more = shape.size_ms // shape.every_ms
    for batch in database.query(f"SELECT DISTINCT {_TIME} // {shape.every_ms} AS about FROM {table.sql}"):
        for about in batch.column(0).to_pylist():
            found.update(range(about - 1 - more, about + 2))
    for number in sorted(found):
        yield shape.start_ms(number), shape.end_ms(number)


def _cumulative(table: str, shape: CumulativeShape) -> str:
    """A row is in each window that began last before it, and ends later."""
    size, step = shape.size_ms, shape.every_ms
    rest = f"({_TIME} + {size - shape.offset_ms % size}) % {size}"
    ends = f"CAST(range({rest} // {step} + 1, {size // step} + 1) AS BIGINT[])"
    return f"SELECT *, {_TIME} - {rest} AS start_ms, {_TIME} - {rest} + {step} * unnest({ends}) AS end_ms FROM {table}"


def _starts(table: str, shape: WindowShape) -> str:
    size, every = shape.size_ms, shape.every_ms
    rest = f"{_TIME} % {every}"
    if shape.offset_ms:
        rest = f"({_TIME} + {every - shape.offset_ms % every}) % {every}"
    if size == every:
        return f"SELECT *, {_TIME} - {rest} AS start_ms FROM {table}"
    windows = f"CAST(range(({size - 1} - {rest}) // {every} + 1) AS BIGINT[])"
    return f"SELECT *, {_TIME} - {rest} - {every} * unnest({windows}) AS start_ms FROM {table} WHERE {rest} < {size}"
