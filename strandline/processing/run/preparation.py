"""Preparation of a run before it starts the query of Spark: check the log, record the start, fence older runs."""

from __future__ import annotations

from collections import defaultdict

import structlog

from strandline.core.errors import Conflict, LedgerBehind, LogUnavailable, NotFound
from strandline.core.failpoints import failpoint
from strandline.ledger.states import BackfillState
from strandline.processing.emission.fencing import fence_older_runs
from strandline.processing.pipelines.checked_pipeline import aliases_of
from strandline.processing.pipelines.functions.installed import installed_function
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.pipelines.result_streams import emitters_of_inputs
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.run.handed_slice import require_same_results
from strandline.processing.run.lost_results import require_kept_results
from strandline.processing.run.missing_results import require_results
from strandline.processing.run.newer_results import require_newest_ledger
from strandline.processing.run.snapshots import Snapshot
from strandline.processing.slices.continuity import LogContinuity
from strandline.processing.slices.input_stream import require_same_stream
from strandline.processing.slices.planner import SlicePlanner
from strandline.processing.slices.rewind import (
    RUN_BEGINS,
    RewindCost,
    RewindPlan,
    require_ledger_holds,
    require_log_holds,
    rewind_cost,
)
from strandline.processing.source.data_source import planner_settings
from strandline.results.generations import Generation, swap_aliases

log = structlog.get_logger()


def prepare_run(
    run: JobRun,
    index_url: str | None,
    plan: RewindPlan,
    snapshot: Snapshot | None,
    *,
    is_before_emission: bool = False,
) -> None:
    """Prepare a run by this plan. `snapshot`: None for a rewind. `index_url`: Elasticsearch; None if documents go elsewhere.

    1. Check that the functions of packages exist, and that topic and document of each input stream are those that the job has
       read. The streams that it emits to must still contain its results.
    2. Record where a job begins that doesn't begin at the oldest record, and where a batch ends.
    3. Check that ledger and topic still contain all slices and records that the plan needs.
    4. Record in the ledger how the run begins.
    5. Fence the producers of older runs.
    6. Check that the stores contain no result that the ledger can't know. Before the fencing, a record could
       still arrive in a topic. A document of a paused run can arrive at any time: it equals the one of this run.
    7. If the run takes over a slice from another version, check that no store contains other results of it.
       `is_before_emission`: that version failed before it could emit anything.
    8. Set the aliases again, as the ledger has them.
    9. Check that the stores contain the results of the last slices, unless this run restores them.

    Raises FunctionUnusable, LogTruncated, Conflict, NotFound, LogUnavailable, SinkUnavailable, LedgerUnavailable.
    """
    for function in run.pipeline.functions:
        installed_function(function)
    for stream in run.streams:
        continuity = LogContinuity(run.job, stream, run.ledger.stream(stream).topic_id, run.index)
        continuity.require(run.ledger.last_slice(run.job))
    require_kept_results(run)
    try:
        cost = _prepare_log(run, plan)
    except NotFound as error:  # it was there a moment ago; if it is gone, the next run says so
        raise LogUnavailable(
            f"a broker does not know the topic of stream {', or of '.join(run.streams)}, which another one knew; the job starts "
            "again"
        ) from error
    functions = run.pipeline.packages
    facts = {
        "epoch": run.epoch,
        "way": "rewind" if snapshot is None else "snapshot",
        "slice_first": plan.slice_first,
        "slice_committed": plan.slice_committed,
        "records": cost.records,
        **({"functions": functions} if functions else {}),
    }
    log.info("rewind planned", job=run.job, reaches_back_to_ms=plan.reaches_back_to_ms, **facts)
    source = "the log" if snapshot is None else f"the snapshot of run {snapshot.epoch} and the log"
    message = (
        f"run {run.epoch} begins from {source}, at slice {plan.slice_first}; {cost.records} records are read again"
    )
    if plan.restores_from is not None:
        message += f", and the results from slice {plan.restores_from} on are emitted again"
    if functions:
        message += f"; it calls {', '.join(f'{name} of {package}' for name, package in functions.items())}"
    run.ledger.record_event(RUN_BEGINS, message, run.job, run.epoch, facts)
    failpoint("rewind.planned")
    fence_older_runs(run.ledger, run.settings.kafka_bootstrap, run.row)
    require_newest_ledger(run, index_url)
    require_same_results(run, index_url, is_before_emission=is_before_emission)
    if index_url is not None:
        set_aliases(run, index_url)
    if plan.restores_from is None:
        require_results(run, index_url)


def set_aliases(run: JobRun, index_url: str) -> None:
    """If a backfill replaced results, set each alias to the indices that the ledger records. An index that was restored from a
    copy has the aliases of the time of the copy. Other indices get their aliases when the run sets up its writers.

    Does nothing while a backfill swaps the aliases itself. Raises LedgerBehind if the aliases show a later generation;
    IndexUnavailable, RequestRefused.
    """
    own = run.ledger.job(run.job).generation
    backfills = [row for row in run.ledger.backfills(run.job) if row.generation > own]
    if any(row.state is BackfillState.SWAPPING for row in backfills):
        return
    stores: dict[str, list[Generation]] = defaultdict(list)
    for row in backfills:
        if row.state is BackfillState.COMPLETE:
            pipeline = load_pipeline(run.ledger, run.job, row.version, row.stream_versions)
            for stage, aliases in aliases_of(pipeline).items():
                for alias in aliases if stage in row.windows else ():
                    stores[alias].append(Generation(row.generation, *row.windows[stage]))
    try:
        swap_aliases(index_url, stores, own)
    except Conflict as error:
        raise LedgerBehind.of(run.job, str(error)) from error


def _prepare_log(run: JobRun, plan: RewindPlan) -> RewindCost:
    for stream in run.pipeline.streams.values():
        require_same_stream(run.ledger, run.index, run.job, stream)
    emitters = emitters_of_inputs(run.ledger, run.pipeline)
    SlicePlanner(planner_settings(run, emitters), run.ledger, run.index).record_range()
    require_ledger_holds(run.ledger, run.job, plan)
    cost = rewind_cost(run.ledger, plan, run.job)
    require_log_holds(run.job, cost.needed, {stream: run.index.starts(stream) for stream in run.streams})
    return cost
