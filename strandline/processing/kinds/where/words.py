"""What the graph of a pipeline says about `where`."""

from __future__ import annotations

from strandline.processing.kinds.where.step import Where


def sentence(step: Where) -> str:
    return f"where {step.sql}"
