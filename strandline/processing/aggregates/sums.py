"""`sum` and `avg`."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.field_types import (
    PRECISION_MAX,
    WHOLE_RANGES,
    decimal_digits,
    decimal_type,
    is_decimal,
)
from strandline.processing.aggregates.contract import (
    AggregateCall,
    AggregateFunction,
    AuditQuery,
    AuditRows,
    CallDocs,
    require_number,
)
from strandline.processing.aggregates.kernel import (
    CallValues,
    Kernel,
    Mergeable,
    Partials,
    whole_sums,
)
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.codes import Codes
from strandline.processing.columns.decimals import EXACT, rounded_decimals
from strandline.processing.columns.values import is_valid, numpy_of

Doubles = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

_LIMB_BITS = 32
_LIMB_MASK = (1 << _LIMB_BITS) - 1
_UNSCALED = pa.decimal128(38, 0)
_HALF = 10**19
"""Divisor by which the audit splits decimals into two halves: the sum of two decimals with 38 digits doesn't fit into the largest
integer type of DuckDB."""


class Sum(AggregateFunction):
    def __init__(self, name: str, *names_elsewhere: str, docs: CallDocs) -> None:
        self.name = name
        self.call = f"{name}(x)"
        self.names_elsewhere = names_elsewhere
        self.docs = (docs,)
        self._is_average = name == "avg"
        self.combined_by = None if self._is_average else "sum"

    def result_type(self, types: tuple[str, ...]) -> str:
        (kind,) = types
        require_number(kind)
        if is_decimal(kind):
            precision, scale = decimal_digits(kind)
            if self._is_average:
                return decimal_type(min(precision + 4, PRECISION_MAX), min(scale + 4, PRECISION_MAX))
            return decimal_type(min(precision + 10, PRECISION_MAX), scale)
        return "double" if self._is_average or kind == "double" else "long"

    def row_types(self, types: tuple[str, ...]) -> tuple[str, ...]:
        (kind,) = types
        return (kind if kind == "double" or is_decimal(kind) else "long",)

    def kernel(self, call: AggregateCall) -> Kernel:
        if call.argument_type == "double":
            return DoubleSum(is_average=self._is_average)
        return ExactSum(call.argument_type, call.type, is_average=self._is_average)

    def audit_query(self, call: AggregateCall, rows: AuditRows) -> AuditQuery:
        argument = rows.argument(call.arguments[0])
        if is_decimal(call.argument_type):
            halves = [f"sum({argument}::HUGEINT {part} {_HALF}::HUGEINT)" for part in ("//", "%")]
            return AuditQuery((*halves, f"count({argument})"))
        return AuditQuery((f"{self.name}({argument})",))

    def audit_values(self, call: AggregateCall, columns: list[pa.Array]) -> CallValues:
        if is_decimal(call.argument_type):
            return self._decimal_values(call, columns)
        if self._is_average or call.argument_type != "long":
            return CallValues(columns[0])
        least, greatest = (pa.scalar(Decimal(limit), _UNSCALED) for limit in WHOLE_RANGES["long"])
        fits = pc.and_(pc.greater_equal(columns[0], least), pc.less_equal(columns[0], greatest))
        values = pc.if_else(fits, columns[0], pa.scalar(None, _UNSCALED)).cast(pa.int64())
        return CallValues(values, pc.invert(fits).fill_null(False).to_numpy(zero_copy_only=False))

    def _decimal_values(self, call: AggregateCall, columns: list[pa.Array]) -> CallValues:
        scale = arrow_type(call.argument_type).scale
        totals: list[Decimal | None] = []
        for high, low, count in zip(*(column.to_pylist() for column in columns), strict=True):
            total = Decimal(int(high) * _HALF + int(low)).scaleb(-scale, EXACT) if count else None
            totals.append(EXACT.divide(total, Decimal(count)) if total is not None and self._is_average else total)
        values = rounded_decimals(totals, arrow_type(call.type))
        return CallValues(values, pc.and_(values.is_null(), pc.greater(columns[2], 0)).to_numpy(zero_copy_only=False))


class DoubleSum(Mergeable):
    """Sum of doubles: a strict left fold, in the order of the rows. If `is_average`, it is divided by the number of values."""

    partial_types = (pa.int64(), pa.float64())

    def __init__(self, *, is_average: bool) -> None:
        self._is_average = is_average

    def lift(self, arguments: Sequence[pa.Array], count: int) -> Partials:
        (rows,) = arguments
        return [pa.array(is_valid(rows).astype(np.int64)), rows.fill_null(0.0)]

    def merge(self, partials: Partials, codes: Codes, groups: int) -> Partials:
        counts = whole_sums(numpy_of(partials[0]), codes, groups)
        return [pa.array(counts), pa.array(np.bincount(codes, weights=numpy_of(partials[1]), minlength=groups))]

    def finish(self, partials: Partials) -> CallValues:
        counts, sums = numpy_of(partials[0]), numpy_of(partials[1])
        with np.errstate(all="ignore"):
            values = sums / counts if self._is_average else sums
        return CallValues(pa.array(values, mask=counts == 0))


class ExactSum(Mergeable):
    """The exact sum of integers or decimals, kept as limbs of 32 bits. The highest limb has the sign."""

    def __init__(self, argument: str, result: str, *, is_average: bool) -> None:
        self._is_decimal = is_decimal(argument)
        self._scale = decimal_digits(argument)[1] if self._is_decimal else 0
        self._argument = argument
        self._result = result
        self._is_average = is_average
        self._limbs = 4 if self._is_decimal else 2
        self.partial_types = (pa.int64(),) * (1 + self._limbs)

    def lift(self, arguments: Sequence[pa.Array], count: int) -> Partials:
        (rows,) = arguments
        valid = is_valid(rows).astype(np.int64)
        if self._is_decimal:
            low, high = _decimal_halves(rows)
            words = [low & _LIMB_MASK, low >> _LIMB_BITS & _LIMB_MASK, high & _LIMB_MASK, high >> _LIMB_BITS]
        else:
            numbers = numpy_of(rows.fill_null(0)).astype(np.int64)
            words = [numbers & _LIMB_MASK, numbers >> _LIMB_BITS]
        return [pa.array(valid), *map(pa.array, words)]

    def merge(self, partials: Partials, codes: Codes, groups: int) -> Partials:
        columns = [whole_sums(numpy_of(column), codes, groups) for column in partials]
        for at in range(1, self._limbs):  # carry, so that each limb except the highest is small again
            columns[at + 1] += columns[at] >> _LIMB_BITS
            columns[at] &= _LIMB_MASK
        return [pa.array(column) for column in columns]

    def finish(self, partials: Partials) -> CallValues:
        counts = numpy_of(partials[0])
        if not self._is_decimal:
            low, high = numpy_of(partials[1]), numpy_of(partials[2])
            if self._is_average:
                with np.errstate(all="ignore"):
                    averages = self._whole_totals(low, high) / counts
                return CallValues(pa.array(averages, mask=counts == 0))
            fits = (high >= -(1 << 31)) & (high < 1 << 31)
            sums = np.where(fits, (high << _LIMB_BITS) + low, 0)
            return CallValues(pa.array(sums, mask=(counts == 0) | ~fits), (counts > 0) & ~fits)
        totals = self._decimal_totals(partials)
        if self._is_average:
            totals = [
                None if total is None else EXACT.divide(total, Decimal(count))
                for total, count in zip(totals, counts.tolist(), strict=True)
            ]
        values = rounded_decimals(totals, arrow_type(self._result))
        return CallValues(values, values.is_null().to_numpy(zero_copy_only=False) & (counts > 0))

    @staticmethod
    def _whole_totals(low: Whole, high: Whole) -> Doubles:
        """Return the totals as the nearest doubles."""
        fits = (high >= -(1 << 20)) & (high < 1 << 20)
        totals = ((np.where(fits, high, 0) << _LIMB_BITS) + low).astype(np.float64)
        for at in np.flatnonzero(~fits).tolist():
            totals[at] = float((int(high[at]) << _LIMB_BITS) + int(low[at]))
        return totals

    def _decimal_totals(self, partials: Partials) -> list[Decimal | None]:
        counts, *limbs = [column.to_pylist() for column in partials]
        totals: list[Decimal | None] = []
        for count, *words in zip(counts, *limbs, strict=True):
            unscaled = sum(word << (_LIMB_BITS * at) for at, word in enumerate(words))
            totals.append(EXACT.create_decimal(unscaled).scaleb(-self._scale, EXACT) if count else None)
        return totals


def _decimal_halves(array: pa.Array) -> tuple[Whole, Whole]:
    """Return the lower and the higher 64 bits of the unscaled integer of each decimal; 0 for nulls."""
    words = np.frombuffer(array.buffers()[1], np.int64)[2 * array.offset : 2 * (array.offset + len(array))].reshape(
        -1, 2
    )
    if array.null_count:
        words = np.where(is_valid(array)[:, None], words, 0)
    return words[:, 0], words[:, 1]


SUM = Sum(
    "sum",
    docs=CallDocs(
        "sum(x)",
        "numbers",
        "`long`, `double`, `decimal(p+10,s)`",
        "the sum; of integers and decimals exact",
        "sum(flow)",
        28.0,
    ),
)
AVERAGE = Sum(
    "avg",
    "mean",
    docs=CallDocs(
        "avg(x)", "numbers", "`double`, of `decimal(p,s)` a `decimal(p+4,s+4)`", "the mean", "avg(flow)", 7.0
    ),
)
