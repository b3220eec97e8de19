"""The loop of a pool: one look at the log, one batch, and two transactions of the ledger for the slices of all its members.

A failure or a refusal is the outcome of one member. A failure that passes is tried again, later and by this member alone. Any
other failure ends the run of this member. A run that is alone in its process is the only member of a pool.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import structlog

from strandline.core.errors import Fenced, LedgerUnavailable, NotFound, StrandlineError, TransientError
from strandline.core.failpoints import failpoint
from strandline.ledger.progress import JobProgress
from strandline.ledger.roles import RunLedger
from strandline.ledger.states import CheckpointRow, Desired, SliceRow
from strandline.processing.emission.cost_meter import CostMeter
from strandline.processing.emission.keyed_task import BucketOutcome
from strandline.processing.emission.member_outcomes import MemberOutcome
from strandline.processing.run.ending import Ending, is_to_end
from strandline.processing.run.member_load import LOAD_S
from strandline.processing.run.membership import Part, PoolMember, spread
from strandline.processing.run.pool_features import MovedOut
from strandline.processing.slices.joint_planning import count_silence, plan_next_slices
from strandline.processing.slices.look import LogQuestions
from strandline.processing.source.member_slices import MemberSlice
from strandline.processing.source.slice_rows import add_facts

log = structlog.get_logger()

REPLAY_S = 0.2
"""Replays lengthen a batch by about this time in seconds, if other members have no rewind. Only then do members wait for them."""
SLICE_ROWS_MAX = 100_000
"""Maximum number of records of a new slice, if other members may wait for it. See also CATCH_UP_S."""
CATCH_UP_S = 0.5
"""New slices of members that are behind lengthen a batch by about this time in seconds, if other members wait for them."""
CATCH_UP_BATCH_S = 1.0
"""Time in seconds that such a batch may take with its waits for stores."""
_ALONE_S = 2.0
"""Length of a batch in seconds if all members rewind, or if all are behind."""
BACK_OFF_S, BACK_OFF_MAX_S = 0.25, 30.0
"""How long a member waits after its first failure. After each failure that follows, it waits twice as long, up to a maximum."""
TRIES = 4
"""Number of attempts of a run that is alone. Spark attempts a task of a query as often."""
_ENDINGS_S = 0.2
"""How often the ledger is asked what the members should do."""
_SILENCE_S = 1.0
"""How often the log is looked at for members that are not due for longer: often enough to count all silence."""
_IDLE_S = 0.2
_STOP_S = 30.0
"""Maximum time in seconds that the loop, or a batch, has to end."""


class Batches(Protocol):
    """Runs batches, as `PoolBatches`."""

    def run(self, tasks: Sequence[Sequence[MemberSlice]]) -> list[MemberOutcome]:
        """Process the slices, and return the outcome of each member."""

    def cancel(self) -> None:
        """End the batch that another thread runs."""

    def named(self) -> set[str]:
        """Return the jobs that workers were working on when they ended. Called after a failed batch."""


class _Emitted(NamedTuple):
    """A new slice whose effects are confirmed, and whose checkpoint isn't committed yet."""

    part: Part
    row: CheckpointRow
    outcomes: list[BucketOutcome]


class Pool:
    """Runs the slices of its members in one thread. `join`, `leave`, and `stop` are called by other threads."""

    def __init__(
        self,
        batches: Batches,
        ledger: RunLedger,
        index: LogQuestions,
        tasks_max: int,
        *,
        poll_s: float,
        poll_max_s: float | None = None,
        tries: int | None = None,
        state_bytes_max: int | None = None,
        cores_max: float | None = None,
        on_batch: Callable[[Sequence[str]], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`index`: used only by the thread of the pool. `tasks_max`: maximum number of tasks of a batch. `poll_s`: time until
        the second look for a member without new records. It doubles with each look, up to `poll_max_s`. None: it stays.
        `tries`: attempts until a failure that passes ends a run. None: no limit. `state_bytes_max`: a member with a larger state
        is moved out. `cores_max`: a member whose load is higher is moved out, also if it is alone, because it has one task.
        `on_batch`: called with the jobs of each batch before it, and with none after it.
        """
        self._state_bytes_max, self._cores_max, self._on_batch = state_bytes_max, cores_max, on_batch
        self._moved_out: dict[str, str] = {}
        """Job whose slice is being processed, and that is moved out -> reason."""
        self._batches, self._ledger, self._index = batches, ledger, index
        self._poll_max_s = poll_s if poll_max_s is None else poll_max_s
        self._tasks_max, self._poll_s, self._tries, self._clock = tasks_max, poll_s, tries, clock
        self._members: dict[str, PoolMember] = {}
        self._costs = CostMeter(ledger, clock)
        self._emitted: dict[str, _Emitted] = {}
        self._endings_at_s = 0.0
        self._failures = 0
        self._changed = threading.Condition()
        self._joining: list[PoolMember] = []
        self._leaving: list[PoolMember] = []
        self._is_stopping = False
        self._error: StrandlineError | None = None
        """The error that ended the loop."""
        self._thread = threading.Thread(target=self._run, name="pool", daemon=True)

    @property
    def jobs(self) -> list[str]:
        """The members."""
        return list(self._members)

    @property
    def is_alive(self) -> bool:
        """True while the loop runs."""
        return self._thread.is_alive()

    def start(self) -> Pool:
        """Start the thread."""
        self._thread.start()
        return self

    def join(self, member: PoolMember) -> None:
        """Let the member take part from the next turn on."""
        with self._changed:
            if self._is_stopping:
                member.end(self._error or "interrupted")
                return
            self._joining.append(member)
            self._changed.notify()

    def leave(self, member: PoolMember) -> None:
        """Remove the member after the present turn, and wait until it is removed."""
        with self._changed:
            self._leaving.append(member)
            self._changed.notify()
        member.wait(_STOP_S)

    def stop(self) -> None:
        """Stop the loop, and wait until it has ended. A batch that is running is cancelled: the next runs repeat its slices."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self._batches.cancel()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)

    def move_out(self, job: str, why: str) -> None:
        """End the batch, and repeat it without this job. Called by another thread while the batch runs."""
        log.error("a job is moved out of the pool", job=job, why=why)
        self._moved_out[job] = why
        self._batches.cancel()

    def _run(self) -> None:
        error: StrandlineError | None = None
        try:
            while not self._is_stopping:
                self._pause(self._turn_or_wait())
        except StrandlineError as found:
            error = found
        except Exception as found:
            log.exception("the loop of the pool failed", jobs=self.jobs)
            error = StrandlineError(f"{type(found).__name__}: {found}")
        finally:
            with self._changed:
                self._error = None if self._is_stopping else error
                self._is_stopping = True
                left = [*self._members.values(), *self._joining]
            self._costs.note()
            for member in left:
                member.end(self._error or "interrupted")

    def _turn_or_wait(self) -> float:
        """Make a turn, and return the time until the next one. An error that passes concerns all members."""
        try:
            wait_s = self.turn()
        except TransientError as error:
            self._failures += 1
            if self._is_stopping or (self._tries is not None and self._failures >= self._tries):
                raise
            wait_s = _back_off_s(self._failures)
            log.warning("the pool waits", seconds=wait_s, error=str(error))
        else:
            self._failures = 0
        return wait_s

    def _pause(self, seconds: float) -> None:
        with self._changed:
            if seconds > 0 and not (self._is_stopping or self._joining or self._leaving):
                self._changed.wait(seconds)

    def turn(self) -> float:
        """Make one turn, and return the time in seconds until something is due.

        1. Admit new members, and remove those that leave or have to end.
        2. Plan the next slices of all due members, with one look and one transaction. Add pieces of replays.
        3. Run one batch, and commit the checkpoints of all new slices in one transaction.

        Raises LedgerUnavailable; the next turn goes on where this one failed.
        """
        self._change_members()
        self._costs.note_if_due()
        self._commit()  # what the ledger didn't confirm in the turn before
        if not self._members:
            return _IDLE_S
        self._end_members()
        parts = [*self._new_slices(), *self._pieces()]
        if not parts:
            self._count_silence()
            return self._wait_s()
        for batch in _batches_of(parts):
            self._process(batch)
            self._commit()
        return 0.0

    def _change_members(self) -> None:
        with self._changed:
            joining, self._joining = self._joining, []
            leaving, self._leaving = self._leaving, []
        for member in joining:
            if (before := self._members.get(member.job)) is not None:
                self._remove(before, Fenced(f"run {member.epoch} of job {member.job} follows run {before.epoch}"))
            self._members[member.job] = member
            log.info("member joined", job=member.job, epoch=member.epoch, members=len(self._members))
        for member in leaving:
            self._remove(member)

    def _end_members(self) -> None:
        """End the members that are fenced, or that the ledger orders to end. Asks for all of them at once."""
        if (now_s := self._clock()) < self._endings_at_s:
            return
        members = list(self._members.values())
        rows = self._ledger.jobs_named(self._members)
        leased = [one.job for one in members if one.lease is not None]
        leases = self._ledger.standings(leased) if leased else {}
        streams = dict.fromkeys(stream for one in members for stream in one.streams)
        versions = self._ledger.current_versions(streams.keys()) if streams else {}
        present = {one.job: {name: versions[name] for name in one.streams if name in versions} for one in members}
        # Most members go on. The progress of a hundred others costs more than the slices.
        ending = [one.job for one in members if one.may_end(rows.get(one.job), present[one.job])]
        progress = self._ledger.progress_of(ending) if ending else {}
        for member in members:
            standing = leases.get(member.job)
            if member.lease is not None and standing is not None and standing.lease != member.lease:
                self._remove(
                    member, Fenced(f"job {member.job} is led under another lease now; run {member.epoch} ends")
                )
                continue
            with self._as_outcome(member):
                self._require_room(member)
                if member.job in ending:
                    self._end_by(member, progress.get(member.job), present[member.job])
        self._endings_at_s = now_s + _ENDINGS_S

    def _end_by(self, member: PoolMember, progress: JobProgress | None, versions: dict[str, int]) -> None:
        if progress is None:
            raise NotFound(f"There is no job {member.job}.")
        if progress.job.epoch != member.epoch:
            raise Fenced(f"job {member.job} is run by epoch {progress.job.epoch} now; epoch {member.epoch} ends")
        if is_to_end(progress):
            member.due_s = min(member.due_s, self._clock())
        if (ending := member.wanted_end(progress, versions)) is not None:
            self._remove(member, ending)
            return
        member.goes_on(progress, versions)
        if member.last_error is not None and progress.job.desired is Desired.STOPPED:
            self._remove(member, member.last_error)  # what it waits for may take long

    def _require_room(self, member: PoolMember) -> None:
        """Raise MovedOut if the member needs too much memory or too many cores."""
        if self._state_bytes_max is not None and member.state_bytes > self._state_bytes_max:
            why = f"its state has {member.state_bytes:,} bytes, and the limit is {self._state_bytes_max:,}"
            raise MovedOut.of(member.job, why)
        if self._cores_max is not None and not member.is_placed:
            cores = member.load.cores(self._clock())
            if cores > self._cores_max:
                why = f"its slices needed {cores:.2f} cores for {LOAD_S:g} s, and the limit is {self._cores_max:g}"
                raise MovedOut.of(member.job, why)

    def _new_slices(self) -> list[Part]:
        now_s = self._clock()
        due = [
            one for one in self._members.values() if not one.is_rewinding and max(one.due_s, one.tried_again_s) <= now_s
        ]
        if not due:
            return []
        self._limit_slices(due)
        committed = {one.job: one.number for one in due}
        planners = [one.planner for one in due]
        outcomes = plan_next_slices(planners, self._ledger, self._index, self._now_ms, committed)
        parts = []
        for member in due:
            member.looked_s = now_s
            planned = outcomes[member.job]
            if planned is None:
                member.idle_s = min(self._poll_max_s, max(self._poll_s, 2 * member.idle_s))
                member.due_s = now_s + member.idle_s
                continue
            member.idle_s = 0.0
            with self._as_outcome(member):
                parts.append(member.new_part(_planned(planned), now_s))
        return parts

    def _limit_slices(self, due: Sequence[PoolMember]) -> None:
        """Share the time of a batch between the members that are behind, by their last slices. A lone member has no limit."""
        if len(self._members) == 1:
            due[0].planner.limit_rows(sys.maxsize)
            return
        behind = sum(one.is_behind for one in due)
        cpu_s, batch_s = (CATCH_UP_S, CATCH_UP_BATCH_S) if behind < len(self._members) else (_ALONE_S, _ALONE_S)
        # A member has one task, so more tasks help only if more members are behind.
        share_s = cpu_s * min(1.0, self._tasks_max / max(1, behind))
        for one in due:
            one.limit_slice(share_s, batch_s)

    def _pieces(self) -> list[Part]:
        """The next pieces of rewinds, those with the fewest records first. All together take a bounded time."""
        now_s = self._clock()
        rewinding = [one for one in self._members.values() if one.is_rewinding]
        is_alone, are_all = len(self._members) == 1, len(rewinding) == len(self._members)
        room_us = (_ALONE_S if are_all else REPLAY_S) * self._tasks_max * 1e6
        parts: list[Part] = []
        for member in sorted(rewinding, key=lambda one: (one.records_left, one.job)):
            if member.tried_again_s > now_s:
                continue
            with self._as_outcome(member):
                part = member.piece(None if is_alone else REPLAY_S)
                if parts and part.cost_us > room_us:
                    break
                room_us -= part.cost_us
                parts.append(part)
        return parts

    def _count_silence(self) -> None:
        now_s = self._clock()
        waiting = [
            one
            for one in self._members.values()
            if not one.is_rewinding and one.due_s - now_s > self._poll_s and now_s - one.looked_s >= _SILENCE_S
        ]
        if waiting:
            for one in waiting:
                one.looked_s = now_s
            count_silence([(one.planner, one.checkpoint) for one in waiting], self._index, self._now_ms)

    def _wait_s(self) -> float:
        now_s = self._clock()
        times = [max(one.tried_again_s, 0 if one.is_rewinding else one.due_s) for one in self._members.values()]
        return max(0.0, min(min(times, default=now_s + _IDLE_S), self._endings_at_s, now_s + _SILENCE_S) - now_s)

    def _process(self, parts: Sequence[Part]) -> None:
        failpoint("slice.before_action")
        began_s = self._clock()
        found = self._outcomes(parts)
        batch_s = self._clock() - began_s
        failpoint("slice.written")
        for part in parts:
            member, outcome = part.member, found[part.member.job]
            try:
                if isinstance(outcome, StrandlineError):
                    raise outcome
                self._add_cost(member, outcome)
                if outcome.failure is not None:
                    raise outcome.failure.error
                assert outcome.done is not None, "a member has failed or has the facts of its slice"
                member.took(part, outcome.cpu_us, outcome.state_bytes, batch_s)
                done = [outcome.done]
                if part.row is None:
                    member.committer.replayed(part.slice.number, done)
                    member.has_processed(part.slice.number)
                else:
                    facts = add_facts(outcome.done.facts)
                    row = member.committer.checkpoint_of(part.row, facts, done, member.checkpoint)
                    self._emitted[member.job] = _Emitted(part, row, done)
            except Exception as error:  # noqa: BLE001 - the outcome of this member, and of no other one
                self._failed(member, error)

    def _add_cost(self, member: PoolMember, outcome: MemberOutcome) -> None:
        done = outcome.done
        records_bytes = 0 if done is None else sum(facts.bytes for facts in done.facts)
        state_bytes = member.state_bytes if done is None else outcome.state_bytes
        self._costs.add(member.job, member.epoch, outcome.cpu_us, records_bytes, state_bytes)

    def _outcomes(self, parts: Sequence[Part]) -> dict[str, MemberOutcome | StrandlineError]:
        """Run a batch. If it fails as a whole, repeat it without the jobs that hung or ended a worker. If none is known, run each
        half of it, and so on: so a member that ends a worker fails alone."""
        try:
            found = {one.job: one for one in self._run_batch(parts)}
            return {one.member.job: found.get(one.member.job) or _lost(one) for one in parts}
        except StrandlineError as error:
            moved = {one.member.job: self._moved_out.pop(one.member.job, None) for one in parts}
            gone: dict[str, MemberOutcome | StrandlineError] = {
                job: MovedOut.of(job, why) for job, why in moved.items() if why is not None
            }
            if gone:
                left = [one for one in parts if one.member.job not in gone]
                return gone | (self._outcomes(left) if left else {})
            named = self._batches.named()
            if len(parts) == 1 or self._is_stopping:
                if parts[0].member.job in named and self._tries is None and not self._is_stopping:
                    why = f"a worker ended while it processed its slice ({error})"
                    return {parts[0].member.job: MovedOut.of(parts[0].member.job, why)}
                return {one.member.job: error for one in parts}
            jobs = [one.member.job for one in parts]
            if named and len(named) < len(parts):
                log.warning("a batch failed; it is repeated without some jobs", jobs=sorted(named), error=str(error))
                others = [one for one in parts if one.member.job not in named]
                found_of: dict[str, MemberOutcome | StrandlineError] = self._outcomes(others)
                for one in parts:
                    if one.member.job in named:
                        found_of |= self._outcomes([one])
                return found_of
            log.warning("a batch failed; each half of it is tried again", jobs=jobs, error=str(error))
            half = len(parts) // 2
            return self._outcomes(parts[:half]) | self._outcomes(parts[half:])

    def _run_batch(self, parts: Sequence[Part]) -> list[MemberOutcome]:
        self._moved_out.clear()  # of a batch that ended meanwhile
        self._on_batch([one.member.job for one in parts])
        try:
            return self._batches.run(spread(parts, self._tasks_max))
        finally:
            self._on_batch([])

    def _commit(self) -> None:
        """Commit the checkpoints of the slices that are emitted. Raises LedgerUnavailable; called again, it commits the same."""
        emitted = self._emitted
        if not emitted:
            return
        started_s = self._clock()
        refusals = self._ledger.commit_checkpoints([one.row for one in emitted.values()])
        self._emitted = {}
        failpoint("checkpoint.committed")
        for job, (part, row, outcomes) in emitted.items():
            member = part.member
            if job in refusals:
                self._failed(member, refusals[job])
                continue
            member.has_processed(row.slice, row, self._clock())
            try:
                member.committer.committed(row, outcomes, self._clock() - started_s, member.waited_s)
            except Exception as error:  # noqa: BLE001 - the outcome of this member, and of no other one
                self._failed(member, error)

    @contextmanager
    def _as_outcome(self, member: PoolMember) -> Iterator[None]:
        """Make an error the outcome of this member, and of no other one. Raises LedgerUnavailable, which concerns all."""
        try:
            yield
        except LedgerUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - a defect that one member meets must not stop the others
            self._failed(member, error)

    def _failed(self, member: PoolMember, error: Exception) -> None:
        """Let the member wait if its failure passes. Otherwise end its run."""
        if not isinstance(error, StrandlineError):
            log.error("a member met a defect", job=member.job, epoch=member.epoch, exc_info=error)
            error = StrandlineError(f"{type(error).__name__}: {error}")
        member.failures += 1
        member.due_s = 0.0
        passes = isinstance(error, TransientError) and (self._tries is None or member.failures < self._tries)
        if not passes or self._is_stopping:
            self._remove(member, error)
            return
        wait_s = _back_off_s(member.failures)
        member.last_error, member.tried_again_s = error, self._clock() + wait_s
        log.warning(
            "the slice is tried again", job=member.job, attempt=member.failures, seconds=wait_s, error=str(error)
        )

    def _remove(self, member: PoolMember, ending: Ending | StrandlineError | None = None) -> None:
        if self._members.get(member.job) is member:
            del self._members[member.job]
            self._emitted.pop(member.job, None)
            self._costs.forget(member.job)
            log.info("member left", job=member.job, epoch=member.epoch, members=len(self._members))
        member.end(ending)

    def _now_ms(self) -> int:
        return int(self._clock() * 1_000)


def _planned(outcome: SliceRow | Exception) -> SliceRow:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _batches_of(parts: Sequence[Part]) -> list[Sequence[Part]]:
    """Return one batch with all members, and one for each that has to be alone."""
    shared = [one for one in parts if not one.member.is_alone]
    return [*([shared] if shared else []), *([one] for one in parts if one.member.is_alone)]


def _lost(part: Part) -> StrandlineError:
    return StrandlineError(f"the batch has no outcome of job {part.member.job}; the job starts again")


def _back_off_s(failures: int) -> float:
    return min(BACK_OFF_MAX_S, BACK_OFF_S * 2.0 ** min(failures - 1, 20))
