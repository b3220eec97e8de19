"""The DuckDB query of one window stage. The folder of each kind of windows assigns rows to windows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.aggregates.contract import AuditRows, argument_name
from strandline.processing.audit_queries.stage_query import POSITION_TYPES, StageQuery
from strandline.processing.audit_queries.stored_columns import restored, stored_type
from strandline.processing.audit_queries.table import Database, Table
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.codes import Codes
from strandline.processing.operators.aggregate_calls import AggregateCalls
from strandline.processing.pipelines.stages import Stage
from strandline.results.writer import PROBLEM, WINDOW_END, WINDOW_START

TIME = "time_ms"
"""Column of the event time, in milliseconds."""
EXACT_TIME = "time_us"
"""Column of the event time, in microseconds, if windows are numbered by the order of records."""


class WindowQuery(StageQuery):
    """One stage of windows. Derived classes assign rows to windows."""

    def __init__(
        self, stage: Stage, types: Mapping[str, str], position_types: Sequence[pa.DataType] = POSITION_TYPES
    ) -> None:
        """`types`: columns that the stage's aggregates and `by` fields can read. `position_types`: types of the columns that
        order rows with the same event time."""
        self.stage = stage
        self._calls = AggregateCalls(stage.name, stage.aggregates, types)
        self._key_types = [arrow_type(kind) for kind in stage.by_types]
        self.keys = [f"key_{at}" for at in range(len(stage.by))]
        self._beside = list(stage.identifying[len(stage.by) :])
        self._group = ", ".join(["start_ms", "end_ms", *self.keys, *("number" for _ in self._beside)])
        calls = self._calls.calls
        self.needs_positions = (
            stage.dedupe is not None or bool(stage.windows.numbering) or any(call.function.is_ordered for call in calls)
        )
        self.position_columns = [f"place_{at}" for at in range(len(position_types))] if self.needs_positions else []
        self._computed = list(
            {column.name: column for call in calls for column in call.function.audit_columns(call)}.values()
        )
        """Columns that Python computes from arguments."""
        order = AuditRows(self._group, tuple(self.position_columns))
        self._queries = [(call, call.function.audit_query(call, order)) for call in calls]
        arguments = [(argument_name(at), stored_type(kind)) for at, kind in enumerate(self._calls.argument_types)]
        keys = [(name, stored_type(kind)) for name, kind in zip(self.keys, self._key_types, strict=True)]
        computed = [(column.name, column.type) for column in self._computed]
        places = [(name, stored_type(kind)) for name, kind in zip(self.position_columns, position_types, strict=False)]
        exact = [(EXACT_TIME, pa.int64())] if stage.windows.numbering else []
        self.row_schema = pa.schema([(TIME, pa.int64()), *exact, *keys, *arguments, *computed, *places])

    @classmethod
    def of(
        cls, stage: Stage, side: int, types: Mapping[str, str], position_types: Sequence[pa.DataType] = POSITION_TYPES
    ) -> Self:
        """Return the query that recomputes a stage. `side`: LEFT, and ignored, because a window has one input. `types`,
        `position_types`: as for the constructor."""
        return cls(stage, types, position_types)

    def rows(self, event_us: pa.Array, columns: dict[str, pa.Array], places: Sequence[pa.Array] = ()) -> pa.RecordBatch:
        arguments = self._calls.evaluate_arguments(columns, event_us)
        computed = [column.compute(arguments[column.argument]) for column in self._computed]
        values = [
            *(columns[name] for name in self.stage.by),
            *arguments,
            *computed,
            *places[: len(self.position_columns)],
        ]
        time_ms = pc.divide(event_us, 1000)
        stored = [restored(one, stored_type(one.type)) for one in values]
        exact = [event_us] if self.stage.windows.numbering else []
        return pa.RecordBatch.from_arrays([time_ms, *exact, *stored], schema=self.row_schema)

    def rows_of_results(
        self, before: Stage, event_us: pa.Array, columns: dict[str, pa.Array], labels: Callable[[], Codes]
    ) -> pa.RecordBatch:
        places: list[pa.Array] = []
        if self.needs_positions:
            partitions = pa.array(np.broadcast_to(labels(), len(event_us)))
            places = [partitions, *(columns[name] for name in before.identifying)]
        return self.rows(event_us, columns, places)

    def results(self, database: Database, table: Table, rows: str | None = None) -> Iterator[pa.RecordBatch]:
        """Yield WINDOW_START, WINDOW_END, `by` fields, aggregates, PROBLEM."""
        for batch in database.query(self.sql(rows or table.sql, self.days(database, table))):
            yield self._finish(batch)

    def days(self, database: Database, table: Table) -> Sequence[tuple[int, int]]:
        """Return (start, end) in ms of each window that can contain a row, for windows of days, whose bounds SQL can't compute.
        Empty for other windows."""
        return ()

    @abstractmethod
    def windows(self, table: str, days: Sequence[tuple[int, int]]) -> str:
        """Return the SQL query of the rows with the columns `start_ms` and `end_ms` of their windows: one row for each window
        that contains the row. `table`: SQL of the rows. `days`: result of the method `days`."""

    def sql(self, table: str, days: Sequence[tuple[int, int]] = ()) -> str:
        """Return the SQL query of all results. `table`: SQL of the rows. `days`: result of the method `days`. The query:

        1. adds the start and the end of its window to each row. A row in several windows becomes several rows;
        2. adds the columns that aggregates need for each row: the distance of its value from the minimum of its window and key,
           or
           its position among their rows;
        3. groups by window and keys.
        """
        own = dict.fromkeys(column for _, query in self._queries for column in query.row_columns)
        row_columns = "".join(f", {column}" for column in own)
        values = [value for _, query in self._queries for value in query.values]
        columns = "".join(f", {value} AS value_{at}" for at, value in enumerate(values))
        rows = f"SELECT *{row_columns} FROM ({self.windows(table, days)})"
        return f"SELECT {self._group}{columns} FROM ({rows}) GROUP BY {self._group}"

    def _finish(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        starts, ends, *rest = batch.columns
        beside = rest[len(self.keys) : len(self.keys) + len(self._beside)]
        keys, values = rest[: len(self.keys)], iter(rest[len(self.keys) + len(beside) :])
        found = []
        for call, query in self._queries:
            computed = call.function.audit_values(call, [next(values) for _ in query.values])
            found.append(replace(computed, values=restored(computed.values, arrow_type(call.type))))
        results, problem = self._calls.results(found, batch.num_rows)
        by_fields = [restored(column, kind) for column, kind in zip(keys, self._key_types, strict=True)]
        names = [WINDOW_START, WINDOW_END, *self.stage.window_types, *self._beside, PROBLEM]
        return pa.RecordBatch.from_arrays([starts, ends, *by_fields, *results, *beside, problem], names)
