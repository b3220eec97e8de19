"""Search for results that a store lost, before a run writes anything, and the plan of a run that restores them.

A store can be older than the ledger: an index restored from a snapshot, a lost translog, a failover of a SQL database. Each
checkpoint records how many results each store had confirmed (`CheckpointRow.stored`). A start compares the last of them with the
stores. A job reads only forward, so nothing else would notice the gap.

The records of a stream of results are compared by offsets (`lost_results.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import structlog

from strandline.core.errors import Conflict, ResultsMissing
from strandline.ledger.states import BackfillState, CheckpointRow
from strandline.processing.pipelines.checked_pipeline import aliases_of
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.slices.rewind import RewindPlan, restore_plan_of_job
from strandline.results.names import index_stem
from strandline.results.newer_documents import count_emission_range, count_emissions
from strandline.results.sinks.registry import sink_of, sink_of_stored

log = structlog.get_logger()

EMITTING_SLICES = 20
"""Number of the last slices with results whose counts a start compares with the stores."""
STORES_MAX = 8
"""Maximum number of stores that a start compares, those with the newest slices first. Records can be in the indices of many
months."""

Expected = Mapping[str, Mapping[int, int]]
"""Store -> slice -> number of its results."""


def require_results(run: JobRun, index_url: str | None) -> None:
    """Raise ResultsMissing unless the stores contain the results of the last slices that emitted any.

    `index_url`: None if results don't go to an index. Raises IndexUnavailable, SinkUnavailable, RequestRefused.
    """
    if run.pipeline.spec.guarantee == "none":
        return
    # Later slices can have revised the result of an earlier one: only the last slice has all of its results.
    limit = 1 if run.pipeline.spec.revise_ms else EMITTING_SLICES
    expected_of = expected_results(run, run.ledger.emitting_checkpoints(run.job, limit))
    for store, slices in sorted(expected_of.items(), key=lambda one: -max(one[1]))[:STORES_MAX]:
        first, expected = min(slices), sum(slices.values())
        found = _found_from(run, index_url, store, slices, first)
        if found is not None and found < expected:
            numbers = f"slice {first}" if first == max(slices) else f"slices {first} to {max(slices)}"
            raise ResultsMissing(
                f"job {run.job}: {expected - found} of {expected} results of {numbers} are missing in {store}; it was restored "
                f"from an older copy, or lost its last writes. Nothing more is written; run strandline job backfill {run.job} "
                "--missing, which restores all missing results and starts the job"
            )


def expected_results(run: JobRun, checkpoints: Iterable[CheckpointRow]) -> Expected:
    """Return the results that the stores must contain by these checkpoints. A complete backfill replaces results of the slices
    before it, so these aren't compared."""
    own = run.ledger.job(run.job).generation
    replaced = max(
        (
            row.slice
            for row in run.ledger.backfills(run.job)
            if row.generation > own and row.state is BackfillState.COMPLETE
        ),
        default=0,
    )
    found: dict[str, dict[int, int]] = {}
    for checkpoint in checkpoints:
        if checkpoint.slice > replaced:
            for store, count in checkpoint.stored.items():
                found.setdefault(store, {})[checkpoint.slice] = count
    return found


def plan_restore(run: JobRun, index_url: str | None) -> RewindPlan | None:
    """Return the plan of a run that restores all missing results. None if no operator requested it, or if no result is missing.

    The run replays the recorded slices from the first one with a missing result, and emits their results again, under the same
    ids. The stores keep existing results. Raises Conflict if another version emitted some of the results; IndexUnavailable,
    SinkUnavailable.
    """
    if not run.ledger.job(run.job).restores:
        return None
    is_repeatable = (
        run.pipeline.spec.guarantee != "none"
    )  # without the records before the start, windows are incomplete
    expected = expected_results(run, run.ledger.emitting_checkpoints(run.job)) if is_repeatable else {}
    firsts = [_first_missing(run, index_url, store, slices) for store, slices in expected.items()]
    first = min((one for one in firsts if one is not None), default=None)
    if first is None:
        run.ledger.end_restore(run.job, run.epoch)
        log.info("no results are missing", job=run.job, epoch=run.epoch)
        return None
    merges = all(sink_of(emit).merges_slices for stage in run.pipeline.all_stages for emit in stage.emits)
    plan = restore_plan_of_job(run.ledger, run.pipeline, first, merges=merges)
    versions = run.ledger.slice_versions(run.job, first, plan.slice_committed) - {run.version}
    if versions:
        run.ledger.end_restore(run.job, run.epoch)
        raise Conflict(
            f"job {run.job}: results of slices {first} to {plan.slice_committed} are missing, and version {min(versions)} "
            f"emitted some of them, which version {run.version} can't repeat. Nothing was changed; run strandline job backfill "
            f"{run.job} --from TIME, with a TIME before the oldest missing result, then strandline job start {run.job}. The "
            f"backfill computes all windows since TIME with version {run.version}"
        )
    log.info("results are restored", job=run.job, epoch=run.epoch, slice_first=first, slice_last=plan.slice_committed)
    return plan


def _found_from(run: JobRun, index_url: str | None, store: str, slices: Mapping[int, int], first: int) -> int | None:
    """Return the number of results in the store of these slices, and perhaps of later ones. None if the store can't be compared.

    A run that restored results may have written those of several slices under the number of the last one.
    """
    sink, name = sink_of_stored(store)
    if sink.has_generations and index_url is not None:
        last = None if run.pipeline.spec.revise_ms else max(slices)
        return count_emission_range(index_url, name, run.job, first, last)
    found = _found(run, index_url, store, first)
    if found is None:
        return None
    if sink.counts_slices:
        return sum(count for number, count in slices.items() if number in found)
    return sum(found.values())


def _found(run: JobRun, index_url: str | None, store: str, first: int) -> Mapping[int, int] | None:
    """Return emission -> number of results in the store, from emission `first` on. None if the store can't be compared: it was
    deleted, or the job doesn't emit to it any more."""
    sink, name = sink_of_stored(store)
    if not sink.has_generations:
        return sink.counts(run.settings, run.job, name, first)
    return None if index_url is None else count_emissions(index_url, name, run.job, first)


def _first_missing(run: JobRun, index_url: str | None, store: str, slices: Mapping[int, int]) -> int | None:
    """Return the first slice with a result that the store lacks. None if it lacks none, or can't be compared.

    `slices`: slice -> number of its results."""
    found = _found(run, index_url, store, min(slices))
    sink, name = sink_of_stored(store)
    if found is None:
        if not sink.has_generations or name not in newest_indices(run):
            return None  # it was deleted, by hand or by a lifecycle policy
        run.ledger.forget_indices(run.job, [name])  # the run makes it again
        found = {}
    if run.pipeline.spec.revise_ms:
        # Later slices can have revised any result. An older copy lacks all that came after its last emission.
        newest = max(found, default=0)
        if newest and found[newest] >= slices.get(newest, 0) and newest >= max(slices):
            return None
        return min((number for number in slices if number >= newest), default=None)
    if sink.counts_slices:
        return min((number for number in slices if number not in found), default=None)
    return min((number for number, count in slices.items() if found.get(number, 0) < count), default=None)


def newest_indices(run: JobRun) -> set[str]:
    """Return the newest index of each alias, of those that the job itself created in its current generation (not a backfill)."""
    made, generation = run.ledger.result_indices(run.job), run.ledger.job(run.job).generation
    stems = {index_stem(alias, generation) for aliases in aliases_of(run.pipeline).values() for alias in aliases}
    found: Sequence[list[str]] = [
        [index for index in made if index.startswith(f"{stem}-") and "-" not in index.removeprefix(f"{stem}-")]
        for stem in stems
    ]
    return {max(indices) for indices in found if indices}
