"""Placement of jobs: in a pool, or in a runner of their own."""

from __future__ import annotations

from collections.abc import Callable, Collection

from strandline.ledger.roles import SupervisionLedger
from strandline.ledger.states import JobRow
from strandline.processing.pipelines.stored import spec_of_version
from strandline.processing.run.pool_features import MOVED_OUT, unsupported_features


def pool_placement(ledger: SupervisionLedger, own: Collection[str]) -> Callable[[JobRow], bool]:
    """Return the function that decides whether a job runs in a pool.

    A job has its own runner if it is one of `own`, or if a pool doesn't run a feature of its pipeline. A job that was moved out
    of a pool has its own runner until it is restarted by a command.
    """

    def is_for_pool(job: JobRow) -> bool:
        if job.name in own:
            return False
        moved = ledger.last_event(job.name, MOVED_OUT)
        if moved is not None and moved.facts["restarts"] == job.restarts:
            return False
        return not list(unsupported_features(spec_of_version(ledger, job.name, job.version)))

    return is_for_pool
