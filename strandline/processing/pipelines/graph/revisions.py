"""`late: {revise: DURATION}`: which pipelines may have it, and what it adds to their window. Pure."""

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
    """The window with results that late records revise: it also counts these."""
    return replace(
        stage, revise_ms=revise_ms, aggregates=(*stage.aggregates, Column(REVISION, f"COUNT(`{LATE}`)", "long"))
    )


def revision_problems(
    pipeline: PipelineSpec, stages: Sequence[Stage], record_stages: Sequence[RecordStage]
) -> Iterator[tuple[Path, str]]:
    """Why late records can't revise the results of this pipeline: where it stands in the document, and a sentence.

    A revision takes the place of the document that its window has. So there must be one, it must not be what others have read
    already, and nothing behind the window may make it go away.
    """
    if pipeline.guarantee != "exactly_once":
        yield (
            ("guarantee",),
            "with 'late: {revise: ...}' each window has one document, which is revised; expected exactly_once",
        )
    if record_stages:
        yield (
            _REVISE,
            f"stands beside an emission of records, '{record_stages[0].name}', and records come once; emit them in a pipeline of "
            "their own",
        )
    if len(stages) != 1:
        yield (
            _REVISE,
            f"needs a pipeline of one window, and this one has {len(stages) or 'none'}: what was computed from a result would "
            "have to be revised, too. Give each window whose results are revised a pipeline of its own over the stream",
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
            "stands beside a dedupe, or distinct, which doesn't remember what came so long ago; leave one of them out",
        )
    if stage.post_steps:
        yield (
            path,
            "has steps between the window and its 'emit', and what they leave out would stay in the index when it is revised; "
            "write 'emit' beside 'window', and filter or derive where results are read",
        )
    for position, emit in enumerate(pipeline.steps[number].emit or []):
        if not sink_of(emit).has_generations:
            yield (
                (*path, "emit", position, emit.kind),
                "can't take a result back that a late record revises; with 'late: {revise: ...}' emit to elasticsearch only, and "
                "to other places from a pipeline of their own",
            )
    for name, where in [*((one, "by") for one in stage.by), *((one.name, "aggregate") for one in stage.aggregates)]:
        if name.lower() == REVISION:
            yield (
                (*path, stage.keyword, where),
                f"'{name}' is the field that counts the late records in a revised result; choose another name",
            )
