"""What the graph of a pipeline says about `select` and `drop`."""

from __future__ import annotations

from strandline.processing.pipelines.row_step import Projection


def sentence(step: Projection) -> str:
    return f"select {', '.join(step.names)}"
