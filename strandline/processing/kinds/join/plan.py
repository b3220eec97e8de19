"""The check of the step `join`."""

from __future__ import annotations

from strandline.core.documents import Path
from strandline.processing.kinds.join.document import JoinSpec
from strandline.processing.kinds.join.shape import JoinShape, SameWindowShape
from strandline.processing.kinds.join.sides import join_problems, joined_columns, windows_shared
from strandline.processing.kinds.join.step import JoinStage
from strandline.processing.pipelines.checks.check_context import CheckContext, step_number
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.pipelines.stages import LEFT, RIGHT


def check(context: CheckContext, path: Path, join: JoinSpec) -> None:
    """Add a problem to `context` for each field of `on` or `add` that a side lacks, or that has different types. End the stage.

    A side consists of records, or of the results of a window or a join."""
    sides = context.taken
    columns = sides[LEFT].columns, sides[RIGHT].columns
    inputs = tuple(side.stage_input() for side in sides)
    both = (*inputs[LEFT].paths, *inputs[RIGHT].paths)
    for place, message in join_problems(join, columns, lambda name: context.is_json(name, both)):
        context.add((*path, *place), message)
    stages = [None if side.stage is None else context.stages[side.stage] for side in sides]
    same_windows = None
    if join.same_window:
        same_windows, problems = windows_shared((stages[LEFT], stages[RIGHT]))
        for place, message in problems:
            context.add((*path, *place), message)
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
            emits=(),
            inputs=inputs,
            number=step_number(path),
            streams_joined=tuple(context.pipeline.streams),
            type=join.type,
            columns=added,
            max_rows=join.max_rows,
        ),
        by_types | dict.fromkeys(join.add) | {one.name: one.type for one in added},
    )


def _windows_of(join: JoinSpec, same_windows: WindowShape | None) -> WindowShape:
    """Return the windows of joined rows. `same_windows`: windows of both sides, if partners must have the same one."""
    if same_windows is not None:
        return SameWindowShape(same_windows.size_ms, same_windows.every_ms, of=same_windows)
    if join.within is None:
        return WindowShape(join.tumbling or 1, join.tumbling or 1)
    longest_ms = max(join.before_ms, join.after_ms) + 1
    return JoinShape(longest_ms, 1, before_ms=join.before_ms, after_ms=join.after_ms, is_latest=bool(join.latest))
