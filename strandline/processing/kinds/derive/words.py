"""Words for `derive` in the graph of a pipeline."""

from __future__ import annotations

from strandline.processing.kinds.derive.step import Derive


def describe(step: Derive) -> str:
    return "derive " + ", ".join(f"{column.name}: {column.sql}" for column in step.columns)
