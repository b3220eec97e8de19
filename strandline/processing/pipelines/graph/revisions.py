"""`late: {revise: DURATION}`: the pipelines that can have it, and its additions to their window. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from strandline.core.documents import Path
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.row_step import Column
from strandline.processing.pipelines.stages import RecordStage, Stage
from strandline.results.names import REVISION
from strandline.results.sinks.registry import sink_of
from strandline.results.writer import LATE

_REVISE: Path = ("late", "revise")


def revised_stage(stage: Stage, revise_ms: int) -> Stage:
    """Return the window with results that late records revise. It also counts the late records."""
    return replace(
        stage, revise_ms=revise_ms, aggregates=(*stage.aggregates, Column(REVISION, f"COUNT(`{LATE}`)", "long"))
    )


def revision_problems(
    pipeline: PipelineSpec, stages: Sequence[Stage], record_stages: Sequence[RecordStage]
) -> Iterator[tuple[Path, str]]:
    """Yield the reasons why late records can't revise the results of this pipeline: the path in the document, and a message.

    A revision replaces the document of its window. So each window must have one document, nothing may have read it before, and no
    step after the window may remove it.
    """
    if pipeline.guarantee != "exactly_once":
        yield (
            ("guarantee",),
            "with 'late: {revise: ...}' each window has one document, which is revised; expected exactly_once",
        )
    if record_stages:
        yield (
            _REVISE,
            f"can't be combined with an emission of records, '{record_stages[0].name}', because records are emitted once; emit "
            "them in another pipeline",
        )
    if len(stages) != 1:
        yield (
            _REVISE,
            f"needs a pipeline with one window, but this one has {len(stages) or 'none'}, and results of later windows "
            "would have to be revised too. Write one pipeline for each window whose results are revised",
        )
        return
    (stage,) = stages
    number = next(at for at, step in enumerate(pipeline.steps) if step.stage_name is not None)
    path: Path = ("steps", number)
    if stage.why_not_revised:
        yield (*path, stage.keyword), stage.why_not_revised
    if stage.dedupe is not None:
        yield (
            _REVISE,
            "can't be combined with dedupe or distinct, which don't keep records for this time; remove one of them",
        )
    if stage.post_steps:
        yield (
            path,
            "has steps between the window and its 'emit'. A revised result that they leave out would stay in the index; write "
            "'emit' in the step of the window, and filter or derive where results are read",
        )
    for position, emit in enumerate(pipeline.steps[number].emit or []):
        if not sink_of(emit).has_generations:
            yield (
                (*path, "emit", position, emit.kind),
                "can't replace a result that a late record revises; with 'late: {revise: ...}' emit only to elasticsearch, and "
                "to other sinks from another pipeline",
            )
    for name, where in [*((one, "by") for one in stage.by), *((one.name, "aggregate") for one in stage.aggregates)]:
        if name.lower() == REVISION:
            yield (
                (*path, stage.keyword, where),
                f"'{name}' is the field with the number of late records in a revised result; choose another name",
            )
