"""`product(x)`: the product of the values. Its partial results are merged, so panes of a window share them."""

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


class Factors(Mergeable):
    """The number of values and their product, multiplied from the first to the last."""

    partial_types = (pa.int64(), pa.float64())

    def lift(self, arguments: Sequence[pa.Array], count: int) -> Partials:
        (rows,) = arguments
        return [pa.array(is_valid(rows).astype(np.int64)), rows.fill_null(1.0)]

    def merge(self, partials: Partials, codes: Codes, groups: int) -> Partials:
        products = np.ones(groups)
        np.multiply.at(products, codes, numpy_of(partials[1]))
        counts = np.bincount(codes, weights=numpy_of(partials[0]), minlength=groups).astype(np.int64)
        return [pa.array(counts), pa.array(products)]

    def finish(self, partials: Partials) -> CallValues:
        return CallValues(pa.array(numpy_of(partials[1]), mask=numpy_of(partials[0]) == 0))


class Product(AggregateFunction):
    """The product of the values; null without values."""

    name = "product"
    call = "product(x)"
    docs = (CallDocs("product(x)", "numbers", "double", "the product of the values", "product(flow)", 1920.0),)

    def result_type(self, types: tuple[str, ...]) -> str:
        require_number(types[0])
        return "double"

    def row_types(self, types: tuple[str, ...]) -> tuple[str, ...]:
        return ("double",)

    def kernel(self, call: AggregateCall) -> Kernel:
        return Factors()

    def audit_query(self, call: AggregateCall, rows: AuditRows) -> AuditQuery:
        return AuditQuery((f"product({rows.argument(call.arguments[0])})",))


PRODUCT = Product()
