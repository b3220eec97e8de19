"""Check whether a pool of several jobs can run a pipeline. The others need a runner of their own."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.core.errors import NeedsOwnRunner
from strandline.processing.pipelines.model.pipeline import PipelineSpec

MOVED_OUT = "moved_out"
"""Kind of the event that a job was moved out of a pool."""


class NotForPool(NeedsOwnRunner):
    """A pipeline has a feature that a pool of several jobs doesn't run yet, or requires its own runner."""

    code = "not_for_pool"


class MovedOut(NeedsOwnRunner):
    """A job was moved out of a pool, because it hung, ended a worker, or exceeded a limit."""

    code = MOVED_OUT

    @staticmethod
    def of(job: str, why: str) -> MovedOut:
        """Return the error for this job. `why` continues "because"."""
        return MovedOut(
            f"job {job} was moved out of the pool, because {why}. It continues in its own runner. To return it to a pool, run "
            f"strandline job restart {job}"
        )


def unsupported_features(pipeline: PipelineSpec) -> Iterator[str]:
    """Yield each feature of the pipeline that a pool of several jobs doesn't run."""
    if pipeline.recovery == "snapshot":
        yield "recovery: snapshot"


def leaves_own_runner(before: PipelineSpec, after: PipelineSpec) -> bool:
    """Return True if a job with its own runner must leave it because of a new version of its document."""
    return before.placement != after.placement and after.placement != "own"


def require_pool_runs(pipeline: PipelineSpec) -> None:
    """Raise NotForPool if a pool of several jobs can't run the pipeline, or if its document requires its own runner."""
    if pipeline.placement == "own":
        raise NotForPool(f"job {pipeline.pipeline} can't run in a pool: its document has placement: own")
    if found := list(unsupported_features(pipeline)):
        raise NotForPool(
            f"job {pipeline.pipeline} can't run in a pool: a pool doesn't run {', '.join(found)} yet. Give the job its own "
            f"runner: python -m strandline.processing.run.process --job {pipeline.pipeline}"
        )
