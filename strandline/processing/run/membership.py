"""A member of a pool: one run of one job, its progress through its slices, and how it ends.

The pool changes a member only between two batches. The thread of the run waits for its end, with the methods of a streaming query
that `watch_query` uses.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from strandline.core.errors import StrandlineError
from strandline.ledger.progress import JobProgress
from strandline.ledger.states import (
    CheckpointRow,
    Desired,
    JobRow,
    SliceKind,
    SliceRow,
    SliceStatus,
    StreamVersions,
    offset_count,
)
from strandline.processing.emission.keyed_task import BucketOutcome
from strandline.processing.run.ending import Ending
from strandline.processing.run.member_load import MemberLoad
from strandline.processing.run.slice_schedule import Closings
from strandline.processing.slices.joint_planning import PlanningSteps
from strandline.processing.slices.rewind import RewindPlan
from strandline.processing.source.member_slices import MemberSlice
from strandline.processing.source.slice_rows import SourceFacts
from strandline.processing.source.source_config import Piece

_MEASURED_RECORDS_MIN = 1_000
"""A new slice with at least this number of records shows what a record costs. A smaller one shows what a slice costs."""
SLICE_RECORDS_MIN = 10_000
"""Number of records to which a slow batch may reduce the slices of a member that is behind. A batch also has fixed costs, so the
member would fall back with smaller ones."""
PIECE_RECORDS_MIN = 2_000
"""Number of records of a batch that a replay next to other members reads: about this many, and more if they are cheap."""
_NEW_MEMBER_US = 2_000.0
_RECORD_US = 100.0
"""CPU time of a slice and of a record in microseconds, before any is measured."""


class SlicesOfMember(Protocol):
    """Reads the slices of a run, as `RunSlices`."""

    def replayed_from(self, first: int, rows_max: int | None = None) -> list[SliceRow]: ...
    def batch(
        self, first: int, slices: Sequence[SliceRow], parallelism: int, before: CheckpointRow | None = None
    ) -> tuple[list[list[Piece]], bytes]: ...


class MemberCommitter(Protocol):
    """Makes the checkpoints of a run, as `SliceCommitter`."""

    def replayed(self, number: int, outcomes: list[BucketOutcome]) -> None: ...
    def checkpoint_of(
        self, sliced: SliceRow, facts: SourceFacts, outcomes: list[BucketOutcome], before: CheckpointRow | None
    ) -> CheckpointRow: ...
    def committed(
        self, row: CheckpointRow, outcomes: list[BucketOutcome], seconds: float, waited_s: float = 0.0
    ) -> None: ...


@dataclass(frozen=True)
class Part:
    """Content of a batch for one member."""

    member: PoolMember
    slice: MemberSlice
    row: SliceRow | None
    """The new slice. None for a piece of a replay."""
    records: int
    cost_us: float
    """Expected CPU time in microseconds."""
    due_next_s: float = 0.0
    """When the next slice is due."""


@dataclass(eq=False)
class PoolMember:
    """A run of a job in a pool."""

    job: str
    epoch: int
    config: str
    """Digest of the config of the run."""
    plan: RewindPlan
    planner: PlanningSteps
    slices: SlicesOfMember
    committer: MemberCommitter
    interval_s: float
    """Time in seconds from the plan of a slice to the next slice."""
    wanted_end: Callable[[JobProgress, StreamVersions], Ending | None]
    """Decides by the progress of the job and the current versions of its streams."""
    checkpoint: CheckpointRow | None = None
    """The last checkpoint."""
    records_left: int = 0
    """Number of records that the rewind still reads."""
    closings: Closings | None = None
    """When a window can close. A slice is due then, too. None: slices are due only after `interval_s`."""
    lease: int | None = None
    is_alone: bool = False
    """True if the member is alone in a batch until it has committed a slice, because it may have ended another pool."""
    state_bytes: int = field(default=0, init=False)
    """Size of the state after its last slice."""
    is_placed: bool = False
    """True if the document of the job places it in a pool, so its load doesn't move it out."""
    load: MemberLoad = field(default_factory=MemberLoad, init=False)
    leave: Callable[[PoolMember], None] = lambda _: None
    """Removes the member from its pool, and returns when no batch contains it."""
    number: int = field(init=False)
    """Last slice whose state the member has."""
    due_s: float = field(default=0.0, init=False)
    idle_s: float = field(default=0.0, init=False)
    """Time in seconds until the next look for new records, after one that found none."""
    looked_s: float = field(default=0.0, init=False)
    """When the member was last part of a look at the log."""
    failures: int = field(default=0, init=False)
    """Number of failures since the last success."""
    last_error: StrandlineError | None = field(default=None, init=False)
    tried_again_s: float = field(default=0.0, init=False)
    """Nothing of the member is planned before this time."""
    ending: Ending | None = field(default=None, init=False)
    _goes_on_with: tuple[int, StreamVersions] | None = field(default=None, init=False)
    _error: StrandlineError | None = field(default=None, init=False)
    _ended: threading.Event = field(default_factory=threading.Event, init=False)
    _woken: threading.Event = field(default_factory=threading.Event, init=False)
    waited_s: float = field(default=0.0, init=False)
    """Time in seconds for which the last new slice was due before it was planned."""
    _planned_ms: int = field(default=0, init=False)
    """When the last new slice was planned."""
    _new_slice_us: int = field(default=0, init=False)
    """CPU time of the last new slice in microseconds."""
    _slice_us: float = field(default=_NEW_MEMBER_US, init=False)
    _record_us: float = field(default=_RECORD_US, init=False)
    is_behind: bool = field(default=False, init=False)
    """True if its last new slice didn't contain all records of the log."""
    _new_record_us: float | None = field(default=None, init=False)
    """CPU time of a record of a new slice in microseconds. None before it is measured."""
    _last_batch: tuple[int, float] | None = field(default=None, init=False)
    """Records of the last new slice, and the seconds of its batch. None if the member isn't behind."""

    def __post_init__(self) -> None:
        self.number = self.plan.slice_first - 1

    @property
    def is_rewinding(self) -> bool:
        """True while the member replays committed slices."""
        return self.number < self.plan.slice_committed

    @property
    def streams(self) -> Collection[str]:
        """Streams whose current versions `wanted_end` needs."""
        return self.planner.versioned_streams

    def piece(self, seconds: float | None) -> Part:
        """Return the next piece of the replay, which takes about `seconds`. None: as much as a batch may contain."""
        rows_max = None if seconds is None else max(PIECE_RECORDS_MIN, int(seconds * 1e6 / self._record_us))
        slices = self.slices.replayed_from(self.number + 1, rows_max)
        records = sum(offset_count(one.offsets_first, one.offsets) for one in slices)
        return self._part(slices, None, records, records * self._record_us)

    def limit_slice(self, cpu_s: float, batch_s: float) -> None:
        """Let the next new slice take about this CPU time, and its batch about `batch_s`, as far as their costs are known.

        A batch can wait for a store for much longer than it computes.
        """
        limits = list[int]()
        if self._new_record_us is not None:
            limits.append(max(PIECE_RECORDS_MIN, int(cpu_s * 1e6 / self._new_record_us)))
        if self._last_batch is not None:
            records, took_s = self._last_batch
            limits.append(max(SLICE_RECORDS_MIN, int(records * min(2.0, max(0.5, batch_s / took_s)))))
        if limits:
            self.planner.limit_rows(min(limits))

    def new_part(self, row: SliceRow, now_s: float) -> Part:
        """Return the part of a batch with this new slice, which was planned now."""
        self._planned_ms = row.planned_ms
        due_s = max(self.due_s, self.tried_again_s)
        self.waited_s = max(0.0, now_s - due_s) if due_s > 0 else 0.0
        records = offset_count(row.offsets_first, row.offsets)
        due_next_s = now_s if row.kind is SliceKind.CATCH_UP else now_s + self.interval_s
        return replace(self._part([row], row, records, self._slice_us), due_next_s=due_next_s)

    def _part(self, slices: Sequence[SliceRow], row: SliceRow | None, records: int, cost_us: float) -> Part:
        (pieces,), work = self.slices.batch(self.number + 1, slices, 1, self.checkpoint if row is not None else None)
        last = slices[-1].number
        one = MemberSlice(
            job=self.job,
            epoch=self.epoch,
            config=self.config,
            number=last,
            state_before=self.number if self.number >= self.plan.slice_first else None,
            pieces=tuple(pieces),
            is_new=row is not None,
            restores=self.plan.restores(last),
            work=work,
        )
        return Part(self, one, row, records, cost_us)

    def took(self, part: Part, cpu_us: int, state_bytes: int = 0, batch_s: float = 0.0) -> None:
        """Note the CPU time of a part and the time of its batch, and that the member succeeded."""
        self.state_bytes = state_bytes
        if part.row is None:
            self._record_us = max(0.1, cpu_us / max(1, part.records))
            self.records_left = max(0, self.records_left - part.records)
        else:
            self._new_slice_us = cpu_us
            self.is_behind = part.row.kind is SliceKind.CATCH_UP
            if part.records >= _MEASURED_RECORDS_MIN:
                self._new_record_us = max(0.1, cpu_us / part.records)
            self._last_batch = (part.records, batch_s) if self.is_behind and batch_s > 0 else None
            self._slice_us += (cpu_us - self._slice_us) / 4
            self.due_s = part.due_next_s

    def has_processed(self, number: int, row: CheckpointRow | None = None, now_s: float = 0.0) -> None:
        """Note the last slice whose effects are final, and its checkpoint if the slice was new."""
        self.number, self.failures, self.last_error = number, 0, None
        if row is not None:
            self.load.add(now_s, self._new_slice_us, row.latest_log_ms)
            if self.closings is not None:
                self.due_s = self.closings.due_s(self.due_s, now_s, row, self._planned_ms)
            self.checkpoint, self.is_alone = row, False

    def may_end(self, row: JobRow | None, streams: StreamVersions) -> bool:
        """Return False if the member goes on, with this row of its job and these versions of its streams."""
        if row is None or row.epoch != self.epoch or row.desired is not Desired.RUNNING or row.ends is not None:
            return True
        return self._goes_on_with != (row.version, streams)

    def goes_on(self, progress: JobProgress, streams: StreamVersions) -> None:
        """Note that the member goes on with this version of its job and of its streams. With a slice that isn't committed, it
        may only be finishing the slice."""
        if progress.last_slice is None or progress.last_slice.status is SliceStatus.COMMITTED:
            self._goes_on_with = progress.job.version, dict(streams)

    # The end of the run. The pool calls `end`, and the thread of the run calls the other methods.

    def end(self, ending: Ending | StrandlineError | None = None) -> None:
        """The pool no longer contains the member, by this error or ending. None: because it was asked to leave."""
        if isinstance(ending, StrandlineError):
            self._error = ending
        else:
            self.ending = ending
        self._ended.set()
        self.wake()

    @property
    def isActive(self) -> bool:  # noqa: N802 - the name in pyspark
        """False if the run has failed."""
        return self._error is None

    def exception(self) -> StrandlineError | None:
        """The error that ended the run. None if there is none."""
        return self._error

    def stop(self) -> None:
        """Leave the pool, and wait until no batch contains the member."""
        self.leave(self)

    def wait(self, seconds: float) -> bool:
        """Wait until the member has left the pool, for `seconds` at most. Returns True if it has."""
        return self._ended.wait(seconds)

    def wake(self) -> None:
        """End a call of `wait_or_wake`, or the next one."""
        self._woken.set()

    def wait_or_wake(self, seconds: float) -> None:
        """Wait for `seconds`, or until `wake` is called."""
        self._woken.wait(seconds)
        self._woken.clear()


def spread(parts: Sequence[Part], tasks_max: int) -> list[list[MemberSlice]]:
    """Spread the parts over tasks by their expected cost, the most expensive first. No task is empty."""
    tasks: list[list[MemberSlice]] = [[] for _ in range(min(tasks_max, len(parts)))]
    loads = [0.0] * len(tasks)
    for part in sorted(parts, key=lambda one: -one.cost_us):
        lightest = loads.index(min(loads))
        tasks[lightest].append(part.slice)
        loads[lightest] += part.cost_us + 1
    return tasks
