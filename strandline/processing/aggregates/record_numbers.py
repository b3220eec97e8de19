"""The internal function `records_of`: the numbers of the records that a result contains. See `processing/lineage`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from strandline.processing.aggregates.contract import AggregateCall, AggregateFunction, AuditQuery, AuditRows
from strandline.processing.aggregates.kernel import CallValues, Kernel, Mergeable, Partials, as_lists, flattened
from strandline.processing.columns.codes import Codes
from strandline.processing.columns.values import numpy_of

NUMBERS = "array<long>"
"""Type of the value."""


class NumbersKernel(Mergeable):
    """Sorted lists of numbers, each number once. A group without a number has an empty list."""

    partial_types = (pa.list_(pa.int64()),)

    def lift(self, arguments: Sequence[pa.Array], count: int) -> Partials:
        values = arguments[0]
        if pa.types.is_list(values.type):
            return [self._merged(*flattened(values, np.arange(count)), count)]
        numbers, codes = numpy_of(values.drop_null()), np.flatnonzero(numpy_of(values.is_valid()))
        return [self._merged(numbers, codes, count)]

    def merge(self, partials: Partials, codes: Codes, groups: int) -> Partials:
        return [self._merged(*flattened(partials[0], codes), groups)]

    def finish(self, partials: Partials) -> CallValues:
        return CallValues(partials[0])

    @staticmethod
    def _merged(values: pa.Array | Codes, codes: Codes, groups: int) -> pa.Array:
        numbers = numpy_of(values) if isinstance(values, pa.Array) else values
        pairs = np.unique(np.stack([codes.astype(np.int64), numbers.astype(np.int64)]), axis=1)
        return as_lists(pa.array(pairs[1]), pairs[0], groups).cast(pa.list_(pa.int64()))


class RecordsOf(AggregateFunction):
    """The union of the numbers in a column: one number of each record, or the list of numbers of each result."""

    name = "records_of"
    call = "records_of(numbers)"
    docs = ()

    def result_type(self, types: tuple[str, ...]) -> str:
        return NUMBERS

    def kernel(self, call: AggregateCall) -> Kernel:
        return NumbersKernel()

    def audit_query(self, call: AggregateCall, rows: AuditRows) -> AuditQuery:
        raise NotImplementedError("an audit doesn't trace records")


RECORDS_OF = RecordsOf()
