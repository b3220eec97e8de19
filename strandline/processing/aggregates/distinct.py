"""The kernel of the exact count of distinct values. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.aggregates.kernel import (
    CallValues,
    Collecting,
    Partials,
    as_lists,
    flattened,
)
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.codes import Codes
from strandline.processing.columns.values import is_valid, numpy_of, with_one_zero

DISTINCT_MAX = 10_000
"""Maximum number of distinct values that are counted for a window and key. It determines results, so it isn't a setting."""
TOO_MANY = f"counts more than {DISTINCT_MAX:,} distinct values; approx_count_distinct has no limit"
"""Reason for a missing result."""


class Distinct(Collecting):
    """Keeps a list of the distinct values.

    If there are more than `DISTINCT_MAX`, the list becomes null and stays null: the result is a dead letter. This depends only on
    the values of the whole window, because a part with too many values makes the whole window have too many.
    """

    def __init__(self, argument: str) -> None:
        self._type = arrow_type(argument)
        self.partial_types = (pa.list_(self._type),)

    def combine(
        self, partials: Partials, codes: Codes, argument: pa.Array | None, row_codes: Codes, groups: int
    ) -> Partials:
        (lists,) = partials
        values, value_codes = flattened(lists, codes)
        if argument is not None:
            there = is_valid(argument)
            more = argument.filter(pa.array(there))
            values = pa.concat_arrays([values, with_one_zero(more)])
            value_codes = np.concatenate([value_codes, row_codes[there]])
        encoded = values.dictionary_encode()
        pairs = value_codes * max(1, len(encoded.dictionary)) + numpy_of(encoded.indices)
        distinct = np.sort(numpy_of(pa.array(pairs).unique()))
        of_group, of_value = np.divmod(distinct, max(1, len(encoded.dictionary)))
        is_over = np.bincount(of_group, minlength=groups) > DISTINCT_MAX
        is_over[codes[~is_valid(lists)]] = True
        kept = ~is_over[of_group]
        found = encoded.dictionary.take(pa.array(of_value[kept]))
        return [as_lists(found, of_group[kept], groups, is_over)]

    def finish(self, partials: Partials) -> CallValues:
        counts = pc.list_value_length(partials[0]).cast(pa.int64())
        return CallValues(counts, ~is_valid(counts), TOO_MANY)
