"""One window stage as one query of DuckDB: a second opinion on windows, keys and aggregates, which shares no code with the
operators but the expressions, and the hash of what is counted approximately."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.audit.aggregate_query import (
    PERCENTILES,
    argument_name,
    bin_name,
    query_of,
    restored,
    stored_type,
    values_of,
)
from strandline.processing.audit.sketches import bins_of
from strandline.processing.audit.table import Database, Table
from strandline.processing.operators.aggregate_calls import ORDERED, AggregateCalls
from strandline.processing.operators.casting import arrow_type
from strandline.processing.pipelines.stages import Stage
from strandline.results.writer import PROBLEM, WINDOW_END, WINDOW_START

_TIME = "time_ms"
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
        self._group = ", ".join(["start_ms", *self._keys])
        calls = self._calls.calls
        self.needs_places = any(call.function in ORDERED for call in calls)
        """Whether `rows` needs to know where rows stand."""
        self._places = [f"place_{at}" for at in range(len(place_types))] if self.needs_places else []
        self._binned = sorted({call.arguments[0] for call in calls if call.function in PERCENTILES})
        self._queries = [query_of(call, self._group, self._places) for call in calls]
        arguments = [(argument_name(at), stored_type(kind)) for at, kind in enumerate(self._calls.argument_types)]
        keys = [(name, stored_type(kind)) for name, kind in zip(self._keys, self._key_types, strict=True)]
        bins = [(bin_name(argument_name(at)), pa.int64()) for at in self._binned]
        places = [(name, stored_type(kind)) for name, kind in zip(self._places, place_types, strict=False)]
        self.row_schema = pa.schema([(_TIME, pa.int64()), *keys, *arguments, *bins, *places])

    def rows(self, event_us: pa.Array, columns: dict[str, pa.Array], places: Sequence[pa.Array] = ()) -> pa.RecordBatch:
        """Records, or results of the stage before, as rows for the query: event time, keys and arguments; and, if it
        `needs_places`, where the rows stand."""
        arguments = self._calls.evaluate_arguments(columns, event_us)
        bins = [bins_of(arguments[at]) for at in self._binned]
        values = [*(columns[name] for name in self.stage.by), *arguments, *bins, *places[: len(self._places)]]
        time_ms = pc.divide(event_us, 1000)
        stored = [restored(one, stored_type(one.type)) for one in values]
        return pa.RecordBatch.from_arrays([time_ms, *stored], schema=self.row_schema)

    def results(self, database: Database, table: Table) -> Iterator[pa.RecordBatch]:
        """Every window over the table's rows, in no order: WINDOW_START, WINDOW_END, `by` fields, aggregates, PROBLEM."""
        for batch in database.query(self.sql(table.sql)):
            yield self._finish(batch)

    def sql(self, table: str) -> str:
        """The query.

        1. Give each row the start of its window, or one row for each window that it is in.
        2. Give it what aggregates need of it beside its group: how far it is from the least value, where it stands.
        3. Group by window and keys.
        """
        own = dict.fromkeys(column for one in self._queries for column in one.row_columns)
        row_columns = "".join(f", {column}" for column in own)
        values = [value for one in self._queries for value in one.values]
        columns = "".join(f", {value} AS value_{at}" for at, value in enumerate(values))
        rows = f"SELECT *{row_columns} FROM ({self._starts(table)})"
        return f"SELECT {self._group}{columns} FROM ({rows}) GROUP BY {self._group}"

    def _starts(self, table: str) -> str:
        size, every = self.stage.size_ms, self.stage.every_ms
        rest = f"{_TIME} % {every}"
        if size == every:
            return f"SELECT *, {_TIME} - {rest} AS start_ms FROM {table}"
        windows = f"CAST(range(({size - 1} - {rest}) // {every} + 1) AS BIGINT[])"
        return (
            f"SELECT *, {_TIME} - {rest} - {every} * unnest({windows}) AS start_ms FROM {table} WHERE {rest} < {size}"
        )

    def _finish(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        starts, *rest = batch.columns
        keys, values = rest[: len(self._keys)], iter(rest[len(self._keys) :])
        found = [values_of(one.call, [next(values) for _ in one.values]) for one in self._queries]
        results, problem = self._calls.results(found, batch.num_rows)
        by_fields = [restored(column, kind) for column, kind in zip(keys, self._key_types, strict=True)]
        names = [WINDOW_START, WINDOW_END, *self.stage.window_types, PROBLEM]
        ends = pc.add(starts, self.stage.size_ms)
        return pa.RecordBatch.from_arrays([starts, ends, *by_fields, *results, problem], names)
