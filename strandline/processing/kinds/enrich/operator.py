"""The operator that adds fields of lookups."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from strandline.core.record_headers import REASON_LOOKUP
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.kinds.enrich.step import Enrich
from strandline.processing.operators.casting import cast
from strandline.processing.operators.keys import without_times
from strandline.processing.operators.row_operator import Mask, RowOperator, RowProblem, StepRows

_SHOWN_CHARACTERS_MAX = 100


class EnrichOperator(RowOperator):
    """Adds the fields of the lookup row that matches each row."""

    def __init__(self, step: Enrich, types: Mapping[str, str]) -> None:
        self._step = step
        self.types = {**types, **dict(step.added)}
        self.columns_read = step.key_columns

    def apply(self, rows: StepRows) -> Mask | None:
        step, table = self._step, rows.tables[self._step.lookup]
        keys = [rows.columns[name] for name in step.key_columns]
        found = table.find(keys)
        rows.columns.update(
            (one.name, table.column(one.sql, kind).cast(kind).take(found))
            for one in step.columns
            for kind in (arrow_type(one.type),)
        )
        if step.optional or not found.null_count:
            return None
        keep: Mask = found.is_valid().to_numpy(zero_copy_only=False)
        missed = np.flatnonzero(~keep)
        values = [_shown(key.take(pa.array(missed))) for key in keys]
        for at, key in zip(missed.tolist(), zip(*values, strict=True), strict=True):
            shown = " and ".join(f"{name} {value}" for name, value in zip(step.key_columns, key, strict=True))
            text = f"{step.path}: lookup {table.name} has no row for {shown} (version {table.version})"
            rows.problems.append(RowProblem(int(rows.places[at]), step.number, step.path, text, REASON_LOOKUP))
        return keep


operator_of = EnrichOperator


def _shown(values: pa.Array) -> list[str]:
    if pa.types.is_timestamp(values.type):
        texts = cast(values, "timestamp", "string").to_pylist()
        return [
            "null" if us is None else text or f"{us} us"  # outside the years that have a written form
            for us, text in zip(without_times(values).to_pylist(), texts, strict=True)
        ]
    return [_shown_value(value) for value in values.to_pylist()]


def _shown_value(value: object) -> str:
    if value is None:
        return "null"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}..."
