"""The check of `map`."""

from __future__ import annotations

from strandline.core.documents import Path, did_you_mean
from strandline.core.errors import FunctionUnusable
from strandline.core.field_types import normal_type
from strandline.processing.kinds.map_rows.document import MapSpec
from strandline.processing.kinds.map_rows.step import MapRows
from strandline.processing.pipelines.checks.check_context import CheckContext, step_number
from strandline.processing.pipelines.functions.installed import installed_function, package_of


def check(context: CheckContext, path: Path, spec: MapSpec) -> None:
    """Add a problem to `context` for an unknown or repeated field, and for a returned name that isn't new. End the step.

    If the document is submitted, also check that the function may be called. For a stored document, the process that runs the
    function checks it."""
    for number, name in enumerate(spec.reads):
        if name not in context.columns:
            context.add((*path, "reads", number), f"unknown column '{name}'{did_you_mean(name, context.columns)}")
        elif name in spec.reads[:number]:
            context.add((*path, "reads", number), f"'{name}' is listed twice")
    if context.output.stage is None:
        for name in spec.reads:
            context.read(name)
    context.refuse_known_names((*path, "columns"), spec.columns)
    if context.is_submitted:
        try:
            installed_function(spec.function)
        except FunctionUnusable as error:
            context.add((*path, "function"), str(error))
    step = MapRows(
        step_number(path),
        spec.function,
        tuple(spec.reads),
        tuple((name, normal_type(kind.removesuffix("?")) or kind) for name, kind in spec.columns.items()),
        tuple(name for name, kind in spec.columns.items() if kind.endswith("?")),
        package_of(spec.function),
    )
    context.end_step(step, {**context.columns, **dict(step.added)})
