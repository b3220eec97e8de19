"""`most_frequent`: the distinct values that occur most often, with the number of their occurrences."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.field_types import (
    array_type,
    struct_type,
)
from strandline.processing.aggregates import distinct
from strandline.processing.aggregates.bounded_lists import list_length, require_element, require_rank
from strandline.processing.aggregates.contract import (
    AggregateCall,
    AggregateFunction,
    AuditQuery,
    AuditRows,
    CallDocs,
    Constant,
    Parameters,
)
from strandline.processing.aggregates.kernel import (
    CallValues,
    Collecting,
    Kernel,
    Partials,
    as_lists,
    first_of_each,
    flattened,
)
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.codes import Codes
from strandline.processing.columns.values import is_valid, numpy_of, ranks_of, with_one_zero


class Frequent(AggregateFunction):
    name = "most_frequent"
    names_elsewhere = ("approx_top_k", "mode")
    call = "most_frequent(x, 5)"
    constants = (1,)
    docs = (
        CallDocs(
            "most_frequent(x, n)",
            "any type but arrays and structs",
            "`array<struct<value: ..., count: long>>`",
            "the `n` values that occur most often, with their counts, of equally frequent values the least first; an empty array "
            "without rows",
            "most_frequent(state, 2)",
            [{"value": "on", "count": 3}, {"value": "off", "count": 1}],
            "The maximum length `n` is 1 to 1,000. The state has up to 10,000 values for each window, key, and partition. With "
            "more than 10,000 distinct values in a window and key, the result becomes a dead letter.",
        ),
    )

    def parameters(self, written: tuple[Constant | None, ...]) -> Parameters:
        return (list_length(written[0]),)

    def result_type(self, types: tuple[str, ...]) -> str:
        (kind,) = types
        require_element(kind)
        require_rank(kind)
        return array_type(struct_type([("value", kind), ("count", "long")]))

    def kernel(self, call: AggregateCall) -> Kernel:
        return MostFrequent(call.argument_type, call.parameters[0])

    def shared_state(self, call: AggregateCall) -> Hashable:
        return self.name

    def audit_query(self, call: AggregateCall, rows: AuditRows) -> AuditQuery:
        argument = rows.argument(call.arguments[0])
        # One row of each value represents it, and contains its count.
        times, represents = f"times_of_{argument}", f"represents_{argument}"
        pair = f"struct_pack(value := {argument}, count := {times})"
        found = (
            f"list({pair} ORDER BY {times} DESC, {argument} ASC) "
            f"FILTER (WHERE {represents} = 1 AND {argument} IS NOT NULL)"
        )
        return AuditQuery(
            (f"list_slice({found}, 1, {call.parameters[0]})", f"count(DISTINCT {argument})"),
            (
                f"count(*) OVER (PARTITION BY {rows.group}, {argument}) AS {times}",
                f"row_number() OVER (PARTITION BY {rows.group}, {argument}) AS {represents}",
            ),
        )

    def audit_values(self, call: AggregateCall, columns: list[pa.Array]) -> CallValues:
        lists, counts = columns
        is_over = pc.greater(counts, distinct.DISTINCT_MAX).fill_null(False)
        kept = pc.if_else(is_over, pa.scalar(None, lists.type), pc.coalesce(lists, pa.scalar([], lists.type)))
        return CallValues(kept, is_over.to_numpy(zero_copy_only=False), TOO_MANY)


class MostFrequent(Collecting):
    """Keeps the distinct values and the number of times that each occurred, without an order.

    If there are more than `DISTINCT_MAX`, both lists become null and stay null: the result is a dead letter, as with
    `count(distinct x)`. The number of values in a result matters only at the end.
    """

    def __init__(self, argument: str, count: int) -> None:
        self._type = arrow_type(argument)
        self._count = count
        self._given = pa.struct([("value", self._type), ("count", pa.int64())])
        self.partial_types = (pa.list_(self._type), pa.list_(pa.int64()))

    def combine(
        self, partials: Partials, codes: Codes, argument: pa.Array | None, row_codes: Codes, groups: int
    ) -> Partials:
        values, value_codes = flattened(partials[0], codes)
        times = numpy_of(flattened(partials[1], codes)[0])
        if argument is not None:
            there = is_valid(argument)
            values = pa.concat_arrays([values, with_one_zero(argument.filter(pa.array(there)))])
            value_codes = np.concatenate([value_codes, row_codes[there]])
            times = np.concatenate([times, np.ones(int(there.sum()), np.int64)])
        encoded = values.dictionary_encode()
        size = max(1, len(encoded.dictionary))
        pairs, places = np.unique(value_codes * size + numpy_of(encoded.indices), return_inverse=True)
        sums = np.zeros(len(pairs), np.int64)
        np.add.at(sums, places, times)
        of_group, of_value = np.divmod(pairs, size)
        is_over = np.bincount(of_group, minlength=groups) > distinct.DISTINCT_MAX
        is_over[codes[~is_valid(partials[0])]] = True
        kept = ~is_over[of_group]
        found = encoded.dictionary.take(pa.array(of_value[kept]))
        return [
            as_lists(found, of_group[kept], groups, is_over),
            as_lists(pa.array(sums[kept]), of_group[kept], groups, is_over),
        ]

    def finish(self, partials: Partials) -> CallValues:
        count = len(partials[0])
        values, codes = flattened(partials[0], np.arange(count))
        times = numpy_of(flattened(partials[1], np.arange(count))[0])
        order = np.lexsort((ranks_of(values), -times, codes))
        kept = order[first_of_each(codes[order], self._count)]
        given = pa.StructArray.from_arrays(
            [values.take(pa.array(kept)), pa.array(times[kept])], fields=list(self._given)
        )
        is_over = ~is_valid(partials[0])
        return CallValues(as_lists(given, codes[kept], count, is_over), is_over, TOO_MANY)


TOO_MANY = f"has more than {distinct.DISTINCT_MAX:,} distinct values; pass fewer values, by a filter or by more keys"
"""Reason for a missing result."""


MOST_FREQUENT = Frequent()
