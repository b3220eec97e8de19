"""The check of `bound`."""

from __future__ import annotations

from acme_kinds.bound.document import BoundSpec
from acme_kinds.bound.step import Bound

from strandline.core.documents import Path, did_you_mean
from strandline.processing.pipelines.checks.check_context import CheckContext, step_number


def check(context: CheckContext, path: Path, spec: BoundSpec) -> None:
    """The field is a double, and the name is new."""
    if spec.field not in context.columns:
        context.add((*path, "field"), f"unknown column '{spec.field}'{did_you_mean(spec.field, context.columns)}")
    elif (kind := context.columns[spec.field]) not in ("double", None):
        context.add(
            (*path, "field"), f"'{spec.field}' is a {kind}; derive a double first: cast({spec.field} as double)"
        )
    elif context.window_before is None:
        context.read(spec.field)
    context.refuse_known_names(path, [spec.into])
    step = Bound(step_number(path), spec.field, spec.into, spec.low, spec.high)
    context.end_step(step, {**context.columns, **dict(step.added)})
