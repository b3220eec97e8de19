"""`histogram`: the numbers of values between borders, as in TimescaleDB."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from strandline.core.field_types import (
    array_type,
)
from strandline.processing.aggregates.bounded_lists import LISTED_MAX
from strandline.processing.aggregates.contract import (
    AggregateCall,
    AggregateFunction,
    AuditQuery,
    AuditRows,
    CallDocs,
    Constant,
    Parameters,
    require_number,
)
from strandline.processing.aggregates.kernel import (
    CallValues,
    Collecting,
    Kernel,
    Partials,
    as_lists,
    binned,
    flattened,
)
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.codes import Codes
from strandline.processing.columns.values import is_valid, numpy_of

_LIMITS = (
    "A histogram has at most 1,000 bins. The state has the bins that aren't empty, for each window, key, and partition."
)
_CALL = "histogram(x, 0, 100, 10) or histogram(x, array(0, 10, 50))"


class Bins(AggregateFunction):
    name = "histogram"
    call = _CALL
    constants = (1, 3)
    docs = (
        CallDocs(
            "histogram(x, low, high, n)",
            "numbers",
            "array<long>",
            "numbers of values below `low`, in each of `n` bins of equal width up to `high`, and at `high` or above: `n` + 2 "
            "counts; all 0 without rows",
            "histogram(flow, 0, 10, 2)",
            [0, 1, 2, 1],
            _LIMITS,
        ),
        CallDocs(
            "histogram(x, array(...))",
            "numbers",
            "array<long>",
            "the same with borders that are written out, ascending; a value at a border is above it",
            "histogram(level, array(20, 25))",
            [1, 1, 2],
        ),
    )

    def parameters(self, written: tuple[Constant | None, ...]) -> Parameters:
        if len(written) == 1:
            borders: list[Constant | None] = list(written[0]) if isinstance(written[0], tuple) else [None]
        else:
            low, high, bins = (one if isinstance(one, float) else None for one in written)
            if low is None or high is None or bins is None or bins != int(bins) or not 1 <= bins <= LISTED_MAX:
                raise ValueError(f"expected {_CALL}, written as constants, with 1 to {LISTED_MAX:,} bins")
            # Each border is computed from the ends, not from the border before it, so errors don't add up.
            borders = [*(low + (high - low) * (at / bins) for at in range(int(bins))), high]
        found = [one for one in borders if isinstance(one, float)]
        if len(found) < len(borders) or not found or len(found) > LISTED_MAX + 1:
            raise ValueError(f"expected {_CALL}, written as constants, with at most {LISTED_MAX:,} bins")
        if any(before >= after for before, after in pairwise(found)):
            raise ValueError("the borders must ascend: each must be above the border before it")
        return tuple(found)

    def result_type(self, types: tuple[str, ...]) -> str:
        require_number(types[0])
        return array_type("long")

    def row_types(self, types: tuple[str, ...]) -> tuple[str, ...]:
        return ("double",)

    def kernel(self, call: AggregateCall) -> Kernel:
        return Histogram(call.parameters)

    def audit_query(self, call: AggregateCall, rows: AuditRows) -> AuditQuery:
        argument = rows.argument(call.arguments[0])
        # Compares with one border after the other.
        steps = " ".join(f"WHEN {argument} < {border!r}::DOUBLE THEN {at}" for at, border in enumerate(call.parameters))
        number = f"CASE {steps} ELSE {len(call.parameters)} END"
        return AuditQuery((f"histogram({number}) FILTER (WHERE {argument} IS NOT NULL)",))

    def audit_values(self, call: AggregateCall, columns: list[pa.Array]) -> CallValues:
        counts = [dict(one or ()) for one in columns[0].to_pylist()]
        bins = range(len(call.parameters) + 1)
        return CallValues(pa.array([[one.get(at, 0) for at in bins] for one in counts], arrow_type(call.type)))


class Histogram(Collecting):
    """Keeps the bins that aren't empty, and the number of values in each."""

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
            # NaN is the largest value, as in all functions: numpy puts it after the last border.
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


HISTOGRAM = Bins()
