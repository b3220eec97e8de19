"""The operator that selects columns."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.processing.operators.row_operator import RowOperator, StepRows
from strandline.processing.pipelines.row_step import Projection


class SelectOperator(RowOperator):
    """Keeps the columns of the step, and internal columns."""

    def __init__(self, step: Projection, types: Mapping[str, str]) -> None:
        self._names = step.names
        self.types = {name: types[name] for name in step.names}

    def apply(self, rows: StepRows) -> None:
        # Fields that nothing reads aren't decoded.
        names = [*(name for name in rows.columns if name.startswith("@")), *self._names]
        rows.columns = {name: rows.columns[name] for name in names if name in rows.columns}


operator_of = SelectOperator
