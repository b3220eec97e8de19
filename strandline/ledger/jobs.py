"""Jobs in the ledger: their versions, their desired states, and their states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa

from strandline.core.errors import Conflict, Fenced, NotFound
from strandline.ledger.journal import NewEvent, insert_event
from strandline.ledger.lookups.needs import lookups_of_version
from strandline.ledger.many_rows import Refusals, action_of, different_jobs, raise_refusal, refusals_of_each
from strandline.ledger.models import (
    checkpoints,
    inputs,
    job_versions,
    jobs,
    leases,
    places,
    result_indices,
    slices,
)
from strandline.ledger.part import Part
from strandline.ledger.states import (
    JOB_MOVES,
    ORDERED_MOVES,
    Desired,
    JobBase,
    JobRow,
    JobState,
    JobVersionRow,
    Offsets,
    StageSink,
)
from strandline.ledger.streams import hold_streams, read_stream

_JOB = [jobs.c[field.name] for field in fields(JobRow)]
_IS_THERE = jobs.c.deleted_ms.is_(None)
NAMES = "names"
"""Parameter of a query that is built once: the jobs that it reads. To build a query takes longer than to read a row."""
IS_NAMED = jobs.c.name.in_(sa.bindparam(NAMES, expanding=True))
_OF_NAMES = sa.select(*_JOB).where(IS_NAMED, _IS_THERE)
_OF_NAMES_LOCKED = _OF_NAMES.order_by(jobs.c.name).with_for_update(key_share=True)


_MOVE = (
    sa.update(jobs)
    .where(jobs.c.name == sa.bindparam("moved"))
    .values(
        state=sa.bindparam("to"),
        desired=sa.bindparam("wanted"),
        message=sa.bindparam("said"),
        updated_ms=sa.bindparam("at_ms"),
    )
)


class JobMove(NamedTuple):
    """A change of a job's state. See `JobStates.move_job`."""

    job: str
    to: JobState
    message: str = ""
    epoch: int | None = None
    lease: int | None = None


class JobVersion(NamedTuple):
    """A version of a job, without its document."""

    version: int
    created_ms: int


class JobReader(Part):
    """Reads jobs, their versions, and their sinks."""

    def job(self, name: str) -> JobRow:
        """Return the row of a job. Raises NotFound if there is none."""
        with self._database.reading(f"read job {name}") as connection:
            return read_job(connection, name)

    def jobs(self) -> list[JobRow]:
        """Return all jobs, by name."""
        with self._database.reading("list the jobs") as connection:
            return [JobRow(*row) for row in connection.execute(sa.select(*_JOB).where(_IS_THERE).order_by(jobs.c.name))]

    def jobs_named(self, names: Collection[str]) -> dict[str, JobRow]:
        """Return the rows of these jobs. A job that doesn't exist is left out."""
        with self._database.reading(f"read {len(names)} jobs") as connection:
            return read_jobs(connection, names)

    def job_version(self, name: str, version: int | None = None) -> JobVersionRow:
        """Return a version of a job, by default the current one. Raises NotFound."""
        with self._database.reading(f"read job {name}") as connection:
            return _version(connection, name, read_job(connection, name).version if version is None else version)

    def job_versions(self, name: str) -> list[JobVersion]:
        """Return the versions of the job's current incarnation, the newest first. Raises NotFound."""
        versions = job_versions.c
        wanted = (
            sa.select(versions.version, versions.created_ms)
            .join(jobs, jobs.c.name == versions.job)
            .where(versions.job == name, versions.version >= jobs.c.version_first)
            .order_by(versions.version.desc())
        )
        with self._database.reading(f"list the versions of job {name}") as connection:
            read_job(connection, name)
            return [JobVersion(*row) for row in connection.execute(wanted)]

    def places(self, job: str) -> list[StageSink]:
        """Return the sinks that the job emits to, by kind and name."""
        wanted = sa.select(places.c.kind, places.c.name, places.c.stage).where(places.c.job == job)
        with self._database.reading(f"read where job {job} emits to") as connection:
            return [StageSink(*row) for row in connection.execute(wanted.order_by(places.c.kind, places.c.name))]

    def owner_of_sink(self, kind: str, name: str) -> str | None:
        """Return the job whose current version emits to this sink. None if there is none."""
        wanted = sa.select(places.c.job).where(places.c.kind == kind, places.c.name == name)
        with self._database.reading(f"read which job emits to {kind} {name}") as connection:
            owner: str | None = connection.execute(wanted).scalar()
            return owner

    def current_versions_of_jobs(self, names: Collection[str] | None = None) -> dict[str, JobVersionRow]:
        """Return job -> its current version, by name, for all jobs, or for those of `names` that exist."""
        of_job = (job_versions.c.job == jobs.c.name) & (job_versions.c.version == jobs.c.version)
        wanted = sa.select(job_versions).join(jobs, of_job).where(_IS_THERE).order_by(jobs.c.name)
        if names is not None:
            wanted = wanted.where(jobs.c.name.in_(names))
        with self._database.reading("read the documents of all jobs") as connection:
            return {row.job: JobVersionRow(*row) for row in connection.execute(wanted)}

    def last_result_offsets(self) -> dict[str, Offsets]:
        """Return job -> where its emissions end in each stream of results, by its last checkpoint. Jobs without such a stream are
        left out."""
        is_last = checkpoints.c.slice == last_of_job(checkpoints.c.slice)
        wanted = (
            sa.select(checkpoints.c.job, checkpoints.c.result_offsets)
            .join(jobs, checkpoints.c.job == jobs.c.name)
            .where(_IS_THERE, is_last, checkpoints.c.result_offsets != {})
        )
        with self._database.reading("read where results end in streams") as connection:
            return {row.job: row.result_offsets for row in connection.execute(wanted)}

    def result_indices(self, job: str) -> set[str]:
        """Return the indices that the job created, including deleted ones."""
        with self._database.reading(f"list the indices of job {job}") as connection:
            return _result_indices(connection, job)

    def input_document(self, job: str, stream: str) -> dict[str, Any] | None:
        """Return the document with which the job's first run decoded the stream's records. None before that run."""
        with self._database.reading(f"read how job {job} reads stream {stream}") as connection:
            return _input(connection, job, stream)


class JobOrders(Part):
    """Registers jobs, and records their desired states. Each method is one transaction."""

    def submit_job(
        self,
        name: str,
        text: str,
        document: dict[str, Any],
        emits_to: Collection[StageSink] = (),
        together: Collection[str] = (),
        base: JobBase | None = None,
        origin: Offsets | None = None,
        lookups: Mapping[str, int] | None = None,
        readers: Collection[str] = (),
        streams_used: Collection[str] = (),
    ) -> JobRow:
        """Register a job (version 1, desired state running), or add a version. Then only this job emits to `emits_to`,
        and it emits to no other sink.

        A document equal to the current version's changes nothing. The desired state of an existing job stays.

        Args:
        - together: All jobs of the application. This job can take over a sink that one of them has.
        - base: State of the job that the new version was checked against.
        - origin: Offsets at which the job begins to read, if an earlier job with this name was deleted. Its epochs,
          slices, versions, and generations are continued by this one.
        - lookups: Lookup -> version that the job was checked against.
        - readers: Jobs that read a stream which then gets another emitting job, or none. They are restarted, because a
          run reads the emitting job of its stream only when it begins.
        - streams_used: Streams that the job reads or emits to.

        Raises Conflict:
        - One of these streams was deleted, or any other job emits to one of the sinks.
        - The job differs from `base`, or a lookup has another version.
        - The job was deleted and `origin` isn't passed, or its dead letters are being deleted.
        """
        with self._database.writing(f"submit job {name}") as connection:
            now_ms = self._clock_ms()
            known = connection.execute(
                sa.select(*_JOB, jobs.c.deleted_ms).where(jobs.c.name == name).with_for_update()
            ).first()
            is_deleted = known is not None and known.deleted_ms is not None
            if known is None:
                fresh = JobRow(name, 1, Desired.RUNNING, JobState.CREATED, "", 0, now_ms, now_ms, 0)
                connection.execute(sa.insert(jobs).values(vars(fresh) | {"version_first": 1}))
            hold_streams(connection, streams_used)
            self._assign_sinks(connection, name, emits_to, together)
            version = 1 if known is None else known.version + 1
            if known is not None and not is_deleted and _version(connection, name, known.version).document == document:
                return read_job(connection, name)
            if base is not None:
                _refuse_other_base(connection, name, 0 if is_deleted else version - 1, base)
            if is_deleted and origin is None:
                raise Conflict(f"Job {name} was deleted a moment ago; apply the documents again.")
            if known is not None:
                refuse_while_letters_go(name, known.letters_first)
                connection.execute(
                    sa.update(jobs).where(jobs.c.name == name).values(version=version, updated_ms=now_ms)
                )
            before = None if known is None or is_deleted else known.version
            used = lookups_of_version(connection, name, before, lookups or {})
            row = JobVersionRow(name, version, text, document, now_ms, used)
            connection.execute(sa.insert(job_versions).values(vars(row)))
            # Always in the same order, so that no two submissions wait for each other.
            for reader in sorted(readers):
                of_reader = (jobs.c.name == reader) & jobs.c.deleted_ms.is_(None)
                restarted = {"restarts": jobs.c.restarts + 1, "updated_ms": now_ms}
                connection.execute(sa.update(jobs).where(of_reader).values(restarted))
            if is_deleted and origin is not None:
                _revive(connection, name, version, origin, now_ms)
            return read_job(connection, name)

    def _assign_sinks(
        self, connection: sa.Connection, job: str, emits_to: Collection[StageSink], together: Collection[str]
    ) -> None:
        """Assign these sinks to the job, and release its other sinks. Raises Conflict if another job, or another stage
        of this one, has a sink; but a sink of a job in `together` is taken over.

        If two transactions want the same sink, the second one waits until the first has ended.
        """
        connection.execute(sa.delete(places).where(places.c.job == job))
        for kind, name, stage in sorted(emits_to):
            this = (places.c.kind == kind) & (places.c.name == name)
            fresh = {"kind": kind, "name": name, "job": job, "stage": stage}
            owner = None
            while owner is None:  # a conflicting row may be deleted before it is read
                connection.execute(self._database.insert_new(places).values(fresh))
                owner = connection.execute(
                    sa.select(places.c.job, places.c.stage).where(this).with_for_update()
                ).first()
            if owner.job != job and owner.job in together:
                connection.execute(sa.update(places).where(this).values(job=job, stage=stage))
            elif tuple(owner) != (job, stage):
                raise Conflict(
                    f"stage {stage} of {job} can't emit to {kind} {name}, because stage {owner.stage} of {owner.job} "
                    "does; choose another name"
                )

    def set_desired(self, name: str, desired: Desired) -> JobRow:
        """Record the desired state of the job, on which the control service acts. Raises NotFound.

        The same transaction moves the job to the state that follows (ORDERED_MOVES). So if a job is stopping and its
        desired state is running, its stop was cancelled.
        """
        with self._database.writing(f"set what job {name} should do") as connection:
            values = {"desired": desired, "updated_ms": self._clock_ms()}
            state = ORDERED_MOVES.get((lock_job(connection, name).state, desired))
            if state is not None:
                values |= {"state": state, "message": ""}
            connection.execute(sa.update(jobs).where(jobs.c.name == name).values(values))
            return read_job(connection, name)

    def ask_restart(self, name: str) -> JobRow:
        """Request a restart: the leader replaces the job's run by a new one. Raises NotFound."""
        with self._database.writing(f"ask for a restart of job {name}") as connection:
            job = lock_job(connection, name)
            requested = sa.update(jobs).where(jobs.c.name == name)
            connection.execute(requested.values(restarts=job.restarts + 1, updated_ms=self._clock_ms()))
            return read_job(connection, name)

    def order_restore(self, name: str) -> JobRow:
        """Record that the next run restores the results that a store lost, and order a new run. Raises NotFound."""
        with self._database.writing(f"order that job {name} restores its results") as connection:
            job = lock_job(connection, name)
            values = {"restores": True, "restarts": job.restarts + 1, "updated_ms": self._clock_ms()}
            connection.execute(sa.update(jobs).where(jobs.c.name == name).values(values))
        return self.set_desired(name, Desired.RUNNING)


class JobStates(Part):
    """Records the states of jobs, and information that a run collects before it reads records.

    Each method is one transaction.
    """

    def move_job(
        self, name: str, to: JobState, message: str = "", epoch: int | None = None, *, lease: int | None = None
    ) -> JobRow:
        """Change the job's state. No other method does, except that an order sets some states immediately.

        A batch that has drained must stay so: no control service starts it again. A move to the same state is legal and
        renews the message. With `epoch`, the caller acts for that run; with `lease`, for the leader under the lease of
        that epoch.

        Raises NotFound; Conflict for a move that isn't in JOB_MOVES; Fenced if a newer run or another leader owns the
        job.
        """
        moved, refusals = self.move_jobs([JobMove(name, to, message, epoch, lease)])
        raise_refusal(refusals)
        return moved[name]

    def move_jobs(self, moves: Sequence[JobMove]) -> tuple[dict[str, JobRow], Refusals]:
        """Change the states of several jobs in one transaction. Return job -> its row after the move.

        A job that is refused doesn't affect the others: its error is returned, one of those that `move_job` raises.
        """
        if not moves:
            return {}, {}
        names = different_jobs(moves)
        with self._database.writing(action_of("change the state", names)) as connection:
            known = lock_jobs(connection, names)
            refuse_stranger = leader_check(connection, known, moves)

            def refuse(move: JobMove) -> None:
                refuse_stranger(move)
                if move.epoch is not None:
                    refuse_old_epoch(known[move.job], move.epoch)
                _refuse_illegal_move(known[move.job], move.to)

            refusals = refusals_of_each(moves, refuse)
            moving = [one for one in moves if one.job not in refusals]
            if not moving:
                return {}, refusals
            connection.execute(
                _MOVE, [_values_of_move(known[one.job], one) | {"at_ms": self._clock_ms()} for one in moving]
            )
            for one in moving:
                event = _event_of_move(known[one.job], one)
                if event is not None:
                    # In the transaction that it reports, so that neither exists without the other.
                    insert_event(self._database, connection, self._clock_ms(), event)
            return read_jobs(connection, [one.job for one in moving]), refusals

    def record_ends(self, name: str, epoch: int, ends: Offsets) -> Offsets:
        """Record the end offsets of a batch before it reads records. Return the recorded offsets.

        Only the first call of an incarnation records offsets. Raises NotFound; Fenced if a newer run owns the job.
        """
        with self._database.writing(f"note where job {name} ends") as connection:
            job = lock_job(connection, name)
            refuse_old_epoch(job, epoch)
            if job.ends is None:
                connection.execute(sa.update(jobs).where(jobs.c.name == name).values(ends=ends))
            return ends if job.ends is None else job.ends

    def record_input(self, job: str, stream: str, document: dict[str, Any]) -> dict[str, Any]:
        """Record the document of the stream with which the job's first run decodes records. Return the recorded
        document.

        Only the first call for a job and stream records a document. Raises NotFound.
        """
        with self._database.writing(f"note how job {job} reads stream {stream}") as connection:
            lock_job(connection, job)
            read_stream(connection, stream)
            known = _input(connection, job, stream)
            if known is None:
                row = {"job": job, "stream": stream, "document": document, "recorded_ms": self._clock_ms()}
                connection.execute(sa.insert(inputs).values(row))
            return document if known is None else known

    def end_restore(self, name: str, epoch: int) -> None:
        """Record that run `epoch` has restored all results, or can't.

        Raises NotFound; Fenced if a newer run owns the job.
        """
        with self._database.writing(f"note that job {name} has restored its results") as connection:
            refuse_old_epoch(lock_job(connection, name), epoch)
            connection.execute(sa.update(jobs).where(jobs.c.name == name).values(restores=False))


class ResultIndices(Part):
    """Records the indices that a job has created for its results. Each method is one transaction."""

    def add_result_index(self, job: str, name: str) -> None:
        """Record that the job created an index for results. Idempotent. Raises NotFound."""
        with self._database.writing(f"note that job {job} made index {name}") as connection:
            lock_job(connection, job)
            if name not in _result_indices(connection, job):
                row = {"job": job, "name": name, "made_ms": self._clock_ms()}
                connection.execute(sa.insert(result_indices).values(row))

    def forget_indices(self, job: str, names: Collection[str]) -> None:
        """Record that these indices of a deleted job are deleted, or left to other jobs that have written to them."""
        of_job = (result_indices.c.job == job) & result_indices.c.name.in_(names)
        with self._database.writing(f"note that indices of deleted job {job} are deleted") as connection:
            connection.execute(sa.delete(result_indices).where(of_job))


def read_job(connection: sa.Connection, name: str) -> JobRow:
    """Return the row of a job. Raises NotFound if there is none."""
    return _one(read_jobs(connection, [name]), name)


def lock_job(connection: sa.Connection, name: str) -> JobRow:
    """Lock and return the job's row until the transaction ends. Every writer of a job locks it first, so writers are
    serialized.

    Raises NotFound.
    """
    return _one(lock_jobs(connection, [name]), name)


def lock_jobs(connection: sa.Connection, names: Collection[str]) -> dict[str, JobRow]:
    """Lock and return the rows of several jobs, in the order of their names, so that no two callers wait for each
    other.

    A job that doesn't exist is left out. See `lock_job`.
    """
    rows = connection.execute(_OF_NAMES_LOCKED, {NAMES: list(names)})
    return {row.name: JobRow(*row) for row in rows}


def read_jobs(connection: sa.Connection, names: Collection[str]) -> dict[str, JobRow]:
    """Return the current rows of these jobs, without a lock. A job that doesn't exist is left out."""
    return {row.name: JobRow(*row) for row in connection.execute(_OF_NAMES, {NAMES: list(names)})}


def _one(found: Mapping[str, JobRow], name: str) -> JobRow:
    if name not in found:
        raise no_job(name)
    return found[name]


def refuse_old_epoch(job: JobRow, epoch: int) -> None:
    """Raises Fenced unless `epoch` is the job's current run."""
    if epoch != job.epoch:
        raise Fenced(f"Run {epoch} of job {job.name} no longer owns it, run {job.epoch} does: stop this run now.")


def _refuse_illegal_move(job: JobRow, to: JobState) -> None:
    if to is not job.state and to not in JOB_MOVES[job.state]:
        legal = ", ".join(sorted(JOB_MOVES[job.state]))
        raise Conflict(f"Job {job.name} is {job.state.value} and can't become {to.value} from there, only {legal}.")


def _completes(job: JobRow, move: JobMove) -> bool:
    """Return True if the move is the end of a batch."""
    return move.to is JobState.DRAINED and job.ends is not None


def _values_of_move(job: JobRow, move: JobMove) -> dict[str, Any]:
    """Return the parameters of `_MOVE`, except for the time."""
    desired = Desired.DRAINED if _completes(job, move) else job.desired
    return {"moved": job.name, "to": move.to, "wanted": desired, "said": move.message}


def _event_of_move(job: JobRow, move: JobMove) -> NewEvent | None:
    """Return the event that reports the move. None if it is none of the moves that are reported."""
    if move.to is job.state:
        return None
    if move.to is JobState.FAILED:
        return NewEvent("job_failed", move.message, job.name, job.epoch)
    if _completes(job, move):
        text = f"batch {job.name} has completed: it has read all records up to its end and closed all windows"
        return NewEvent("batch_completed", text, job.name, job.epoch)
    return None


class _LeasedWrite(Protocol):
    """A write for a job."""

    @property
    def job(self) -> str: ...
    @property
    def lease(self) -> int | None:
        """Epoch of the leader's lease. None if the write isn't the leader's."""


def leader_check(
    connection: sa.Connection, known: Mapping[str, JobRow], writes: Collection[_LeasedWrite]
) -> Callable[[_LeasedWrite], None]:
    """Return the function that raises NotFound for a write of a job that isn't in `known`, and Fenced if another control service
    leads the job. The rows of the jobs must be locked."""
    leased = [one.job for one in writes if one.lease is not None]
    epochs = sa.select(leases.c.job, leases.c.epoch).where(leases.c.job.in_(leased))
    present = {job: epoch for job, epoch in connection.execute(epochs)} if leased else {}

    def check(write: _LeasedWrite) -> None:
        if write.job not in known:
            raise no_job(write.job)
        if write.lease is not None and present.get(write.job) != write.lease:
            raise Fenced(
                f"Lease {write.lease} of job {write.job} has ended, the current one is {present.get(write.job)}: another control "
                "service leads the job."
            )

    return check


def read_floor(connection: sa.Connection, job: str) -> int:
    """Return the number of the last slice of the job that can't be replayed any more. 0 if all can be."""
    oldest = connection.execute(sa.select(sa.func.min(slices.c.number)).where(slices.c.job == job)).scalar() or 1
    return int(oldest) if oldest > 1 else 0


def refuse_while_letters_go(job: str, letters_first: int) -> None:
    """Raise Conflict while the dead letters of this deleted job are being deleted: those of a new job would be deleted,
    too."""
    if letters_first < 0:
        raise Conflict(
            f"The dead letters of job {job}, which was deleted, are being deleted. Apply the documents again when that is done. "
            f"If it has failed, run strandline job delete {job} --dead-letters"
        )


def _revive(connection: sa.Connection, job: str, version: int, origin: Offsets, now_ms: int) -> None:
    """Turn the row of a deleted job into the row of a new job with its name.

    The one slice that the deletion left is moved to `origin`, at which the new job begins to read.
    """
    fresh = {"desired": Desired.RUNNING, "state": JobState.CREATED, "message": "", "created_ms": now_ms, "ends": None}
    connection.execute(sa.update(jobs).where(jobs.c.name == job).values(fresh | {"deleted_ms": None}))
    there = {"offsets_first": origin, "offsets": origin, "version": version}
    connection.execute(sa.update(slices).where(slices.c.job == job).values(there))
    connection.execute(sa.update(checkpoints).where(checkpoints.c.job == job).values(version=version))


def _refuse_other_base(connection: sa.Connection, job: str, version: int, base: JobBase) -> None:
    """Raises Conflict unless the job, whose row is locked, is unchanged since its new version was checked."""
    if version != base.version:
        raise Conflict(f"Job {job} has just got version {version} by another application; apply the documents again.")
    if read_floor(connection, job) != base.floor:
        raise Conflict(f"Old slices of job {job} have just been removed; apply the documents again.")


def _result_indices(connection: sa.Connection, job: str) -> set[str]:
    return set(connection.execute(sa.select(result_indices.c.name).where(result_indices.c.job == job)).scalars())


def _version(connection: sa.Connection, name: str, version: int) -> JobVersionRow:
    of_version = (job_versions.c.job == name) & (job_versions.c.version == version)
    row = connection.execute(sa.select(job_versions).where(of_version)).first()
    if row is None:
        raise NotFound(f"Job {name} has no version {version}.")
    return JobVersionRow(*row)


def _input(connection: sa.Connection, job: str, stream: str) -> dict[str, Any] | None:
    of_input = (inputs.c.job == job) & (inputs.c.stream == stream)
    document: dict[str, Any] | None = connection.execute(sa.select(inputs.c.document).where(of_input)).scalar()
    return document


def last_of_job(number: sa.Column[int]) -> sa.ScalarSelect[int]:
    """Return the highest number that the table of this column has for a job, for a query over `jobs`."""
    return sa.select(sa.func.max(number)).where(number.table.c.job == jobs.c.name).correlate(jobs).scalar_subquery()


def no_job(name: str) -> NotFound:
    return NotFound(f"There is no job {name}; submit it with `strandline apply FILE`.")
