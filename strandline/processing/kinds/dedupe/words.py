"""Words for `dedupe` and `distinct` in the graph of a pipeline."""

from __future__ import annotations

from strandline.core.times.durations import format_duration
from strandline.processing.kinds.dedupe.step import Dedupe


def describe(step: Dedupe) -> str:
    by = ", ".join(step.by)
    return f"distinct by {by}" if step.compares_all else f"dedupe by {by} within {format_duration(step.within_ms)}"
