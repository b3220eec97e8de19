"""One window stage as one query of DuckDB: a second opinion on windows, keys and aggregates, which shares no code with the
operators but the expressions, and the hash of what is counted approximately.

Sums of whole numbers and of decimals are exact; those of doubles are added in no particular order. What the functions of a sketch
are made of stands in `audit/sketches.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.field_types import WHOLE_RANGES, is_decimal
from strandline.processing.audit.sketches import bins_of, distinct_of, percentiles_of
from strandline.processing.audit.table import Database, Table
from strandline.processing.operators.aggregate_calls import ORDERED, AggregateCall, AggregateCalls
from strandline.processing.operators.aggregation.aggregate import CallValues
from strandline.processing.operators.aggregation.distinct import DISTINCT_MAX, TOO_MANY
from strandline.processing.operators.aggregation.percentiles import BINS_MAX, EXACT_MAX
from strandline.processing.operators.casting import EXACT, arrow_type, rounded_decimals
from strandline.processing.pipelines.stages import Stage
from strandline.results.writer import PROBLEM, WINDOW_END, WINDOW_START

_TIME = "time_ms"
_UNSCALED = pa.decimal128(38, 0)
_HALF = 10**19
"""Decimals are added in two halves: the sum of two with 38 digits would not fit into DuckDB's greatest number."""


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
        self.needs_places = any(call.function in ORDERED for call in self._calls.calls)
        """Whether `rows` needs to know where rows stand."""
        self._places = [f"place_{at}" for at in range(len(place_types))] if self.needs_places else []
        self._binned = sorted({call.arguments[0] for call in self._calls.calls if call.function in _PERCENTILES})
        arguments = [(_argument(at), _stored_type(kind)) for at, kind in enumerate(self._calls.argument_types)]
        keys = [(name, _stored_type(kind)) for name, kind in zip(self._keys, self._key_types, strict=True)]
        bins = [(_bin(at), pa.int64()) for at in self._binned]
        places = [(name, _stored_type(kind)) for name, kind in zip(self._places, place_types, strict=False)]
        self.row_schema = pa.schema([(_TIME, pa.int64()), *keys, *arguments, *bins, *places])

    def rows(self, event_us: pa.Array, columns: dict[str, pa.Array], places: Sequence[pa.Array] = ()) -> pa.RecordBatch:
        """Records, or results of the stage before, as rows for the query: event time, keys and arguments; and, if it
        `needs_places`, where the rows stand."""
        arguments = self._calls.evaluate_arguments(columns, event_us)
        bins = [bins_of(arguments[at]) for at in self._binned]
        values = [*(columns[name] for name in self.stage.by), *arguments, *bins, *places[: len(self._places)]]
        time_ms = pc.divide(event_us, 1000)
        return pa.RecordBatch.from_arrays([time_ms, *map(_stored, values)], schema=self.row_schema)

    def results(self, database: Database, table: Table) -> Iterator[pa.RecordBatch]:
        """Every window over the table's rows, in no order: WINDOW_START, WINDOW_END, `by` fields, aggregates, PROBLEM."""
        for batch in database.query(self.sql(table.sql)):
            yield self._finish(batch)

    def sql(self, table: str) -> str:
        """The query.

        1. Give each row the start of its window, or one row for each window that it is in.
        2. Take the least value of its group from each argument of a variance, so that near numbers lose no digits.
        3. Group by window and keys.
        """
        group = ", ".join(["start_ms", *self._keys])
        shifted = sorted({_argument(call.argument) for call in self._calls.calls if call.function in _SPREADS})
        shifts = "".join(f", {one} - min({one}) OVER (PARTITION BY {group}) AS {_shifted(one)}" for one in shifted)
        order = ", ".join(f"{name} ASC NULLS LAST" for name in self._places)
        values = [sql for call in self._calls.calls for sql in _sql_of(call, order)]
        columns = "".join(f", {sql} AS value_{at}" for at, sql in enumerate(values))
        return f"SELECT {group}{columns} FROM (SELECT *{shifts} FROM ({self._starts(table)})) GROUP BY {group}"

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
        found = [_values_of(call, [next(values) for _ in _sql_of(call, "")]) for call in self._calls.calls]
        results, problem = self._calls.results(found, batch.num_rows)
        restored = [_restored(column, kind) for column, kind in zip(keys, self._key_types, strict=True)]
        names = [WINDOW_START, WINDOW_END, *self.stage.window_types, PROBLEM]
        ends = pc.add(starts, self.stage.size_ms)
        return pa.RecordBatch.from_arrays([starts, ends, *restored, *results, problem], names)


_SPREADS = {"stddev_pop": "stddev_pop", "var_pop": "var_pop", "stddev": "stddev_samp", "variance": "var_samp"}
"""Function -> what DuckDB calls it."""
_PERCENTILES = ("percentile", "approx_percentile")


def _argument(at: int | None) -> str:
    return f"argument_{at}"


def _shifted(argument: str) -> str:
    return f"shifted_{argument}"


def _bin(at: int) -> str:
    return f"bin_{at}"


def _sql_of(call: AggregateCall, order: str) -> list[str]:
    """The values of the query from which a call's value follows. `order`: that of rows of one event time."""
    argument = "*" if call.argument is None else _argument(call.argument)
    if call.function in _SPREADS:
        shifted = _shifted(argument)
        least = 1 if call.function.endswith("_pop") else 2
        return [
            f"CASE WHEN count({shifted}) < {least} THEN NULL WHEN bool_or(NOT isfinite({shifted})) THEN 'nan'::DOUBLE "
            f"ELSE {_SPREADS[call.function]}({shifted}) END"
        ]
    if call.function in ORDERED:
        return [_chosen_sql(call, order)]
    if call.function == "count_distinct":
        return [f"count(DISTINCT {argument})"]
    if call.function == "approx_count_distinct":
        return [f"list(DISTINCT {argument}) FILTER (WHERE {argument} IS NOT NULL)"]
    if call.function in _PERCENTILES:
        assert call.argument is not None
        numbers, share = _bin(call.argument), f"{call.share!r}::DOUBLE"
        lowest = f"list_reverse_sort(list(DISTINCT {numbers}) FILTER (WHERE {numbers} IS NOT NULL))[{BINS_MAX}]"
        binned = f"greatest(quantile_disc({numbers}, {share}), {lowest})"
        exact = f"quantile_cont({argument}, {share})" if call.function == "percentile" else "NULL::DOUBLE"
        return [f"CASE WHEN count({argument}) <= {EXACT_MAX} THEN {exact} END", binned]
    if call.function in ("sum", "avg") and is_decimal(call.argument_type):
        halves = [f"sum({argument}::HUGEINT {part} {_HALF}::HUGEINT)" for part in ("//", "%")]
        return [*halves, f"count({argument})"]
    return [f"{call.function}({argument})"]


def _chosen_sql(call: AggregateCall, order: str) -> str:
    """The value of the row that comes first, or last; in a struct, because it may be null."""
    value, *by = map(_argument, call.arguments)
    time = by[-1]
    if call.function in ("first", "last"):
        return f"{call.function}(struct_pack(v := {value}) ORDER BY {time}, {order}) FILTER (WHERE {value} IS NOT NULL)"
    direction = "DESC" if call.function == "max_by" else "ASC"
    return f"first(struct_pack(v := {value}) ORDER BY {by[0]} {direction}, {time}, {order}) FILTER (WHERE {by[0]} IS NOT NULL)"


def _values_of(call: AggregateCall, columns: list[pa.Array]) -> CallValues:
    if call.function in ("sum", "avg") and is_decimal(call.argument_type):
        return _decimal_values(call, columns)
    if call.function == "sum" and call.argument_type == "long":
        least, greatest = (pa.scalar(Decimal(limit), _UNSCALED) for limit in WHOLE_RANGES["long"])
        fits = pc.and_(pc.greater_equal(columns[0], least), pc.less_equal(columns[0], greatest))
        values = pc.if_else(fits, columns[0], pa.scalar(None, _UNSCALED)).cast(pa.int64())
        return CallValues(values, pc.invert(fits).fill_null(False).to_numpy(zero_copy_only=False))
    if call.function in ORDERED:
        return CallValues(_restored(pc.struct_field(columns[0], [0]), arrow_type(call.type)))
    if call.function == "count_distinct":
        fits = pc.less_equal(columns[0], DISTINCT_MAX)
        values = pc.if_else(fits, columns[0], pa.scalar(None, pa.int64()))
        return CallValues(values, pc.invert(fits).to_numpy(zero_copy_only=False), TOO_MANY)
    if call.function == "approx_count_distinct":
        return CallValues(distinct_of(columns[0]))
    if call.function in _PERCENTILES:
        return CallValues(pc.coalesce(columns[0], percentiles_of(columns[1])))
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
