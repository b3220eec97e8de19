"""The contract of an aggregate function.

The check of pipelines, the operators, the audit, the charts, and the docs use aggregates only through this contract.

A result must be a pure function of the rows of a window and of their order in the log. So a function must not read the clock,
random numbers, settings, or files, and its kernel must keep the order contract of `kernel`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from strandline.core.field_types import NULL, is_nested, is_number
from strandline.processing.aggregates.kernel import CallValues, Kernel

Constant = float | str | tuple["Constant | None", ...]
"""A number, a string, or an array of them that is written out in a call."""
Parameters = tuple[Any, ...]
"""Parameters of a call, as the function understands them. They must be hashable."""


@dataclass(frozen=True)
class CallDocs:
    """One form of a call, as the docs list it."""

    call: str
    """For example `percentile(x, p)`."""
    accepts: str
    """Types of the arguments."""
    returns: str
    """Type of the value. It is code if it is one word."""
    summary: str
    """The value, in one sentence without its period, with the value for windows without rows if it isn't null."""
    example: str
    """A call over the records of the docs."""
    value: object
    """Value of the example, as a document contains it."""
    limits: str = ""
    """Maximum state and the effect of exceeding it, in sentences. Empty if the state is a few numbers or one row."""
    nulls: str = ""
    """Effect of an argument that is null, in sentences. Empty if rows whose argument is null are ignored."""


@dataclass(frozen=True)
class AggregateCall:
    """A call of an aggregate function in one or more expressions of a stage."""

    function: AggregateFunction
    sql: str
    type: str
    """Type of the value."""
    arguments: tuple[int, ...]
    """Indices of the arguments that rows supply. For an ordered function, the last one is the event time in microseconds. Empty
    if the call counts all rows."""
    argument_types: tuple[str, ...]
    parameters: Parameters = ()
    """See `AggregateFunction.parameters`."""
    is_distinct: bool = False

    @property
    def argument_type(self) -> str:
        """Type of the first argument; empty if there is none."""
        return self.argument_types[0] if self.argument_types else ""


@dataclass(frozen=True)
class AuditRows:
    """The rows of the audit's query: one for each record or result in a window."""

    group: str
    """Columns that identify a window and key, separated by commas."""
    order: tuple[str, ...]
    """Columns by which rows of one event time are ordered. Only set if `needs_order` of a call of the stage is true."""

    def argument(self, index: int) -> str:
        """Return the column that contains this argument."""
        return argument_name(index)

    def ordered(self, *columns: str) -> str:
        """Return an ORDER BY list: these columns, and then the order of rows of one event time."""
        return ", ".join([*columns, *(f"{name} ASC NULLS LAST" for name in self.order)])


@dataclass(frozen=True)
class AuditColumn:
    """A column that Python computes for the rows of the audit's query, because SQL can't."""

    name: str
    type: pa.DataType
    argument: int
    """Index of the argument from which the column is computed."""
    compute: Callable[[pa.Array], pa.Array]


@dataclass(frozen=True)
class AuditQuery:
    """The parts of the audit's query for one call."""

    values: tuple[str, ...]
    """Expressions over a group of rows. `audit_values` receives a column for each."""
    row_columns: tuple[str, ...] = ()
    """Columns that each row gets before rows are grouped, each as `EXPRESSION AS NAME`. Calls with equal ones share them."""


@dataclass(frozen=True)
class AcrossWindows:
    """A value of a window that needs the record before each record, which can be in an earlier window."""

    calls: tuple[str, ...]
    """Calls for each record with the record of its key before it."""
    value: str
    """Aggregate over the values of these calls: an expression with `{0}` for the first call, and `{filter}` after each aggregate
    function."""
    within_ms: int | None
    """Maximum time between the two records. None if the call doesn't contain it."""


class AggregateFunction(ABC):
    """One aggregate function.

    An instance is a constant of its module. It is used in every process of a job and must not have a state.
    """

    # The call

    name: str
    """Name in expressions, in lower case."""
    other_names: tuple[str, ...] = ()
    """Other accepted names."""
    names_elsewhere: tuple[str, ...] = ()
    """Names of the function in other systems. They aren't accepted, but the message suggests this function."""
    call: str
    """An example of a call, for messages."""
    columns: int = 1
    """Number of arguments that rows supply. They are the first ones of a call."""
    constants: tuple[int, ...] = (0,)
    """Possible numbers of arguments after the columns, which must be written out."""
    accepts_all_rows: bool = False
    """True if `*`, or a constant, can replace the column. Then rows supply no argument."""
    accepts_distinct: bool = False
    """True if `distinct` is accepted before the column."""
    accepts_null: bool = False
    """True if a column can be the constant null."""
    is_ordered: bool = False
    """True if the value depends on the order of rows. Then the kernel gets the event time as an additional last argument."""
    is_hashed: bool = False
    """True if the kernel and the audit get hashes of the values instead of the values."""

    def parameters(self, written: tuple[Constant | None, ...]) -> Parameters:
        """Return the parameters of a call. `written`: the arguments after the columns; None for each that isn't written
        out.

        Raises ValueError if they can't be used. Its message follows the text of the call.
        """
        return ()

    @abstractmethod
    def result_type(self, types: tuple[str, ...]) -> str:
        """Return the type of the value. `types`: types of the columns. Raises ValueError for other types. Its message
        follows the text of the call.
        """

    def row_types(self, types: tuple[str, ...]) -> tuple[str, ...]:
        """Return the types to which the columns are cast for the kernel and the audit. A value without a counterpart is null."""
        return types

    def across_windows(self, arguments: tuple[str, ...], parameters: Parameters) -> AcrossWindows | None:
        """Return how the value follows from each record with the record before it. None if it depends only on the rows of the
        window. `arguments`: SQL of the columns."""
        return None

    # The operators

    @abstractmethod
    def kernel(self, call: AggregateCall) -> Kernel:
        """Return a new kernel for a call."""

    def shared_state(self, call: AggregateCall) -> Hashable:
        """Return a key of the partial results. Calls with an equal key share them, if their kernels fold and merge alike and
        their arguments are equal. None if they aren't shared."""
        return None

    # The audit. It computes the values again and must not share code with the kernel.

    @abstractmethod
    def audit_query(self, call: AggregateCall, rows: AuditRows) -> AuditQuery:
        """Return the parts of a DuckDB query that computes the value. `rows` contains timestamps as microseconds, and decimals as
        their unscaled values with the type decimal(38, 0)."""

    def audit_columns(self, call: AggregateCall) -> tuple[AuditColumn, ...]:
        """Return the columns that the query needs in addition to the arguments."""
        return ()

    def audit_values(self, call: AggregateCall, columns: list[pa.Array]) -> CallValues:
        """Return the value for each group. `columns`: results of `AuditQuery.values`. Values may have the types of `rows`."""
        return CallValues(columns[0])

    # The docs and the charts

    docs: tuple[CallDocs, ...]
    """All forms of a call. The page of the function is made from them, and a test computes their examples."""
    combined_by: Literal["sum", "min", "max"] | None = None
    """How a chart combines the values of successive windows into the value of all of them. None if that isn't possible."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


def argument_name(index: int) -> str:
    """Return the column of an argument in the rows of the audit's query."""
    return f"argument_{index}"


def require_number(kind: str) -> None:
    """Raise ValueError unless values of this type are numbers."""
    if not is_number(kind):
        raise ValueError(f"expected a number, got {with_article(kind)}")


def require_order(kind: str) -> None:
    """Raise ValueError unless values of this type can be compared."""
    if is_nested(kind):
        raise ValueError(f"{with_article(kind)} can't be compared; use a part of it that can")


def with_article(kind: str) -> str:
    """Return a type as a message shows it."""
    return kind if kind == NULL else f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def named(functions: Sequence[AggregateFunction]) -> dict[str, AggregateFunction]:
    """Return all names of the functions, with the function of each."""
    return {name: function for function in functions for name in (function.name, *function.other_names)}
