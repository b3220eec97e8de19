"""Words for `map` in the graph of a pipeline."""

from __future__ import annotations

from strandline.processing.kinds.map_rows.step import MapRows


def describe(step: MapRows) -> str:
    given = ", ".join(f"{name}: {kind}" for name, kind in step.columns)
    return f"map {step.function} of {step.package or 'no package'} over {', '.join(step.reads)}: {given}"
