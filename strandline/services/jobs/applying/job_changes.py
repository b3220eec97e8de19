"""Changes of jobs: the effect of a pipeline on its job, and refused changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from strandline.core.errors import Conflict, InvalidDocument, LogTruncated
from strandline.core.times.durations import format_place
from strandline.ledger.roles import LedgerReader
from strandline.ledger.states import JobBase, JobRow
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.result_streams import present_pipelines
from strandline.processing.pipelines.upgrade import Change, Effect, changes_between
from strandline.processing.slices.rewind import plan_of_job, require_ledger_holds, require_log_holds, rewind_cost
from strandline.services.jobs.applying.planned_changes import JobPlan
from strandline.services.jobs.applying.registered import find_job
from strandline.services.jobs.job_status import present_pipeline, rewind_view


class JobChanges:
    """Plans and checks changes of jobs. Blocking."""

    def __init__(self, ledger: LedgerReader, log_starts: Callable[[str], Mapping[int, int]]) -> None:
        """Args: log_starts: Returns the first offset that each partition of a topic still contains."""
        self._ledger = ledger
        self._log_starts = log_starts

    def plan(self, pipeline: CheckedPipeline, together: Sequence[CheckedPipeline]) -> JobPlan:
        """Return the effect of applying the pipeline on its job. `together`: all pipelines that are applied with it. Raises
        LogUnavailable."""
        job = find_job(self._ledger, pipeline.job)
        if job is None:
            return JobPlan(job=pipeline.job, outcome="created", version=1, changes=[], rewind=None)
        document = self._ledger.job_version(job.name, job.version).document
        if document == pipeline.spec.as_document():
            return JobPlan(job=job.name, outcome="unchanged", version=job.version, changes=[], rewind=None)
        present = present_pipeline(self._ledger, job)
        changes = [*changes_between(present, pipeline), *self._other_windows(present, pipeline, together)]
        changes += self._not_compared(job)
        plan = plan_of_job(self._ledger, pipeline)
        cost = rewind_cost(self._ledger, plan, job.name)
        if not any(change.effect is Effect.FORBIDDEN for change in changes):
            try:
                require_ledger_holds(self._ledger, job.name, plan)
                require_log_holds(job.name, cost.needed, {name: self._log_starts(name) for name in present.streams})
            except LogTruncated as error:
                changes.insert(0, Change("the reach of the windows", Effect.FORBIDDEN, str(error)))
        rewind = rewind_view(cost, pipeline.retention_ms)
        return JobPlan(job=job.name, outcome="changed", version=job.version + 1, changes=changes, rewind=rewind)

    def _not_compared(self, job: JobRow) -> Iterator[Change]:
        try:
            present_pipeline(self._ledger, job, is_strict=True)
        except InvalidDocument as error:
            what = f"the part of version {job.version} that doesn't fit the current streams"
            yield Change(what, Effect.SAFE, f"this part is not compared: {error}")

    def _other_windows(
        self, before: CheckedPipeline, after: CheckedPipeline, together: Sequence[CheckedPipeline]
    ) -> Iterator[Change]:
        """Yield changes of the windows in streams of results, if other jobs use the start and end of these windows."""
        windows = [
            {stream: str(one.shape) for version in versions for one in version.stages for stream in one.streams}
            for versions in ([before], [*together, after])
        ]
        for job, spec in present_pipelines(self._ledger).items():
            for read in spec.reads:
                old, new = (shapes.get(read.stream) for shapes in windows)
                if read.event_time.watermark != "emissions" or old is None or old == new:
                    continue
                if new is None:
                    yield Change(
                        f"windows in stream {read.stream}, which will not get new ones",
                        Effect.FORBIDDEN,
                        f"job {job} reads them in parallel with other streams, and would wait for new ones "
                        "forever; delete it first",
                    )
                else:
                    yield Change(
                        f"windows in stream {read.stream} from {old} to {new}",
                        Effect.FORBIDDEN,
                        f"job {job} reads them in parallel with other streams, and expects the start and end of the old ones; "
                        "emit to another stream",
                    )

    def base(self, pipeline: CheckedPipeline) -> JobBase:
        """Return the current state of the job, before it is planned. The submission is valid only in this state."""
        job = find_job(self._ledger, pipeline.job)
        return JobBase(job.version if job else 0, self._ledger.floor(pipeline.job))

    def refuse_unfit_batch(self, pipeline: CheckedPipeline, plan: JobPlan) -> None:
        """Refuse a changed document for a completed batch, and a batch that ends in the future. Raises Conflict."""
        job = find_job(self._ledger, pipeline.job)
        if job is not None and job.has_completed and plan.outcome != "unchanged":
            raise Conflict(
                f"batch {job.name} has completed, so a changed document would compute nothing; apply the "
                f"pipeline under another name, or first run strandline job reset {job.name} --to start"
            )
        if job is None:
            _refuse_future(pipeline.spec)

    def refuse_forbidden(self, plan: JobPlan) -> None:
        """Refuse changes that a job can't make after its start. Raises Conflict."""
        forbidden = [f"{c.change} ({c.reason})" for c in plan.changes if c.effect is Effect.FORBIDDEN]
        if forbidden:
            raise Conflict(
                f"job {plan.job} has started and can't change {'; '.join(forbidden)}; apply the pipeline under another name"
            )


def _refuse_future(pipeline: PipelineSpec) -> None:
    """Refuse a batch whose range ends in the future. It would end immediately, without the records until then."""
    for read in pipeline.reads:
        if isinstance(read.end, int) and read.end > time.time_ns() // 1_000_000:
            raise Conflict(
                f"batch {pipeline.pipeline}: the end {format_place(read.end)} of stream {read.stream} is in the "
                "future; apply the pipeline after this time, or set end: latest to read the existing records"
            )
