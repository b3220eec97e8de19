"""Changes of jobs: what a pipeline would change of its job, and which changes are refused."""

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
from strandline.services.jobs.applying.judged import JobPlan
from strandline.services.jobs.applying.registered import find_job
from strandline.services.jobs.job_status import present_pipeline, rewind_view


class JobChanges:
    """Plans and checks them. Blocking."""

    def __init__(self, ledger: LedgerReader, log_starts: Callable[[str], Mapping[int, int]]) -> None:
        """`log_starts(topic)` returns the first offset that each partition of it still holds."""
        self._ledger = ledger
        self._log_starts = log_starts

    def plan(self, pipeline: CheckedPipeline, together: Sequence[CheckedPipeline]) -> JobPlan:
        """What applying the pipeline would mean for its job. `together`: all pipelines that are applied with it. Raises
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
            what = f"version {job.version} as far as it doesn't fit the current streams"
            yield Change(what, Effect.SAFE, f"that part is not compared: {error}")

    def _other_windows(
        self, before: CheckedPipeline, after: CheckedPipeline, together: Sequence[CheckedPipeline]
    ) -> Iterator[Change]:
        """Streams of results whose windows change, or come no more, while jobs go by when the next ones begin and end."""
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
                        f"windows in stream {read.stream}, which come no more",
                        Effect.FORBIDDEN,
                        f"job {job} reads them beside other streams, and would wait for the next ones for ever; delete it first",
                    )
                else:
                    yield Change(
                        f"windows in stream {read.stream} from {old} to {new}",
                        Effect.FORBIDDEN,
                        f"job {job} reads them beside other streams, and has gone on to where the next of the old ones begins or "
                        "ends; emit to another stream",
                    )

    def base(self, pipeline: CheckedPipeline) -> JobBase:
        """What its job is now, before it is planned: the submission holds only for a job that is still so."""
        job = find_job(self._ledger, pipeline.job)
        return JobBase(job.version if job else 0, self._ledger.floor(pipeline.job))

    def refuse_unfit_batch(self, pipeline: CheckedPipeline, plan: JobPlan) -> None:
        """Refuse a batch that has completed by another document, or would end in the future. Raises Conflict."""
        job = find_job(self._ledger, pipeline.job)
        if job is not None and job.has_completed and plan.outcome != "unchanged":
            raise Conflict(
                f"batch {job.name} has completed by another version of its document, which would compute nothing more; apply the "
                f"pipeline under another name, or first: strandline job reset {job.name} --to start"
            )
        if job is None:
            _refuse_future(pipeline.spec)

    def refuse_forbidden(self, plan: JobPlan) -> None:
        """Refuse what a job that has begun can't take. Raises Conflict."""
        forbidden = [f"{c.what} ({c.reason})" for c in plan.changes if c.effect is Effect.FORBIDDEN]
        if forbidden:
            raise Conflict(
                f"job {plan.job} has begun and can't change {'; '.join(forbidden)}; apply the pipeline under another name"
            )


def _refuse_future(pipeline: PipelineSpec) -> None:
    """A batch ends at once where its range ends: one in the future would lack what comes until then."""
    for read in pipeline.reads:
        if isinstance(read.end, int) and read.end > time.time_ns() // 1_000_000:
            raise Conflict(
                f"batch {pipeline.pipeline} is to read stream {read.stream} up to {format_place(read.end)}, which is in the "
                "future; apply it then, or write end: latest for what is there now"
            )
