"""Computed columns."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from strandline.processing.kinds.derive.step import Derive
from strandline.processing.operators.casting import cast
from strandline.processing.operators.evaluation import ColumnExpression
from strandline.processing.operators.row_operator import Mask, RowOperator, StepRows, missing


class DeriveOperator(RowOperator):
    """Adds the columns of the step. Each is computed from the columns before the step."""

    def __init__(self, step: Derive, types: Mapping[str, str]) -> None:
        self._step = step
        self._expressions = [ColumnExpression(column.sql, types) for column in step.columns]
        self.types = {**types, **dict(step.added)}
        self.columns_read = tuple(name for one in self._expressions for name in one.columns)

    def apply(self, rows: StepRows) -> Mask | None:
        step, columns, count = self._step, rows.columns, len(rows.places)
        good = np.ones(count, np.bool_)
        computed = {}
        for column, expression in zip(step.columns, self._expressions, strict=True):
            values = cast(expression(columns, count), expression.type, column.type)
            computed[column.name] = values
            failed = good & missing(values, [columns[name] for name in expression.columns])
            if failed.any():
                # NaN is always a failure. Null is a failure only if the expression fails: it can also return null on purpose.
                failed &= values.is_valid().to_numpy(zero_copy_only=False) | expression.fails(columns, count)
            rows.report_missing(failed, step.number, f"{step.path}.{column.name}", column.sql)
            good &= ~failed
        columns.update(computed)
        return good


operator_of = DeriveOperator
