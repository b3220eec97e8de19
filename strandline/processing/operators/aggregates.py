"""Aggregate functions as folds over columns: partial results are columns too, so they can be kept, merged and finished.

Order contract. `fold` takes a group's partial result first and then its new rows in their order; sums of doubles are strict left
folds (`numpy.bincount` adds one by one, from first to last), so however rows are cut into calls, the bits are the same.
Whole numbers and decimals are summed exactly and have no order. `merge` combines several partial results of a group in the order
of their rows. Nothing here is lost silently: a sum that does not fit its type is marked as an overflow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp

from strandline.processing.operators.casting import (
    EXACT,
    arrow_type,
    cast,
    decimal_digits,
    is_decimal,
    rounded_decimals,
)
from strandline.processing.operators.evaluation import ColumnExpression
from strandline.processing.operators.keys import Codes
from strandline.processing.pipelines.expressions import type_of
from strandline.processing.pipelines.stages import Column

Doubles = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Partials = list[pa.Array]
"""The columns of an aggregate's partial results, one row a group."""

_LIMB_BITS = 32
_LIMB_MASK = (1 << _LIMB_BITS) - 1
_FOLD_ROWS_MAX = 1 << 20
"""So many numbers below 2**32 are summed exactly in the 53 bits of a double."""


@dataclass(frozen=True)
class Finished:
    """An aggregate's values, one a group."""

    values: pa.Array
    overflows: npt.NDArray[np.bool_] | None = None
    """The groups whose value is null because it does not fit its type."""


class Aggregate(ABC):
    """One aggregate function of one argument."""

    partial_types: tuple[pa.DataType, ...]

    @abstractmethod
    def fold(
        self, state: Partials, state_codes: Codes, rows: pa.Array | None, row_codes: Codes, groups: int
    ) -> Partials:
        """The partial results of `groups` groups: each one's row of `state`, if it has one, and then its rows in order.

        `rows` is the argument's value for each row; None where the function has no argument.
        """

    @abstractmethod
    def merge(self, partials: Partials, codes: Codes, groups: int) -> Partials:
        """Combine the partial results of each group, in the order of their rows."""

    @abstractmethod
    def finish(self, partials: Partials) -> Finished:
        """The values."""


class _Mergeable(Aggregate):
    """A function whose row is a partial result of its own: to fold is to merge."""

    @abstractmethod
    def lift(self, rows: pa.Array | None, count: int) -> Partials:
        """Each row as a partial result."""

    def fold(
        self, state: Partials, state_codes: Codes, rows: pa.Array | None, row_codes: Codes, groups: int
    ) -> Partials:
        lifted = self.lift(rows, len(row_codes))
        joined = [pa.concat_arrays([old, new]) for old, new in zip(state, lifted, strict=True)]
        return self.merge(joined, np.concatenate([state_codes, row_codes]), groups)


class Count(_Mergeable):
    """Rows, or values that are not null."""

    partial_types = (pa.int64(),)

    def lift(self, rows: pa.Array | None, count: int) -> Partials:
        ones = (
            np.ones(count, np.int64)
            if rows is None
            else rows.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
        )
        return [pa.array(ones)]

    def merge(self, partials: Partials, codes: Codes, groups: int) -> Partials:
        return [pa.array(_whole_sums(_numpy(partials[0]), codes, groups))]

    def finish(self, partials: Partials) -> Finished:
        return Finished(partials[0])


class DoubleSum(_Mergeable):
    """A strict left fold; `is_average` divides it by the number of values."""

    partial_types = (pa.int64(), pa.float64())

    def __init__(self, *, is_average: bool) -> None:
        self._is_average = is_average

    def lift(self, rows: pa.Array | None, count: int) -> Partials:
        assert rows is not None
        return [pa.array(rows.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)), rows.fill_null(0.0)]

    def merge(self, partials: Partials, codes: Codes, groups: int) -> Partials:
        counts = _whole_sums(_numpy(partials[0]), codes, groups)
        return [pa.array(counts), pa.array(np.bincount(codes, weights=_numpy(partials[1]), minlength=groups))]

    def finish(self, partials: Partials) -> Finished:
        counts, sums = _numpy(partials[0]), _numpy(partials[1])
        with np.errstate(all="ignore"):
            values = sums / counts if self._is_average else sums
        return Finished(pa.array(values, mask=counts == 0))


class ExactSum(_Mergeable):
    """The exact sum of whole numbers or decimals, kept as limbs of 32 bits, the highest with the sign."""

    def __init__(self, argument: str, result: str, *, is_average: bool) -> None:
        self._is_decimal = is_decimal(argument)
        self._scale = decimal_digits(argument)[1] if self._is_decimal else 0
        self._argument = argument
        self._result = result
        self._is_average = is_average
        self._limbs = 4 if self._is_decimal else 2
        self.partial_types = (pa.int64(),) * (1 + self._limbs)

    def lift(self, rows: pa.Array | None, count: int) -> Partials:
        assert rows is not None
        valid = rows.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
        if self._is_decimal:
            low, high = _decimal_halves(rows)
            words = [low & _LIMB_MASK, low >> _LIMB_BITS & _LIMB_MASK, high & _LIMB_MASK, high >> _LIMB_BITS]
        else:
            numbers = _numpy(rows.fill_null(0)).astype(np.int64)
            words = [numbers & _LIMB_MASK, numbers >> _LIMB_BITS]
        return [pa.array(valid), *map(pa.array, words)]

    def merge(self, partials: Partials, codes: Codes, groups: int) -> Partials:
        columns = [_whole_sums(_numpy(column), codes, groups) for column in partials]
        for at in range(1, self._limbs):  # carry, so that every limb but the highest is small again
            columns[at + 1] += columns[at] >> _LIMB_BITS
            columns[at] &= _LIMB_MASK
        return [pa.array(column) for column in columns]

    def finish(self, partials: Partials) -> Finished:
        counts = _numpy(partials[0])
        if not self._is_decimal:
            low, high = _numpy(partials[1]), _numpy(partials[2])
            if self._is_average:
                with np.errstate(all="ignore"):
                    averages = self._whole_totals(low, high) / counts
                return Finished(pa.array(averages, mask=counts == 0))
            fits = (high >= -(1 << 31)) & (high < 1 << 31)
            sums = np.where(fits, (high << _LIMB_BITS) + low, 0)
            return Finished(pa.array(sums, mask=(counts == 0) | ~fits), (counts > 0) & ~fits)
        totals = self._decimal_totals(partials)
        if self._is_average:
            totals = [
                None if total is None else EXACT.divide(total, Decimal(count))
                for total, count in zip(totals, counts.tolist(), strict=True)
            ]
        values = rounded_decimals(totals, arrow_type(self._result))
        return Finished(values, values.is_null().to_numpy(zero_copy_only=False) & (counts > 0))

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


class Extreme(_Mergeable):
    """The least or the greatest value; not a number is the greatest double."""

    def __init__(self, argument: str, *, is_least: bool) -> None:
        self._type = arrow_type(argument)
        self._is_least = is_least
        self.partial_types = (self._type,)

    def lift(self, rows: pa.Array | None, count: int) -> Partials:
        assert rows is not None
        return [rows]

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
        places[_numpy(grouped["code"].combine_chunks())] = np.arange(grouped.num_rows)
        taken = grouped[f"value_{function}"].combine_chunks().take(pa.array(places, mask=places < 0))
        return [taken.cast(self._type)]

    def _merge_doubles(self, values: pa.Array, codes: Codes, groups: int) -> pa.Array:
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        numbers, kept = _numpy(values.fill_null(0.0))[valid], codes[valid]
        result = np.full(groups, np.nan if self._is_least else -np.inf)
        with np.errstate(all="ignore"):
            (np.fmin if self._is_least else np.maximum).at(result, kept, numbers)
        return pa.array(result, mask=np.bincount(kept, minlength=groups) == 0)

    def finish(self, partials: Partials) -> Finished:
        return Finished(partials[0])


class Spread(Aggregate):
    """The population's variance, or its square root: sums of the differences from each group's first value and of their squares.

    The first value of a group is where its log begins, so it does not depend on slicing. Partial results are combined by Chan,
    Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
    """

    partial_types = (pa.int64(), pa.float64(), pa.float64(), pa.float64())

    def __init__(self, *, is_deviation: bool) -> None:
        self._is_deviation = is_deviation

    def fold(
        self, state: Partials, state_codes: Codes, rows: pa.Array | None, row_codes: Codes, groups: int
    ) -> Partials:
        assert rows is not None
        valid = rows.is_valid().to_numpy(zero_copy_only=False)
        values, codes = _numpy(rows.fill_null(0.0))[valid], row_codes[valid]
        counts, origins, sums, squares = (np.zeros(groups, kind) for kind in (np.int64, float, float, float))
        for into, column in zip((counts, origins, sums, squares), state, strict=True):
            into[state_codes] = _numpy(column)
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
        counts, origins, sums, squares = (_numpy(column) for column in partials)
        total = [np.zeros(groups, kind) for kind in (np.int64, float, float, float)]
        n, origin, s, q = total
        order = np.argsort(codes, kind="stable")
        places = np.arange(len(codes)) - np.searchsorted(codes[order], codes[order], side="left")
        for place in range(
            int(places.max()) + 1 if len(places) else 0
        ):  # the first partial result of each group, the second ...
            rows = order[places == place]
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

    def finish(self, partials: Partials) -> Finished:
        counts, _, sums, squares = (_numpy(column) for column in partials)
        with np.errstate(all="ignore"):
            variance = np.maximum(squares / counts - (sums / counts) ** 2, 0.0)
            variance[(counts == 1) & np.isfinite(sums)] = 0.0
            values = np.sqrt(variance) if self._is_deviation else variance
        return Finished(pa.array(values, mask=counts == 0))


@dataclass(frozen=True)
class _Call:
    """One aggregate function with its argument, as it stands in one or more of a stage's expressions."""

    sql: str
    type: str
    argument: ColumnExpression | None
    argument_type: str
    aggregate: Aggregate


class StageAggregates:
    """All aggregates of one window stage: what is computed per row, kept per group, and finished per result.

    A function that stands in several expressions is computed once.
    """

    def __init__(self, stage: str, aggregates: Sequence[Column], types: dict[str, str]) -> None:
        self._stage = stage
        self._calls: list[_Call] = []
        self._columns = aggregates
        places: dict[str, int] = {}
        self._expressions: list[tuple[str, ColumnExpression, tuple[int, ...]]] = []
        for column in aggregates:
            tree = sqlglot.parse_one(column.sql, dialect="spark", into=exp.Condition)
            used: list[int] = []

            def replace(node: exp.Expr, used: list[int] = used) -> exp.Expr:
                if not isinstance(node, _FUNCTIONS):
                    return node
                sql = node.sql(dialect="spark", identify=True)
                if sql not in places:
                    places[sql] = len(self._calls)
                    self._calls.append(_call(node, sql, types))
                used.append(places[sql])
                return exp.column(_name(places[sql]), quoted=True)

            rest = tree.transform(replace)
            finished = {_name(at): call.type for at, call in enumerate(self._calls)}
            after = ColumnExpression(rest.sql(dialect="spark", identify=True), finished)
            self._expressions.append((column.name, after, tuple(used)))
        self.arguments = tuple(dict.fromkeys(call.argument.sql for call in self._calls if call.argument is not None))
        self._evaluations = {call.argument.sql: call.argument for call in self._calls if call.argument is not None}
        self._wanted = {call.argument.sql: call.argument_type for call in self._calls if call.argument is not None}

    @property
    def columns_read(self) -> tuple[str, ...]:
        """The input columns that the arguments read."""
        return tuple(dict.fromkeys(name for one in self._evaluations.values() for name in one.columns))

    @property
    def argument_types(self) -> tuple[pa.DataType, ...]:
        """Of the arguments' columns, in their order."""
        return tuple(arrow_type(self._wanted[sql]) for sql in self.arguments)

    @property
    def partial_types(self) -> list[pa.DataType]:
        """Of the columns of all partial results together."""
        return [kind for call in self._calls for kind in call.aggregate.partial_types]

    def evaluate_arguments(self, columns: dict[str, pa.Array], rows: int) -> list[pa.Array]:
        """Each argument's value for each row, in the order of `arguments`. Runs where records are decoded."""
        return [
            cast(self._evaluations[sql](columns, rows), self._evaluations[sql].type, self._wanted[sql])
            for sql in self.arguments
        ]

    def fold(
        self,
        state: Sequence[pa.Array],
        state_codes: Codes,
        arguments: Sequence[pa.Array],
        row_codes: Codes,
        groups: int,
    ) -> list[pa.Array]:
        """The partial results of all functions after new rows; see `Aggregate.fold`."""
        by_sql = dict(zip(self.arguments, arguments, strict=True))
        folded: list[pa.Array] = []
        for call, partials in self._split(state):
            rows = None if call.argument is None else by_sql[call.argument.sql]
            folded += call.aggregate.fold(partials, state_codes, rows, row_codes, groups)
        return folded

    def merge(self, partials: Sequence[pa.Array], codes: Codes, groups: int) -> list[pa.Array]:
        """The partial results of all functions, combined; see `Aggregate.merge`."""
        merged: list[pa.Array] = []
        for call, columns in self._split(partials):
            merged += call.aggregate.merge(columns, codes, groups)
        return merged

    def finish(self, partials: Sequence[pa.Array], groups: int) -> tuple[list[pa.Array], pa.Array]:
        """The result columns, and per result what went wrong with it (null where nothing did): a value that does not fit its
        type makes the result a dead letter, never a silent null."""
        finished = [call.aggregate.finish(columns) for call, columns in self._split(partials)]
        values = {_name(at): one.values for at, one in enumerate(finished)}
        problem = pa.nulls(groups, pa.string())
        results = []
        for (name, after, used), column in zip(self._expressions, self._columns, strict=True):
            results.append(cast(after(values, groups), after.type, column.type))
            for at in used:
                overflows = finished[at].overflows
                if overflows is not None and overflows.any():
                    text = f"{self._stage}.{name}: {self._calls[at].sql} does not fit into a {self._calls[at].type}"
                    problem = pc.coalesce(problem, pc.if_else(pa.array(overflows), text, pa.scalar(None, pa.string())))
        return results, problem

    def _split(self, columns: Sequence[pa.Array]) -> list[tuple[_Call, Partials]]:
        parts, first = [], 0
        for call in self._calls:
            end = first + len(call.aggregate.partial_types)
            parts.append((call, list(columns[first:end])))
            first = end
        return parts


_FUNCTIONS = (exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max, exp.StddevPop, exp.VariancePop)


def _call(node: exp.Expr, sql: str, types: dict[str, str]) -> _Call:
    result = type_of(node, types)
    if isinstance(node, exp.Count) and isinstance(node.this, exp.Star | exp.Literal):
        return _Call(sql, result, None, "", Count())
    argument = ColumnExpression(node.this.sql(dialect="spark", identify=True), types)
    found = argument.type
    aggregate: Aggregate
    if isinstance(node, exp.Count):
        return _Call(sql, result, argument, found, Count())
    if isinstance(node, exp.Min | exp.Max):
        return _Call(sql, result, argument, found, Extreme(found, is_least=isinstance(node, exp.Min)))
    if isinstance(node, exp.StddevPop | exp.VariancePop):
        return _Call(sql, result, argument, "double", Spread(is_deviation=isinstance(node, exp.StddevPop)))
    is_average = isinstance(node, exp.Avg)
    if found == "double":
        aggregate = DoubleSum(is_average=is_average)
    else:
        found = found if is_decimal(found) else "long"
        aggregate = ExactSum(found, result, is_average=is_average)
    return _Call(sql, result, argument, found, aggregate)


def _name(at: int) -> str:
    return f"aggregate_{at}"


def _numpy(array: pa.Array) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values


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
        words = np.where(array.is_valid().to_numpy(zero_copy_only=False)[:, None], words, 0)
    return words[:, 0], words[:, 1]
