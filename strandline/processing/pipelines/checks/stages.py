"""The checks of emissions, of records and of results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from strandline.core.documents import Path
from strandline.processing.pipelines.checks.check_context import CheckContext, step_number
from strandline.processing.pipelines.model.emissions import EmitSpec
from strandline.processing.pipelines.model.steps import StepSpec
from strandline.processing.pipelines.stages import Emit, RecordStage
from strandline.results.sinks.sink import EmittedFields


def check_emission(context: CheckContext, path: Path, step: StepSpec) -> None:
    """Check an `emit` in its own step, and add its problems to `context`. After a window it emits the results of the window.
    Before the first window it emits records, and is added as a stage."""
    emits = _sinks(step.emit or [])
    fields = tuple((name, kind) for name, kind in context.columns.items() if kind is not None)
    for name in context.columns:
        if name.startswith("_"):
            context.add(
                path, f"'{name}' begins with '_', but a field of a result can't; leave it out with 'drop: [{name}]'"
            )
    if context.output.stage is None:
        for name in context.columns:
            context.emitted(name)
        paths = context.output.record_paths()
        context.record_stages.append(RecordStage(step.record_stage_name, fields, emits, paths, step_number(path)))
        emitted = EmittedFields(
            fields=tuple((name, ()) for name in context.columns),
            has_windows=False,
            inputs=frozenset(context.pipeline.streams),
            has_several_streams=any(one.stream for one in paths),
            no_updates="shows open windows, but records are emitted without a window",
        )
        _check_sinks(context, path, step.emit or [], emitted)
        return
    window = context.stages[context.output.stage]
    if step.name is not None:
        context.add((*path, "name"), f"results after a window belong to stage '{window.name}'; remove the name")
    if window.emits:
        context.add((*path, "emit"), f"window '{window.name}' already emits; list all sinks in one 'emit'")
        return
    context.stages[context.output.stage] = replace(
        window, emits=emits, post_steps=context.output.since_window, emitted=fields, later_emit_number=step_number(path)
    )
    context.output = replace(context.output, pending=(), is_emitted=True)
    _emits(context, path, step.emit or [], [(name, ()) for name in context.columns])


def check_results(context: CheckContext, path: Path, step: StepSpec) -> None:
    """Check the `emit` in the step of a window or join: add its sinks to the stage, and their problems to `context`."""
    assert step.stage is not None and step.keyword is not None, "called for a stage"
    emits = step.emit or []
    context.stages[-1] = replace(context.stages[-1], emits=_sinks(emits))
    _emits(context, path, emits, [(name, (step.keyword, *inner)) for name, inner in step.stage.result_fields])


def _sinks(emits: Iterable[EmitSpec]) -> tuple[Emit, ...]:
    return tuple(Emit(emit.kind, emit.name, emit.index_settings, emit.options) for emit in emits)


def _check_sinks(context: CheckContext, path: Path, emits: list[EmitSpec], emitted: EmittedFields) -> None:
    """Add the problems that the sinks have with these fields to `context`, each once."""
    found = [problem for position, emit in enumerate(emits) for problem in emit.problems(emitted, ("emit", position))]
    for place, message in dict.fromkeys(found):
        context.add((*path, *place), message)


def _emits(context: CheckContext, path: Path, emits: list[EmitSpec], places: list[tuple[str, Path]]) -> None:
    """Add the problems of the sinks of a window's results to `context`. `places`: (field, its path in the step)."""
    stage = context.stages[-1 if context.output.stage is None else context.output.stage]
    emitted = EmittedFields(
        fields=tuple(places),
        has_windows=True,
        inputs=frozenset(context.pipeline.streams),
        has_several_streams=False,
        no_updates=stage.why_no_updates,
    )
    _check_sinks(context, path, emits, emitted)
