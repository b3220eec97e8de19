"""`lag`, `current`, `delta`, `increase`, `rate`, and `duration`: a record compared with the record before it.

All functions use the latest record of a window, and the record right before it. Records are ordered by event time; records of
one time by their order in the log. A null is a value here: the record before counts even if its argument is null.

In a window of the kind `previous`, these two are a record and the record of its key before it. In all other windows, `increase`,
`rate`, and `duration` sum over all records of the window, each with the record before it, which can be in an earlier window. See
`AggregateFunction.across_windows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.field_types import PRECISION_MAX, WHOLE_RANGES, decimal_digits, decimal_type, is_decimal
from strandline.core.times.durations import parse_duration_ms
from strandline.processing.aggregates.contract import (
    AcrossWindows,
    AggregateCall,
    AggregateFunction,
    AuditQuery,
    AuditRows,
    CallDocs,
    Constant,
    Parameters,
    require_number,
)
from strandline.processing.aggregates.kernel import CallValues, Kernel, Mergeable, Partials
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.codes import Codes
from strandline.processing.columns.values import is_valid, numpy_of

_SECOND_US = 1_000_000


class LastTwo(Mergeable):
    """The partial result is the latest row and the row before it: time and value of each. A time is null if there is no row."""

    def __init__(self, call: AggregateCall) -> None:
        value, _ = map(arrow_type, call.argument_types)
        self._call = call
        self.partial_types = (pa.int64(), value, pa.int64(), value)

    def lift(self, arguments: Sequence[pa.Array], count: int) -> Partials:
        values, times = arguments
        return [pa.nulls(count, pa.int64()), pa.nulls(count, values.type), times, values]

    def merge(self, partials: Partials, codes: Codes, groups: int) -> Partials:
        # The earlier row of each partial result, then the later one: the row at 2 * i and the row at 2 * i + 1.
        count = len(codes)
        times = np.empty(2 * count, np.int64)
        is_there = np.empty(2 * count, np.bool_)
        for at in range(2):
            times[at::2] = numpy_of(partials[2 * at].fill_null(0))
            is_there[at::2] = is_valid(partials[2 * at])
        rows = np.flatnonzero(is_there)
        group = codes[rows // 2]
        order = np.lexsort((times[rows], group))  # stable, so rows of one time stay in their order
        rows, group = rows[order], group[order]
        is_last = np.append(group[1:] != group[:-1], np.ones(min(len(group), 1), np.bool_))
        last = np.flatnonzero(is_last)
        has_two = (last > 0) & (group[last - 1] == group[last])
        chosen = np.full((2, groups), -1, np.int64)
        chosen[1, group[last]] = rows[last]
        chosen[0, group[last[has_two]]] = rows[last[has_two] - 1]
        both = pa.concat_arrays([partials[1], partials[3]])
        found: Partials = []
        for one in chosen:
            is_null = one < 0
            row = np.where(is_null, 0, one)
            found.append(pa.array(times[row] if len(times) else row, mask=is_null))
            found.append(both.take(pa.array(row // 2 + count * (row % 2), mask=is_null)))
        return found

    def finish(self, partials: Partials) -> CallValues:
        function = self._call.function
        assert isinstance(function, Consecutive), "the kernel is of such a function"
        return function.value(self._call, *partials)


class Consecutive(AggregateFunction):
    """A function of the latest row and the row before it."""

    is_ordered = True

    def __init__(self, name: str, *names_elsewhere: str, docs: CallDocs) -> None:
        self.name = name
        self.names_elsewhere = names_elsewhere
        self.docs = (docs,)
        self.call = docs.call

    def kernel(self, call: AggregateCall) -> Kernel:
        return LastTwo(call)

    def value(
        self, call: AggregateCall, time_before: pa.Array, before: pa.Array, time: pa.Array, value: pa.Array
    ) -> CallValues:
        """Return the value of each group."""
        raise NotImplementedError

    def audit_query(self, call: AggregateCall, rows: AuditRows) -> AuditQuery:
        value, time = map(rows.argument, call.arguments)
        number = f"row_number() OVER (PARTITION BY {rows.group} ORDER BY {rows.ordered(time)}) AS row_number_by_time"
        # The latest row first.
        two = f"arg_max(struct_pack(v := {value}, t := {time}), row_number_by_time, 2)"
        return AuditQuery((self.audit_sql(call, f"{two}[1]", f"{two}[2]"),), (number,))

    def audit_sql(self, call: AggregateCall, last: str, before: str) -> str:
        """Return the value in SQL. `last`, `before`: the two rows, with the members v and t."""
        raise NotImplementedError


class OneOfTwo(Consecutive):
    """`lag` and `current`: the value of one of the two rows."""

    accepts_null = True

    def result_type(self, types: tuple[str, ...]) -> str:
        return types[0]

    def value(
        self, call: AggregateCall, time_before: pa.Array, before: pa.Array, time: pa.Array, value: pa.Array
    ) -> CallValues:
        return CallValues(before if self.name == "lag" else value)

    def audit_sql(self, call: AggregateCall, last: str, before: str) -> str:
        return f"({before if self.name == 'lag' else last}).v"


class Difference(Consecutive):
    """`delta`: the latest value minus the value before it. `increase`: the same for a counter; if the latest value is
    lower, the counter has restarted at 0, so the increase is the latest value.
    """

    def __init__(self, name: str, *names_elsewhere: str, docs: CallDocs) -> None:
        super().__init__(name, *names_elsewhere, docs=docs)
        self._is_counter = name == "increase"
        self.constants = (0, 1) if self._is_counter else (0,)

    def parameters(self, written: tuple[Constant | None, ...]) -> Parameters:
        return within_of(written)

    def result_type(self, types: tuple[str, ...]) -> str:
        (kind,) = types
        require_number(kind)
        if not is_decimal(kind):
            return "double" if kind == "double" else "long"
        precision, scale = decimal_digits(kind)
        if precision == PRECISION_MAX:
            raise ValueError(f"a difference has one digit more, and {kind} has all digits; cast it to fewer digits")
        return decimal_type(precision + 1, scale)

    def row_types(self, types: tuple[str, ...]) -> tuple[str, ...]:
        (kind,) = types
        return (kind if kind == "double" or is_decimal(kind) else "long",)

    def value(
        self, call: AggregateCall, time_before: pa.Array, before: pa.Array, time: pa.Array, value: pa.Array
    ) -> CallValues:
        target = arrow_type(call.type)
        if self._is_counter:
            zero = pa.scalar(Decimal(0) if is_decimal(call.type) else 0, value.type)
            before = pc.if_else(pc.less(value, before), zero, before)
        if call.type != "long":
            return CallValues(pc.subtract(value, before).cast(target))
        wrapped = pc.subtract(value, before)
        one, other, result = (numpy_of(column.fill_null(0)) for column in (value, before, wrapped))
        overflows = ((one ^ other) & (one ^ result)) < 0
        return CallValues(pc.if_else(pa.array(overflows), pa.scalar(None, pa.int64()), wrapped), overflows)

    def audit_sql(self, call: AggregateCall, last: str, before: str) -> str:
        kind = "::HUGEINT" if call.type == "long" else ""
        one, other = f"({last}).v{kind}", f"({before}).v{kind}"
        if not self._is_counter:
            return f"{one} - {other}"
        return f"CASE WHEN {_sql_less(call, one, other)} THEN {one} ELSE {one} - {other} END"

    def audit_values(self, call: AggregateCall, columns: list[pa.Array]) -> CallValues:
        if call.type != "long":
            return CallValues(columns[0])
        least, greatest = (pa.scalar(limit).cast(pa.decimal128(38, 0)) for limit in WHOLE_RANGES["long"])
        found = columns[0].cast(pa.decimal128(38, 0))
        fits = pc.and_(pc.greater_equal(found, least), pc.less_equal(found, greatest))
        values = pc.if_else(fits, found, pa.scalar(None, found.type)).cast(pa.int64())
        return CallValues(values, pc.invert(fits).fill_null(False).to_numpy(zero_copy_only=False))

    def across_windows(self, arguments: tuple[str, ...], parameters: Parameters) -> AcrossWindows | None:
        if not self._is_counter:
            return None
        return AcrossWindows((f"increase({arguments[0]})",), "sum({0}){filter}", _within(parameters))


class Rate(Consecutive):
    """`rate`: the `increase` per second between the two rows."""

    constants = (0, 1)

    def parameters(self, written: tuple[Constant | None, ...]) -> Parameters:
        return within_of(written)

    def result_type(self, types: tuple[str, ...]) -> str:
        require_number(types[0])
        return "double"

    def row_types(self, types: tuple[str, ...]) -> tuple[str, ...]:
        return ("double",)

    def value(
        self, call: AggregateCall, time_before: pa.Array, before: pa.Array, time: pa.Array, value: pa.Array
    ) -> CallValues:
        increase = pc.subtract(value, pc.if_else(pc.less(value, before), 0.0, before))
        seconds = _seconds(time_before, time)
        return CallValues(
            pc.divide(increase, pc.if_else(pc.equal(seconds, 0.0), pa.scalar(None, pa.float64()), seconds))
        )

    def audit_sql(self, call: AggregateCall, last: str, before: str) -> str:
        one, other = f"({last}).v", f"({before}).v"
        increase = f"CASE WHEN {_sql_less(call, one, other)} THEN {one} ELSE {one} - {other} END"
        return f"({increase}) / nullif({_sql_seconds(last, before)}, 0::DOUBLE)"

    def across_windows(self, arguments: tuple[str, ...], parameters: Parameters) -> AcrossWindows | None:
        calls = f"increase({arguments[0]})", f"duration(({arguments[0]}) IS NOT NULL)"
        seconds = "sum(CASE WHEN {0} IS NOT NULL THEN {1} END){filter}"
        rate = f"CASE WHEN {seconds} > 0 THEN sum({{0}}){{filter}} / {seconds} END"
        return AcrossWindows(calls, f"CAST({rate} AS DOUBLE)", _within(parameters))


class Duration(Consecutive):
    """`duration`: seconds from the row before to the latest row if the condition is true for the row before, otherwise 0."""

    constants = (0, 1)

    def parameters(self, written: tuple[Constant | None, ...]) -> Parameters:
        return within_of(written)

    def result_type(self, types: tuple[str, ...]) -> str:
        if types[0] != "boolean":
            raise ValueError(f"expected a condition, as duration(state = 'on'), got a {types[0]}")
        return "double"

    def value(
        self, call: AggregateCall, time_before: pa.Array, before: pa.Array, time: pa.Array, value: pa.Array
    ) -> CallValues:
        return CallValues(pc.if_else(before, _seconds(time_before, time), 0.0))

    def audit_sql(self, call: AggregateCall, last: str, before: str) -> str:
        seconds = _sql_seconds(last, before)
        return f"CASE WHEN ({before}).v THEN {seconds} WHEN NOT ({before}).v THEN 0::DOUBLE END"

    def across_windows(self, arguments: tuple[str, ...], parameters: Parameters) -> AcrossWindows | None:
        return AcrossWindows((f"duration({arguments[0]})",), "sum({0}){filter}", _within(parameters))


def within_of(written: tuple[Constant | None, ...]) -> Parameters:
    """Return the maximum time between two records in ms, if it is written out."""
    if not written:
        return ()
    (text,) = written
    try:
        within_ms = parse_duration_ms(text) if isinstance(text, str) else 0
    except ValueError as error:
        raise ValueError(f"{error} (the maximum time between two records)") from error
    if not within_ms:
        raise ValueError("expected the maximum time between two records as the second argument, as '2h'")
    return (within_ms,)


def _within(parameters: Parameters) -> int | None:
    return parameters[0] if parameters else None


def _seconds(before: pa.Array, after: pa.Array) -> pa.Array:
    return pc.divide(pc.subtract(after, before).cast(pa.float64(), safe=False), float(_SECOND_US))


def _sql_less(call: AggregateCall, one: str, other: str) -> str:
    """Return `one < other` in SQL. False for NaN, which DuckDB would compare as the largest number."""
    return f"{one} < {other}" + (f" AND NOT isnan({other})" if call.argument_type == "double" else "")


def _sql_seconds(last: str, before: str) -> str:
    return f"((({last}).t - ({before}).t)::DOUBLE / {_SECOND_US}::DOUBLE)"


_LIMITS = (
    "The state has each row of a key until the watermark has passed it, and the last row of the key for the maximum time "
    "between two records."
)
_WITHIN = ", and optionally the maximum time between two records, as `'6h'`"
_WITHIN_LIMITS = (
    "The maximum time between two records is one hour, or the size of the window if that is longer. The second argument sets "
    "another time. After a longer gap, the first record has no record before it: the gap isn't counted, and there is no dead "
    f"letter. {_LIMITS}"
)
_NULLS = "A row whose argument is null isn't ignored: it is the row before the next one."
_NULL_DIFFERENCES = (
    f"{_NULLS} The differences to it are null, and aren't counted: the values 100, null, 110, 111 have an `increase` "
    "of 1."
)
_NULL_STATES = f"{_NULLS} The time after a row whose condition is null isn't counted."
LAG = OneOfTwo(
    "lag",
    "previous",
    docs=CallDocs(
        "lag(x)",
        "any type",
        "that of `x`",
        "`x` of the record before the latest one; null if there is none",
        "lag(state)",
        "on",
        _LIMITS,
        _NULLS,
    ),
)
CURRENT = OneOfTwo(
    "current",
    docs=CallDocs(
        "current(x)",
        "any type",
        "that of `x`",
        "`x` of the latest record, even if it is null",
        "current(state)",
        "off",
        _LIMITS,
        _NULLS,
    ),
)
DELTA = Difference(
    "delta",
    "diff",
    "difference",
    docs=CallDocs(
        "delta(x)",
        "numbers",
        "`long`, `double`, `decimal(p+1,s)`",
        "`current(x) - lag(x)`; null if one of them is null",
        "delta(level)",
        None,
        _LIMITS,
        _NULLS,
    ),
)
INCREASE = Difference(
    "increase",
    "non_negative_difference",
    docs=CallDocs(
        "increase(x)",
        f"numbers{_WITHIN}",
        "`long`, `double`, `decimal(p+11,s)`",
        "what a [counter](counters.md) has counted: the sum of `delta(x)`, and of `x` after a reset",
        "increase(flow)",
        6.0,
        _WITHIN_LIMITS,
        _NULL_DIFFERENCES,
    ),
)
RATE = Rate(
    "rate",
    "irate",
    "non_negative_derivative",
    docs=CallDocs(
        "rate(x)",
        f"numbers{_WITHIN}",
        "double",
        "[increase(x)](counters.md) per second",
        "rate(flow)",
        0.4,
        _WITHIN_LIMITS,
        _NULL_DIFFERENCES,
    ),
)
DURATION = Duration(
    "duration",
    "state_duration",
    docs=CallDocs(
        "duration(c)",
        f"a condition{_WITHIN}",
        "double",
        "seconds in which `c` was true, each time until the [next record](counters.md)",
        "duration(state = 'on')",
        30.0,
        _WITHIN_LIMITS,
        _NULL_STATES,
    ),
)
