"""Values kept between two limits."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow.compute as pc
from acme_kinds.bound.step import Bound

from strandline.processing.operators.row_operator import RowOperator, StepRows


class BoundOperator(RowOperator):
    """Adds the column of the step. A null stays null."""

    def __init__(self, step: Bound, types: Mapping[str, str]) -> None:
        self._step = step
        self.types = {**types, **dict(step.added)}
        self.columns_read = (step.column,)

    def apply(self, rows: StepRows) -> None:
        step = self._step
        above = pc.max_element_wise(rows.columns[step.column], step.low, skip_nulls=False)
        rows.columns[step.name] = pc.min_element_wise(above, step.high, skip_nulls=False)


operator_of = BoundOperator
