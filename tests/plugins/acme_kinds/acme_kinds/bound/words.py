"""Words for `bound` in the graph of a pipeline."""

from __future__ import annotations

from acme_kinds.bound.step import Bound


def describe(step: Bound) -> str:
    return f"bound {step.column} to {step.low:g} .. {step.high:g}: {step.name}"
