"""`stddev`, `variance`, `stddev_pop`, and `var_pop`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

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
from strandline.processing.aggregates.kernel import (
    CallValues,
    Kernel,
    Partials,
)
from strandline.processing.columns.codes import Codes
from strandline.processing.columns.values import is_valid, numpy_of


class Variance(AggregateFunction):
    def __init__(
        self,
        name: str,
        *other_names: str,
        names_elsewhere: tuple[str, ...] = (),
        is_deviation: bool = False,
        is_sample: bool = False,
        docs: CallDocs,
    ) -> None:
        self.name = name
        self.call = f"{name}(x)"
        self.other_names = other_names
        self.names_elsewhere = names_elsewhere
        self.docs = (docs,)
        self._is_deviation = is_deviation
        self._is_sample = is_sample

    def result_type(self, types: tuple[str, ...]) -> str:
        require_number(types[0])
        return "double"

    def row_types(self, types: tuple[str, ...]) -> tuple[str, ...]:
        return ("double",)

    def kernel(self, call: AggregateCall) -> Kernel:
        return Spread(is_deviation=self._is_deviation, is_sample=self._is_sample)

    def shared_state(self, call: AggregateCall) -> Hashable:
        return "sample" if self._is_sample else "population"

    def audit_query(self, call: AggregateCall, rows: AuditRows) -> AuditQuery:
        argument = rows.argument(call.arguments[0])
        # Near numbers lose no digits if the least number is subtracted from each.
        shifted = f"shifted_{argument}"
        function = ("stddev_" if self._is_deviation else "var_") + ("samp" if self._is_sample else "pop")
        value = (
            f"CASE WHEN count({shifted}) < {2 if self._is_sample else 1} THEN NULL "
            f"WHEN bool_or(NOT isfinite({shifted})) THEN 'nan'::DOUBLE ELSE {function}({shifted}) END"
        )
        return AuditQuery((value,), (f"{argument} - min({argument}) OVER (PARTITION BY {rows.group}) AS {shifted}",))


class Spread(Kernel):
    """A variance, or its square root, from sums over the differences from the first value of each group.

    The first value of a group is its first value in the log, so it doesn't depend on slicing. With n values, their differences d
    from the first one, and S(x) as the sum of x:

    - The variance of the population is S(d*d)/n - (S(d)/n)**2.
    - The variance of the sample is (S(d*d) - S(d)*S(d)/n)/(n - 1). A single value has none.

    Partial results are combined as in Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances" (1979), who call this shifted data. It is numerically sound: the first value is one of the n values, so it is
    within sqrt(n) standard deviations of the mean. At most about as many digits are lost as n has.
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
        # The row of the state comes first, so the fold continues where it ended.
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


_SAMPLE = "of a sample, divided by n - 1; null for a single value"
_POPULATION = "of the whole population, divided by n"
DEVIATION = Variance(
    "stddev",
    "stddev_samp",
    "stdev",
    names_elsewhere=("std",),
    is_deviation=True,
    is_sample=True,
    docs=CallDocs(
        "stddev(x)",
        "numbers",
        "double",
        f"the standard deviation {_SAMPLE}. Also `stddev_samp`",
        "stddev(level)",
        8.539125638299666,
    ),
)
VARIANCE = Variance(
    "variance",
    "var_samp",
    "variance_samp",
    is_sample=True,
    docs=CallDocs(
        "variance(x)",
        "numbers",
        "double",
        f"the variance {_SAMPLE}. Also `var_samp`",
        "variance(flow)",
        6.666666666666667,
    ),
)
POPULATION_DEVIATION = Variance(
    "stddev_pop",
    is_deviation=True,
    docs=CallDocs(
        "stddev_pop(x)",
        "numbers",
        "double",
        f"the standard deviation {_POPULATION}",
        "stddev_pop(flow)",
        2.23606797749979,
    ),
)
POPULATION_VARIANCE = Variance(
    "var_pop",
    "variance_pop",
    docs=CallDocs("var_pop(x)", "numbers", "double", f"the variance {_POPULATION}", "var_pop(flow)", 5.0),
)
