"""What a run does before it starts Spark's query: check the log, tell how it begins, fence older runs."""

from __future__ import annotations

import structlog

from strandline.core.failpoints import failpoint
from strandline.processing.emission.fencing import fence_older_runs
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.run.snapshots import Snapshot
from strandline.processing.slices.rewind import (
    RUN_BEGINS,
    RewindPlan,
    require_log_holds,
    require_same_topic,
    rewind_cost,
)

log = structlog.get_logger()


def prepare_run(run: JobRun, plan: RewindPlan, snapshot: Snapshot | None) -> None:
    """Prepare a run by this plan, from `snapshot` where there is one.

    1. Make sure that the topic is the one that the job has read, and still holds what the plan needs.
    2. Say in the ledger how the run begins.
    3. Fence the producers of older runs.

    Raises LogTruncated, Conflict, LogUnavailable.
    """
    what_now = "Submit the pipeline under another name."
    require_same_topic(run.job, run.ledger.stream(run.stream), run.index.topic_id(run.stream), what_now)
    cost = rewind_cost(run.ledger, plan, run.job)
    require_log_holds(run.job, cost.needed, {run.stream: run.index.starts(run.stream)})
    facts = {
        "epoch": run.epoch,
        "way": "rewind" if snapshot is None else "snapshot",
        "slice_first": plan.slice_first,
        "slice_committed": plan.slice_committed,
        "records": cost.records,
    }
    log.info("rewind planned", job=run.job, reaches_back_to_ms=plan.reaches_back_to_ms, **facts)
    source = "the log" if snapshot is None else f"the snapshot of run {snapshot.epoch} and the log"
    message = (
        f"run {run.epoch} begins from {source}, at slice {plan.slice_first}; {cost.records} records are read again"
    )
    run.ledger.record_event(RUN_BEGINS, message, run.job, run.epoch, facts)
    failpoint("rewind.planned")
    fence_older_runs(run.ledger, run.settings.kafka_bootstrap, run.row)
