"""A pipeline's steps as Spark frames, for the audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from strandline.processing.audit.safe_sql import columns_of, safe_sql
from strandline.processing.pipelines.stages import Column as Computed
from strandline.processing.pipelines.stages import Derive, Where

PROBLEM = "_strandline_problem"
"""Why an expression gave no value although its inputs were present; null for a good record."""

_TYPE_NAMES = {"bigint": "long", "int": "integer"}

Step = Derive | Where


def apply_steps(frame: DataFrame, steps: Sequence[Step]) -> DataFrame:
    """Derive and filter. Adds PROBLEM, set where a derived value came out null although every input was present;
    such a record passes every later filter, to be found by its problem. A problem that a row brings along stays."""
    if PROBLEM not in frame.columns:
        frame = frame.withColumn(PROBLEM, F.lit(None).cast("string"))
    for step in steps:
        if isinstance(step, Where):
            frame = frame.where(F.col(PROBLEM).isNotNull() | F.expr(safe_sql(step.sql, types_of(frame))))
            continue
        # All at once: each expression sees the columns before the step.
        frame = frame.select("*", *[value_of(column, types_of(frame)).alias(column.name) for column in step.columns])
        for column in step.columns:
            value = F.col(column.name)
            lost = value.isNull() | F.isnan(value) if column.type == "double" else value.isNull()
            failed = lost & _all_present(columns_of(column.sql))
            text = f"{step.step}.{column.name}: no value from {column.sql} (a division by zero, an overflow or a null)"
            frame = frame.withColumn(PROBLEM, F.coalesce(F.col(PROBLEM), F.when(failed, F.lit(text))))
    return frame


def value_of(column: Computed, types: Mapping[str, str]) -> Column:
    """A computed column. A safe form of an operator may give a decimal other digits, so that type is said again."""
    value = F.expr(safe_sql(column.sql, types))
    return value.try_cast(column.type) if column.type.startswith("decimal") else value


def types_of(frame: DataFrame) -> dict[str, str]:
    """The columns with their types, in the words of a stream's schema."""
    return {name: _TYPE_NAMES.get(kind, kind) for name, kind in frame.dtypes}


def _all_present(inputs: Sequence[str]) -> Column:
    present = F.lit(True)
    for name in inputs:
        present = present & F.col(name).isNotNull()
    return present
