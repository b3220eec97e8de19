"""The contract of an operator that processes rows one by one, on columns: allowed changes, and reports of problems."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.record_headers import REASON_EXPRESSION
from strandline.processing.operators.lookups.lookup_table import LookupTable

Tables = Mapping[str, LookupTable]
"""Lookup -> its effective rows."""
NO_TABLES: Tables = {}
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RowProblem:
    """A row for which a step has no value although all inputs exist, or for which a lookup has no row."""

    row: int
    """Index of the row among the input rows."""
    number: int
    """Index of the step in the document."""
    step: str
    """Path of the step, or of the column in it."""
    message: str
    reason: str = REASON_EXPRESSION


@dataclass
class StepRows:
    """The rows in a step. The operator changes the columns in place, and reports problems."""

    columns: dict[str, pa.Array]
    places: npt.NDArray[np.int64]
    """Index of each row among the input rows, ascending."""
    tables: Tables = field(default_factory=dict)
    problems: list[RowProblem] = field(default_factory=list)

    def report_missing(self, failed: Mask, number: int, step: str, sql: str) -> None:
        """Report that an expression has no value for these rows."""
        message = f"{step}: no value from {sql} (a division by zero, an overflow or a null)"
        self.problems += [RowProblem(row, number, step, message) for row in self.places[failed].tolist()]


class RowOperator(ABC):
    """One step, compiled for columns of known types. It has no state on which results depend."""

    types: Mapping[str, str]
    """All columns after the step."""
    columns_read: tuple[str, ...] = ()
    """Columns that the step reads."""

    @abstractmethod
    def apply(self, rows: StepRows) -> Mask | None:
        """Change the columns in place. Return a mask of the rows that continue. None if all do."""


def missing(values: pa.Array, inputs: Sequence[pa.Array]) -> Mask:
    """Return a mask of the rows that have no value, or NaN, although every input has a value."""
    if pa.types.is_floating(values.type):
        lost = pc.is_null(values, nan_is_null=True)
    elif not values.null_count:
        return np.zeros(len(values), np.bool_)
    else:
        lost = values.is_null()
    failed: Mask = lost.to_numpy(zero_copy_only=False)
    for column in inputs:
        if column.null_count:
            failed = failed & column.is_valid().to_numpy(zero_copy_only=False)
    return failed
