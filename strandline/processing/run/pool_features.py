"""Check whether a pool of several jobs can run a pipeline. The others need a runner of their own."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.core.errors import StrandlineError
from strandline.processing.pipelines.model.pipeline import PipelineSpec

_INDEX = "elasticsearch"


class NotForPool(StrandlineError):
    """A pipeline has a feature that a pool of several jobs doesn't run yet. Its runner may run it."""

    code = "not_for_pool"


def unsupported_features(pipeline: PipelineSpec) -> Iterator[str]:
    """Yield each feature of the pipeline that a pool of several jobs doesn't run."""
    if pipeline.recovery == "snapshot":
        yield "recovery: snapshot"
    for kind in dict.fromkeys(emit.kind for _, emit in pipeline.emissions()):
        if kind != _INDEX:
            yield f"emit: {kind}"
    if any(emit.kind == _INDEX and getattr(emit.value, "updates", None) for _, emit in pipeline.emissions()):
        yield "updates of open windows"


def require_pool_runs(pipeline: PipelineSpec) -> None:
    """Raise NotForPool if a pool of several jobs can't run the pipeline."""
    if found := list(unsupported_features(pipeline)):
        raise NotForPool(
            f"job {pipeline.pipeline} can't run in a pool: a pool doesn't run {', '.join(found)} yet. Give the job its own "
            f"runner: python -m strandline.processing.run.process --job {pipeline.pipeline}"
        )
