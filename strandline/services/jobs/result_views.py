"""Views of a pipeline for Kibana: its aliases, with the fields of their documents."""

from __future__ import annotations

from sqlglot import exp

from strandline.processing.kinds.stage_words import words_of
from strandline.processing.pipelines.aggregate_nodes import read_call
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.expressions import tree_of
from strandline.processing.pipelines.row_step import Column
from strandline.processing.pipelines.stages import Emit, RecordStage, Stage
from strandline.results.charts.lens import Operation
from strandline.results.charts.saved_objects import RECORDS_SIZE_MS, Measure, ResultView, SavedObject, saved_objects
from strandline.results.sinks.registry import sink_of


def result_views(pipeline: CheckedPipeline) -> list[ResultView]:
    """Return one view for each alias of the pipeline, in the order of its stages."""
    return [_of_records(stage, emit) for stage in pipeline.record_stages for emit in _aliases(stage)] + [
        ResultView(
            alias=emit.name,
            stage=stage.name,
            size_ms=stage.size_ms,
            every_ms=stage.every_ms,
            by=tuple(zip(stage.by, stage.by_types, strict=True)),
            measures=_measures(stage),
            overlaps=stage.overlaps,
            windows=words_of(stage).results_name(stage),
            begin_together=stage.windows.result_windows.begin_together,
        )
        for stage in pipeline.stages
        for emit in _aliases(stage)
    ]


def _aliases(stage: Stage | RecordStage) -> list[Emit]:
    return [emit for emit in stage.emits if sink_of(emit).has_generations]


def _measures(stage: Stage) -> tuple[Measure, ...]:
    combined_by = {column.name: _combined_by(column) for column in stage.aggregates}
    return tuple(Measure(name, kind, combined_by.get(name)) for name, kind in stage.value_types.items())


def _combined_by(column: Column) -> Operation | None:
    """Return the operation that combines values of several windows, if the column is a single aggregate without a filter."""
    tree = tree_of(column.sql)
    if not isinstance(tree, exp.AnonymousAggFunc):
        return None
    call = read_call(tree)
    return None if call.is_distinct else call.function.combined_by


def _of_records(stage: RecordStage, emit: Emit) -> ResultView:
    """Return the view of records. Strings and booleans are keys of series, numbers are drawn. A point is a second, or more if
    there are too many points."""
    is_key = {name: kind in ("string", "boolean") for name, kind in stage.fields}
    return ResultView(
        alias=emit.name,
        stage=stage.name,
        size_ms=RECORDS_SIZE_MS,
        every_ms=RECORDS_SIZE_MS,
        by=tuple(one for one in stage.fields if is_key[one[0]]),
        measures=tuple(Measure(name, kind) for name, kind in stage.fields if not is_key[name]),
        has_window=False,
    )


def kibana_objects(pipeline: CheckedPipeline, links: str = "") -> list[SavedObject]:
    """Return the saved objects that show the pipeline's results in Kibana, and its dead letters if they are in an index."""
    return saved_objects(
        pipeline.job, result_views(pipeline), has_dead_letters=pipeline.spec.dead_letters.index, links=links
    )
