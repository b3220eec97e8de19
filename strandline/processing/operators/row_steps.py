"""The steps between windows, on columns, and the rows for which a value is missing. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.processing.operators.row_operator import NO_TABLES, RowOperator, RowProblem, StepRows, Tables
from strandline.processing.pipelines.kind_registry import part_of
from strandline.processing.pipelines.row_step import RowStep


def first_problems(problems: Iterable[RowProblem]) -> list[RowProblem]:
    """Return the problem of each row. If a row has several, it is that of the first step in the document, in any branch."""
    found: dict[int, RowProblem] = {}
    for one in problems:
        known = found.setdefault(one.row, one)
        if one.number < known.number:
            found[one.row] = one
    return list(found.values())


@dataclass(frozen=True)
class SteppedRows:
    """The remaining rows of the input."""

    columns: dict[str, pa.Array]
    rows: npt.NDArray[np.int64]
    """Index of each remaining row among the input rows, ascending."""
    problems: list[RowProblem]
    """Rows that are left out because of a problem, ascending. A filter that is false leaves rows out without a problem."""


class RowSteps:
    """The steps of one stage, compiled for columns of known types. They have no state on which results depend. Internal
    columns, whose names begin with `@`, always stay."""

    def __init__(self, steps: Sequence[RowStep], types: Mapping[str, str]) -> None:
        self.types = dict(types)
        """All columns after the last step."""
        self._operators: list[RowOperator] = []
        for step in steps:
            operator: RowOperator = part_of(step.kind, "operator", step.kind_package).operator_of(step, self.types)
            self._operators.append(operator)
            self.types = dict(operator.types)

    @property
    def columns_read(self) -> tuple[str, ...]:
        """Columns that the steps read, including derived ones."""
        return tuple(dict.fromkeys(name for operator in self._operators for name in operator.columns_read))

    def apply(self, columns: Mapping[str, pa.Array], rows: int, tables: Tables = NO_TABLES) -> SteppedRows:
        """Apply the steps. A row with a problem isn't passed on, whatever a later filter would do. A filter whose inputs are
        missing leaves the row out, like a filter that is false."""
        stepped = StepRows(dict(columns), np.arange(rows), tables)
        for operator in self._operators:
            keep = operator.apply(stepped)
            if keep is not None and not keep.all():
                chosen = pa.array(np.flatnonzero(keep))
                stepped.columns = {name: column.take(chosen) for name, column in stepped.columns.items()}
                stepped.places = stepped.places[keep]
        stepped.problems.sort(key=lambda problem: problem.row)
        return SteppedRows(stepped.columns, stepped.places, stepped.problems)
