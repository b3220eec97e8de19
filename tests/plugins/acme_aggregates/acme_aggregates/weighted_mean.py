"""`weighted_mean(x, w)`: the mean of x, weighted by w. Two columns, and a value that may be missing although rows are there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from strandline.processing.aggregates.contract import (
    AggregateCall,
    AggregateFunction,
    AuditQuery,
    AuditRows,
    CallDocs,
    require_number,
)
from strandline.processing.aggregates.kernel import CallValues, Kernel, Mergeable, Partials
from strandline.processing.columns.codes import Codes
from strandline.processing.columns.values import is_valid, numpy_of


class WeightedSums(Mergeable):
    """The sums of x * w and of w, over the rows that have both, each added from the first to the last."""

    partial_types = (pa.float64(), pa.float64())

    def lift(self, arguments: Sequence[pa.Array], count: int) -> Partials:
        values, weights = (numpy_of(column.fill_null(0.0)) for column in arguments)
        weights = np.where(is_valid(arguments[0]) & is_valid(arguments[1]), weights, 0.0)
        with np.errstate(all="ignore"):
            return [pa.array(np.where(weights == 0.0, 0.0, values * weights)), pa.array(weights)]

    def merge(self, partials: Partials, codes: Codes, groups: int) -> Partials:
        return [pa.array(np.bincount(codes, weights=numpy_of(one), minlength=groups)) for one in partials]

    def finish(self, partials: Partials) -> CallValues:
        products, weights = map(numpy_of, partials)
        with np.errstate(all="ignore"):
            return CallValues(pa.array(products / weights, mask=weights == 0.0))


class WeightedMean(AggregateFunction):
    """sum(x * w) / sum(w) over rows with both; null if the weights add up to 0."""

    name = "weighted_mean"
    call = "weighted_mean(x, w)"
    columns = 2
    docs = (
        CallDocs(
            "weighted_mean(x, w)",
            "numbers",
            "double",
            "the mean of `x`, weighted by `w`; null if the weights add up to 0",
            "weighted_mean(flow, level)",
            460 / 75,
        ),
    )

    def result_type(self, types: tuple[str, ...]) -> str:
        for kind in types:
            require_number(kind)
        return "double"

    def row_types(self, types: tuple[str, ...]) -> tuple[str, ...]:
        return ("double", "double")

    def kernel(self, call: AggregateCall) -> Kernel:
        return WeightedSums()

    def audit_query(self, call: AggregateCall, rows: AuditRows) -> AuditQuery:
        value, weight = map(rows.argument, call.arguments)
        there = f"FILTER (WHERE {value} IS NOT NULL AND {weight} <> 0)"
        return AuditQuery((f"sum({value} * {weight}) {there} / nullif(sum({weight}) {there}, 0)",))


WEIGHTED_MEAN = WeightedMean()
