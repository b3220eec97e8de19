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
    """Of each row the problem of the step that stands first in the document, whichever branch came to it first."""
    found: dict[int, RowProblem] = {}
    for one in problems:
        known = found.setdefault(one.row, one)
        if one.number < known.number:
            found[one.row] = one
    return list(found.values())


@dataclass(frozen=True)
class SteppedRows:
    """What is left of the rows that came in."""

    columns: dict[str, pa.Array]
    rows: npt.NDArray[np.int64]
    """The place of each kept row among those that came in, ascending."""
    problems: list[RowProblem]
    """The rows that are left out because of a problem, ascending; a filter that is false leaves rows out silently."""


class RowSteps:
    """The steps of one stage, compiled for columns of known types. Holds nothing that results depend on. Columns whose names
    begin with `@` are the platform's own, and stay whatever is selected."""

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
        """The columns that the steps read, derived ones among them."""
        return tuple(dict.fromkeys(name for operator in self._operators for name in operator.columns_read))

    def apply(self, columns: Mapping[str, pa.Array], rows: int, tables: Tables = NO_TABLES) -> SteppedRows:
        """Apply the steps. A row with a problem goes no farther, whatever a later filter would say of it. A filter that lacks
        what it reads leaves the row out, as one that is false."""
        stepped = StepRows(dict(columns), np.arange(rows), tables)
        for operator in self._operators:
            keep = operator.apply(stepped)
            if keep is not None and not keep.all():
                chosen = pa.array(np.flatnonzero(keep))
                stepped.columns = {name: column.take(chosen) for name, column in stepped.columns.items()}
                stepped.places = stepped.places[keep]
        stepped.problems.sort(key=lambda problem: problem.row)
        return SteppedRows(stepped.columns, stepped.places, stepped.problems)
