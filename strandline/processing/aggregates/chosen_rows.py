"""`first`, `last`, `min_by`, and `max_by`: a value of one row of a window.

Which row is chosen depends on the rows and their positions in the log, not on how they are divided into slices:

- `first(x)` and `last(x)`: of the rows in which x isn't null the earliest, or latest, by event time. If several rows have the
  same time, the first, or last, in their order.
- `min_by(x, y)` and `max_by(x, y)`: of the rows in which y isn't null the row with the least, or greatest, y. If several rows
  have it, the earliest by event time, and of these the first in their order.

The order is that of the operator: partitions by their number, and within a partition by offset.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.aggregates.contract import (
    AggregateCall,
    AggregateFunction,
    AuditQuery,
    AuditRows,
    CallDocs,
    require_order,
)
from strandline.processing.aggregates.kernel import (
    CallValues,
    Kernel,
    Mergeable,
    Partials,
)
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.codes import Codes
from strandline.processing.columns.values import is_valid, ranks_of


class ChosenRow(AggregateFunction):
    is_ordered = True

    def __init__(self, name: str, *other_names: str, names_elsewhere: tuple[str, ...] = (), docs: CallDocs) -> None:
        self.name = name
        self.other_names = other_names
        self.names_elsewhere = names_elsewhere
        self.docs = (docs,)
        self.call = docs.call
        self.columns = 2 if name.endswith("_by") else 1

    def result_type(self, types: tuple[str, ...]) -> str:
        for kind in types[1:]:
            require_order(kind)
        return types[0]

    def kernel(self, call: AggregateCall) -> Kernel:
        return Chosen(self.name, call.argument_types)

    def audit_query(self, call: AggregateCall, rows: AuditRows) -> AuditQuery:
        value, *by = map(rows.argument, call.arguments)
        # In a struct, because the value can be null.
        returned, chosen_by = f"struct_pack(v := {value})", by[0]
        if self.name in ("first", "last"):
            function = "arg_min" if self.name == "first" else "arg_max"
            chosen = f"{function}({returned}, row_number_by_time) FILTER (WHERE {value} IS NOT NULL)"
        elif self.name == "min_by":
            chosen = f"arg_min({returned}, row({chosen_by}, row_number_by_time)) FILTER (WHERE {chosen_by} IS NOT NULL)"
        else:
            chosen = (
                f"arg_max({returned}, row({chosen_by}, -row_number_by_time)) FILTER (WHERE {chosen_by} IS NOT NULL)"
            )
        number = f"row_number() OVER (PARTITION BY {rows.group} ORDER BY {rows.ordered(by[-1])}) AS row_number_by_time"
        return AuditQuery((chosen,), (number,))

    def audit_values(self, call: AggregateCall, columns: list[pa.Array]) -> CallValues:
        return CallValues(pc.struct_field(columns[0], [0]))


_LEAST, _GREATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Chosen(Mergeable):
    """The partial result is a row: the values by which it is chosen, and the value.

    If the first column is null, there is no row yet."""

    def __init__(self, function: str, argument_types: Sequence[str]) -> None:
        """`argument_types`: types of x, of y if the function has a y, and of the event time."""
        value, *by = map(arrow_type, argument_types)
        self.partial_types = (*by, value)
        self._is_by_time = len(by) == 1
        self._is_last = function == "last"
        self._are_greatest = [self._is_last] if self._is_by_time else [function == "max_by", False]

    def lift(self, arguments: Sequence[pa.Array], count: int) -> Partials:
        values, *by = arguments
        if self._is_by_time:
            by = [pc.if_else(values.is_valid(), by[0], pa.scalar(None, by[0].type))]
        return [*by, values]

    def merge(self, partials: Partials, codes: Codes, groups: int) -> Partials:
        places = np.flatnonzero(is_valid(partials[0]))
        codes = codes[places]
        for column, is_greatest in zip(partials, self._are_greatest, strict=False):
            ranks = ranks_of(column.take(pa.array(places)))
            best = np.full(groups, _LEAST if is_greatest else _GREATEST)
            (np.maximum if is_greatest else np.minimum).at(best, codes, ranks)
            kept = ranks == best[codes]
            places, codes = places[kept], codes[kept]
        chosen = np.full(groups, -1, np.int64)
        # If several rows are assigned to one index, the last one counts.
        if self._is_last:
            chosen[codes] = places
        else:
            chosen[codes[::-1]] = places[::-1]
        taken = pa.array(chosen, mask=chosen < 0)
        return [column.take(taken) for column in partials]

    def finish(self, partials: Partials) -> CallValues:
        return CallValues(partials[-1])


FIRST = ChosenRow(
    "first",
    names_elsewhere=("first_value",),
    docs=CallDocs(
        "first(x)",
        "any type",
        "that of `x`",
        "the value that is earliest by event time; if several have this time, the first in the log",
        "first(flow)",
        4.0,
    ),
)
LAST = ChosenRow(
    "last",
    names_elsewhere=("last_value",),
    docs=CallDocs(
        "last(x)",
        "any type",
        "that of `x`",
        "the value that is latest by event time; if several have this time, the last in the log",
        "last(flow)",
        10.0,
    ),
)
_NULLS = "Rows whose second argument is null are ignored."
MIN_BY = ChosenRow(
    "min_by",
    "arg_min",
    "argmin",
    docs=CallDocs(
        "min_by(x, y)",
        "any types, `y` no array and no struct",
        "that of `x`",
        "`x` of the row with the least `y`, also if `x` is null; of several rows the earliest by event time, then the first "
        "in the log",
        "min_by(state, flow)",
        "start",
        nulls=_NULLS,
    ),
)
MAX_BY = ChosenRow(
    "max_by",
    "arg_max",
    "argmax",
    docs=CallDocs(
        "max_by(x, y)",
        "any types, `y` no array and no struct",
        "that of `x`",
        "`x` of the row with the greatest `y`; otherwise as `min_by`",
        "max_by(level, flow)",
        None,
        nulls=_NULLS,
    ),
)
