"""`count`: rows, values, or distinct values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.aggregates import distinct
from strandline.processing.aggregates.contract import (
    AggregateCall,
    AggregateFunction,
    AuditQuery,
    AuditRows,
    CallDocs,
)
from strandline.processing.aggregates.kernel import (
    CallValues,
    Kernel,
    Mergeable,
    Partials,
    whole_sums,
)
from strandline.processing.columns.codes import Codes
from strandline.processing.columns.values import is_valid, numpy_of


class _Count(Mergeable):
    """Count of rows, or of values that aren't null."""

    partial_types = (pa.int64(),)

    def lift(self, arguments: Sequence[pa.Array], count: int) -> Partials:
        return [pa.array(is_valid(arguments[0]).astype(np.int64) if arguments else np.ones(count, np.int64))]

    def merge(self, partials: Partials, codes: Codes, groups: int) -> Partials:
        return [pa.array(whole_sums(numpy_of(partials[0]), codes, groups))]

    def finish(self, partials: Partials) -> CallValues:
        return CallValues(partials[0])


class Count(AggregateFunction):
    name = "count"
    call = "count(*)"
    accepts_all_rows = True
    accepts_distinct = True
    accepts_null = True
    combined_by = "sum"
    docs = (
        CallDocs("count(*)", "rows", "long", "all rows", "count(*)", 5),
        CallDocs("count(x)", "any type", "long", "values that aren't null; 0 without rows", "count(flow)", 4),
        CallDocs(
            "count(distinct x)",
            "any type",
            "long",
            "distinct values, exactly; 0 without rows",
            "count(distinct state)",
            3,
            "`count(distinct x)` keeps up to 10,000 values for each window, key, and partition. With more than 10,000 distinct "
            "values in a window and key, the result becomes a dead letter. `approx_count_distinct` has no such limit.",
        ),
    )

    def result_type(self, types: tuple[str, ...]) -> str:
        return "long"

    def kernel(self, call: AggregateCall) -> Kernel:
        return distinct.Distinct(call.argument_type) if call.is_distinct else _Count()

    def audit_query(self, call: AggregateCall, rows: AuditRows) -> AuditQuery:
        argument = rows.argument(call.arguments[0]) if call.arguments else "*"
        return AuditQuery((f"count({'DISTINCT ' if call.is_distinct else ''}{argument})",))

    def audit_values(self, call: AggregateCall, columns: list[pa.Array]) -> CallValues:
        if not call.is_distinct:
            return CallValues(columns[0])
        fits = pc.less_equal(columns[0], distinct.DISTINCT_MAX)
        values = pc.if_else(fits, columns[0], pa.scalar(None, pa.int64()))
        return CallValues(values, pc.invert(fits).to_numpy(zero_copy_only=False), distinct.TOO_MANY)


COUNT = Count()
