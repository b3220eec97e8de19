"""`min` and `max`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

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
from strandline.processing.columns.values import is_valid, numpy_of


class Extreme(Mergeable):
    """The minimum or the maximum. NaN is the largest double."""

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
        # The table has a row for each group with rows. Its value is null if all values of the group are null.
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


class LeastOrGreatest(AggregateFunction):
    accepts_null = True

    def __init__(self, name: Literal["min", "max"], *names_elsewhere: str, docs: CallDocs) -> None:
        self.name = name
        self.call = f"{name}(x)"
        self.names_elsewhere = names_elsewhere
        self.combined_by = name
        self.docs = (docs,)

    def result_type(self, types: tuple[str, ...]) -> str:
        require_order(types[0])
        return types[0]

    def kernel(self, call: AggregateCall) -> Kernel:
        return Extreme(call.argument_type, is_least=self.name == "min")

    def audit_query(self, call: AggregateCall, rows: AuditRows) -> AuditQuery:
        return AuditQuery((f"{self.name}({rows.argument(call.arguments[0])})",))


MINIMUM = LeastOrGreatest(
    "min",
    "bool_and",
    docs=CallDocs(
        "min(x)",
        "any type but arrays and structs",
        "that of `x`",
        "the least value; strings by their bytes",
        "min(state)",
        "off",
    ),
)
MAXIMUM = LeastOrGreatest(
    "max",
    "bool_or",
    docs=CallDocs(
        "max(x)",
        "any type but arrays and structs",
        "that of `x`",
        "the greatest value; strings by their bytes",
        "max(state)",
        "start",
    ),
)
