"""Aggregates that give arrays: the values of the first rows in an order, the most frequent values, counts between borders. Pure.

What each gives follows from which rows a group has and where they stand, not from how they came in slices:
- `collect_list(x, n)`: the rows in which x is not null, earliest first by event time, then in their order.
- `top_n(x, n)` and `bottom_n(x, n)`: the greatest values first, or the least.
- `top_n_by(x, y, n)` and `bottom_n_by(x, y, n)`: x of the rows in which y is not null, by y, then as `collect_list`.
- `most_frequent(x, n)`: the distinct values with how often each comes, most often first, then the least.
- `histogram(x, ...)`: how many values are below the first border, from each border on to before the next, and from the last on.

A partial result holds no more than a result may need: the first n rows of a part are all that the whole can need of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.codes import Codes, ranges
from strandline.processing.columns.values import is_valid, numpy_of, ranks_of, with_one_zero
from strandline.processing.operators.aggregation import distinct
from strandline.processing.operators.aggregation.aggregate import (
    CallValues,
    Collecting,
    Partials,
    as_lists,
    flattened,
)
from strandline.processing.operators.aggregation.percentiles import binned


class Ranked(Collecting):
    """The values of the first rows of each group in an order. Its partial result is a list of these rows in that order, each a
    struct: what it is ordered by, and the value."""

    def __init__(self, function: str, argument_types: Sequence[str], count: int) -> None:
        """`argument_types`: of x, of y where the function has one, and of the event time where it goes by it."""
        kinds = list(map(arrow_type, argument_types))
        by = kinds[1:] or kinds
        self._is_of_itself = len(kinds) == 1
        self._count = count
        self._are_greatest = [function in ("top_n", "top_n_by")] + [False] * (len(by) - 1)
        fields = [pa.field(f"by_{at}", kind) for at, kind in enumerate(by)]
        self._row = pa.struct(fields if self._is_of_itself else [*fields, pa.field("value", kinds[0])])
        self._is_collected = function == "collect_list"
        self.partial_types = (pa.list_(self._row),)

    def fold(
        self, state: Partials, state_codes: Codes, arguments: Sequence[pa.Array], row_codes: Codes, groups: int
    ) -> Partials:
        value, *by = arguments
        columns = [with_one_zero(value)] if self._is_of_itself else [*by, value]
        # A null struct: the function passes the row over.
        passed = ~is_valid(value if self._is_collected else columns[0])
        rows = pa.StructArray.from_arrays(columns, fields=list(self._row), mask=pa.array(passed))
        return self._combine_some(state, state_codes, rows, row_codes, groups)

    def combine(
        self, partials: Partials, codes: Codes, argument: pa.Array | None, row_codes: Codes, groups: int
    ) -> Partials:
        rows, group_of_row = flattened(partials[0], codes)
        if argument is not None:
            there = is_valid(argument)
            rows = pa.concat_arrays([rows, argument.filter(pa.array(there))])
            group_of_row = np.concatenate([group_of_row, row_codes[there]])
        keys = []
        for at, is_greatest in enumerate(self._are_greatest):
            ranks = ranks_of(rows.field(at))
            keys.append(~ranks if is_greatest else ranks)
        # Stable, so rows that are alike in all stay in their order.
        order = np.lexsort((*reversed(keys), group_of_row))
        kept = order[_first_of_each(group_of_row[order], self._count)]
        return [as_lists(rows.take(pa.array(kept)), group_of_row[kept], groups)]

    def finish(self, partials: Partials) -> CallValues:
        lists = partials[0]
        return CallValues(pa.ListArray.from_arrays(lists.offsets, lists.values.field(self._row.num_fields - 1)))


class MostFrequent(Collecting):
    """Keeps the distinct values and how often each came, without order; null in both, from then on, when they are more than
    `DISTINCT_MAX`: then the result is a dead letter, as of `count(distinct x)`. How many it gives matters only in the end."""

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
        kept = order[_first_of_each(codes[order], self._count)]
        given = pa.StructArray.from_arrays(
            [values.take(pa.array(kept)), pa.array(times[kept])], fields=list(self._given)
        )
        is_over = ~is_valid(partials[0])
        return CallValues(as_lists(given, codes[kept], count, is_over), is_over, TOO_MANY)


TOO_MANY = f"has more than {distinct.DISTINCT_MAX:,} distinct values; give it fewer, by a filter or by more keys"
"""Why there is no result."""


class Histogram(Collecting):
    """Keeps the bins that are not empty, and how many values each has."""

    partial_types = (pa.list_(pa.int32()), pa.list_(pa.int64()))

    def __init__(self, borders: Sequence[float]) -> None:
        self._borders = np.array(borders)

    def combine(
        self, partials: Partials, codes: Codes, argument: pa.Array | None, row_codes: Codes, groups: int
    ) -> Partials:
        bins, bin_codes = flattened(partials[0], codes)
        found, counts = numpy_of(bins), numpy_of(flattened(partials[1], codes)[0])
        if argument is not None:
            there = is_valid(argument)
            # Whatever is not a number is the greatest, here as everywhere: numpy puts it behind the last border.
            more = np.searchsorted(self._borders, numpy_of(argument.fill_null(0.0))[there], side="right")
            found = np.concatenate([found, more])
            bin_codes = np.concatenate([bin_codes, row_codes[there]])
            counts = np.concatenate([counts, np.ones(len(more), np.int64)])
        return binned(bin_codes, found, counts, groups, len(self._borders) + 1)

    def finish(self, partials: Partials) -> CallValues:
        groups, width = len(partials[0]), len(self._borders) + 1
        bins, codes = flattened(partials[0], np.arange(groups))
        dense = np.zeros(groups * width, np.int64)
        dense[codes * width + numpy_of(bins)] = numpy_of(flattened(partials[1], np.arange(groups))[0])
        return CallValues(as_lists(pa.array(dense), np.repeat(np.arange(groups), width), groups))


def _first_of_each(codes: Codes, count: int) -> Codes:
    """The places of the first `count` rows of each code. `codes` ascend."""
    lengths = np.bincount(codes) if len(codes) else np.zeros(0, np.int64)
    places = ranges(np.zeros(len(lengths), np.int64), lengths)
    return np.flatnonzero(places < count)
