"""Progress in the ledger: the runs of each job, the division of the log into slices, and checkpoints.

Invariants, each kept by a transaction that locks the job's row:

- Slices and checkpoints of a job are numbered from 1 without gaps. The oldest may have been removed (`compaction.py`).
- At most one slice is planned and not yet committed, and it is the last one.
- A row is written only under the job's newest epoch, so epochs never fall in the order of commits.
- A run that has ended can't write slices or checkpoints any more.

A write whose answer was lost may be repeated: writing the same row again succeeds and changes nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from strandline.core.errors import Conflict, Fenced, LedgerBehind, NotFound
from strandline.core.failpoints import failpoint
from strandline.ledger.database import Database
from strandline.ledger.jobs import (
    IS_NAMED,
    NAMES,
    last_of_job,
    leader_check,
    lock_job,
    lock_jobs,
    no_job,
    read_floor,
    read_jobs,
    refuse_old_epoch,
)
from strandline.ledger.lookups.needs import require_rows
from strandline.ledger.many_rows import Refusals, action_of, different_jobs, raise_refusal, refusals_of_each
from strandline.ledger.models import checkpoints, jobs, runs, slices
from strandline.ledger.part import Part
from strandline.ledger.states import (
    NO_TOTALS,
    CheckpointRow,
    Compiled,
    JobRow,
    Offsets,
    RunRow,
    SliceCounts,
    SliceRow,
    SliceStatus,
    StreamVersions,
    Totals,
)

_Found = TypeVar("_Found")
_Row = TypeVar("_Row", SliceRow, CheckpointRow)
_CHECKPOINT = [checkpoints.c[field.name] for field in fields(CheckpointRow)]
_RESULTS_UP_TO = sa.select(checkpoints.c.results_total).where(
    checkpoints.c.job == sa.bindparam("of_job"), checkpoints.c.slice == sa.bindparam("number")
)
_TOTALS = [checkpoints.c[f"{field.name}_total"] for field in fields(Totals)]
_LAST_SLICES = (
    sa.select(slices)
    .join(jobs, slices.c.job == jobs.c.name)
    .where(IS_NAMED, slices.c.number == last_of_job(slices.c.number))
)
_LAST_CHECKPOINTS = (
    sa.select(*_CHECKPOINT, *_TOTALS)
    .join(jobs, checkpoints.c.job == jobs.c.name)
    .where(IS_NAMED, checkpoints.c.slice == last_of_job(checkpoints.c.slice))
)
_NEWEST_CHECKPOINTS = (
    sa.select(*_CHECKPOINT)
    .where(checkpoints.c.job == sa.bindparam("of_job"))
    .order_by(checkpoints.c.slice.desc())
    .limit(sa.bindparam("limit"))
)
_CHECKPOINTS_BEFORE = _NEWEST_CHECKPOINTS.where(checkpoints.c.slice < sa.bindparam("before"))
_COUNTED = (
    sa.select(*_CHECKPOINT, *_TOTALS)
    .where(checkpoints.c.job == sa.bindparam("of_job"))
    .order_by(checkpoints.c.slice.desc())
    .limit(1)
)
_COUNTED_OF_SLICE = _COUNTED.where(checkpoints.c.slice == sa.bindparam("value"))
_EARLIER = checkpoints.alias()
_IS_LAST_UP_TO = (
    checkpoints.c.slice
    == sa.select(_EARLIER.c.slice)
    .where(_EARLIER.c.job == jobs.c.name, _EARLIER.c.committed_ms <= sa.bindparam("at_ms"))
    .order_by(_EARLIER.c.slice.desc())
    .limit(1)
    .correlate(jobs)
    .scalar_subquery()
)
_COUNTED_OF_JOBS = (
    sa.select(*_CHECKPOINT, *_TOTALS).join(jobs, checkpoints.c.job == jobs.c.name).where(IS_NAMED, _IS_LAST_UP_TO)
)
_TOTALS_OF_JOBS = (
    sa.select(checkpoints.c.job, *_TOTALS).join(jobs, checkpoints.c.job == jobs.c.name).where(IS_NAMED, _IS_LAST_UP_TO)
)


_END_RUN = (
    sa.update(runs)
    .where(runs.c.job == sa.bindparam("of_job"), runs.c.epoch == sa.bindparam("of_epoch"), runs.c.ended_ms.is_(None))
    .values(ended_ms=sa.bindparam("at_ms"), outcome=sa.bindparam("how"), message=sa.bindparam("said"))
)


class RunRequest(NamedTuple):
    """A run to begin. See `Runs.begin_run`."""

    job: str
    pid: int
    present_version: bool = False
    lease: int | None = None


class RunEnd(NamedTuple):
    """The end of a run. See `Runs.end_run`."""

    job: str
    epoch: int
    outcome: str
    message: str = ""
    lease: int | None = None


class JobProgress(NamedTuple):
    """The progress of a job."""

    job: JobRow
    last_slice: SliceRow | None
    last_checkpoint: CheckpointRow | None
    totals: Totals = NO_TOTALS
    """Sums over all committed slices."""


class CountedCheckpoint(NamedTuple):
    """A checkpoint, and the sums over all committed slices up to it."""

    row: CheckpointRow
    totals: Totals


class ProgressReader(Part):
    """Reads runs, slices and checkpoints."""

    def runs(self, job: str, limit: int | None = None) -> list[RunRow]:
        """Return all runs of a job, the oldest first. With `limit`, only the newest of them."""
        newest = sa.select(runs).where(runs.c.job == job).order_by(runs.c.epoch.desc()).limit(limit)
        with self._database.reading(f"list the runs of job {job}") as connection:
            return [RunRow(*row) for row in connection.execute(newest)][::-1]

    def version_of_slice(self, job: str, *, before_epoch: int) -> int | None:
        """Return the version whose results of the planned slice may be in the stores, by the runs before
        `before_epoch`.

        It is the version of the last of these runs that began to write, or the version that planned the slice. None if
        no slice is planned.
        """
        with self._database.reading(f"find the version of the planned slice of job {job}") as connection:
            last = _last_slice(connection, job)
            if last is None or last.status is not SliceStatus.PLANNED:
                return None
            return _writing_versions(connection, [last], before_epoch)[job]

    def floor(self, job: str) -> int:
        """Return the number of the last slice of the job that can't be replayed any more. 0 if all can be."""
        with self._database.reading(f"find the oldest slice of job {job}") as connection:
            return read_floor(connection, job)

    def above_floor(self, job: str, find: Callable[[int], _Found]) -> _Found:
        """Return the result of `find` for the job's floor.

        If it raises NotFound because slices were removed in the meantime, it is called again with the new floor.
        """
        floor = self.floor(job)
        while True:
            try:
                return find(floor)
            except NotFound:
                before, floor = floor, self.floor(job)
                if floor == before:
                    raise

    def last_slice(self, job: str) -> SliceRow | None:
        with self._database.reading(f"read the last slice of job {job}") as connection:
            return _last_slice(connection, job)

    def progress_of(self, names: Collection[str]) -> dict[str, JobProgress]:
        """Return the current row, last slice, and last checkpoint of each of these jobs, as of one moment.

        A job that doesn't exist is left out.
        """
        with self._database.reading(f"read the progress of {len(names)} jobs") as connection:
            last, final = _last_slices(connection, names), _last_checkpoints(connection, names)
            rows = read_jobs(connection, names)
        return {name: JobProgress(row, last.get(name), *final.get(name, (None,))) for name, row in rows.items()}

    def slices(self, job: str, first: int, last: int) -> list[SliceRow]:
        """Return the existing slices from number `first` to `last`, both included, in order."""
        with self._database.reading(f"read slices {first} to {last} of job {job}") as connection:
            rows = connection.execute(
                sa.select(slices)
                .where(slices.c.job == job, slices.c.number.between(first, last))
                .order_by(slices.c.number)
            )
            return [SliceRow(*row) for row in rows]

    def slice_versions(self, job: str, first: int, last: int) -> set[int]:
        """Return the versions of the existing slices from number `first` to `last`."""
        wanted = sa.select(slices.c.version).where(slices.c.job == job, slices.c.number.between(first, last))
        with self._database.reading(f"read the versions of slices {first} to {last} of job {job}") as connection:
            return set(connection.execute(wanted.distinct()).scalars())

    def slice_count(self, job: str) -> int:
        with self._database.reading(f"count the slices of job {job}") as connection:
            # Numbers have no gaps, and the largest is found without reading the others.
            return connection.execute(sa.select(sa.func.max(slices.c.number)).where(slices.c.job == job)).scalar() or 0

    def last_checkpoint(self, job: str) -> CheckpointRow | None:
        found = self.checkpoints(job, limit=1)
        return found[0] if found else None

    def checkpoint(self, job: str, slice: int) -> CheckpointRow:
        """Return the checkpoint of a slice. Raises NotFound if the slice is not committed, or was removed."""
        found = self.checkpoints(job, limit=1, before=slice + 1)
        if not found or found[0].slice != slice:
            raise NotFound(f"Slice {slice} of job {job} is not committed, or so old that it was removed.")
        return found[0]

    def checkpoints(self, job: str, limit: int = 100, before: int | None = None) -> list[CheckpointRow]:
        """Return the newest checkpoints first. With `before`, only those of slices below that number."""
        wanted, values = _NEWEST_CHECKPOINTS, {"of_job": job, "limit": limit}
        if before is not None:
            wanted, values["before"] = _CHECKPOINTS_BEFORE, before
        with self._database.reading(f"read the checkpoints of job {job}") as connection:
            rows = connection.execute(wanted, values)
            return [CheckpointRow(*row) for row in rows]

    def slice_counts(self, job: str, after: int, limit: int) -> list[SliceCounts]:
        """Return the counts of committed slices with a number above `after`: the newest `limit` of them, the newest first."""
        wanted = sa.select(*(checkpoints.c[name] for name in SliceCounts._fields))
        wanted = wanted.where(checkpoints.c.job == job, checkpoints.c.slice > after)
        with self._database.reading(f"read the counts of job {job}") as connection:
            rows = connection.execute(wanted.order_by(checkpoints.c.slice.desc()).limit(limit))
            return [SliceCounts(*row) for row in rows]

    def emitting_checkpoints(self, job: str, limit: int | None = None) -> list[CheckpointRow]:
        """Return the checkpoints of slices that emitted results to a store that can be compared (`stored`), the newest first."""
        emitting = sa.select(*_CHECKPOINT).where(checkpoints.c.job == job, checkpoints.c.stored != {})
        with self._database.reading(f"read what job {job} has emitted") as connection:
            rows = connection.execute(emitting.order_by(checkpoints.c.slice.desc()).limit(limit))
            return [CheckpointRow(*row) for row in rows]

    def first_slice_reaching(self, job: str, event_ms: int) -> int | None:
        """Return the lowest committed slice after which the latest event time was `event_ms` or later.

        None if there is none.
        """
        with self._database.reading(f"find where job {job} reached event time {event_ms}") as connection:
            # The latest event time never falls, so the first in the index's order is also the lowest slice.
            return connection.execute(
                sa.select(checkpoints.c.slice)
                .where(checkpoints.c.job == job, checkpoints.c.latest_event_ms >= event_ms)
                .order_by(checkpoints.c.latest_event_ms, checkpoints.c.slice)
                .limit(1)
            ).scalar()

    def first_slice_closing(self, job: str, event_ms: int) -> int | None:
        """Return the lowest committed slice that closed windows that end at `event_ms`. None if there is none yet."""
        last = self.last_checkpoint(job)
        if last is None or last.closes_ms is None or last.closes_ms < event_ms:
            return None

        def has_closed(number: int) -> bool:  # `closes_ms` never falls
            closes_ms = self.checkpoint(job, number).closes_ms
            return closes_ms is not None and closes_ms >= event_ms

        def first_above(floor: int) -> int:
            numbers = range(max(1, floor), last.slice + 1)
            return numbers[bisect_left(numbers, True, key=has_closed)]

        return self.above_floor(job, first_above)

    def first_slice_final(self, job: str, event_ms: int) -> int | None:
        """Return the committed slice after which results of windows that end up to `event_ms` no longer change. None if
        they may still change.

        It is the slice that closed them, or a later one if late records revise results.
        """
        number, last = self.first_slice_closing(job, event_ms), self.last_checkpoint(job)
        closed = self.slices(job, number, number) if number is not None else []
        if not closed or not closed[0].rule.revise_ms or last is None:
            return number
        final = self.first_slice_closing(job, event_ms + closed[0].rule.revise_ms)
        if final is not None:
            return final
        rule = self.slices(job, last.slice, last.slice)[
            0
        ].rule  # perhaps of a later version, which revises no such window
        is_final = not rule.revise_ms or (rule.revises_after_ms is not None and rule.revises_after_ms >= event_ms)
        return last.slice if is_final else None

    def closed_at_ms(self, job: str, event_ms: int) -> int | None:
        """Return the commit time of the slice that closed windows that end at `event_ms`, by its runner's clock.

        None if there is no such slice yet, or if it may have been removed.
        """
        number = self.first_slice_closing(job, event_ms)
        if number is None:
            return None
        return self.above_floor(
            job, lambda floor: None if 0 < floor >= number else self.checkpoint(job, number).committed_ms
        )

    def first_slice_from(self, job: str, up_to: int, log_starts: Offsets) -> int:
        """Return the lowest slice up to `up_to` that begins at or after `log_starts` in each of its partitions, and
        that the ledger still contains. If there is none, return `up_to` + 1.

        Raises NotFound if the ledger contains no slice of that job up to `up_to`.
        """

        def is_held(number: int) -> bool:  # the begin of slices never falls
            found = self.slices(job, number, number)
            if not found:
                raise NotFound(f"Job {job} has no slice {number}, or it is so old that it was removed.")
            return _begins_at_or_after(found[0], log_starts)

        def first_above(floor: int) -> int:
            return floor + 1 + bisect_left(range(floor + 1, up_to + 1), True, key=is_held)

        return self.above_floor(job, first_above)

    def version_changes(self, job: str, up_to: int) -> list[tuple[int, int]]:
        """Return (first slice, pipeline version) for each sequence of committed slices with one version, in order.

        Only slices up to `up_to` that can still be replayed are included.
        """
        before = sa.func.lag(checkpoints.c.version).over(order_by=checkpoints.c.slice).label("before")
        of_job = (checkpoints.c.job == job) & checkpoints.c.slice.between(self.floor(job) + 1, up_to)
        all_of_them = sa.select(checkpoints.c.slice, checkpoints.c.version, before).where(of_job).subquery()
        changed = all_of_them.c.before.is_(None) | (all_of_them.c.before != all_of_them.c.version)
        with self._database.reading(f"read the versions that job {job} was run in") as connection:
            rows = connection.execute(
                sa.select(all_of_them.c.slice, all_of_them.c.version).where(changed).order_by(all_of_them.c.slice)
            )
            return [(int(row.slice), int(row.version)) for row in rows]

    def compiled_changes(self, job: str, up_to: int) -> list[Compiled]:
        """Return `version_changes`, with the versions of the streams' documents with which the committing runs were
        compiled."""
        of_job = (checkpoints.c.job == job) & checkpoints.c.slice.between(self.floor(job) + 1, up_to)
        by_run = (
            sa.select(checkpoints.c.epoch, checkpoints.c.version, sa.func.min(checkpoints.c.slice).label("first"))
            .where(of_job)
            .group_by(checkpoints.c.epoch, checkpoints.c.version)
        ).subquery()
        wanted = sa.select(by_run.c.first, by_run.c.version, runs.c.stream_versions).where(
            runs.c.job == job, runs.c.epoch == by_run.c.epoch
        )
        with self._database.reading(f"read the documents that job {job} was run by") as connection:
            rows = [Compiled(*row) for row in connection.execute(wanted.order_by(by_run.c.first))]
        return [
            row for before, row in zip([None, *rows], rows, strict=False) if before is None or before[1:] != row[1:]
        ]

    def totals(self, job: str, up_to: int | None = None) -> Totals:
        """Return the sums over all committed slices, or those up to number `up_to`, in constant time. Zeros if there
        are none.

        Raises NotFound if that slice was removed.
        """
        newest = sa.select(*_TOTALS).where(checkpoints.c.job == job).order_by(checkpoints.c.slice.desc()).limit(1)
        if up_to is not None:
            newest = newest.where(checkpoints.c.slice <= up_to)
        with self._database.reading(f"read the totals of job {job}") as connection:
            row = connection.execute(newest).first()
        if row is None and up_to and up_to < self.floor(job):
            raise NotFound(f"Slice {up_to} of job {job} is so old that it was removed.")
        return Totals(*row) if row else NO_TOTALS


class CountedProgress(Part):
    """Reads checkpoints with the sums over all slices up to them, to count what happened since."""

    def last_result(self, job: str) -> CountedCheckpoint | None:
        """Return the checkpoint of the newest slice with a result since the job began or was reset. None if there is none.

        If that slice was removed, return the oldest checkpoint that the ledger still contains.
        """
        with self._database.reading(f"find the newest result of job {job}") as connection:
            last = connection.execute(
                sa.select(sa.func.max(checkpoints.c.slice)).where(checkpoints.c.job == job)
            ).scalar()

            def results_up_to(number: int) -> int:
                found = connection.execute(_RESULTS_UP_TO, {"of_job": job, "number": number}).scalar()
                return -1 if found is None else sum(found.values())

            results = 0 if last is None else results_up_to(last)
            if last is None or not results:
                return None
            # Sums never fall. The newest result is often near: double the distance before searching in between.
            distance = 1
            while results_up_to(last - distance) == results:
                distance *= 2
            numbers = range(last - distance + 1, last - distance // 2 + 1)
            first = numbers[bisect_left(numbers, True, key=lambda number: results_up_to(number) == results)]
            return _counted(connection, _COUNTED_OF_SLICE, job, first)

    def checkpoints_at(self, names: Collection[str], at_ms: int) -> dict[str, CountedCheckpoint]:
        """Return the newest checkpoint of each of these jobs that was committed up to this time, by the clocks of the runs.

        A job without one is left out.
        """
        with self._database.reading(f"read the checkpoints of {len(names)} jobs at {at_ms}") as connection:
            rows = connection.execute(_COUNTED_OF_JOBS, {NAMES: list(names), "at_ms": at_ms})
            return {row.job: _counted_row(row) for row in rows}

    def totals_at(self, names: Collection[str], at_ms: int) -> dict[str, Totals]:
        """Return the sums of each of these jobs over the slices that were committed up to this time. See `checkpoints_at`."""
        with self._database.reading(f"read the sums of {len(names)} jobs at {at_ms}") as connection:
            rows = connection.execute(_TOTALS_OF_JOBS, {NAMES: list(names), "at_ms": at_ms})
            return {job: Totals(*totals) for job, *totals in rows}


class Runs(Part):
    """Records runs. Each method is one transaction."""

    def begin_run(self, job: str, pid: int, *, present_version: bool = False, lease: int | None = None) -> RunRow:
        """Start a run and fence every older one: their later writes raise Fenced.

        The run uses the job's current version. But if a slice is planned, the run commits it in the version that last
        began to write its results: some of them may be in the stores already. Raises NotFound; Fenced if another leader
        owns the job.

        Args:
        - present_version: Use the current version even for a planned slice.
        - lease: Epoch of the leader's lease. None if no leader starts the run.
        """
        begun, refusals = self.begin_runs([RunRequest(job, pid, present_version, lease)])
        raise_refusal(refusals)
        return begun[job]

    def begin_runs(self, requests: Sequence[RunRequest]) -> tuple[dict[str, RunRow], Refusals]:
        """Start a run of each of several jobs in one transaction, each under its own epoch and lease.

        A job that is refused doesn't affect the others: its error is returned, one of those that `begin_run` raises.
        """
        if not requests:
            return {}, {}
        names = different_jobs(requests)
        with self._database.writing(action_of("begin a run", names)) as connection:
            known, now_ms = lock_jobs(connection, names), self._clock_ms()
            refusals = refusals_of_each(requests, leader_check(connection, known, requests))
            beginning = [one for one in requests if one.job not in refusals]
            if not beginning:
                return {}, refusals
            last = _last_slices(connection, [one.job for one in beginning])
            handed = [
                row
                for one in beginning
                if not one.present_version
                and (row := last.get(one.job)) is not None
                and row.status is SliceStatus.PLANNED
            ]
            versions = _writing_versions(connection, handed)
            begun = {
                one.job: RunRow(
                    one.job,
                    known[one.job].epoch + 1,
                    versions.get(one.job, known[one.job].version),
                    one.pid,
                    now_ms,
                    None,
                    None,
                    "",
                )
                for one in beginning
            }
            took_over = [{"of_job": row.job, "said": f"run {row.epoch} took over"} for row in begun.values()]
            connection.execute(
                sa.update(runs)
                .where(runs.c.job == sa.bindparam("of_job"), runs.c.ended_ms.is_(None))
                .values(ended_ms=now_ms, outcome="superseded", message=sa.bindparam("said")),
                took_over,
            )
            connection.execute(
                sa.update(jobs).where(jobs.c.name.in_(begun)).values(epoch=jobs.c.epoch + 1, updated_ms=now_ms)
            )
            connection.execute(sa.insert(runs), [vars(row) for row in begun.values()])
            return begun, refusals

    def end_run(self, job: str, epoch: int, outcome: str, message: str = "", *, lease: int | None = None) -> RunRow:
        """Record the outcome of a run; the first record stays. Raises NotFound; Fenced if another leader owns the job.

        `lease`: Epoch of the leader's lease, if the leader records it.
        """
        ended, refusals = self.end_each_run([RunEnd(job, epoch, outcome, message, lease)])
        raise_refusal(refusals)
        return ended[job]

    def end_each_run(self, ends: Sequence[RunEnd]) -> tuple[dict[str, RunRow], Refusals]:
        """Record the outcomes of runs of several jobs in one transaction. Return job -> the run, with its first record.

        A job that is refused doesn't affect the others: its error is returned, one of those that `end_run` raises.
        """
        if not ends:
            return {}, {}
        names = different_jobs(ends)
        leased = [one for one in ends if one.lease is not None]
        with self._database.writing(action_of("end a run", names)) as connection:
            known = lock_jobs(connection, [one.job for one in leased]) if leased else {}
            refusals = refusals_of_each(leased, leader_check(connection, known, leased))
            ending = [one for one in ends if one.job not in refusals]
            if not ending:
                return {}, refusals
            connection.execute(_END_RUN, [_values_of_end(one) | {"at_ms": self._clock_ms()} for one in ending])
            of_ends = sa.tuple_(runs.c.job, runs.c.epoch).in_([(one.job, one.epoch) for one in ending])
            rows = {row.job: RunRow(*row) for row in connection.execute(sa.select(runs).where(of_ends))}
            for one in ending:
                if one.job not in rows:
                    refusals[one.job] = NotFound(f"Job {one.job} has no run {one.epoch}.")
            return rows, refusals

    def set_run_slots(self, job: str, epoch: int, slots: int) -> None:
        """Record the number of buckets of the run, before its tasks write: a later run fences the slots of each bucket.

        Raises Fenced if a newer run owns the job; NotFound.
        """
        self._note_of_run(job, epoch, "slots", slots=slots)

    def set_run_streams(self, job: str, epoch: int, versions: StreamVersions) -> None:
        """Record the versions of the streams' documents with which the run's pipeline is compiled, before its first
        slice.

        Raises Fenced if a newer run owns the job; NotFound.
        """
        self._note_of_run(job, epoch, "streams", stream_versions=versions)

    def _note_of_run(self, job: str, epoch: int, what: str, **values: Any) -> None:
        with self._database.writing(f"note the {what} of run {epoch} of job {job}") as connection:
            refuse_old_epoch(lock_job(connection, job), epoch)
            of_run = (runs.c.job == job) & (runs.c.epoch == epoch)
            connection.execute(sa.update(runs).where(of_run).values(values))


class SlicePlans(Part):
    """Records the division of the log into slices. Each method is one transaction."""

    def plan_slice(self, row: SliceRow) -> None:
        """Record the next slice, before it is processed. A recorded slice is never planned again.

        Raises Conflict if the slice does not follow the last one, if the last one is not committed yet, or if rows of a
        lookup that it uses were removed. Raises Fenced if a newer run owns the job; LedgerBehind; NotFound.
        """
        raise_refusal(self.plan_slices([row]))

    def plan_slices(self, rows: Sequence[SliceRow]) -> Refusals:
        """Record the next slice of each of several jobs in one transaction.

        A job whose slice is refused doesn't affect the others: its error is returned, one of those that `plan_slice`
        raises.
        """
        return _write_of_each(self._database, rows, "plan the next slice", self._plan)

    def _plan(self, connection: sa.Connection, rows: Sequence[SliceRow]) -> Refusals:
        last = _last_slices(connection, [row.job for row in rows])
        added: list[dict[str, Any]] = []

        def plan(row: SliceRow) -> None:
            if row == last.get(row.job):
                return
            _refuse_gap(row, last.get(row.job))
            require_rows(self._database, connection, row.lookup_versions)
            added.append(vars(row))

        refusals = refusals_of_each(rows, plan)
        if added:
            connection.execute(sa.insert(slices), added)
        return refusals


class Checkpoints(Part):
    """Commits slices. Each method is one transaction."""

    def commit_checkpoint(self, row: CheckpointRow) -> None:
        """Make a slice final: call this only after its results and dead letters are all confirmed.

        Raises Fenced if a newer run owns the job, and LedgerBehind if the ledger doesn't contain the planned slice.
        Raises Conflict if the slice doesn't follow the last commit, or if a value that never falls would fall. Also
        raises NotFound.
        """
        raise_refusal(self.commit_checkpoints([row]))

    def commit_checkpoints(self, rows: Sequence[CheckpointRow]) -> Refusals:
        """Make the slices of several jobs final in one transaction.

        A job whose checkpoint is refused doesn't affect the others: its error is returned, one of those that
        `commit_checkpoint` raises.
        """
        return _write_of_each(self._database, rows, "commit a slice", self._commit)

    def _commit(self, connection: sa.Connection, rows: Sequence[CheckpointRow]) -> Refusals:
        names = [row.job for row in rows]
        planned, last = _last_slices(connection, names), _last_checkpoints(connection, names)
        added: list[dict[str, Any]] = []

        def commit(row: CheckpointRow) -> None:
            before, totals = last.get(row.job, (None, NO_TOTALS))
            if row == before:
                return
            _refuse_fall(row, before)
            found = planned.get(row.job)
            if found is None or found.number != row.slice or found.status is not SliceStatus.PLANNED:
                raise _behind(row.job, found, f"run {row.epoch} has planned slice {row.slice} and emitted its results")
            added.append(vars(row) | _add(totals, row).columns)

        refusals = refusals_of_each(rows, commit)
        if added:
            final = sa.tuple_(slices.c.job, slices.c.number).in_([(one["job"], one["slice"]) for one in added])
            connection.execute(sa.update(slices).where(final).values(status=SliceStatus.COMMITTED))
            connection.execute(sa.insert(checkpoints), added)
        failpoint("checkpoint.before_commit")
        return refusals


def _write_of_each(
    database: Database, rows: Sequence[_Row], what: str, write: Callable[[sa.Connection, Sequence[_Row]], Refusals]
) -> Refusals:
    """Call `write` in one transaction, with the rows whose run is the current run of their job and hasn't ended.

    Return the errors of the other rows, and the errors that `write` returns.
    """
    if not rows:
        return {}
    names = different_jobs(rows)
    try:
        with database.writing(action_of(what, names)) as connection:
            known, ended = lock_jobs(connection, names), _ended_runs(connection, rows)

            def refuse(row: _Row) -> None:
                if row.job not in known:
                    raise no_job(row.job)
                refuse_old_epoch(known[row.job], row.epoch)
                if row.job in ended:
                    raise ended[row.job]

            refusals = refusals_of_each(rows, refuse)
            return refusals | write(connection, [row for row in rows if row.job not in refusals])
    except Conflict as error:  # the database refuses a row, and with it the transaction
        if len(rows) == 1:
            return {names[0]: error}
        return {job: why for row in rows for job, why in _write_of_each(database, [row], what, write).items()}


def _values_of_end(end: RunEnd) -> dict[str, Any]:
    """Return the parameters of `_END_RUN`, except for the time."""
    return {"of_job": end.job, "of_epoch": end.epoch, "how": end.outcome, "said": end.message}


def _ended_runs(connection: sa.Connection, rows: Iterable[SliceRow] | Iterable[CheckpointRow]) -> dict[str, Fenced]:
    """Return job -> error for the rows whose run has ended. (A new leader ends the old run before it begins its own.)"""
    of_rows = sa.tuple_(runs.c.job, runs.c.epoch).in_([(row.job, row.epoch) for row in rows])
    wanted = sa.select(runs.c.job, runs.c.epoch, runs.c.outcome, runs.c.message).where(
        of_rows, runs.c.ended_ms.is_not(None)
    )
    return {
        job: Fenced(f"Run {epoch} of job {job} was ended ({outcome}: {message}): stop it now.")
        for job, epoch, outcome, message in connection.execute(wanted)
    }


def _writing_versions(
    connection: sa.Connection, planned: Collection[SliceRow], before_epoch: int | None = None
) -> dict[str, int]:
    """Return job -> pipeline version that may have written results of the job's planned slice.

    It is the version of the last run (before `before_epoch`) that could write, else the version that planned the slice.
    """
    if not planned:
        return {}
    these = sa.tuple_(slices.c.job, slices.c.number).in_([(row.job, row.number) for row in planned])
    writing = (runs.c.job == slices.c.job) & (runs.c.epoch >= slices.c.epoch) & (runs.c.slots > 0)
    if before_epoch is not None:
        writing &= runs.c.epoch < before_epoch
    newest = sa.select(runs.c.job, sa.func.max(runs.c.epoch).label("epoch")).join(slices, writing).where(these)
    last = newest.group_by(runs.c.job).subquery()
    of_run = (runs.c.job == last.c.job) & (runs.c.epoch == last.c.epoch)
    rows = connection.execute(sa.select(runs.c.job, runs.c.version).join(last, of_run))
    return {row.job: row.version for row in planned} | {job: version for job, version in rows}


def _last_slice(connection: sa.Connection, job: str) -> SliceRow | None:
    return _last_slices(connection, [job]).get(job)


def _last_slices(connection: sa.Connection, names: Collection[str]) -> dict[str, SliceRow]:
    rows = connection.execute(_LAST_SLICES, {NAMES: list(names)})
    return {row.job: SliceRow(*row) for row in rows}


def _last_checkpoints(connection: sa.Connection, names: Collection[str]) -> dict[str, CountedCheckpoint]:
    rows = connection.execute(_LAST_CHECKPOINTS, {NAMES: list(names)})
    return {row.job: _counted_row(row) for row in rows}


def _counted(connection: sa.Connection, query: sa.Select[Any], job: str, value: int) -> CountedCheckpoint | None:
    """Return the newest checkpoint that the query, one of `_COUNTED`, finds."""
    row = connection.execute(query, {"of_job": job, "value": value}).first()
    return None if row is None else _counted_row(row)


def _counted_row(row: sa.Row[Any]) -> CountedCheckpoint:
    split = len(_CHECKPOINT)
    return CountedCheckpoint(CheckpointRow(*row[:split]), Totals(*row[split:]))


def _begins_at_or_after(row: SliceRow, log_starts: Offsets) -> bool:
    return all(
        row.offsets_first.get(stream, {}).get(partition, 0) >= log_starts.get(stream, {}).get(partition, 0)
        for stream, partitions in row.offsets.items()
        for partition in partitions
    )


def _refuse_gap(row: SliceRow, last: SliceRow | None) -> None:
    """Raises Conflict unless `row` is a planned slice that begins exactly at the end of `last`, which is committed."""
    name = f"Slice {row.number} of job {row.job}"
    if row.status is not SliceStatus.PLANNED:
        raise Conflict(f"{name} must be planned, but the status of its row is {row.status.value}.")
    if row.number != (last.number + 1 if last else 1):
        if row.number > (last.number if last else 0):
            raise _behind(row.job, last, f"run {row.epoch} has committed slice {row.number - 1}")
        raise Conflict(f"{name} does not follow the last one, which is {last.number if last else 0}.")
    if _goes_back(row.offsets_first, row.offsets):
        raise Conflict(f"{name} ends before it begins: {row.offsets_first} to {row.offsets}.")
    if last is None:
        return
    if last.status is not SliceStatus.COMMITTED:
        raise Conflict(f"{name} can't be planned before slice {last.number} is committed.")
    if row.offsets_first != last.offsets:
        raise Conflict(f"{name} begins at {row.offsets_first}, but the last one ends at {last.offsets}.")


def _behind(job: str, last: SliceRow | None, written: str) -> LedgerBehind:
    known = f"its last slice is {last.number}" if last is not None else "it contains no slice"
    return LedgerBehind.of(job, f"{known}, and {written}")


def _goes_back(first: Offsets, end: Offsets) -> bool:
    return any(
        end.get(stream, {}).get(partition, -1) < offset
        for stream, partitions in first.items()
        for partition, offset in partitions.items()
    )


def _refuse_fall(row: CheckpointRow, last: CheckpointRow | None) -> None:
    """Raises Conflict unless `row` follows `last` and no value falls that must never fall."""
    name = f"The checkpoint of slice {row.slice} of job {row.job}"
    if row.slice != (last.slice + 1 if last else 1):
        raise Conflict(f"{name} does not follow the last one, which is of slice {last.slice if last else 0}.")
    if last is None:
        return
    for field in ("latest_event_ms", "latest_log_ms", "closes_ms"):
        before, now = getattr(last, field), getattr(row, field)
        if before is not None and (now is None or now < before):
            raise Conflict(f"{name} has {field} {now}, which is below the {before} of the slice before.")
    if _goes_back(last.reached, row.reached):
        raise Conflict(f"{name} lowers the event time reached: {last.reached} to {row.reached}.")
    for stage, end_ms in row.emitted.items():
        if end_ms < last.emitted.get(stage, end_ms):
            raise Conflict(f"{name} lowers the emitted window end of stage {stage}: {last.emitted[stage]} to {end_ms}.")
    if _goes_back(last.result_offsets, row.result_offsets):
        raise Conflict(f"{name} lowers the result offsets in streams: {last.result_offsets} to {row.result_offsets}.")


def _add(totals: Totals, row: CheckpointRow) -> Totals:
    return replace(
        totals,
        records=totals.records + row.records,
        accepted=totals.accepted + row.accepted,
        rejected=_add_counts(totals.rejected, row.rejected),
        results=_add_counts(totals.results, row.results),
        refused=_add_counts(totals.refused or {}, row.refused),
    )


def _add_counts(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in one | other}
