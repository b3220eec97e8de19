"""Words for `where` in the graph of a pipeline."""

from __future__ import annotations

from strandline.processing.kinds.where.step import Where


def describe(step: Where) -> str:
    return f"where {step.sql}"
