"""The function `approx_count_distinct`."""

from __future__ import annotations

import pyarrow as pa

from strandline.processing.aggregates.cardinality import audit
from strandline.processing.aggregates.cardinality.kernel import Cardinality
from strandline.processing.aggregates.contract import (
    AggregateCall,
    AggregateFunction,
    AuditQuery,
    AuditRows,
    CallDocs,
    require_order,
)
from strandline.processing.aggregates.kernel import CallValues, Kernel


class ApproximateCountDistinct(AggregateFunction):
    name = "approx_count_distinct"
    other_names = ("approx_distinct",)
    call = "approx_count_distinct(x)"
    is_hashed = True
    docs = (
        CallDocs(
            call,
            "any type but arrays and structs",
            "long",
            "distinct values by HyperLogLog: any number of them, with a standard error of 1.6 %; 0 without rows",
            "approx_count_distinct(state)",
            3,
            "The state has up to 16 kB for each window, key, and partition.",
        ),
    )

    def result_type(self, types: tuple[str, ...]) -> str:
        require_order(types[0])
        return "long"

    def kernel(self, call: AggregateCall) -> Kernel:
        return Cardinality()

    def audit_query(self, call: AggregateCall, rows: AuditRows) -> AuditQuery:
        return audit.registers_query(rows.argument(call.arguments[0]), rows)

    def audit_values(self, call: AggregateCall, columns: list[pa.Array]) -> CallValues:
        return CallValues(audit.distinct_of(columns[0]))


APPROXIMATE_COUNT_DISTINCT = ApproximateCountDistinct()
