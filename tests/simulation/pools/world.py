"""A history of jobs in pools: the real loop, planners, and members, with a ledger in memory and stores that are checked.

A turn of a pool is one call, so other actors act inside it, at *hooks*. A hook is before or after each write to the ledger, and
before each document of a job. At a hook, a pool is killed or paused. The jobs of a paused pool begin in another pool. The paused
pool continues its turn afterwards.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, cast

from strandline.core.errors import BadRecord, Divergence, LedgerUnavailable, NotFound, SinkUnavailable, StrandlineError
from strandline.ledger.many_rows import Refusals
from strandline.ledger.progress import JobProgress
from strandline.ledger.roles import RunLedger
from strandline.ledger.states import (
    CheckpointRow,
    Desired,
    EventTimeRule,
    JobRow,
    RunRow,
    SliceRow,
    SliceStatus,
    offset_count,
)
from strandline.processing.emission.keyed_task import BucketOutcome
from strandline.processing.emission.member_outcomes import Failure, MemberOutcome
from strandline.processing.run.ending import ending_by
from strandline.processing.run.membership import PoolMember
from strandline.processing.run.pool import Pool
from strandline.processing.run.pool_features import MovedOut
from strandline.processing.slices.planner import InputStream, PlannerSettings, SlicePlanner
from strandline.processing.slices.rewind import RewindPlan
from strandline.processing.slices.silence import SilenceMeter
from strandline.processing.source.member_slices import MemberSlice
from tests.simulation.chance import Chance
from tests.support.one_by_one import OneByOne
from tests.support.twin_ledger import TwinLedger

GROUP = 5
"""Number of records of a result."""
STATE_BYTES_MAX, CORES_MAX = 1_000, 0.5
RULE = EventTimeRule(delay_ms=0, idle_timeout_ms=None)
HEALING_STEPS = 400
"""Maximum number of steps until all jobs have read everything, after the last fault."""
NESTED_MAX = 2
HOOKS_S = 0.002
"""Time that passes at a hook."""

Result = tuple[int, int]
"""Sum of the records of a group, and the version that computed it."""


class Killed(BaseException):
    """The process of a pool was killed."""


class State(NamedTuple):
    """State of a job after a slice."""

    offset: int
    total: int


def value_at(job: str, offset: int) -> int:
    """Return the value of a record."""
    return zlib.crc32(f"{job}/{offset}".encode())


def step(job: str, state: State, end: int, version: int) -> tuple[State, dict[int, Result]]:
    """Return the state after the records up to `end`, and the results of complete groups."""
    results: dict[int, Result] = {}
    total = state.total
    for offset in range(state.offset, end):
        total += value_at(job, offset)
        if (offset + 1) % GROUP == 0:
            results[offset // GROUP] = (total, version)
            total = 0
    return State(end, total), results


class Log(OneByOne):
    """One partition for each job. A record follows from its offset."""

    def __init__(self, jobs: Sequence[str]) -> None:
        self.counts = dict.fromkeys(jobs, 0)

    def starts(self, stream: str) -> dict[int, int]:
        return {0: 0}

    def ends(self, stream: str) -> dict[int, int]:
        return {0: self.counts[stream]}

    ends_with_open = ends

    def partitions(self, stream: str) -> list[int]:
        return [0]

    def topic_id(self, stream: str) -> str:
        return stream

    def checksums(self, stream: str, offsets: Mapping[int, int]) -> dict[int, int]:
        return {p: value_at(stream, at) for p, at in offsets.items() if at < self.counts[stream]}

    def not_writable(self, stream: str) -> set[int]:
        return set()

    def newest_log_time(self, stream: str) -> int:
        return 0

    def offsets_at(self, stream: str, log_time_ms: int, ends: Mapping[int, int]) -> dict[int, int]:
        return dict(ends)


class PoolLedger(TwinLedger):
    """The ledger in memory. It may be away, and its answer to a write may be lost."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def note_costs(self, costs: Sequence[Any]) -> None:
        pass

    def current_versions(self, streams: Collection[str]) -> dict[str, int]:
        return {}

    def progress_of(self, names: Collection[str]) -> dict[str, JobProgress]:
        self._world.require_ledger()
        return super().progress_of(names)

    def jobs_named(self, names: Collection[str]) -> dict[str, JobRow]:
        self._world.require_ledger()
        return super().jobs_named(names)

    def plan_slices(self, rows: Sequence[SliceRow]) -> Refusals:
        return self._written("plan", lambda: super(PoolLedger, self).plan_slices(rows))

    def commit_checkpoints(self, rows: Sequence[CheckpointRow]) -> Refusals:
        return self._written("commit", lambda: super(PoolLedger, self).commit_checkpoints(rows))

    def _plan(self, row: SliceRow) -> None:
        known = len(self._slices[row.job])
        super()._plan(row)
        if len(self._slices[row.job]) > known:
            self._world.wrote("plan", row.job, row.number, row.epoch)

    def _commit(self, row: CheckpointRow) -> None:
        known = len(self._checkpoints[row.job])
        super()._commit(row)
        if len(self._checkpoints[row.job]) > known:
            self._world.wrote("commit", row.job, row.slice, row.epoch)

    def _written(self, what: str, write: Callable[[], Refusals]) -> Refusals:
        world = self._world
        world.require_ledger()
        world.hook(f"before a {what}")
        if world.has_faults and world.chance.random() < 0.02:
            world.count(f"lose a {what}")
            raise LedgerUnavailable(f"the {what} did not reach the ledger")
        found = write()
        world.hook(f"after a {what}")
        if world.has_faults and world.chance.random() < 0.02:
            world.count(f"lose the answer to a {what}")
            raise LedgerUnavailable(f"the answer to the {what} was lost")
        return found


class Workers:
    """Runs the batches of one pool. The states of its members are lost with the pool."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.pool: Pool | None = None
        self._states: dict[tuple[str, int, int], State] = {}
        self._named: set[str] = set()
        self._is_cancelled = False

    def run(self, tasks: Sequence[Sequence[MemberSlice]]) -> list[MemberOutcome]:
        self._is_cancelled, outcomes = False, []
        for one in (one for task in tasks for one in task):
            world, faults = self._world, self._world.faults
            if faults.get(one.job) == "ends its worker":
                self._named = {one.job} if world.chance.random() < 0.7 else set()
                raise StrandlineError("a worker has died")
            if faults.get(one.job) == "hangs":
                assert self.pool is not None
                self.pool.move_out(one.job, "its slice hangs")
            if self._is_cancelled:
                raise StrandlineError("the batch was cancelled")
            try:
                outcomes.append(self._outcome(one))
            except StrandlineError as error:
                outcomes.append(MemberOutcome(one.job, one.number, failure=Failure.of(error), cpu_us=100))
        return outcomes

    def _outcome(self, one: MemberSlice) -> MemberOutcome:
        world, fault = self._world, self._world.faults.get(one.job)
        if fault == "is poisoned":
            raise BadRecord("decode", "a bad record")
        if fault == "diverges":
            raise Divergence("other results")
        rows = cast(Sequence[SliceRow], one.pieces)
        known = State(0, 0) if one.state_before is None else self._states.get((one.job, one.epoch, one.state_before))
        if known is None:
            world.findings.append(f"wrong: job {one.job} has no state of slice {one.state_before}")
            raise StrandlineError("the state is missing")
        before = known
        first = rows[0].offsets_first.get(one.job, {}).get(0, 0)
        if before.offset != first:
            world.findings.append(f"wrong: job {one.job} continues at {first} with the state at {before.offset}")
        after, results = step(one.job, before, rows[-1].offsets[one.job][0], int(one.config))
        if one.is_new:
            for group in world.shuffled(results):
                world.hook("a document")
                if fault == "has no store" and world.chance.random() < 0.5:
                    raise SinkUnavailable("the store is away")
                world.store(one.job, group, results[group])
        self._states[one.job, one.epoch, one.number] = after
        state_bytes = STATE_BYTES_MAX + 1 if fault == "has a large state" else 10
        cpu_us = 5_000_000 if fault == "has a high load" else 100
        return MemberOutcome(one.job, one.number, BucketOutcome(), cpu_us=cpu_us, state_bytes=state_bytes)

    def cancel(self) -> None:
        self._is_cancelled = True

    def named(self) -> set[str]:
        named, self._named = self._named, set()
        return named


class Slices:
    """The slices of one run."""

    def __init__(self, ledger: PoolLedger, job: str, committed: int) -> None:
        self._ledger, self._job, self._committed = ledger, job, committed

    def replayed_from(self, first: int, rows_max: int | None = None) -> list[SliceRow]:
        found: list[SliceRow] = []
        records = 0
        for row in self._ledger.slices(self._job, first, self._committed):
            records += offset_count(row.offsets_first, row.offsets)
            if found and rows_max is not None and records > rows_max:
                break
            found.append(row)
        return found

    def batch(self, first: int, slices: Any, parallelism: int, before: CheckpointRow | None = None) -> Any:
        return [list(slices)], b""


class Committer:
    """Makes the checkpoints of one run."""

    def __init__(self, world: World, run: RunRow) -> None:
        self._world, self._run = world, run

    def replayed(self, number: int, outcomes: Any) -> None:
        self._world.count("replay a piece")

    def checkpoint_of(self, sliced: SliceRow, facts: Any, outcomes: Any, before: CheckpointRow | None) -> CheckpointRow:
        records = offset_count(sliced.offsets_first, sliced.offsets)
        return CheckpointRow(
            job=self._run.job,
            slice=sliced.number,
            epoch=self._run.epoch,
            version=self._run.version,
            emitted={},
            latest_event_ms=None,
            latest_log_ms=None,
            records=records,
            accepted=records,
            rejected={},
            results={},
            dead_letter_offsets={},
            committed_ms=int(self._world.now_s * 1_000),
        )

    def committed(self, row: CheckpointRow, outcomes: Any, seconds: float, waited_s: float = 0.0) -> None:
        pass


class SimulatedPool:
    """A process of a pool."""

    def __init__(self, world: World) -> None:
        self.workers = Workers(world)
        clock: Callable[[], float] = lambda: world.now_s  # noqa: E731
        self.pool = self.workers.pool = Pool(
            self.workers,
            cast(RunLedger, world.ledger),
            world.log,  # type: ignore[arg-type]  # a twin
            world.chance.choice([1, 2, 4]),
            poll_s=0.1,
            state_bytes_max=STATE_BYTES_MAX,
            cores_max=CORES_MAX,
            clock=clock,
        )
        self.is_gone = False
        """True if it was killed, or if its jobs were started elsewhere."""
        self.is_in_turn = False


class World:
    """One history. `findings` contains each violation."""

    def __init__(self, seed: int, jobs: int, steps: int) -> None:
        self.chance = Chance(seed)
        self.now_s = 1_000.0
        self.jobs = [f"j{number}" for number in range(jobs)]
        self.log, self.ledger = Log(self.jobs), PoolLedger(self)
        self.findings: list[str] = []
        self.counts: Counter[str] = Counter()
        self.faults: dict[str, str] = {}
        """Job -> what is wrong with it."""
        self.has_faults = True
        self._blamed: set[str] = set()
        """Jobs whose runs may have ended because of a fault of their own."""
        self._stored: dict[tuple[str, int], Result] = {}
        self._last_epochs: dict[tuple[str, str], tuple[int, int]] = {}
        self._away_until_s = 0.0
        self._steps = steps
        self._hooks_left: int | None = None
        """Number of hooks until a pool is killed or paused."""
        self._happens = ""
        self._nested = 0
        self._running: list[SimulatedPool] = []
        """Pools whose turn is under way, the innermost last."""
        self._shared = SimulatedPool(self)
        self._own: dict[str, SimulatedPool] = {}
        self._zombies: list[SimulatedPool] = []
        self._members: dict[str, tuple[PoolMember, SimulatedPool]] = {}
        for job in self.jobs:
            self.ledger.submit_job(job, "", {"pipeline": job, "version": 1})

    def run(self) -> list[str]:
        """Run the history, and return what was wrong."""
        for _ in range(self._steps):
            self._step()
        self.has_faults, self._hooks_left, self._away_until_s = False, None, 0.0
        self.faults.clear()
        for job in self.jobs:
            self.ledger.set_desired(job, Desired.RUNNING)
        for _ in range(HEALING_STEPS):
            if all(self._has_read_all(job) for job in self.jobs):
                break
            self._step()
        else:
            late = [job for job in self.jobs if not self._has_read_all(job)]
            self.findings.append(f"lost: {len(late)} jobs have not read everything, as {late[:3]}")
        for pool in self._zombies:
            self._turn(pool)
        self._check()
        return self.findings

    # What the actors of a history call

    def count(self, what: str, number: int = 1) -> None:
        """Count something that happened."""
        self.counts[what] += number

    def shuffled(self, results: Mapping[int, Result]) -> list[int]:
        """Return the groups in any order."""
        return sorted(results, key=lambda _: self.chance.random())

    def require_ledger(self) -> None:
        """Raise LedgerUnavailable during an outage."""
        if self.now_s < self._away_until_s:
            raise LedgerUnavailable("the ledger is away")

    def store(self, job: str, group: int, result: Result) -> None:
        """Create a document. Raises Divergence if another one has its id."""
        known = self._stored.setdefault((job, group), result)
        if known != result:
            self.findings.append(f"wrong: document {group} of job {job} is {known}, and a run emits {result}")
            raise Divergence("another document has this id")

    def wrote(self, what: str, job: str, number: int, epoch: int) -> None:
        """Check a row that was just written."""
        before, epoch_before = self._last_epochs.get((what, job), (0, 0))
        if number != before + 1 or epoch < epoch_before:
            self.findings.append(f"out of order: {what} {number} of job {job} by run {epoch}, after {before}")
        if epoch != self.ledger.job(job).epoch:
            self.findings.append(f"zombie: {what} {number} of job {job} by the replaced run {epoch}")
        self._last_epochs[what, job] = (number, epoch)

    def hook(self, place: str) -> None:
        """Let other actors act now, inside the turn of a pool."""
        self.now_s += HOOKS_S
        if self._hooks_left is None or not self._running:
            return
        self._hooks_left -= 1
        if self._hooks_left > 0:
            return
        self._hooks_left = None
        pool = self._running[-1]
        self.count(f"{self._happens} {place}")
        if self._happens == "kill":
            pool.is_gone = True
            raise Killed
        self._abandon(pool)
        self._nested += 1
        for _ in range(self.chance.randint(1, 6)):
            self._step()
        self._nested -= 1

    # The steps of a history

    def _step(self) -> None:
        self.now_s += self.chance.choice([0.1, 0.3, 1.0])
        if self.has_faults:
            for job in self.chance.sample(self.jobs, max(1, len(self.jobs) // 5)):
                self.log.counts[job] += self.chance.randint(1, 8)
            self._fault()
        self._supervise()
        zombies = [one for one in self._zombies if self.chance.random() < 0.3]
        for pool in [self._shared, *self._own.values(), *zombies]:
            self._turn(pool)
        self._zombies = [one for one in self._zombies if one.is_in_turn or one.pool.jobs]

    def _turn(self, pool: SimulatedPool) -> None:
        if pool.is_in_turn:
            return
        pool.is_in_turn = True
        self._running.append(pool)
        try:
            pool.pool.turn()
        except LedgerUnavailable:
            self.count("a turn without the ledger")
        except Killed:
            self._abandon(pool)
            self._zombies.remove(pool)
        finally:
            self._running.pop()
            pool.is_in_turn = False

    def _abandon(self, pool: SimulatedPool) -> None:
        """Forget the pool, as a control service does that lost it. Its jobs start elsewhere."""
        pool.is_gone = True
        self._zombies.append(pool)
        if pool is self._shared:
            self._shared = SimulatedPool(self)
        self._own = {job: one for job, one in self._own.items() if one is not pool}
        self._members = {job: found for job, found in self._members.items() if found[1] is not pool}

    def _fault(self) -> None:
        chance = self.chance
        for job in [job for job in self.faults if chance.random() < 0.2]:
            del self.faults[job]
        if self._hooks_left is None and self._nested < NESTED_MAX and chance.random() < 0.3:
            self._happens = chance.choice(["kill", "pause"])
            self._hooks_left = chance.randint(1, 2 * len(self.jobs))
        if chance.random() < 0.05:
            self._away_until_s = self.now_s + chance.choice([0.5, 3.0, 20.0])
            self.count("the ledger is away")
        if chance.random() < 0.02:
            self.now_s += 3_600
            self.count("the machine sleeps")
        for _ in range(max(1, len(self.jobs) // 50)):
            self._fault_of(chance.choice(self.jobs))

    def _fault_of(self, job: str) -> None:
        chance, ledger = self.chance, self.ledger
        fault = chance.choice(
            [
                "is poisoned",
                "diverges",
                "ends its worker",
                "hangs",
                "has no store",
                "has a large state",
                "has a high load",
                "upgrade",
                "stop",
                "start",
                "restart",
                "",
            ]
        )
        if not fault:
            return
        self.count(fault)
        if fault == "upgrade":
            ledger.submit_job(job, "", {"pipeline": job, "version": ledger.job(job).version + 1})
        elif fault in ("stop", "start"):
            ledger.set_desired(job, Desired.STOPPED if fault == "stop" else Desired.RUNNING)
        elif fault == "restart":
            self._own_ends(job)
        else:
            self.faults[job] = fault
            self._blamed.add(job)

    def _own_ends(self, job: str) -> None:
        """Return a job that was moved out to the shared pool, after its current turn."""
        own = self._own.get(job)
        if own is not None and not own.is_in_turn:
            self._abandon(own)

    def _supervise(self) -> None:
        """Begin a run of each job that should have one."""
        for job in self.jobs:
            found = self._members.get(job)
            if found is not None and not found[0].wait(0):
                continue
            try:
                if found is not None:
                    self._ended(job, found[0])
                if self.ledger.job(job).desired is not Desired.STOPPED:
                    self.require_ledger()
                    self._begin(job)
            except LedgerUnavailable:
                return

    def _ended(self, job: str, member: PoolMember) -> None:
        error = member.exception()
        del self._members[job]
        if isinstance(error, MovedOut):
            self.count("move a job out")
            if job not in self._own:
                self._own[job] = SimulatedPool(self)
        if error is not None and job not in self._blamed:
            self.findings.append(f"isolation: the run of job {job} ended by {error}")
        outcome = "failed" if error is not None else str(member.ending)
        self.ledger.end_run(job, member.epoch, outcome)

    def _begin(self, job: str) -> None:
        ledger, log = self.ledger, self.log
        run = ledger.begin_run(job, 1)
        if job not in self.faults:
            self._blamed.discard(job)
        ledger.set_run_slots(job, run.epoch, 1)
        last = ledger.last_checkpoint(job)
        committed = last.slice if last else 0
        settings = PlannerSettings(job, run.version, run.epoch, (InputStream(job),), 10_000, RULE, ())
        meter = SilenceMeter(lambda: int(self.now_s * 1_000))
        pool = self._own.get(job, self._shared)
        slices = Slices(ledger, job, committed)
        member = PoolMember(
            job=job,
            epoch=run.epoch,
            config=str(run.version),
            plan=RewindPlan(1, committed),
            planner=SlicePlanner(settings, ledger, log, lambda: 0, meter, 0),  # type: ignore[arg-type]  # twins
            slices=slices,
            committer=Committer(self, run),
            interval_s=0.2,
            wanted_end=lambda progress, _: ending_by(progress, run.version, (), lambda: False),
            checkpoint=last,
            records_left=sum(offset_count(row.offsets_first, row.offsets) for row in slices.replayed_from(1)),
        )
        self._members[job] = (member, pool)
        pool.pool.join(member)
        self.count("run")

    # The check at the end

    def _has_read_all(self, job: str) -> bool:
        last = self.ledger.last_slice(job)
        read = 0 if last is None or last.status is not SliceStatus.COMMITTED else last.offsets[job][0]
        return read == self.log.counts[job]

    def _check(self) -> None:
        """Compare the documents with those that the ledger and the log demand."""
        for job in self.jobs:
            wanted: dict[int, Result] = {}
            state = State(0, 0)
            for number in range(1, self.ledger.slice_count(job) + 1):
                try:
                    done = self.ledger.checkpoint(job, number)
                except NotFound:
                    break  # planned, if the history did not heal
                (row,) = self.ledger.slices(job, number, number)
                state, results = step(job, state, row.offsets[job][0], done.version)
                wanted |= results
            found = {group: result for (owner, group), result in self._stored.items() if owner == job}
            for group in wanted.keys() - found.keys():
                self.findings.append(f"lost: document {group} of job {job}")
            for group in found.keys() - wanted.keys():
                self.findings.append(f"repeated: document {group} of job {job} belongs to no committed slice")
            for group in wanted.keys() & found.keys():
                if wanted[group] != found[group]:
                    self.findings.append(f"wrong: document {group} of job {job} is {found[group]}")
            self.count("document", len(found))
        self.count("checkpoint", sum(self.ledger.slice_count(job) for job in self.jobs))
