"""Placement of jobs: in a pool, or in a runner of their own."""

from __future__ import annotations

from collections.abc import Callable, Collection

from strandline.ledger.roles import SupervisionLedger
from strandline.ledger.states import JobRow
from strandline.processing.pipelines.stored import spec_of_version
from strandline.processing.run.pool_features import MOVED_OUT, unsupported_features


def pool_placement(ledger: SupervisionLedger, own: Collection[str]) -> Callable[[JobRow], bool]:
    """Return the function that decides whether a job runs in a pool.

    1. A job that was moved out of a pool has its own runner until it is restarted by a command.
    2. `placement` of its document counts.
    3. Otherwise, a job has its own runner if it is one of `own`, if a pool doesn't run a feature of its pipeline, or if it is a
       batch. A batch reads the log as fast as it can, and in a pool only one core works for it.
    """

    def is_for_pool(job: JobRow) -> bool:
        moved = ledger.last_event(job.name, MOVED_OUT)
        if moved is not None and moved.facts["restarts"] == job.restarts:
            return False
        spec = spec_of_version(ledger, job.name, job.version)
        if spec.placement is not None:
            return spec.placement == "pool"
        return job.name not in own and not spec.is_batch and not list(unsupported_features(spec))

    return is_for_pool
