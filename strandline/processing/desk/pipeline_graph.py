"""The work and the cost of a pipeline, before it runs: stages, their state, their reach, and when results arrive. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from strandline.core.times.durations import FOREVER_MS, format_duration, format_place, format_retention
from strandline.processing.kinds.stage_words import StageInGraph, emits_in_words, step_in_words, words_of
from strandline.processing.operators.cascade import Cascade
from strandline.processing.operators.dedupe.duplicates import REMEMBERED_BYTES
from strandline.processing.pipelines.checked_pipeline import CheckedInput, CheckedPipeline
from strandline.processing.pipelines.graph.branches import Branch
from strandline.processing.pipelines.model.inputs import StreamInputSpec
from strandline.processing.pipelines.row_step import RowStep
from strandline.processing.pipelines.stages import LEFT, RecordPath, RecordStage, Stage

_LONG_DEDUPE_MS = 3_600_000
_MANY_BUCKETS = "as many as the run has shuffle partitions"
JsonObject = dict[str, Any]


def pipeline_graph(pipeline: CheckedPipeline) -> JsonObject:
    """Return the pipeline as plain data."""
    cascade = Cascade(pipeline.stages, 2, pipeline.record_stages)
    retention_ms = pipeline.retention_ms
    described: list[RecordStage | Stage] = []
    records = []
    for record_stage in pipeline.record_stages:
        source, steps = _behind(record_stage, described)
        records.append(_record_stage(record_stage, source or _streams_of(pipeline, record_stage), steps))
        described.append(record_stage)
    stages = []
    for number, (stage, operator) in enumerate(zip(pipeline.stages, cascade.operators, strict=True)):
        window = next(iter(pipeline.taken_by(stage.name)), None)
        source, steps = (window, stage.inputs[LEFT].steps) if window is not None else _behind(stage, described)
        is_split = number in cascade.split_stages
        source = source or _streams_of(pipeline, stage)
        here = StageInGraph(pipeline, stage, operator, source, steps, _delay_ms(pipeline), is_split)
        stages.append(words_of(stage).graph(here))
    branches = [_branch(pipeline, branch, cascade) for branch in cascade.branches]
    alone = [one for one in branches if one["buckets"] == "one"]
    return {
        "pipeline": pipeline.job,
        "inputs": [_input(*pair) for pair in zip(pipeline.inputs, pipeline.spec.reads, strict=True)],
        "record_stages": records,
        "stages": stages,
        "exchange": {
            "by": cascade.branches[0].bucket_by if cascade.branches else [],
            "exchanges": 2 if cascade.is_split else 1,
            "buckets": "one" if branches and len(alone) == len(branches) else _MANY_BUCKETS,
        },
        "branches": branches,
        "dedupe": _dedupe(pipeline, cascade),
        "reach_ms": pipeline.reach_ms,
        "retention": {
            "needed_ms": _needed_ms(pipeline),
            "of_stream_ms": _kept_ms(retention_ms),
        },
        "time_zone_rules": pipeline.zone_rules,
        "hints": list(_hints(pipeline, branches, stages)),
    }


def _input(read: CheckedInput, said: StreamInputSpec) -> JsonObject:
    return {
        "stream": read.name,
        "start": format_place(said.start),
        "end": None if said.end is None else format_place(said.end),
        "partitions": read.stream.partitions,
        "format": read.stream.format,
        "columns_read": list(read.columns_needed),
        "columns": len(read.stream.fields),
        "retention_ms": _kept_ms(read.stream.retention_ms),
        "event_time": _event_time(read),
    }


def _event_time(read: CheckedInput) -> JsonObject:
    rule = read.event_time_rule
    return {
        "source": str(read.event_time_source),
        "delay_ms": rule.delay_ms,
        "watermark": rule.watermark,
        "idle_timeout_ms": rule.idle_timeout_ms,
        "max_ahead_ms": rule.max_ahead_ms,
    }


def _streams_of(pipeline: CheckedPipeline, stage: RecordStage | Stage) -> str:
    """Return the names of the streams whose records reach the stage."""
    return ", ".join(dict.fromkeys(pipeline.inputs[path.stream].name for path in _paths(stage)))


def _delay_ms(pipeline: CheckedPipeline) -> int:
    """Return the longest delay: windows wait for the stream that lags furthest behind."""
    return max(one.event_time_rule.delay_ms for one in pipeline.inputs)


def _kept_ms(retention_ms: int) -> int | None:
    """Return the retention. None if all records are kept."""
    return None if retention_ms == FOREVER_MS else retention_ms


def _needed_ms(pipeline: CheckedPipeline) -> int:
    """Return the maximum time in ms by which a rewind reads back. 0 if no stage has state."""
    return _delay_ms(pipeline) + pipeline.reach_ms if pipeline.kept else 0


def _dedupe(pipeline: CheckedPipeline, cascade: Cascade) -> JsonObject | None:
    """Describe the step that leaves out duplicates, and its copies of the same state: one for each branch after it, and one for
    emissions of records."""
    if cascade.duplicates is None:
        return None
    dedupe = cascade.duplicates.dedupe
    before = sum(pipeline.stages[first].dedupe is not None for _, first in cascade.entries)
    return {
        "by": list(dedupe.by),
        "within_ms": None if dedupe.compares_all else dedupe.within_ms,
        "remembers_ms": None if dedupe.compares_all else dedupe.within_ms + _delay_ms(pipeline),
        "bytes_a_record": REMEMBERED_BYTES,
        "times_kept": before + cascade.has_deduped_records,
    }


def _behind(
    stage: RecordStage | Stage, described: Sequence[RecordStage | Stage]
) -> tuple[str | None, Sequence[RowStep]]:
    """Return the last emission of records before a stage on its path from the streams, and the steps after that emission.

    If there are several paths, the first one counts. For a join, the path to its left side counts. None if there is no emission.
    """
    steps_of = {path.stream: path.steps for path in _paths(stage)}
    on_the_way = [
        one
        for one in described
        if steps_of.keys() == {path.stream for path in _paths(one)}
        and all(steps_of[path.stream][: len(path.steps)] == path.steps for path in _paths(one))
    ]
    last = max(on_the_way, key=lambda one: len(_paths(one)[0].steps), default=None)
    steps = _paths(stage)[0].steps
    return (None, steps) if last is None else (last.name, steps[len(_paths(last)[0].steps) :])


def _paths(stage: RecordStage | Stage) -> tuple[RecordPath, ...]:
    """Return the paths of records to a stage. For a join, those to its left side."""
    return stage.paths if isinstance(stage, RecordStage) else stage.inputs[LEFT].paths


def _branch(pipeline: CheckedPipeline, branch: Branch, cascade: Cascade) -> JsonObject:
    """Describe windows that are computed in one bucket together."""
    split = [at for at in branch.split if at in cascade.split_stages]
    return {
        "stages": [pipeline.stages[at].name for at in branch.stages],
        "by": branch.bucket_by,
        "buckets": _MANY_BUCKETS if branch.bucket_by or split else "one",
        "regroups": [pipeline.stages[at].name for at in split],
        "again": [pipeline.stages[at].name for at in branch.stages if at not in branch.emits],
    }


def _record_stage(stage: RecordStage, source: str, steps: Sequence[RowStep]) -> JsonObject:
    """Describe an emission of records. `source`: its streams, or the emission before it. `steps`: the steps after `source`."""
    return {
        "name": stage.name,
        "from": source,
        "steps_before": [step_in_words(step) for step in steps],
        "fields": stage.field_types,
        "emits": list(emits_in_words(stage)),
    }


def _hints(pipeline: CheckedPipeline, branches: list[JsonObject], stages: list[JsonObject]) -> Iterator[str]:
    """Yield hints on costs and on surprising behaviour."""
    for branch in branches:
        if branch["buckets"] == "one":
            which = "all stages" if len(branches) == 1 else f"all of {', '.join(branch['stages'])}"
            work = "all of the work" if len(branches) == 1 else "all of their work"
            yield f"{which} have no common key field, so one bucket does {work}; group by a common field"
        for name in branch["regroups"]:
            yield f"'{name}' regroups by other fields, so its partial results cross the exchange a second time"
        for name in branch["again"]:
            yield (
                f"'{name}' is computed again for {', '.join(branch['stages'][1:])}, because these have no common key field with "
                f"the other windows after '{name}'"
            )
    for stage, graph in zip(pipeline.stages, stages, strict=True):
        yield from words_of(stage).hints(stage, graph, _delay_ms(pipeline))
    if pipeline.dedupe is not None and pipeline.dedupe.compares_all:
        yield (
            "the distinct keeps every record of the range in its state, and each slice writes this state again. A start reads "
            "the range again, so the stream must keep it until the batch has completed"
        )
    elif pipeline.dedupe is not None and pipeline.dedupe.within_ms > _LONG_DEDUPE_MS:
        yield (
            f"the dedupe keeps every record of {format_duration(pipeline.dedupe.within_ms)} in its state, and each slice writes "
            "this state again; a shorter 'within' costs less, if senders repeat sooner"
        )
    for read in pipeline.inputs:
        of_which = f" of {read.name}" if pipeline.has_several_inputs else ""
        timeout_ms, partitions = read.event_time_rule.idle_timeout_ms, read.stream.partitions
        if read.event_time_rule.watermark == "emissions":
            yield f"records wait for the results that another job emits to {read.name}, however long this takes"
        elif pipeline.stages and timeout_ms is None and (partitions > 1 or pipeline.has_several_inputs):
            yield f"idle_timeout{of_which} is null: one silent partition holds all windows open"
    windows = [stage for stage in pipeline.stages if stage.has_aggregates]
    if windows and _delay_ms(pipeline) > min(stage.size_ms for stage in windows):
        delay = format_duration(_delay_ms(pipeline))
        yield f"the delay, {delay}, is longer than the shortest window, so results are late by this time"
    for read in pipeline.inputs:
        of_which = f" of {read.name}" if pipeline.has_several_inputs else ""
        unread = [name for name in read.stream.fields if name not in read.columns_needed]
        if unread:
            yield f"not read{of_which}: {', '.join(unread)}; these fields are checked anyway"
    needed_ms = _needed_ms(pipeline)
    for stream in pipeline.streams.values():
        if stream.retention_ms != FOREVER_MS and stream.retention_ms < 2 * needed_ms:
            which = f"stream {stream.stream}" if pipeline.has_several_inputs else "the stream"
            yield (
                f"{which} keeps records for {format_retention(stream.retention_ms)}, and a rewind can need "
                f"{format_duration(needed_ms)} of them; results are lost if an outage is longer than the difference"
            )
