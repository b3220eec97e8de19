"""What a pipeline does and costs, before it runs: stages, what each keeps, how far back it reaches, when results come. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from strandline.core.durations import FOREVER_MS, format_duration, format_retention
from strandline.processing.operators.cascade import Cascade
from strandline.processing.operators.windows import WindowOperator
from strandline.processing.pipelines.calendars import VERSION
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.stages import RecordStage, RowStep, Select, Stage, Where

TEXT_BYTES = 24
"""What a text takes in an estimate: twenty characters, and where it begins."""
_MANY_PARTIALS = 100
Answer = dict[str, Any]


def pipeline_graph(pipeline: CheckedPipeline) -> Answer:
    """The pipeline as plain data."""
    cascade = Cascade(pipeline.stages, pipeline.stream.types, 2)
    rule = pipeline.event_time_rule
    retention_ms = pipeline.stream.retention_ms
    records, done = [], 0
    for record_stage in pipeline.record_stages:
        records.append(_record_stage(record_stage, done))
        done = len(record_stage.pre_steps)
    stages = []
    for number, (stage, operator) in enumerate(zip(pipeline.stages, cascade.operators, strict=True)):
        is_split = cascade.is_split and number + 1 == len(pipeline.stages)
        steps = stage.pre_steps[done:] if number == 0 else stage.pre_steps
        stages.append(_stage(stage, steps, operator, rule.delay_ms, is_split=is_split))
    shared = cascade.bucket_by
    is_alone = bool(stages) and not shared and not cascade.is_split
    return {
        "pipeline": pipeline.job,
        "input": {
            "stream": pipeline.stream.stream,
            "partitions": pipeline.stream.partitions,
            "format": pipeline.stream.format,
            "columns_read": list(pipeline.columns_needed),
            "columns": len(pipeline.stream.fields),
        },
        "event_time": {
            "source": str(pipeline.event_time_source),
            "delay_ms": rule.delay_ms,
            "watermark": rule.watermark,
            "idle_timeout_ms": rule.idle_timeout_ms,
            "max_ahead_ms": rule.max_ahead_ms,
        },
        "record_stages": records,
        "stages": stages,
        "exchange": {
            "by": shared,
            "exchanges": 2 if cascade.is_split else 1,
            "buckets": "one" if is_alone else "as many as the run has shuffle partitions",
        },
        "reach_ms": pipeline.reach_ms,
        "retention": {
            "needed_ms": _needed_ms(pipeline),
            "of_stream_ms": None if retention_ms == FOREVER_MS else retention_ms,
        },
        "time_zone_rules": VERSION if any(stage.zone for stage in pipeline.stages) else None,
        "hints": list(_hints(pipeline, cascade, stages, is_alone=is_alone)),
    }


def _needed_ms(pipeline: CheckedPipeline) -> int:
    """How far back a rewind may read: not at all without a window."""
    return pipeline.event_time_rule.delay_ms + pipeline.reach_ms if pipeline.stages else 0


def _record_stage(stage: RecordStage, done: int) -> Answer:
    """`done`: so many of its steps stand before another emission."""
    return {
        "name": stage.name,
        "steps_before": [_step(step) for step in stage.pre_steps[done:]],
        "fields": stage.field_types,
        "emits": [f"{emit.kind}: {emit.name}" for emit in stage.emits],
    }


def _stage(
    stage: Stage, steps: Sequence[RowStep], operator: WindowOperator, delay_ms: int, *, is_split: bool
) -> Answer:
    """`steps`: those behind the emission before it."""
    panes = -(-(stage.size_ms + delay_ms) // operator.pane_ms) + 1
    row_bytes, key_bytes = _bytes_of(operator.state_schema), _bytes_of(operator.key_schema)
    return {
        "name": stage.name,
        "steps_before": [_step(step) for step in steps],
        "windows": str(stage.shape),
        "size_ms": stage.size_ms,
        "every_ms": stage.every_ms,
        "by": dict(zip(stage.by, stage.by_types, strict=True)),
        "aggregates": {column.name: column.sql for column in stage.aggregates},
        "steps_after": [_step(step) for step in stage.post_steps],
        "emits": [f"{emit.kind}: {emit.name}" for emit in stage.emits],
        "merged_from_parts": is_split,
        "state": {
            "pane_ms": operator.pane_ms,
            "panes_open": panes,
            "bytes_a_pane_and_key": row_bytes,
            "bytes_a_key": key_bytes + panes * row_bytes,
            "partials": [str(kind) for kind in operator.aggregates.partial_types],
        },
        "results_after_ms": delay_ms,
    }


def _step(step: RowStep) -> str:
    if isinstance(step, Where):
        return f"where {step.sql}"
    if isinstance(step, Select):
        return f"select {', '.join(step.names)}"
    return "derive " + ", ".join(f"{column.name}: {column.sql}" for column in step.columns)


def _bytes_of(schema: pa.Schema) -> int:
    """What a row takes, about."""
    total = 0
    for kind in schema.types:
        try:
            total += -(-kind.bit_width // 8)
        except ValueError:  # a text
            total += TEXT_BYTES
    return total


def _hints(pipeline: CheckedPipeline, cascade: Cascade, stages: list[Answer], *, is_alone: bool) -> Iterator[str]:
    """What costs, and what may surprise."""
    rule = pipeline.event_time_rule
    if is_alone:
        yield "no field groups all stages, so one bucket does all of the work; group by a field that they share"
    elif cascade.is_split:
        yield (
            f"'{pipeline.stages[-1].name}' regroups by other fields: its partial results cross the exchange a second time"
        )
    for stage, told in zip(pipeline.stages, stages, strict=True):
        if told["state"]["panes_open"] > _MANY_PARTIALS:
            many = f"{told['state']['panes_open']:,} partial results"
            each = f"one for each {format_duration(told['state']['pane_ms'])}"
            if stage.gap_ms is not None:
                yield f"'{stage.name}' keeps {many} of a key that never pauses, {each}; a shorter 'max' keeps fewer"
            else:
                yield (
                    f"'{stage.name}' keeps {many} a key, {each}; a longer distance between windows, or a shorter delay, "
                    "keeps fewer"
                )
        if stage.overlaps:
            times = -(-stage.size_ms // stage.every_ms)
            yield f"'{stage.name}' writes up to {times} results for each {format_duration(stage.size_ms)} and key"
    if pipeline.stages and rule.idle_timeout_ms is None and pipeline.stream.partitions > 1:
        yield "idle_timeout is null: one silent partition holds all windows open"
    if pipeline.stages and rule.delay_ms > min(stage.size_ms for stage in pipeline.stages):
        yield (
            f"the delay, {format_duration(rule.delay_ms)}, is longer than the shortest window: results come that much later"
        )
    unread = [name for name in pipeline.stream.fields if name not in pipeline.columns_needed]
    if unread:
        yield f"not read: {', '.join(unread)}; these fields are checked all the same"
    needed_ms = _needed_ms(pipeline)
    if pipeline.stream.retention_ms != FOREVER_MS and pipeline.stream.retention_ms < 2 * needed_ms:
        yield (
            f"the stream keeps records for {format_retention(pipeline.stream.retention_ms)}, and a rewind may need "
            f"{format_duration(needed_ms)} of them: an outage of longer than the difference can't be made up for"
        )
