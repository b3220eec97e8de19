"""The check of `derive`."""

from __future__ import annotations

from strandline.core.documents import Path
from strandline.processing.kinds.derive.step import Derive
from strandline.processing.pipelines.checks.check_context import CheckContext, step_number


def check(context: CheckContext, path: Path, derive: dict[str, str]) -> None:
    """Add a problem to `context` for each name that isn't new, and each invalid expression. End the step with the new columns."""
    expressions = [context.expression((*path, name), text, aggregate=False) for name, text in derive.items()]
    step = Derive(step_number(path), tuple(column for column in expressions if column))
    context.refuse_known_names(path, derive)
    context.end_step(step, {**context.columns, **dict.fromkeys(derive), **dict(step.added)})
