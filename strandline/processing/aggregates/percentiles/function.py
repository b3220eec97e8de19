"""The functions of percentiles."""

from __future__ import annotations

from collections.abc import Hashable

import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.aggregates.contract import (
    AggregateCall,
    AggregateFunction,
    AuditColumn,
    AuditQuery,
    AuditRows,
    CallDocs,
    Constant,
    Parameters,
    argument_name,
    require_number,
)
from strandline.processing.aggregates.kernel import CallValues, Kernel
from strandline.processing.aggregates.percentiles import audit
from strandline.processing.aggregates.percentiles.kernel import BINS_MAX, EXACT_MAX, Percentile

_SKETCH_LIMITS = (
    "The state has up to 2,048 bins (24 kB) for each window, key, and partition, usually a few hundred. If values cover a "
    "range of more than 2**32, the lowest bins are merged, and low percentiles are too high. Percentiles of one argument "
    "share their state."
)
_EXACT_LIMITS = (
    "The state has up to 10,000 values for each window, key, and partition. With more values, the function counts bins as "
    "`approx_percentile` does. Percentiles of one argument share their state."
)


class PercentileFunction(AggregateFunction):
    """A percentile, exact if there are few values, or always approximate."""

    def __init__(
        self,
        name: str,
        *other_names: str,
        names_elsewhere: tuple[str, ...] = (),
        share: float | None = None,
        is_exact: bool = True,
        docs: CallDocs,
    ) -> None:
        """`share`: part of all values that is below the percentile, from 0 to 1; None if calls contain it."""
        self.name = name
        self.other_names = other_names
        self.names_elsewhere = names_elsewhere
        self.docs = (docs,)
        self.call = f"{name}(x, 0.95)" if share is None else f"{name}(x)"
        self.constants = (1,) if share is None else (0,)
        self._share = share
        self._is_exact = is_exact

    def parameters(self, written: tuple[Constant | None, ...]) -> Parameters:
        if self._share is not None:
            return (self._share,)
        (share,) = written
        if not isinstance(share, float) or not 0 <= share <= 1:
            raise ValueError(f"the second argument must be written out as a number from 0 to 1, as {self.call}")
        return (share,)

    def result_type(self, types: tuple[str, ...]) -> str:
        require_number(types[0])
        return "double"

    def row_types(self, types: tuple[str, ...]) -> tuple[str, ...]:
        return ("double",)

    def kernel(self, call: AggregateCall) -> Kernel:
        return Percentile(call.parameters[0], is_exact=self._is_exact)

    def shared_state(self, call: AggregateCall) -> Hashable:
        return "exact percentiles" if self._is_exact else "approximate percentiles"

    def audit_columns(self, call: AggregateCall) -> tuple[AuditColumn, ...]:
        (index,) = call.arguments
        return (AuditColumn(audit.bin_name(argument_name(index)), pa.int64(), index, audit.bins_of),)

    def audit_query(self, call: AggregateCall, rows: AuditRows) -> AuditQuery:
        return audit.percentile_query(rows.argument(call.arguments[0]), call.parameters[0], rows, BINS_MAX)

    def audit_values(self, call: AggregateCall, columns: list[pa.Array]) -> CallValues:
        counts, low, high, bins = columns
        exact = audit.percentiles_of(counts, low, high, call.parameters[0])
        is_exact = pc.less_equal(counts, EXACT_MAX if self._is_exact else 0)
        return CallValues(pc.if_else(is_exact, exact, audit.middles_of(bins)))


PERCENTILE = PercentileFunction(
    "percentile",
    "quantile",
    docs=CallDocs(
        "percentile(x, p)",
        "numbers",
        "double",
        "the value below which the share `p` (0 to 1) of all values is, interpolated between two values. Exact for up to 10,000 "
        "values in a window and key; for more, as `approx_percentile`",
        "percentile(flow, 0.75)",
        8.5,
        _EXACT_LIMITS,
    ),
)
MEDIAN = PercentileFunction(
    "median",
    share=0.5,
    docs=CallDocs("median(x)", "numbers", "double", "`percentile(x, 0.5)`", "median(flow)", 7.0, _EXACT_LIMITS),
)
APPROXIMATE_PERCENTILE = PercentileFunction(
    "approx_percentile",
    "percentile_approx",
    "approx_quantile",
    is_exact=False,
    docs=CallDocs(
        "approx_percentile(x, p)",
        "numbers",
        "double",
        "the value whose rank is the share `p` of all values, within 0.8 %, by a DDSketch",
        "approx_percentile(flow, 0.95)",
        10.0625,
        _SKETCH_LIMITS,
    ),
)
