"""The operator that filters rows."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.processing.kinds.where.step import Where
from strandline.processing.operators.evaluation import ColumnExpression
from strandline.processing.operators.row_operator import Mask, RowOperator, StepRows, missing


class WhereOperator(RowOperator):
    """Keeps the rows for which the condition of the step is true."""

    def __init__(self, step: Where, types: Mapping[str, str]) -> None:
        self._step = step
        self._expression = ColumnExpression(step.sql, types)
        self.types = types
        self.columns_read = tuple(self._expression.columns)

    def apply(self, rows: StepRows) -> Mask | None:
        step, count = self._step, len(rows.places)
        values = self._expression(rows.columns, count)
        failed = missing(values, [rows.columns[name] for name in self._expression.columns])
        if failed.any():
            failed &= self._expression.fails(rows.columns, count)
        rows.report_missing(failed, step.number, step.path, step.sql)
        keep: Mask = values.fill_null(False).to_numpy(zero_copy_only=False)
        return keep


operator_of = WhereOperator
