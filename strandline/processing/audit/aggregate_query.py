"""What the audit asks DuckDB for, aggregate by aggregate, and how a value follows from the answer.

Sums of whole numbers and of decimals are exact; those of doubles are added in no particular order. Whatever depends on an order
is asked for by window functions over the rows, which DuckDB sorts on disk where memory is short: so a group takes little memory,
however many values it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.field_types import WHOLE_RANGES, is_decimal
from strandline.processing.audit.sketches import RANKS, distinct_of, middles_of, percentiles_of
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.decimals import EXACT, rounded_decimals
from strandline.processing.operators.aggregate_calls import ORDERED, AggregateCall
from strandline.processing.operators.aggregation.aggregate import CallValues
from strandline.processing.operators.aggregation.distinct import DISTINCT_MAX, TOO_MANY
from strandline.processing.operators.aggregation.lists import TOO_MANY as TOO_MANY_FOR_LIST
from strandline.processing.operators.aggregation.percentiles import BINS_MAX, EXACT_MAX

PERCENTILES = ("percentile", "approx_percentile")
_UNSCALED = pa.decimal128(38, 0)
_HALF = 10**19
"""Decimals are added in two halves: the sum of two with 38 digits would not fit into DuckDB's greatest number."""
_SPREADS = {"stddev_pop": "stddev_pop", "var_pop": "var_pop", "stddev": "stddev_samp", "variance": "var_samp"}
"""Function -> what DuckDB calls it."""


@dataclass(frozen=True)
class CallQuery:
    """One call: the columns that each row gets first, and what is asked for of a group."""

    call: AggregateCall
    row_columns: tuple[str, ...]
    """Each as `EXPRESSION AS NAME`; calls may have some in common."""
    values: tuple[str, ...]


def query_of(call: AggregateCall, group: str, places: Sequence[str]) -> CallQuery:
    """`group`: the columns that make a group. `places`: those in whose order rows of one event time stand."""
    argument = "*" if call.argument is None else argument_name(call.argument)
    own = f"PARTITION BY {group}"
    if call.function in _SPREADS:
        # Near numbers lose no digits when the least one is taken from each.
        shifted = f"shifted_{argument}"
        return CallQuery(
            call, (f"{argument} - min({argument}) OVER ({own}) AS {shifted}",), (_spread(call.function, shifted),)
        )
    if call.function in ORDERED and not call.numbers:
        order = ", ".join([argument_name(call.arguments[-1]), *(f"{name} ASC NULLS LAST" for name in places)])
        return CallQuery(call, (f"row_number() OVER ({own} ORDER BY {order}) AS stands",), (_chosen(call),))
    if call.function == "count_distinct":
        return CallQuery(call, (), (f"count(DISTINCT {argument})",))
    if call.function == "approx_count_distinct":
        return _registers(call, argument, own)
    if call.function in PERCENTILES:
        return _percentile(call, argument, own)
    if call.function == "most_frequent":
        return _most_frequent(call, argument, own)
    if call.function == "histogram":
        return _histogram(call, argument)
    if call.numbers:
        return _ranked(call, own, places)
    if call.function in ("sum", "avg") and is_decimal(call.argument_type):
        halves = [f"sum({argument}::HUGEINT {part} {_HALF}::HUGEINT)" for part in ("//", "%")]
        return CallQuery(call, (), (*halves, f"count({argument})"))
    return CallQuery(call, (), (f"{call.function}({argument})",))


def argument_name(at: int) -> str:
    return f"argument_{at}"


def bin_name(argument: str) -> str:
    """The column with the bins of an argument; see `sketches.bins_of`."""
    return f"bin_of_{argument}"


def _spread(function: str, shifted: str) -> str:
    least = 1 if function.endswith("_pop") else 2
    return (
        f"CASE WHEN count({shifted}) < {least} THEN NULL WHEN bool_or(NOT isfinite({shifted})) THEN 'nan'::DOUBLE "
        f"ELSE {_SPREADS[function]}({shifted}) END"
    )


def _chosen(call: AggregateCall) -> str:
    """The value of the row that comes first; in a struct, because it may be null."""
    value, *by = map(argument_name, call.arguments)
    given, chosen_by = f"struct_pack(v := {value})", by[0]
    match call.function:
        case "first":
            return f"arg_min({given}, stands) FILTER (WHERE {value} IS NOT NULL)"
        case "last":
            return f"arg_max({given}, stands) FILTER (WHERE {value} IS NOT NULL)"
        case "min_by":
            return f"arg_min({given}, row({chosen_by}, stands)) FILTER (WHERE {chosen_by} IS NOT NULL)"
    return f"arg_max({given}, row({chosen_by}, -stands)) FILTER (WHERE {chosen_by} IS NOT NULL)"


def _registers(call: AggregateCall, argument: str, own: str) -> CallQuery:
    """How many registers have each rank: of the rows with a register the one with the greatest rank counts."""
    rest, register, rank, best = (
        f"({argument} >> 12)",
        f"({argument} & 4095)",
        f"rank_of_{argument}",
        f"best_of_{argument}",
    )
    zeros = f"CASE WHEN {rest} = 0 THEN {RANKS} ELSE bit_count(({rest} & (-{rest})) - 1) + 1 END"
    return CallQuery(
        call,
        (
            f"{zeros} AS {rank}",
            f"row_number() OVER ({own}, {register} ORDER BY {zeros} DESC NULLS LAST) = 1 AS {best}",
        ),
        (f"histogram({rank}) FILTER (WHERE {best} AND {argument} IS NOT NULL)",),
    )


def _percentile(call: AggregateCall, argument: str, own: str) -> CallQuery:
    """The values around the place, by their ranks; the bin at the rank; and the lowest of the bins that are kept."""
    number, rank, count, depth = (
        bin_name(argument),
        f"rank_of_{argument}",
        f"count_of_{argument}",
        f"depth_of_{argument}",
    )
    share = f"{call.share!r}::DOUBLE"
    place = f"(({count} - 1) * {share})"
    at_rank = f"greatest(1, {count} - floor({count} - {count} * {share}))"
    return CallQuery(
        call,
        (
            f"row_number() OVER ({own} ORDER BY {argument} ASC NULLS LAST) AS {rank}",
            f"count({argument}) OVER ({own}) AS {count}",
            f"dense_rank() OVER ({own} ORDER BY {number} DESC NULLS LAST) AS {depth}",
        ),
        (
            f"count({argument})",
            f"max({argument}) FILTER (WHERE {rank} = floor({place}) + 1)",
            f"max({argument}) FILTER (WHERE {rank} = ceil({place}) + 1)",
            f"max({number}) FILTER (WHERE {rank} = {at_rank} OR {depth} = {BINS_MAX})",
        ),
    )


def _ranked(call: AggregateCall, own: str, places: Sequence[str]) -> CallQuery:
    """The values of the rows whose rank is among the first."""
    value, *by = map(argument_name, call.arguments)
    chosen_by = by[0] if call.function.endswith("_by") else value
    order = [f"{chosen_by} {'DESC' if call.function.startswith('top_n') else 'ASC'} NULLS LAST"]
    if call.function == "collect_list":
        order = [f"{value} IS NULL"]
    if by:
        order += [by[-1], *(f"{name} ASC NULLS LAST" for name in places)]
    rank = f"rank_of_{call.function}_{'_'.join(map(str, call.arguments))}"
    given = f"list({value} ORDER BY {rank}) FILTER (WHERE {rank} <= {int(call.numbers[0])} AND {chosen_by} IS NOT NULL)"
    return CallQuery(call, (f"row_number() OVER ({own} ORDER BY {', '.join(order)}) AS {rank}",), (given,))


def _most_frequent(call: AggregateCall, argument: str, own: str) -> CallQuery:
    """One row of each value stands for it, and knows how many there are."""
    times, stands = f"times_of_{argument}", f"stands_for_{argument}"
    pair = f"struct_pack(value := {argument}, count := {times})"
    found = f"list({pair} ORDER BY {times} DESC, {argument} ASC) FILTER (WHERE {stands} = 1 AND {argument} IS NOT NULL)"
    return CallQuery(
        call,
        (
            f"count(*) OVER ({own}, {argument}) AS {times}",
            f"row_number() OVER ({own}, {argument}) AS {stands}",
        ),
        (f"list_slice({found}, 1, {int(call.numbers[0])})", f"count(DISTINCT {argument})"),
    )


def _histogram(call: AggregateCall, argument: str) -> CallQuery:
    """How many values each bin has, which a value gets by one comparison after the other."""
    steps = " ".join(f"WHEN {argument} < {border!r}::DOUBLE THEN {at}" for at, border in enumerate(call.numbers))
    number = f"CASE {steps} ELSE {len(call.numbers)} END"
    return CallQuery(call, (), (f"histogram({number}) FILTER (WHERE {argument} IS NOT NULL)",))


def values_of(call: AggregateCall, columns: list[pa.Array]) -> CallValues:
    """The call's value of each group, from the columns that were asked for."""
    if call.function in ("sum", "avg") and is_decimal(call.argument_type):
        return _decimal_values(call, columns)
    if call.function == "sum" and call.argument_type == "long":
        least, greatest = (pa.scalar(Decimal(limit), _UNSCALED) for limit in WHOLE_RANGES["long"])
        fits = pc.and_(pc.greater_equal(columns[0], least), pc.less_equal(columns[0], greatest))
        values = pc.if_else(fits, columns[0], pa.scalar(None, _UNSCALED)).cast(pa.int64())
        return CallValues(values, pc.invert(fits).fill_null(False).to_numpy(zero_copy_only=False))
    if call.function == "most_frequent":
        return _most_frequent_values(call, columns)
    if call.function == "histogram":
        counts = [dict(one or ()) for one in columns[0].to_pylist()]
        bins = range(len(call.numbers) + 1)
        return CallValues(pa.array([[one.get(at, 0) for at in bins] for one in counts], arrow_type(call.type)))
    if call.numbers:
        empty = pa.scalar([], columns[0].type)
        return CallValues(restored(pc.coalesce(columns[0], empty), arrow_type(call.type)))
    if call.function in ORDERED:
        return CallValues(restored(pc.struct_field(columns[0], [0]), arrow_type(call.type)))
    if call.function == "count_distinct":
        fits = pc.less_equal(columns[0], DISTINCT_MAX)
        values = pc.if_else(fits, columns[0], pa.scalar(None, pa.int64()))
        return CallValues(values, pc.invert(fits).to_numpy(zero_copy_only=False), TOO_MANY)
    if call.function == "approx_count_distinct":
        return CallValues(distinct_of(columns[0]))
    if call.function in PERCENTILES:
        counts, low, high, bins = columns
        exact_max = EXACT_MAX if call.function == "percentile" else 0
        exact = percentiles_of(counts, low, high, call.share)
        return CallValues(pc.if_else(pc.less_equal(counts, exact_max), exact, middles_of(bins)))
    return CallValues(restored(columns[0], arrow_type(call.type)))


def _most_frequent_values(call: AggregateCall, columns: list[pa.Array]) -> CallValues:
    lists, counts = columns
    is_over = pc.greater(counts, DISTINCT_MAX).fill_null(False)
    kept = pc.if_else(is_over, pa.scalar(None, lists.type), pc.coalesce(lists, pa.scalar([], lists.type)))
    return CallValues(restored(kept, arrow_type(call.type)), is_over.to_numpy(zero_copy_only=False), TOO_MANY_FOR_LIST)


def _decimal_values(call: AggregateCall, columns: list[pa.Array]) -> CallValues:
    scale = arrow_type(call.argument_type).scale
    totals: list[Decimal | None] = []
    for high, low, count in zip(*(column.to_pylist() for column in columns), strict=True):
        total = Decimal(int(high) * _HALF + int(low)).scaleb(-scale, EXACT) if count else None
        totals.append(EXACT.divide(total, Decimal(count)) if total is not None and call.function == "avg" else total)
    values = rounded_decimals(totals, arrow_type(call.type))
    return CallValues(values, pc.and_(values.is_null(), pc.greater(columns[2], 0)).to_numpy(zero_copy_only=False))


def stored_type(kind: pa.DataType) -> pa.DataType:
    """How a column is kept: times as microseconds, decimals as their digits without the point, also where they are nested."""
    if pa.types.is_list(kind):
        return pa.list_(stored_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, stored_type(field.type)) for field in kind])
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return _UNSCALED if pa.types.is_decimal(kind) else kind


def restored(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column as it was before it was kept, or the other way."""
    if array.type == kind:
        return array
    if pa.types.is_list(kind):
        lengths = pc.list_value_length(array).fill_null(0).to_numpy()
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        values = restored(array.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(offsets, values, mask=array.is_null() if array.null_count else None)
    if pa.types.is_struct(kind):
        members = [restored(member, field.type) for member, field in zip(array.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=array.is_null())
    return array.view(kind)
