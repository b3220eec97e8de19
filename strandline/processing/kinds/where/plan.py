"""The check of `where`."""

from __future__ import annotations

from strandline.core.documents import Path
from strandline.processing.kinds.where.step import Where
from strandline.processing.pipelines.checks.check_context import CheckContext, step_number


def check(context: CheckContext, path: Path, text: str) -> None:
    """Add a problem to `context` if the condition isn't a valid boolean expression. Otherwise add the step."""
    column = context.expression(path, text, aggregate=False)
    if column and column.type != "boolean":
        context.add(path, f"expected a condition that is true or false, got a {column.type} (in: {text})")
    elif column:
        context.end_step(Where(step_number(path), column.sql))
