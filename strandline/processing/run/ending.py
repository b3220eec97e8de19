"""Endings of a run: the checks between slices, while the query of Spark runs by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import structlog

from strandline.core.errors import LedgerUnavailable, NotFound, SparkUnavailable, StrandlineError
from strandline.ledger.progress import JobProgress
from strandline.ledger.states import Desired, JobState, SliceStatus
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.run.watchdog import Watchdog
from strandline.processing.slices.effective_schema import EffectiveSchema
from strandline.processing.slices.planner import is_drained
from strandline.processing.spark.cluster import ExecutorWatch

log = structlog.get_logger()

_LOOK_S = 0.1

Ending = Literal[JobState.STOPPED, JobState.DRAINED, "interrupted", "replaced"]
"""New state of the job, or the reason why its state stays.

It stays if the process was asked to end, or if the job or the document of its stream has a new version, which needs another run.
"""


class StopRequest(threading.Event):
    """A request to end a run now."""

    def __init__(self) -> None:
        super().__init__()
        self.on_set: Callable[[], None] = lambda: None
        """Called after the request, in the thread that makes it. It must not wait."""

    def set(self) -> None:
        super().set()
        self.on_set()


class RunningQuery(Protocol):
    """A query that runs: Spark's `StreamingQuery`, or a `PoolMember`."""

    @property
    def isActive(self) -> bool:  # noqa: N802 - the name in pyspark
        """True while the query runs."""

    def exception(self) -> Exception | None:
        """The error that ended the query. None if there is none."""

    def stop(self) -> None:
        """Stop the query."""


def watch_query(
    query: RunningQuery,
    run: JobRun,
    watchdog: Watchdog,
    executors: ExecutorWatch,
    stop_now: StopRequest,
    ask: Callable[[], Ending | None] | None = None,
    wait: Callable[[float], object] = time.sleep,
) -> Ending:
    """Wait until the run must end, stop the query, and return how the run ended.

    If the ledger doesn't answer, the wait continues: the watchdog limits it. Raises the error of the query, Fenced, and
    SparkUnavailable if a cluster leaves the job without executors. `ask`: returns how to end the run now. None: the ledger
    determines it.
    """
    run.ledger.move_job(run.job, JobState.RUNNING, epoch=run.epoch)
    schema = effective_schema(run)
    ask = ask or (lambda: wanted_end(run, schema))
    while True:
        if not query.isActive:
            raise query.exception() or StrandlineError(f"the Spark query of job {run.job} ended by itself")
        watchdog.beat()
        try:
            executors.require_some()
        except SparkUnavailable:
            watchdog.disarm()
            query.stop()
            raise
        end: Ending | None = None
        try:
            end = "interrupted" if stop_now.is_set() else ask()
        except LedgerUnavailable as error:
            log.warning("could not look what the job should do", job=run.job, error=str(error))
        if watchdog.fenced is not None or end is not None:
            watchdog.disarm()
            query.stop()
            if watchdog.fenced is not None:
                raise watchdog.fenced
            assert end is not None
            return end
        wait(_LOOK_S)


def effective_schema(run: JobRun) -> EffectiveSchema:
    """Return the EffectiveSchema of the run, which reports whether the run can use the current versions of its documents."""
    compiled = {stream: run.row.stream_versions[stream] for stream in run.streams}
    return EffectiveSchema(run.ledger, run.job, run.version, compiled)


def wanted_end(run: JobRun, schema: EffectiveSchema | None = None) -> Ending | None:
    """Return how the run must end now, between two slices. None if it continues. `schema`: None to create one for this call."""
    progress = run.ledger.progress_of([run.job]).get(run.job)
    if progress is None:
        raise NotFound(f"There is no job {run.job}.")
    needs_another = schema.needs_another_run if schema is not None else lambda: False
    return ending_by(progress, run.version, run.pipeline.windows, needs_another)


def ending_by(
    progress: JobProgress, version: int, windows: Sequence[WindowShape], needs_another: Callable[[], bool]
) -> Ending | None:
    """Return how a run of this version must end now. None: it continues.

    `needs_another`: returns True if the run can't use the current schema of a stream.
    """
    job, last = progress.job, progress.last_slice
    if last is not None and last.status is not SliceStatus.COMMITTED:
        return None
    if job.desired is Desired.STOPPED:
        return JobState.STOPPED
    if job.version != version or needs_another():
        return "replaced"
    if is_to_end(progress) and is_drained(last, progress.last_checkpoint, windows):
        return JobState.DRAINED
    return None


def is_to_end(progress: JobProgress) -> bool:
    """Return True if the job drains, or has an end."""
    return progress.job.desired is Desired.DRAINED or progress.job.ends is not None
