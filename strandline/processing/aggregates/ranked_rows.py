"""`collect_list`, `top_n`, `bottom_n`, `top_n_by`, and `bottom_n_by`: values of the first rows in an order.

`collect_list` is Spark's, with the bound that Spark lacks. `top_n` and `bottom_n` are Hazelcast's `topN` and `bottomN`. The name
`topk` is avoided: in one system it means the greatest values, in another the most frequent values.

The value depends on the rows and their positions in the log, not on how they are divided into slices:

- `collect_list(x, n)`: the rows in which x isn't null, earliest first by event time, then in their order.
- `top_n(x, n)` and `bottom_n(x, n)`: the greatest values first, or the least.
- `top_n_by(x, y, n)` and `bottom_n_by(x, y, n)`: x of the rows in which y isn't null, by y, then as `collect_list`.

A partial result contains at most the rows that a result can need: the first n rows of a part are all that the result can contain.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.field_types import (
    array_type,
)
from strandline.processing.aggregates.bounded_lists import list_length, require_element, require_rank
from strandline.processing.aggregates.contract import (
    AggregateCall,
    AggregateFunction,
    AuditQuery,
    AuditRows,
    CallDocs,
    Constant,
    Parameters,
)
from strandline.processing.aggregates.kernel import (
    CallValues,
    Collecting,
    Kernel,
    Partials,
    as_lists,
    first_of_each,
    flattened,
)
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.codes import Codes
from strandline.processing.columns.values import is_valid, ranks_of, with_one_zero


class RankedRows(AggregateFunction):
    constants = (1,)

    def __init__(self, name: str, names_elsewhere: tuple[str, ...] = (), *, docs: CallDocs) -> None:
        self.name = name
        self.names_elsewhere = names_elsewhere
        self.docs = (docs,)
        self.call = docs.call.replace("n)", "100)" if name == "collect_list" else "5)")
        self.columns = 2 if name.endswith("_by") else 1
        self.is_ordered = name == "collect_list" or name.endswith("_by")

    def parameters(self, written: tuple[Constant | None, ...]) -> Parameters:
        return (list_length(written[0]),)

    def result_type(self, types: tuple[str, ...]) -> str:
        require_element(types[0])
        if self.name != "collect_list":
            require_rank(types[-1])
        return array_type(types[0])

    def kernel(self, call: AggregateCall) -> Kernel:
        return Ranked(self.name, call.argument_types, call.parameters[0])

    def audit_query(self, call: AggregateCall, rows: AuditRows) -> AuditQuery:
        value, *by = map(rows.argument, call.arguments)
        chosen_by = by[0] if self.columns == 2 else value
        order = f"{chosen_by} {'DESC' if self.name.startswith('top_n') else 'ASC'} NULLS LAST"
        if self.name == "collect_list":
            order = f"{value} IS NULL"
        if self.is_ordered:
            order = rows.ordered(order, by[-1])
        rank = f"rank_of_{self.name}_{'_'.join(map(str, call.arguments))}"
        is_among = f"{rank} <= {call.parameters[0]} AND {chosen_by} IS NOT NULL"
        return AuditQuery(
            (f"list({value} ORDER BY {rank}) FILTER (WHERE {is_among})",),
            (f"row_number() OVER (PARTITION BY {rows.group} ORDER BY {order}) AS {rank}",),
        )

    def audit_values(self, call: AggregateCall, columns: list[pa.Array]) -> CallValues:
        return CallValues(pc.coalesce(columns[0], pa.scalar([], columns[0].type)))


class Ranked(Collecting):
    """The values of the first rows of each group in an order.

    The partial result is a list of these rows in that order. Each is a struct of the values that determine the order, and the
    value.
    """

    def __init__(self, function: str, argument_types: Sequence[str], count: int) -> None:
        """`argument_types`: type of x, of y if the function has a y, and of the event time if it determines the order."""
        kinds = list(map(arrow_type, argument_types))
        by = kinds[1:] or kinds
        self._is_of_itself = len(kinds) == 1
        self._count = count
        self._are_greatest = [function in ("top_n", "top_n_by")] + [False] * (len(by) - 1)
        fields = [pa.field(f"by_{at}", kind) for at, kind in enumerate(by)]
        self._row = pa.struct(fields if self._is_of_itself else [*fields, pa.field("value", kinds[0])])
        self._is_collected = function == "collect_list"
        self.partial_types = (pa.list_(self._row),)

    def fold(
        self, state: Partials, state_codes: Codes, arguments: Sequence[pa.Array], row_codes: Codes, groups: int
    ) -> Partials:
        value, *by = arguments
        columns = [with_one_zero(value)] if self._is_of_itself else [*by, value]
        # A null struct is a row that the function ignores.
        passed = ~is_valid(value if self._is_collected else columns[0])
        rows = pa.StructArray.from_arrays(columns, fields=list(self._row), mask=pa.array(passed))
        return self._combine_some(state, state_codes, rows, row_codes, groups)

    def combine(
        self, partials: Partials, codes: Codes, argument: pa.Array | None, row_codes: Codes, groups: int
    ) -> Partials:
        rows, group_of_row = flattened(partials[0], codes)
        if argument is not None:
            there = is_valid(argument)
            rows = pa.concat_arrays([rows, argument.filter(pa.array(there))])
            group_of_row = np.concatenate([group_of_row, row_codes[there]])
        keys = []
        for at, is_greatest in enumerate(self._are_greatest):
            ranks = ranks_of(rows.field(at))
            keys.append(~ranks if is_greatest else ranks)
        # The sort is stable, so rows that are equal in all values keep their order.
        order = np.lexsort((*reversed(keys), group_of_row))
        kept = order[first_of_each(group_of_row[order], self._count)]
        return [as_lists(rows.take(pa.array(kept)), group_of_row[kept], groups)]

    def finish(self, partials: Partials) -> CallValues:
        lists = partials[0]
        return CallValues(pa.ListArray.from_arrays(lists.offsets, lists.values.field(self._row.num_fields - 1)))


_NO_ROWS = "an empty array without rows"
_LIMITS = "The maximum length `n` is 1 to 1,000. The state has up to `n` values for each window, key, and partition."
COLLECT_LIST = RankedRows(
    "collect_list",
    docs=CallDocs(
        "collect_list(x, n)",
        "any type but arrays",
        "`array` of it",
        f"the values that aren't null, earliest first by event time, then in the order of the log; at most `n`; {_NO_ROWS}",
        "collect_list(flow, 3)",
        [4.0, 6.0, 8.0],
        _LIMITS,
    ),
)
TOP_N = RankedRows(
    "top_n",
    ("topk", "top_k"),
    docs=CallDocs(
        "top_n(x, n)",
        "any type but arrays and structs",
        "`array` of it",
        f"the `n` greatest values, the greatest first; {_NO_ROWS}",
        "top_n(flow, 2)",
        [10.0, 8.0],
        _LIMITS,
    ),
)
BOTTOM_N = RankedRows(
    "bottom_n",
    docs=CallDocs(
        "bottom_n(x, n)",
        "any type but arrays and structs",
        "`array` of it",
        f"the `n` least values, the least first; {_NO_ROWS}",
        "bottom_n(state, 2)",
        ["off", "on"],
        _LIMITS,
    ),
)
TOP_N_BY = RankedRows(
    "top_n_by",
    docs=CallDocs(
        "top_n_by(x, y, n)",
        "`x` no array, `y` no array and no struct",
        "`array` of `x`",
        "`x` of the `n` rows with the greatest `y`, also if `x` is null; of equal `y` the earliest row by event time, then the "
        f"first in the log; {_NO_ROWS}",
        "top_n_by(level, flow, 3)",
        [None, 25, 30],
        _LIMITS,
    ),
)
BOTTOM_N_BY = RankedRows(
    "bottom_n_by",
    docs=CallDocs(
        "bottom_n_by(x, y, n)",
        "`x` no array, `y` no array and no struct",
        "`array` of `x`",
        "`x` of the `n` rows with the least `y`; otherwise as `top_n_by`",
        "bottom_n_by(state, flow, 2)",
        ["start", "on"],
        _LIMITS,
    ),
)
