"""The pipeline as Spark frames: steps and windows, each a pure function from frame to frame. The caller adds emission as a tap
between two stages, so one plan reads the log once and emits every stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from strandline.processing.operators.safe_sql import columns_of, safe_sql
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.stages import Column as Computed
from strandline.processing.pipelines.stages import Derive, Stage, Where
from strandline.processing.source.data_source import FACT_NAMES, FACTS
from strandline.processing.source.decoding import EVENT_TIME

PROBLEM = "_strandline_problem"
"""Why an expression gave no value although its inputs were present; null for a good record."""

WATERMARK_METADATA = "spark.watermarkDelayMs"
"""Marks an event-time column for Spark."""
_LAST = "_strandline_last"
"""The last microsecond of a window."""
_TYPE_NAMES = {"bigint": "long", "int": "integer"}

Step = Derive | Where
Tap = Callable[[Stage, DataFrame], DataFrame]


def with_watermark(frame: DataFrame, delay_ms: int) -> DataFrame:
    """Hand event time to Spark's watermark, observe the facts rows, and drop them.

    The predicate mentions the event time so that it stays above the watermark: below it, the ticks would be gone before
    Spark sees them, and the last windows would silently stay open.
    """
    facts = [
        (F.max if name.startswith("latest") else F.sum)(F.col(FACTS)[place]).alias(name)
        for place, name in enumerate(FACT_NAMES)
    ]
    observed = frame.withWatermark(EVENT_TIME, f"{delay_ms} milliseconds").observe("facts", *facts)
    is_record = F.when(F.col(FACTS).isNull(), F.col(EVENT_TIME).isNotNull()).otherwise(F.lit(False))
    return observed.where(is_record)


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


def can_fail(steps: Sequence[Step]) -> bool:
    """Whether these steps can give a record a problem."""
    return any(isinstance(step, Derive) for step in steps)


def _all_present(inputs: Sequence[str]) -> Column:
    present = F.lit(True)
    for name in inputs:
        present = present & F.col(name).isNotNull()
    return present


def build_stages(records: DataFrame, pipeline: CheckedPipeline, tap: Tap) -> DataFrame:
    """The whole plan above the source of a running job: the watermark, then the stages.

    Spark moves a cascade's watermark through the stages in one batch: a window of every stage that ends at or before the
    watermark is emitted in that batch.
    """
    return window_stages(with_watermark(records, pipeline.delay_ms), pipeline, tap)


def window_stages(frame: DataFrame, pipeline: CheckedPipeline, tap: Tap) -> DataFrame:
    """The first stage's steps over the records, then each window and its tap; returns the last stage's tapped frame."""
    for number, stage in enumerate(pipeline.stages):
        if stage.pre_steps:
            frame = apply_steps(frame, stage.pre_steps)
            if number == 0 and can_fail(stage.pre_steps):
                frame = frame.observe("steps", F.count(PROBLEM).alias("problems")).where(F.col(PROBLEM).isNull())
        frame = tap(stage, aggregate(frame, stage, pipeline.delay_ms))
    return frame


def aggregate(frame: DataFrame, stage: Stage, delay_ms: int) -> DataFrame:
    """One tumbling window: EVENT_TIME is the last microsecond of the window, as the next stage needs it.

    The windows begin at multiples of their size since 1970, like Spark's `window`, whose struct costs more as a key: a
    quarter of this stage's work. The metadata marks the key as event time, so that Spark closes windows by it.
    """
    size_us = stage.size_ms * 1000
    event_us = F.unix_micros(EVENT_TIME)
    last = F.timestamp_micros(event_us - event_us % size_us + (size_us - 1))
    types = types_of(frame)
    grouped = (
        frame.withColumn(_LAST, last.alias(_LAST, metadata={WATERMARK_METADATA: delay_ms}))
        .groupBy(_LAST, *stage.by)
        .agg(*[value_of(column, types).alias(column.name) for column in stage.aggregates])
    )
    last_us = F.unix_micros(_LAST)
    window = F.struct(
        F.timestamp_micros(last_us - (size_us - 1)).alias("start"), F.timestamp_micros(last_us + 1).alias("end")
    )
    return grouped.select(
        F.col(_LAST).alias(EVENT_TIME),
        window.alias("window"),
        *stage.by,
        *[name for name, _, _ in stage.aggregates],
    )
