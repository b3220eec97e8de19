"""The check of `select` and of `drop`."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.core.documents import Path, did_you_mean
from strandline.processing.pipelines.checks.check_context import CheckContext, step_number
from strandline.processing.pipelines.row_step import Projection


def check(context: CheckContext, path: Path, names: Sequence[str]) -> None:
    """Check a `select` or `drop` of the columns `names`; `path` shows which. Add a problem to `context` for an unknown column,
    and for a selected column that is listed twice."""
    is_drop = path[-1] == "drop"
    for number, name in enumerate(names):
        if name not in context.columns:
            context.add((*path, number), f"unknown column '{name}'{did_you_mean(name, context.columns)}")
        elif not is_drop and name in names[:number]:
            context.add((*path, number), f"'{name}' is listed twice")
    if is_drop:
        _keep(context, path, [name for name in context.columns if name not in names])
    else:
        _keep(context, path, [name for name in dict.fromkeys(names) if name in context.columns])


def _keep(context: CheckContext, path: Path, names: Sequence[str]) -> None:
    """End the step with only these columns. Add a problem to `context` if there are none, or if the step is after a window and
    lacks one of its `by` fields, which identify a result."""
    window = context.window_before
    lost = [name for name in window.by if name not in names] if window else []
    if window and lost:
        context.add(path, f"leaves out {', '.join(lost)}, but window '{window.name}' groups by it; keep these fields")
        names = [*lost, *names]
    if not names:
        context.add(path, "leaves no field; expected at least one")
    columns = {name: context.columns[name] for name in names if name in context.columns}
    context.end_step(Projection(step_number(path), tuple(columns)), columns)
