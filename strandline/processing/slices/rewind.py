"""Rewind: plans from the ledger where a new run starts to read, and which results it omits, because they were emitted before.
Every run follows such a plan. A run that begins from a snapshot replays only the slices after it. The plan itself is pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from strandline.core.errors import LogTruncated
from strandline.ledger.states import CheckpointRow, SliceRow, offset_count
from strandline.processing.pipelines.event_time import WindowShape, earliest_event

if TYPE_CHECKING:  # the rest of this module is pure
    from strandline.ledger.progress import JobProgress
    from strandline.ledger.roles import LedgerReader
    from strandline.processing.pipelines.checked_pipeline import CheckedPipeline

Offsets = Mapping[str, Mapping[int, int]]

RUN_BEGINS = "run_begins"
"""The kind of the event that says how a run rebuilt its state."""
START_S = 4.0
"""Seconds from a start to the first record read, with a Spark session that is warm."""
REPLAY_RECORDS_PER_S_MIN = 20_000
"""The slowest replay in large batches on two cores. The small batches of a quiet feed would suggest less."""
_RATE_SLICES = 20


@dataclass(frozen=True)
class RewindPlan:
    """Start of a run. The run replays slices `slice_first` to `slice_committed` to rebuild window state, and emits nothing for
    them. Then it processes the slice that is planned but not committed, if any, and new slices."""

    slice_first: int
    slice_committed: int
    """0 before the first checkpoint."""
    emitted: dict[str, int] = field(default_factory=dict)
    """Stage -> the end of the last emitted window. Results up to it aren't emitted again."""
    reaches_back_to_ms: int | None = None
    """T0, the earliest event time that a window not yet emitted can hold."""
    held_open_from_ms: int | None = None
    """Windows that end later stay open through the replay, and the first new slice closes them. They are closed but not emitted,
    because an earlier version had other windows. None if there are none."""
    restores_from: int | None = None
    """First slice whose results are emitted again, up to `slice_committed`, because a store lost some. None if none did."""
    merges_restored: bool = True
    """True if these slices may be processed in large batches. A file contains the results of one slice."""

    @property
    def slice_replayed(self) -> int:
        """Last slice that is replayed without emitting anything."""
        return self.slice_committed if self.restores_from is None else self.restores_from - 1

    def restores(self, number: int) -> bool:
        """Return True if the results of this committed slice are emitted again."""
        return self.slice_replayed < number <= self.slice_committed

    def closed_ms(self, row: CheckpointRow) -> int | None:
        """Return the event time up to which windows are closed after this committed slice, in a run that follows the plan."""
        if row.slice > self.slice_replayed or row.closes_ms is None or self.held_open_from_ms is None:
            return row.closes_ms
        return min(row.closes_ms, self.held_open_from_ms)


def plan_rewind(
    checkpoint: CheckpointRow | None,
    first_slice_reaching: Callable[[int], int | None],
    stages: Mapping[str, WindowShape],
    floor: int = 0,
) -> RewindPlan:
    """Plan a run from the last checkpoint.

    `first_slice_reaching`: returns the first slice after which the maximum event time is at least a given one. None if there is
    none. `stages`: windows of the stages, in their order, and other operators with a state (`CheckedPipeline.kept`). `floor`: the
    last slice that can't be replayed, 0 if all can. If no window has closed yet, the replay begins after it.

    1. If nothing is committed, start at slice 1 and emit everything. If no operator has a state, replay nothing: the slice that
       contains a record emits it. If no record was ever accepted, replay nothing either.
    2. For each stage, read from the last checkpoint the window end up to which it has emitted. Round it down to the end of a
       window of the current shape. The stage emits all later windows completely. A stage with a new name begins with the first
       window that was not closed.
    3. T0 is the earliest event time that a window not yet emitted can hold, in any stage. If none of them can hold an existing
       record, T0 is later than all of these.
    4. Start the replay at the first slice whose running maximum of event time reaches T0. Every record before it has an event
       time below T0, so no such window holds it.
    """
    if checkpoint is None:
        return RewindPlan(slice_first=1, slice_committed=0)
    closes_ms, latest_event_ms = checkpoint.closes_ms, checkpoint.latest_event_ms
    if not stages or (closes_ms is None and latest_event_ms is None):
        return RewindPlan(slice_first=checkpoint.slice + 1, slice_committed=checkpoint.slice)
    if closes_ms is None:
        return RewindPlan(slice_first=floor + 1, slice_committed=checkpoint.slice)
    emitted = _emitted(checkpoint, closes_ms, stages)
    back_to_ms = earliest_event(list(stages.values()), list(emitted.values()), latest_event_ms)
    slice_first = first_slice_reaching(back_to_ms)
    return RewindPlan(
        slice_first=slice_first if slice_first is not None else checkpoint.slice + 1,
        slice_committed=checkpoint.slice,
        emitted=emitted,
        reaches_back_to_ms=back_to_ms,
        held_open_from_ms=min(
            (emitted[stage] for stage, shape in stages.items() if shape.last_end(closes_ms) > emitted[stage]),
            default=None,
        ),
    )


def _emitted(checkpoint: CheckpointRow, closes_ms: int, stages: Mapping[str, WindowShape]) -> dict[str, int]:
    """Return stage -> end of the last window that it emitted, as step 2 of `plan_rewind` says."""
    return {
        stage: shape.last_end(min(closes_ms, checkpoint.emitted.get(stage, closes_ms)))
        for stage, shape in stages.items()
    }


def _reaches_back_to_ms(checkpoint: CheckpointRow | None, stages: Mapping[str, WindowShape]) -> int | None:
    """Return the event time for which `plan_rewind` needs the first slice that reaches it. None if it needs none."""
    if checkpoint is None or checkpoint.closes_ms is None or not stages:
        return None
    emitted = _emitted(checkpoint, checkpoint.closes_ms, stages)
    return earliest_event(list(stages.values()), list(emitted.values()), checkpoint.latest_event_ms)


def plan_of_job(ledger: LedgerReader, pipeline: CheckedPipeline) -> RewindPlan:
    """Return the plan for a run of this version of a job. With the guarantee `none` nothing is replayed: windows that are open
    at the start lack their earlier records."""
    return _as_guaranteed(whole_plan_of_job(ledger, pipeline), pipeline)


def _as_guaranteed(plan: RewindPlan, pipeline: CheckedPipeline) -> RewindPlan:
    if pipeline.spec.guarantee == "none":
        return replace(plan, slice_first=plan.slice_committed + 1, reaches_back_to_ms=None)
    return plan


def whole_plan_of_job(ledger: LedgerReader, pipeline: CheckedPipeline) -> RewindPlan:
    """Return the plan for a run that rebuilds every open window, also with the guarantee `none`."""
    return plan_rewind(
        ledger.last_checkpoint(pipeline.job),
        lambda event_ms: ledger.first_slice_reaching(pipeline.job, event_ms),
        pipeline.kept,
        ledger.floor(pipeline.job),
    )


def restore_plan_of_job(
    ledger: LedgerReader, pipeline: CheckedPipeline, slice_first: int, *, merges: bool
) -> RewindPlan:
    """Return the plan for a run that emits the results of the committed slices from `slice_first` on again.

    `merges`: True if these slices may be processed in large batches."""
    before = ledger.checkpoints(pipeline.job, limit=1, before=slice_first)
    last = ledger.last_checkpoint(pipeline.job)
    assert last is not None, "results are missing only of committed slices"
    plan = plan_rewind(
        before[0] if before else None,
        lambda event_ms: ledger.first_slice_reaching(pipeline.job, event_ms),
        pipeline.kept,
        ledger.floor(pipeline.job),
    )
    first = min(plan.slice_first, slice_first)
    return replace(
        plan, slice_first=first, slice_committed=last.slice, restores_from=slice_first, merges_restored=merges
    )


@dataclass(frozen=True)
class RewindCost:
    """Cost of a start of the job now."""

    records: int
    """Records to read again before the first new one."""
    seconds: float
    """An estimate, with a Spark session that is warm."""
    needed: Offsets
    """First offset of each partition that the log must still contain."""
    needed_since_ms: int | None
    """No record before this log time is needed. None if the time isn't known, or the job has no slice."""


def rewind_cost(ledger: LedgerReader, plan: RewindPlan, job: str) -> RewindCost:
    """Return the cost of the plan: records counted by offsets, seconds estimated by the rate of the last slices."""
    last = ledger.last_slice(job)
    if last is None:
        return RewindCost(0, START_S, {}, None)
    before = ledger.checkpoints(job, limit=1, before=plan.slice_first)
    since_ms = before[0].latest_log_ms if before else None
    if plan.slice_first > last.number:
        return RewindCost(0, START_S, last.offsets, since_ms)
    first = ledger.slices(job, plan.slice_first, plan.slice_first)[0]
    return _cost_of_replay(first.offsets_first, last, since_ms, _records_per_s(ledger, job))


def rewind_costs(
    ledger: LedgerReader, pipelines: Collection[CheckedPipeline], progress: Mapping[str, JobProgress]
) -> dict[str, RewindCost]:
    """Return job -> cost of a run of its pipeline (`plan_of_job`, `rewind_cost`), with a few queries for all jobs together.

    `progress`: of these jobs. Rows that are removed in the meantime count as no records.
    """
    checkpoints = {one.job: progress[one.job].last_checkpoint for one in pipelines}
    reaches = {one.job: _reaches_back_to_ms(checkpoints[one.job], one.kept) for one in pipelines}
    reaching = ledger.first_slices_reaching({job: at_ms for job, at_ms in reaches.items() if at_ms is not None})
    floors = ledger.floors(list(checkpoints))
    plans = {}
    for one in pipelines:
        found_before: Callable[[int], int | None] = partial(_found_before, reaching.get(one.job))
        plan = plan_rewind(checkpoints[one.job], found_before, one.kept, floors[one.job])
        plans[one.job] = _as_guaranteed(plan, one)
    starts = ledger.replay_starts({job: plan.slice_first for job, plan in plans.items()})
    committed = {job: row.slice for job, row in checkpoints.items() if row is not None}
    rates = ledger.highest_rates(committed, _RATE_SLICES)
    found = {}
    for job in plans:
        last, (offsets_first, since_ms) = progress[job].last_slice, starts[job]
        if last is None:
            found[job] = RewindCost(0, START_S, {}, None)
        elif offsets_first is None:  # nothing to replay
            found[job] = RewindCost(0, START_S, last.offsets, since_ms)
        else:
            found[job] = _cost_of_replay(offsets_first, last, since_ms, rates.get(job, 0.0))
    return found


def _found_before(slice: int | None, event_ms: int) -> int | None:
    """Return the slice that was read for this event time together with those of other jobs."""
    return slice


def _cost_of_replay(offsets_first: Offsets, last: SliceRow, since_ms: int | None, rate: float) -> RewindCost:
    """Return the cost of reading from `offsets_first` to the end of the last slice. `rate`: of the last slices."""
    records = offset_count(offsets_first, last.offsets)
    return RewindCost(records, START_S + records / max(rate, REPLAY_RECORDS_PER_S_MIN), offsets_first, since_ms)


def _records_per_s(ledger: LedgerReader, job: str) -> float:
    """The highest rate of the last slices, from plan to commit."""
    checkpoints = ledger.checkpoints(job, limit=_RATE_SLICES)
    if not checkpoints:
        return 0.0
    planned_ms = {row.number: row.planned_ms for row in ledger.slices(job, checkpoints[-1].slice, checkpoints[0].slice)}
    return max(1_000 * row.records / max(1, row.committed_ms - planned_ms[row.slice]) for row in checkpoints)


def require_ledger_holds(ledger: LedgerReader, job: str, plan: RewindPlan) -> None:
    """Raise LogTruncated if the ledger no longer holds a slice that the plan replays."""
    floor = ledger.floor(job)
    if plan.slice_first <= min(floor, plan.slice_committed):
        raise LogTruncated(
            f"job {job} needs slices up to {floor} for windows that it has not emitted yet, but they were removed from the "
            "ledger because of their age. If its windows became longer, apply the pipeline with their former sizes. Otherwise "
            "submit the pipeline under another name."
        )


def require_log_holds(job: str, needed: Offsets, log_starts: Offsets) -> None:
    """Raise LogTruncated if the log no longer holds an offset that the rewind needs. A job never starts with a hole."""
    for stream, partitions in needed.items():
        for partition, offset_first in partitions.items():
            log_start = log_starts.get(stream, {}).get(partition)
            if log_start is None:
                raise LogTruncated(
                    f"job {job} needs partition {partition} of stream {stream} from offset {offset_first}, but the topic has no "
                    "such partition; was it deleted and made again? Restore the topic, or submit the pipeline under another name."
                )
            if log_start > offset_first:
                raise LogTruncated(
                    f"job {job} needs stream {stream}, partition {partition} from offset {offset_first}, but the log starts at "
                    f"{log_start}: retention removed {log_start - offset_first} records that its open windows need. "
                    "Raise the stream's retention and submit the pipeline under another name to start from what the log holds."
                )
