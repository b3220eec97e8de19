"""Placement of jobs: in a pool, or in a runner of their own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from strandline.ledger.jobs import no_job
from strandline.ledger.roles import SupervisionLedger
from strandline.ledger.states import JobRow
from strandline.processing.pipelines.stored import spec_of_row
from strandline.processing.run.pool_features import MOVED_OUT, unsupported_features

PlacementReader = Callable[[Sequence[JobRow]], Callable[[JobRow], bool]]
"""Reads what the placement of these jobs depends on, and returns the function that decides whether one of them runs in a pool."""


def pool_placement(ledger: SupervisionLedger, own: Collection[str]) -> PlacementReader:
    """Return the reader for these rules:

    1. A job that was moved out of a pool has its own runner until it is restarted by a command.
    2. `placement` of its document counts.
    3. Otherwise, a job has its own runner if it is one of `own`, if a pool doesn't run a feature of its pipeline, or if it is a
       batch. A batch reads the log as fast as it can, and in a pool only one core works for it.
    """

    def read(jobs: Sequence[JobRow]) -> Callable[[JobRow], bool]:
        names = [job.name for job in jobs]
        moved, versions = ledger.last_events(names, MOVED_OUT), ledger.current_versions_of_jobs(names)

        def is_for_pool(job: JobRow) -> bool:
            event = moved.get(job.name)
            if event is not None and event.facts["restarts"] == job.restarts:
                return False
            if job.name not in versions:
                raise no_job(job.name)  # it was just deleted
            spec = spec_of_row(versions[job.name])
            if spec.placement is not None:
                return spec.placement == "pool"
            return job.name not in own and not spec.is_batch and not list(unsupported_features(spec))

        return is_for_pool

    return read
