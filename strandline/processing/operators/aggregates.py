"""Aggregate functions as folds over columns: partial results are columns too, so they can be kept, merged and finished.

Order contract. `fold` takes a group's partial result first and then its new rows in their order; sums of doubles are strict left
folds (`numpy.bincount` adds one by one, from first to last), so however rows are cut into calls, the bits are the same.
Whole numbers and decimals are summed exactly and have no order. `merge` combines several partial results of a group in the order
of their rows. Nothing here is lost silently: a sum that does not fit its type is marked as an overflow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.core.field_types import decimal_digits, is_decimal
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.codes import Codes
from strandline.processing.columns.decimals import EXACT, rounded_decimals
from strandline.processing.columns.values import is_valid, numpy_of
from strandline.processing.operators.aggregate_calls import AggregateCall, AggregateCalls
from strandline.processing.operators.aggregation.aggregate import Aggregate, CallValues, Mergeable, Partials
from strandline.processing.operators.aggregation.cardinality import Cardinality
from strandline.processing.operators.aggregation.choice import Chosen
from strandline.processing.operators.aggregation.distinct import Distinct
from strandline.processing.operators.aggregation.lists import Histogram, MostFrequent, Ranked
from strandline.processing.operators.aggregation.percentiles import Percentile
from strandline.processing.pipelines.row_step import Column

Doubles = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

_LIMB_BITS = 32
_LIMB_MASK = (1 << _LIMB_BITS) - 1
_FOLD_ROWS_MAX = 1 << 20
"""So many numbers below 2**32 are summed exactly in the 53 bits of a double."""


class Count(Mergeable):
    """Rows, or values that are not null."""

    partial_types = (pa.int64(),)

    def lift(self, arguments: Sequence[pa.Array], count: int) -> Partials:
        return [pa.array(is_valid(arguments[0]).astype(np.int64) if arguments else np.ones(count, np.int64))]

    def merge(self, partials: Partials, codes: Codes, groups: int) -> Partials:
        return [pa.array(_whole_sums(numpy_of(partials[0]), codes, groups))]

    def finish(self, partials: Partials) -> CallValues:
        return CallValues(partials[0])


class DoubleSum(Mergeable):
    """A strict left fold; `is_average` divides it by the number of values."""

    partial_types = (pa.int64(), pa.float64())

    def __init__(self, *, is_average: bool) -> None:
        self._is_average = is_average

    def lift(self, arguments: Sequence[pa.Array], count: int) -> Partials:
        (rows,) = arguments
        return [pa.array(is_valid(rows).astype(np.int64)), rows.fill_null(0.0)]

    def merge(self, partials: Partials, codes: Codes, groups: int) -> Partials:
        counts = _whole_sums(numpy_of(partials[0]), codes, groups)
        return [pa.array(counts), pa.array(np.bincount(codes, weights=numpy_of(partials[1]), minlength=groups))]

    def finish(self, partials: Partials) -> CallValues:
        counts, sums = numpy_of(partials[0]), numpy_of(partials[1])
        with np.errstate(all="ignore"):
            values = sums / counts if self._is_average else sums
        return CallValues(pa.array(values, mask=counts == 0))


class ExactSum(Mergeable):
    """The exact sum of whole numbers or decimals, kept as limbs of 32 bits, the highest with the sign."""

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
        columns = [_whole_sums(numpy_of(column), codes, groups) for column in partials]
        for at in range(1, self._limbs):  # carry, so that every limb but the highest is small again
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
        """The totals as the nearest doubles."""
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


class Extreme(Mergeable):
    """The least or the greatest value; not a number is the greatest double."""

    def __init__(self, argument: str, *, is_least: bool) -> None:
        self._type = arrow_type(argument)
        self._is_least = is_least
        self.partial_types = (self._type,)

    def lift(self, arguments: Sequence[pa.Array], count: int) -> Partials:
        return list(arguments)

    def merge(self, partials: Partials, codes: Codes, groups: int) -> Partials:
        values = partials[0]
        if pa.types.is_floating(self._type):
            return [self._merge_doubles(values, codes, groups)]
        stored = values.cast(pa.int64()) if pa.types.is_timestamp(self._type) else values
        function = "min" if self._is_least else "max"
        table = pa.table({"code": pa.array(codes), "value": stored})
        grouped = table.group_by("code", use_threads=False).aggregate([("value", function)])
        # A group has a row here if any row was of it, and a null where all its values were null.
        places = np.full(groups, -1, np.int64)
        places[numpy_of(grouped["code"].combine_chunks())] = np.arange(grouped.num_rows)
        taken = grouped[f"value_{function}"].combine_chunks().take(pa.array(places, mask=places < 0))
        return [taken.cast(self._type)]

    def _merge_doubles(self, values: pa.Array, codes: Codes, groups: int) -> pa.Array:
        valid = is_valid(values)
        numbers, kept = numpy_of(values.fill_null(0.0))[valid], codes[valid]
        result = np.full(groups, np.nan if self._is_least else -np.inf)
        with np.errstate(all="ignore"):
            (np.fmin if self._is_least else np.maximum).at(result, kept, numbers)
        return pa.array(result, mask=np.bincount(kept, minlength=groups) == 0)

    def finish(self, partials: Partials) -> CallValues:
        return CallValues(partials[0])


class Spread(Aggregate):
    """A variance, or its square root: sums of the differences from each group's first value and of their squares.

    The first value of a group is where its log begins, so it does not depend on slicing. With n values, their differences d from
    the first one, and S(x) the sum of x: the population's variance is S(d*d)/n - (S(d)/n)**2, the sample's
    (S(d*d) - S(d)*S(d)/n)/(n - 1), and one value has none. Partial results are combined by Chan, Golub and LeVeque, "Updating
    formulae and a pairwise algorithm for computing sample variances" (1979), who call this shifted data. It is sound: the first
    value is one of the n, so it lies within sqrt(n) deviations of the mean, and about as many digits are lost as n has at most.
    """

    partial_types = (pa.int64(), pa.float64(), pa.float64(), pa.float64())

    def __init__(self, *, is_deviation: bool, is_sample: bool = False) -> None:
        self._is_deviation = is_deviation
        self._is_sample = is_sample

    def fold(
        self, state: Partials, state_codes: Codes, arguments: Sequence[pa.Array], row_codes: Codes, groups: int
    ) -> Partials:
        (rows,) = arguments
        valid = is_valid(rows)
        values, codes = numpy_of(rows.fill_null(0.0))[valid], row_codes[valid]
        counts, origins, sums, squares = (np.zeros(groups, kind) for kind in (np.int64, float, float, float))
        for into, column in zip((counts, origins, sums, squares), state, strict=True):
            into[state_codes] = numpy_of(column)
        firsts = np.full(groups, -1, np.int64)
        firsts[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
        begun = (counts == 0) & (firsts >= 0)
        origins[begun] = values[firsts[begun]]
        differences = values - origins[codes]
        own, all_groups = np.arange(groups), np.concatenate
        counts += np.bincount(codes, minlength=groups)
        with np.errstate(all="ignore"):
            squared = differences * differences
        # The state's row stands first, so the fold goes on where it ended.
        sums = np.bincount(all_groups([own, codes]), weights=all_groups([sums, differences]), minlength=groups)
        squares = np.bincount(all_groups([own, codes]), weights=all_groups([squares, squared]), minlength=groups)
        return [pa.array(counts), pa.array(origins), pa.array(sums), pa.array(squares)]

    def merge(self, partials: Partials, codes: Codes, groups: int) -> Partials:
        counts, origins, sums, squares = (numpy_of(column) for column in partials)
        total = [np.zeros(groups, kind) for kind in (np.int64, float, float, float)]
        n, origin, s, q = total
        order = np.argsort(codes, kind="stable")
        places = np.arange(len(codes)) - np.searchsorted(codes[order], codes[order], side="left")
        by_place = order[np.argsort(places, kind="stable")]
        # The first partial result of each group, the second ...
        for rows in np.split(by_place, np.cumsum(np.bincount(places))[:-1]):
            rows = rows[counts[rows] > 0]
            into = codes[rows]
            fresh = n[into] == 0
            origin[into[fresh]] = origins[rows[fresh]]
            with np.errstate(all="ignore"):
                shift, m = origins[rows] - origin[into], counts[rows].astype(float)
                q[into] += squares[rows] + 2 * shift * sums[rows] + m * shift * shift
                s[into] += sums[rows] + m * shift
            n[into] += counts[rows]
        return [pa.array(column) for column in total]

    def finish(self, partials: Partials) -> CallValues:
        counts, _, sums, squares = (numpy_of(column) for column in partials)
        with np.errstate(all="ignore"):
            if self._is_sample:
                variance = np.maximum((squares - sums * sums / counts) / (counts - 1), 0.0)
            else:
                variance = np.maximum(squares / counts - (sums / counts) ** 2, 0.0)
                variance[(counts == 1) & np.isfinite(sums)] = 0.0
            values = np.sqrt(variance) if self._is_deviation else variance
        return CallValues(pa.array(values, mask=counts <= (1 if self._is_sample else 0)))


class StageAggregates(AggregateCalls):
    """All aggregates of one window stage: what is computed per row, kept per group, and finished per result."""

    def __init__(self, stage: str, aggregates: Sequence[Column], types: Mapping[str, str]) -> None:
        super().__init__(stage, aggregates, types)
        functions = [_function_of(call) for call in self.calls]
        self._kept: list[tuple[AggregateCall, Aggregate]] = []
        """The calls that keep partial results, each with its function."""
        self._finished: list[tuple[int, Aggregate]] = []
        """For each call the place of its partial results in `_kept`, and the function that finishes them."""
        places: dict[tuple[object, ...], int] = {}
        for at, (call, function) in enumerate(zip(self.calls, functions, strict=True)):
            place = places.setdefault(_state_of(call, at), len(self._kept))
            if place == len(self._kept):
                self._kept.append((call, function))
            self._finished.append((place, function))

    @property
    def partial_types(self) -> list[pa.DataType]:
        """Of the columns of all partial results together."""
        return [kind for _, function in self._kept for kind in function.partial_types]

    def fold(
        self,
        state: Sequence[pa.Array],
        state_codes: Codes,
        arguments: Sequence[pa.Array],
        row_codes: Codes,
        groups: int,
    ) -> list[pa.Array]:
        """The partial results of all functions after new rows; see `Aggregate.fold`."""
        folded: list[pa.Array] = []
        for (call, function), partials in zip(self._kept, self._split(state), strict=True):
            rows = [arguments[at] for at in call.arguments]
            folded += function.fold(partials, state_codes, rows, row_codes, groups)
        return folded

    def merge(self, partials: Sequence[pa.Array], codes: Codes, groups: int) -> list[pa.Array]:
        """The partial results of all functions, combined; see `Aggregate.merge`."""
        merged: list[pa.Array] = []
        for (_, function), columns in zip(self._kept, self._split(partials), strict=True):
            merged += function.merge(columns, codes, groups)
        return merged

    def finish(self, partials: Sequence[pa.Array], groups: int) -> tuple[list[pa.Array], pa.Array]:
        """The result columns, and per result what went wrong with it; see `AggregateCalls.results`."""
        parts = self._split(partials)
        return self.results([function.finish(parts[place]) for place, function in self._finished], groups)

    def _split(self, columns: Sequence[pa.Array]) -> list[Partials]:
        parts, first = [], 0
        for _, function in self._kept:
            end = first + len(function.partial_types)
            parts.append(list(columns[first:end]))
            first = end
        return parts


_SHARED_STATES = {
    **dict.fromkeys(("stddev", "variance"), "sample"),
    **dict.fromkeys(("stddev_pop", "var_pop"), "population"),
    **{name: name for name in ("percentile", "approx_percentile", "most_frequent")},
}
"""Function -> name of its partial results. Calls with the same name and arguments share them."""


def _state_of(call: AggregateCall, at: int) -> tuple[object, ...]:
    """Return the key of the partial results of call number `at`."""
    shared = _SHARED_STATES.get(call.function)
    return ("alone", at) if shared is None else (shared, call.arguments)


def _function_of(call: AggregateCall) -> Aggregate:
    match call.function:
        case "count":
            return Count()
        case "min" | "max":
            return Extreme(call.argument_type, is_least=call.function == "min")
        case "stddev_pop" | "var_pop":
            return Spread(is_deviation=call.function == "stddev_pop")
        case "stddev" | "variance":
            return Spread(is_deviation=call.function == "stddev", is_sample=True)
        case "first" | "last" | "min_by" | "max_by":
            return Chosen(call.function, call.argument_types)
        case "count_distinct":
            return Distinct(call.argument_type)
        case "approx_count_distinct":
            return Cardinality()
        case "percentile" | "approx_percentile":
            return Percentile(call.share, is_exact=call.function == "percentile")
        case "collect_list" | "top_n" | "bottom_n" | "top_n_by" | "bottom_n_by":
            return Ranked(call.function, call.argument_types, int(call.numbers[0]))
        case "most_frequent":
            return MostFrequent(call.argument_type, int(call.numbers[0]))
        case "histogram":
            return Histogram(call.numbers)
    is_average = call.function == "avg"
    if call.argument_type == "double":
        return DoubleSum(is_average=is_average)
    return ExactSum(call.argument_type, call.type, is_average=is_average)


def _whole_sums(values: Whole, codes: Codes, groups: int) -> Whole:
    """Exact sums. Through doubles where they hold every sum, which is several times faster than adding whole numbers."""
    if len(values) <= _FOLD_ROWS_MAX and (
        not len(values) or (values.max() <= _LIMB_MASK and values.min() >= -(1 << 31))
    ):
        return np.bincount(codes, weights=values, minlength=groups).astype(np.int64)
    sums = np.zeros(groups, np.int64)
    np.add.at(sums, codes, values)
    return sums


def _decimal_halves(array: pa.Array) -> tuple[Whole, Whole]:
    """The lower and the higher 64 bits of each decimal's unscaled number; 0 where there is none."""
    words = np.frombuffer(array.buffers()[1], np.int64)[2 * array.offset : 2 * (array.offset + len(array))].reshape(
        -1, 2
    )
    if array.null_count:
        words = np.where(is_valid(array)[:, None], words, 0)
    return words[:, 0], words[:, 1]
