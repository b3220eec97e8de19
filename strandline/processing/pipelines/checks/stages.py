"""The checks of windows, joins and emissions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from strandline.core.documents import Path
from strandline.processing.pipelines.checks.check_context import CheckContext, StepOutput, step_number
from strandline.processing.pipelines.event_time import JoinShape, SameWindowShape, WindowShape
from strandline.processing.pipelines.expressions import packages_called
from strandline.processing.pipelines.graph.join_check import join_problems, joined_columns, windows_shared
from strandline.processing.pipelines.joins.join_spec import JoinSpec
from strandline.processing.pipelines.model.emissions import EmitSpec
from strandline.processing.pipelines.model.steps import StepSpec
from strandline.processing.pipelines.model.windows import WindowSpec
from strandline.processing.pipelines.stages import LEFT, RIGHT, Emit, JoinStage, RecordStage, Stage
from strandline.results.sinks.sink import EmittedFields


def check_emission(context: CheckContext, path: Path, step: StepSpec) -> None:
    """An `emit` in a step of its own: behind a window of what that gives, before the first one of records."""
    emits = _sinks(step.emit or [])
    fields = tuple((name, kind) for name, kind in context.columns.items() if kind is not None)
    for name in context.columns:
        if name.startswith("_"):
            context.add(
                path, f"'{name}' begins with '_', and no field of a result may; leave it out with 'drop: [{name}]'"
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
            no_updates="shows windows that are open, and records are emitted as they come",
        )
        _check_sinks(context, path, step.emit or [], emitted)
        return
    window = context.stages[context.output.stage]
    if step.name is not None:
        context.add((*path, "name"), f"results behind a window are of stage '{window.name}'; remove the name")
    if window.emits:
        context.add(
            (*path, "emit"), f"window '{window.name}' emits already; it has one place that says where results go"
        )
        return
    context.stages[context.output.stage] = replace(
        window, emits=emits, post_steps=context.output.since_window, emitted=fields, later_emit_number=step_number(path)
    )
    context.output = replace(context.output, pending=(), is_emitted=True)
    _emits(context, path, step.emit or [], [(name, ()) for name in context.columns])


def check_window(context: CheckContext, path: Path, window: WindowSpec, emits: list[EmitSpec]) -> None:
    """Its keys and aggregates; from here on the columns are those of its results."""
    inner: Path = (*path, "window")
    for number, name in enumerate(window.by):
        context.check_key((*inner, "by", number), name)
    aggregates = {
        name: context.expression((*inner, "aggregate", name), text, aggregate=True)
        for name, text in window.aggregate.items()
    }
    columns = tuple(column for column in aggregates.values() if column)
    by_types = {name: context.columns.get(name) for name in window.by}
    given = context.output.stage_input()
    context.end_stage(
        Stage(
            name=window.name,
            windows=window.shape,
            by=tuple(window.by),
            by_types=tuple(kind or "" for kind in by_types.values()),
            aggregates=columns,
            emits=_sinks(emits),
            inputs=(given,),
            number=step_number(path),
            packages=tuple(packages_called(column.sql for column in columns).items()),
        ),
        by_types | {name: column.type if column else None for name, column in aggregates.items()},
    )
    places: list[tuple[str, Path]] = [(name, ("window", "by", number)) for number, name in enumerate(window.by)]
    places += [(name, ("window", "aggregate", name)) for name in window.aggregate]
    _emits(context, path, emits, places)


def check_join(
    context: CheckContext, path: Path, join: JoinSpec, emits: list[EmitSpec], sides: tuple[StepOutput, StepOutput]
) -> None:
    """Both sides have the fields of `on` in types that are equal, and what is added is there. Each is records, or results of
    a window or a join."""
    inner: Path = (*path, "join")
    columns = sides[LEFT].columns, sides[RIGHT].columns
    inputs = tuple(side.stage_input() for side in sides)
    both = (*inputs[LEFT].paths, *inputs[RIGHT].paths)
    for place, message in join_problems(join, columns, lambda name: context.is_json(name, both)):
        context.add((*inner, *place), message)
    stages = [None if side.stage is None else context.stages[side.stage] for side in sides]
    same_windows = None
    if join.same_window:
        same_windows, problems = windows_shared((stages[LEFT], stages[RIGHT]))
        for place, message in problems:
            context.add((*inner, *place), message)
    added = joined_columns(join, columns)
    for name in join.on:
        context.read(name, both)
    for one in added:
        context.read(one.column, inputs[one.side].paths)
    by_types = {name: columns[LEFT].get(name) for name in join.on}
    context.end_stage(
        JoinStage(
            name=join.name,
            windows=_windows_of(join, same_windows),
            by=tuple(join.on),
            by_types=tuple(kind or "" for kind in by_types.values()),
            aggregates=(),
            emits=_sinks(emits),
            inputs=inputs,
            number=step_number(path),
            streams_joined=tuple(context.pipeline.streams),
            type=join.type,
            columns=added,
            max_rows=join.max_rows,
        ),
        by_types | dict.fromkeys(join.add) | {one.name: one.type for one in added},
    )
    places: list[tuple[str, Path]] = [(name, ("join", "on", number)) for number, name in enumerate(join.on)]
    places += [(name, ("join", "add", name)) for name in join.add]
    _emits(context, path, emits, places)


def _sinks(emits: Iterable[EmitSpec]) -> tuple[Emit, ...]:
    return tuple(Emit(emit.kind, emit.name, emit.index_settings, emit.options) for emit in emits)


def _check_sinks(context: CheckContext, path: Path, emits: list[EmitSpec], emitted: EmittedFields) -> None:
    """Report the problems that the sinks have with these fields. Several sinks can report the same one."""
    found = [problem for position, emit in enumerate(emits) for problem in emit.problems(emitted, ("emit", position))]
    for place, message in dict.fromkeys(found):
        context.add((*path, *place), message)


def _emits(context: CheckContext, path: Path, emits: list[EmitSpec], places: list[tuple[str, Path]]) -> None:
    """Check the sinks of a window's results. `places`: the fields, and the path of each in the step."""
    stage = context.stages[-1 if context.output.stage is None else context.output.stage]
    emitted = EmittedFields(
        fields=tuple(places),
        has_windows=True,
        inputs=frozenset(context.pipeline.streams),
        has_several_streams=False,
        no_updates=stage.why_no_updates,
    )
    _check_sinks(context, path, emits, emitted)


def _windows_of(join: JoinSpec, same_windows: WindowShape | None) -> WindowShape:
    """Return the windows of joined rows. `same_windows`: windows of both sides, if partners must have the same one."""
    if same_windows is not None:
        return SameWindowShape(same_windows.size_ms, same_windows.every_ms, of=same_windows)
    if join.within is None:
        return WindowShape(join.tumbling or 1, join.tumbling or 1)
    longest_ms = max(join.before_ms, join.after_ms) + 1
    return JoinShape(longest_ms, 1, before_ms=join.before_ms, after_ms=join.after_ms, is_latest=bool(join.latest))
