"""What Kibana is told of a pipeline: its aliases, with the fields of their documents."""

from __future__ import annotations

from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.results.charts.saved_objects import Measure, ResultView, SavedObject, saved_objects


def result_views(pipeline: CheckedPipeline) -> list[ResultView]:
    """One for each alias that the pipeline emits to, in the order of its stages."""
    return [
        ResultView(
            alias=emit.name,
            stage=stage.name,
            size_ms=stage.size_ms,
            every_ms=stage.every_ms,
            by=tuple(zip(stage.by, stage.by_types, strict=True)),
            measures=tuple(Measure(column.name, column.type, column.sql) for column in stage.aggregates),
        )
        for stage in pipeline.stages
        for emit in stage.emits
        if emit.kind == "elasticsearch"
    ]


def kibana_objects(pipeline: CheckedPipeline, links: str = "") -> list[SavedObject]:
    """The saved objects that show the pipeline's results, and its dead letters if they are in an index, in Kibana.
    `links` as in `saved_objects`."""
    return saved_objects(
        pipeline.job, result_views(pipeline), has_dead_letters=pipeline.spec.dead_letters.index, links=links
    )
