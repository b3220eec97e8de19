"""Words for `select` and `drop` in the graph of a pipeline."""

from __future__ import annotations

from strandline.processing.pipelines.row_step import Projection


def describe(step: Projection) -> str:
    return f"select {', '.join(step.names)}"
