"""One window stage as one query of DuckDB: a second opinion on windows, keys and sums, which shares no code with the operators
but the expressions.

Sums of whole numbers and of decimals are exact; those of doubles are added in no particular order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.field_types import WHOLE_RANGES, is_decimal
from strandline.processing.audit.table import Database, Table
from strandline.processing.operators.aggregate_calls import AggregateCall, AggregateCalls, CallValues
from strandline.processing.operators.casting import EXACT, arrow_type, rounded_decimals
from strandline.processing.pipelines.event_time import CumulativeShape, DayShape, SessionShape, WindowShape
from strandline.processing.pipelines.stages import Stage
from strandline.results.writer import PROBLEM, WINDOW_END, WINDOW_START

_TIME = "time_ms"
_UNSCALED = pa.decimal128(38, 0)
_HALF = 10**19
"""Decimals are added in two halves: the sum of two with 38 digits would not fit into DuckDB's greatest number."""


class WindowQuery:
    """One stage: what is kept of each row, and the windows over all of them."""

    def __init__(self, stage: Stage, types: Mapping[str, str]) -> None:
        """`types`: the columns in sight of the stage's aggregates and `by` fields."""
        self.stage = stage
        self._calls = AggregateCalls(stage.name, stage.aggregates, types)
        self._key_types = [arrow_type(kind) for kind in stage.by_types]
        self._keys = [f"key_{at}" for at in range(len(stage.by))]
        arguments = [(_argument(at), _stored_type(kind)) for at, kind in enumerate(self._calls.argument_types)]
        keys = [(name, _stored_type(kind)) for name, kind in zip(self._keys, self._key_types, strict=True)]
        self.row_schema = pa.schema([(_TIME, pa.int64()), *keys, *arguments])

    def rows(self, time_ms: pa.Array, columns: dict[str, pa.Array]) -> pa.RecordBatch:
        """Records, or results of the stage before, as rows for the query: event time, keys and arguments."""
        values = [columns[name] for name in self.stage.by]
        values += self._calls.evaluate_arguments(columns, len(time_ms))
        return pa.RecordBatch.from_arrays([time_ms, *map(_stored, values)], schema=self.row_schema)

    def results(self, database: Database, table: Table) -> Iterator[pa.RecordBatch]:
        """Every window over the table's rows, in no order: WINDOW_START, WINDOW_END, `by` fields, aggregates, PROBLEM."""
        shape = self.stage.shape
        days = list(_days(database, table, shape)) if isinstance(shape, DayShape) else []
        for batch in database.query(self.sql(table.sql, days)):
            yield self._finish(batch)

    def sql(self, table: str, days: Sequence[tuple[int, int]] = ()) -> str:
        """The query. `days`: start and end of each day of a time zone, where the windows are such.

        1. Give each row the start and the end of its window, or one row for each window that it is in.
        2. Take the least value of its group from each argument of a variance, so that near numbers lose no digits.
        3. Group by window and keys.
        """
        group = ", ".join(["start_ms", "end_ms", *self._keys])
        shifted = sorted({_argument(call.argument) for call in self._calls.calls if call.function in _SPREADS})
        shifts = "".join(f", {one} - min({one}) OVER (PARTITION BY {group}) AS {_shifted(one)}" for one in shifted)
        values = [sql for call in self._calls.calls for sql in _sql_of(call)]
        columns = "".join(f", {sql} AS value_{at}" for at, sql in enumerate(values))
        return f"SELECT {group}{columns} FROM (SELECT *{shifts} FROM ({self._windows(table, days)})) GROUP BY {group}"

    def _windows(self, table: str, days: Sequence[tuple[int, int]]) -> str:
        shape = self.stage.shape
        if isinstance(shape, DayShape):
            known = ", ".join(map(str, days)) or "(0, 0)"
            return (
                f"SELECT * FROM {table} AS rows, (VALUES {known}) AS days(start_ms, end_ms) "
                f"WHERE {_TIME} >= start_ms AND {_TIME} < end_ms"
            )
        if isinstance(shape, SessionShape):
            return self._sessions(table, shape)
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

    def _finish(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        starts, ends, *rest = batch.columns
        keys, values = rest[: len(self._keys)], iter(rest[len(self._keys) :])
        found = [_values_of(call, [next(values) for _ in _sql_of(call)]) for call in self._calls.calls]
        results, problem = self._calls.results(found, batch.num_rows)
        restored = [_restored(column, kind) for column, kind in zip(keys, self._key_types, strict=True)]
        names = [WINDOW_START, WINDOW_END, *self.stage.window_types, PROBLEM]
        return pa.RecordBatch.from_arrays([starts, ends, *restored, *results, problem], names)


def _days(database: Database, table: Table, shape: DayShape) -> Iterator[tuple[int, int]]:
    """Start and end of each window that may hold a row."""
    found: set[int] = set()
    for batch in database.query(f"SELECT DISTINCT {_TIME} // {shape.size_ms} AS about FROM {table.sql}"):
        for about in batch.column(0).to_pylist():
            found.update(range(about - 2, about + 2))
    for number in sorted(found):
        yield shape.start_ms(number), shape.start_ms(number + 1)


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


_SPREADS = ("stddev_pop", "var_pop")


def _argument(at: int | None) -> str:
    return f"argument_{at}"


def _shifted(argument: str) -> str:
    return f"shifted_{argument}"


def _sql_of(call: AggregateCall) -> list[str]:
    """The values of the query from which a call's value follows."""
    argument = "*" if call.argument is None else _argument(call.argument)
    if call.function in _SPREADS:
        shifted = _shifted(argument)
        return [f"CASE WHEN bool_or(NOT isfinite({shifted})) THEN 'nan'::DOUBLE ELSE {call.function}({shifted}) END"]
    if call.function in ("sum", "avg") and is_decimal(call.argument_type):
        halves = [f"sum({argument}::HUGEINT {part} {_HALF}::HUGEINT)" for part in ("//", "%")]
        return [*halves, f"count({argument})"]
    return [f"{call.function}({argument})"]


def _values_of(call: AggregateCall, columns: list[pa.Array]) -> CallValues:
    if call.function in ("sum", "avg") and is_decimal(call.argument_type):
        return _decimal_values(call, columns)
    if call.function == "sum" and call.argument_type == "long":
        least, greatest = (pa.scalar(Decimal(limit), _UNSCALED) for limit in WHOLE_RANGES["long"])
        fits = pc.and_(pc.greater_equal(columns[0], least), pc.less_equal(columns[0], greatest))
        values = pc.if_else(fits, columns[0], pa.scalar(None, _UNSCALED)).cast(pa.int64())
        return CallValues(values, pc.invert(fits).fill_null(False).to_numpy(zero_copy_only=False))
    return CallValues(_restored(columns[0], arrow_type(call.type)))


def _decimal_values(call: AggregateCall, columns: list[pa.Array]) -> CallValues:
    scale = arrow_type(call.argument_type).scale
    totals: list[Decimal | None] = []
    for high, low, count in zip(*(column.to_pylist() for column in columns), strict=True):
        total = Decimal(int(high) * _HALF + int(low)).scaleb(-scale, EXACT) if count else None
        totals.append(EXACT.divide(total, Decimal(count)) if total is not None and call.function == "avg" else total)
    values = rounded_decimals(totals, arrow_type(call.type))
    return CallValues(values, pc.and_(values.is_null(), pc.greater(columns[2], 0)).to_numpy(zero_copy_only=False))


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """How a column is kept: times as microseconds, decimals as their digits without the point."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return _UNSCALED if pa.types.is_decimal(kind) else kind


def _stored(array: pa.Array) -> pa.Array:
    return _restored(array, _stored_type(array.type))


def _restored(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.view(kind)
