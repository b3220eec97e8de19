"""Resets and deletions of jobs, and deletions of streams.

An *incarnation* of a job begins when its name is first used, when the name of a deleted job is reused, and when a job
is reset. Numbering continues: epochs, leases, versions, slices, and generations of results are higher than those of all
earlier incarnations. So data that an earlier incarnation left, or still tries to write, is distinguished from that of
the current incarnation.

Each later incarnation begins with a committed slice without records, its *origin*. It ends at the offsets at which the
incarnation begins to read. Its checkpoint contains no emissions, and the end offsets of the dead letters of earlier
incarnations. It is the job's floor.

An incarnation ends in these steps. Each can be repeated, whichever process is killed in between:

1. `end_runs`: a new epoch fences all earlier runs. It belongs to a run that has already ended.
2. The caller fences the Kafka writes of these runs, and then reads the end offsets of the dead letters.
3. `reset_job` or `delete_job`, under that epoch. If the job was started in between, it has a newer epoch, and the start
   is not undone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from strandline.core.errors import Conflict, NotFound
from strandline.ledger.jobs import lock_job, read_job, refuse_old_epoch, refuse_while_letters_go
from strandline.ledger.journal import NewEvent, insert_event
from strandline.ledger.models import (
    backfills,
    checkpoints,
    events,
    inputs,
    job_costs,
    job_versions,
    jobs,
    places,
    replay_attempts,
    replays,
    result_indices,
    runs,
    slices,
    stream_versions,
    streams,
)
from strandline.ledger.part import Part
from strandline.ledger.states import (
    IDLE_STATES,
    NO_TOTALS,
    OPEN_BACKFILLS,
    CheckpointRow,
    Desired,
    EventTimeRule,
    JobRow,
    Offsets,
    RunRow,
    SliceKind,
    SliceRow,
    SliceStatus,
)

ORIGIN_FIRST = 2
"""Minimum number of an origin: the job's floor is at 2 or above, or there is none."""


@dataclass(frozen=True)
class Origin:
    """Begin of an incarnation."""

    offsets: Offsets
    """Offset of the first record in each partition that it reads."""
    letter_offsets: Mapping[int, int]
    """End offsets of the dead letters of earlier incarnations: partition -> offset."""


@dataclass(frozen=True)
class VersionHistory:
    """The documents of a job's versions, the oldest first."""

    earlier: list[dict[str, Any]]
    """Documents of the incarnations before the current one. For a deleted job, of all."""
    present: dict[int, dict[str, Any]]
    """Version -> document of the current incarnation. After a reset, it begins with the version at that time."""


@dataclass(frozen=True)
class ResultStore:
    """An index, and the job that created it."""

    index: str
    job: str
    generation: int
    """Generation that the job's current incarnation writes itself; earlier incarnations have lower ones. For a deleted
    job, the generation of the next incarnation."""
    is_deleted: bool
    """True if the job was deleted."""


_STREAM_DELETED = "stream_deleted"


class LifecycleReader(Part):
    """Reads the remains of deleted jobs and streams, and the results of earlier incarnations."""

    def deleted_job(self, job: str) -> bool:
        """Return True if a job with this name was deleted, and the name isn't used again."""
        of_job = (jobs.c.name == job) & jobs.c.deleted_ms.is_not(None)
        with self._database.reading(f"look for a deleted job {job}") as connection:
            return connection.execute(sa.select(jobs.c.name).where(of_job)).first() is not None

    def generation_of(self, job: str) -> int:
        """Return the generation that a job with this name writes itself, or would write if its name were reused."""
        wanted = sa.select(jobs.c.generation).where(jobs.c.name == job)
        with self._database.reading(f"read the generation of job {job}") as connection:
            return int(connection.execute(wanted).scalar() or 1)

    def indices_left(self, job: str) -> list[str]:
        """Return the indices that a deleted job created, without those that other jobs have written to.

        Raises NotFound.
        """
        if not self.deleted_job(job):
            raise _no_deleted_job(job)
        others = sa.select(result_indices.c.name).where(result_indices.c.job != job)
        wanted = sa.select(result_indices.c.name).where(
            result_indices.c.job == job, result_indices.c.name.not_in(others)
        )
        with self._database.reading(f"list the indices of deleted job {job}") as connection:
            return list(connection.execute(wanted.order_by(result_indices.c.name)).scalars())

    def result_stores(self) -> list[ResultStore]:
        """Return the indices of all jobs with an earlier incarnation, including deleted jobs.

        Indices that are known to be deleted are left out.
        """
        wanted = (
            sa.select(result_indices.c.name, result_indices.c.job, jobs.c.generation, jobs.c.deleted_ms.is_not(None))
            .join(jobs, jobs.c.name == result_indices.c.job)
            .where(jobs.c.generation > 1)
            .order_by(result_indices.c.name, result_indices.c.job)
        )
        with self._database.reading("list the indices of jobs with earlier incarnations") as connection:
            return [ResultStore(*row) for row in connection.execute(wanted)]

    def documents_of(self, job: str) -> VersionHistory:
        """Return the documents of all versions of this job, deleted or not. Empty if the job never existed."""
        versions = job_versions.c
        wanted = (
            sa.select(
                versions.version, versions.document, (versions.version >= jobs.c.version_first).label("is_present")
            )
            .join(jobs, jobs.c.name == versions.job)
            .where(versions.job == job)
            .order_by(versions.version)
        )
        with self._database.reading(f"read all versions of job {job}") as connection:
            rows = connection.execute(wanted).all()
        return VersionHistory(
            [row.document for row in rows if not row.is_present],
            {row.version: row.document for row in rows if row.is_present},
        )

    def require_free_name(self, job: str) -> None:
        """Raise Conflict while the dead letters of a deleted job with this name are being deleted."""
        with self._database.reading(f"look whether the name of job {job} is free") as connection:
            wanted = sa.select(jobs.c.letters_first).where(jobs.c.name == job)
            refuse_while_letters_go(job, connection.execute(wanted).scalar() or 0)

    def topic_of_deleted_stream(self, name: str) -> str | None:
        """Return the id of the topic that must be deleted with the last stream of this name.

        None if a stream with this name exists, if there never was one, or if its topic was kept.
        """
        wanted = sa.select(events.c.facts).where(events.c.kind == _STREAM_DELETED).order_by(events.c.id.desc())
        with self._database.reading(f"look for a deleted stream {name}") as connection:
            if connection.execute(sa.select(streams.c.name).where(streams.c.name == name)).first() is not None:
                return None
            deleted = (facts for facts in connection.execute(wanted).scalars() if facts["stream"] == name)
            last: dict[str, Any] = next(deleted, {})
            return None if last.get("keeps_topic", True) else last["topic_id"]


class Lifecycle(Part):
    """Ends incarnations of jobs, and deletes streams. Each method is one transaction."""

    def end_runs(self, job: str, verb: str) -> RunRow:
        """Fence all runs of a job without a runner, before it is reset or deleted (`verb`), and set its desired state
        to stopped.

        Returns the run that fences them, which has ended. Raises Conflict, with a remedy, while the job has a runner or
        an open backfill; NotFound.
        """
        with self._database.writing(f"{verb} job {job}") as connection:
            known, now_ms = lock_job(connection, job), self._clock_ms()
            if known.state not in IDLE_STATES:
                raise Conflict(
                    f"job {job} is {known.state.value}, and only a job that doesn't run can be {verb}: first "
                    f"strandline job stop {job}, then strandline job {verb.removesuffix('d')} {job}"
                )
            _refuse_open_backfill(connection, job)
            epoch = known.epoch + 1
            ended = {"ended_ms": now_ms, "outcome": "superseded", "message": f"the job was {verb}"}
            connection.execute(sa.update(runs).where(runs.c.job == job, runs.c.ended_ms.is_(None)).values(ended))
            fence = RunRow(job, epoch, known.version, 0, now_ms, now_ms, verb, f"no run: the job was {verb}")
            connection.execute(sa.insert(runs).values(vars(fence)))
            connection.execute(
                sa.update(jobs)
                .where(jobs.c.name == job)
                .values(epoch=epoch, desired=Desired.STOPPED, updated_ms=now_ms)
            )
            return fence

    def reset_job(self, fence: RunRow, origin: Origin, generation_taken: int = 0) -> JobRow:
        """Begin a new incarnation of the job at `origin`, under a new generation of results.

        Raises Fenced if the job was started in between; Conflict if a backfill was; NotFound.

        Args: fence: Result of `end_runs`. generation_taken: See `request_backfill`.
        """
        with self._database.writing(f"reset job {fence.job}") as connection:
            self._begin_incarnation(connection, fence, origin, generation_taken)
            return read_job(connection, fence.job)

    def delete_job(self, fence: RunRow, letter_offsets: Mapping[int, int]) -> None:
        """Delete the job, and release its sinks. Raises the errors of `reset_job`.

        Args: letter_offsets: End offsets of its dead letters.
        """
        with self._database.writing(f"delete job {fence.job}") as connection:
            self._begin_incarnation(connection, fence, Origin({}, letter_offsets))
            connection.execute(sa.delete(places).where(places.c.job == fence.job))
            gone = sa.update(jobs).where(jobs.c.name == fence.job)
            connection.execute(gone.values(deleted_ms=self._clock_ms(), version_first=jobs.c.version + 1))

    def _begin_incarnation(
        self, connection: sa.Connection, fence: RunRow, origin: Origin, generation_taken: int = 0
    ) -> None:
        """Replace all slices and checkpoints by the origin, in a transaction that locks the job's row."""
        job, now_ms = fence.job, self._clock_ms()
        known = lock_job(connection, job)
        refuse_old_epoch(known, fence.epoch)
        if known.state not in IDLE_STATES:
            raise Conflict(
                f"job {job} was just started, and is {known.state.value}; stop it first: strandline job stop {job}"
            )
        _refuse_open_backfill(connection, job)  # it may have been requested since the runs were fenced
        last = connection.execute(sa.select(sa.func.max(slices.c.number)).where(slices.c.job == job)).scalar() or 0
        newest = sa.select(sa.func.max(backfills.c.generation)).where(backfills.c.job == job)
        generation = max(known.generation, generation_taken, connection.execute(newest).scalar() or 0) + 1
        for table in (checkpoints, slices, inputs, job_costs):
            connection.execute(sa.delete(table).where(table.c.job == job))
        number = max(ORIGIN_FIRST, last + 1)
        cut = SliceRow(
            job,
            number,
            fence.epoch,
            known.version,
            origin.offsets,
            origin.offsets,
            cut_time_ms=now_ms,
            watermark_ms=None,
            rule=EventTimeRule(delay_ms=0, idle_timeout_ms=None),
            reached={},
            silence_ms={},
            kind=SliceKind.IDLE,
            status=SliceStatus.COMMITTED,
            planned_ms=now_ms,
        )
        connection.execute(sa.insert(slices).values(vars(cut)))
        done = CheckpointRow(
            job,
            number,
            fence.epoch,
            known.version,
            emitted={},
            latest_event_ms=None,
            latest_log_ms=None,
            records=0,
            accepted=0,
            rejected={},
            results={},
            dead_letter_offsets=dict(origin.letter_offsets),
            committed_ms=now_ms,
        )
        connection.execute(sa.insert(checkpoints).values(vars(done) | NO_TOTALS.columns))
        letters_first = origin.letter_offsets.get(0, 0)
        begun = {
            "generation": generation,
            "letters_first": letters_first,
            "message": "",
            "updated_ms": now_ms,
            "ends": None,
            "version_first": known.version,
            "restores": False,
        }
        connection.execute(sa.update(jobs).where(jobs.c.name == job).values(begun))

    def begin_deletion_of_letters(self, job: str) -> int:
        """Record that the dead letters of a deleted job are being deleted. Return the number of this deletion, which
        replaces an earlier one.

        The job's name can't be reused until `forget_letters` or `keep_letters`, because the dead letters of a new job
        would be deleted, too. Raises NotFound if there is no deleted job with this name (any more).
        """
        of_job = (jobs.c.name == job) & jobs.c.deleted_ms.is_not(None)
        # An epoch of the job that no run has: so no two deletions ever get the same number.
        epoch = jobs.c.epoch + 1
        begun = sa.update(jobs).where(of_job).values(epoch=epoch, letters_first=-epoch)
        with self._database.writing(f"begin to delete the dead letters of deleted job {job}") as connection:
            deletion = connection.execute(begun.returning(jobs.c.letters_first)).scalar()
            if deletion is None:
                raise _no_deleted_job(job)
            return int(deletion)

    def require_deletion_of_letters(self, job: str, deletion: int) -> None:
        """Raise Conflict unless this deletion of the job's dead letters is the current one."""
        wanted = sa.select(jobs.c.letters_first).where(jobs.c.name == job)
        with self._database.reading(f"look which deletion of dead letters of job {job} is at work") as connection:
            if connection.execute(wanted).scalar() != deletion:
                raise _another_deletion(job)

    def forget_letters(self, job: str, deletion: int) -> None:
        """Record that the dead letters of a deleted job are deleted: those of a later job with its name are numbered
        from 0.

        Raises Conflict unless this deletion is the current one.
        """
        with self._database.writing(f"note that the dead letters of deleted job {job} are deleted") as connection:
            _end_deletion(connection, job, deletion, 0)
            origin = sa.update(checkpoints).where(checkpoints.c.job == job)
            connection.execute(origin.values(dead_letter_offsets={}))

    def keep_letters(self, job: str, deletion: int) -> None:
        """Record that the dead letters of a deleted job could not be deleted: those of a later job with its name are
        numbered after them.

        Raises Conflict unless this deletion is the current one.
        """
        with self._database.writing(f"note that the dead letters of deleted job {job} stay") as connection:
            origin = sa.select(checkpoints.c.dead_letter_offsets).where(checkpoints.c.job == job)
            ends = connection.execute(origin.order_by(checkpoints.c.slice)).scalars().first() or {}
            _end_deletion(connection, job, deletion, ends.get(0, 0))

    def delete_stream(
        self, name: str, checked: Mapping[str, int], *, keeps_topic: bool = False, principal: str | None = None
    ) -> None:
        """Delete the registration of a stream, and record an event about it.

        In the last checkpoint of a job that has emitted to the stream, its offsets are removed: these results no longer
        exist. Raises Conflict if there is another job or version in the meantime; NotFound.

        Args: checked: Current version of each job. The caller has checked that none needs the stream.
        """
        with self._database.writing(f"delete stream {name}") as connection:
            known = connection.execute(
                sa.select(streams.c.topic_id).where(streams.c.name == name).with_for_update()
            ).first()
            if known is None:
                raise NotFound(f"There is no stream {name}.")
            present = sa.select(jobs.c.name, jobs.c.version).where(jobs.c.deleted_ms.is_(None))
            if {row.name: row.version for row in connection.execute(present)} != dict(checked):
                raise Conflict("A job has just been submitted or deleted, which may need the stream; try again.")
            used = sa.select(inputs.c.job).where(inputs.c.stream == name)
            if reader := connection.execute(used).scalar():
                raise Conflict(f"Job {reader} has read stream {name}; delete or reset the job first.")
            connection.execute(sa.delete(stream_versions).where(stream_versions.c.stream == name))
            for table in (replays, replay_attempts):  # a recreated topic with that name has other records
                connection.execute(sa.delete(table).where(table.c.stream == name))
            connection.execute(sa.delete(streams).where(streams.c.name == name))
            _forget_results(connection, name)
            facts = {"stream": name, "topic_id": known.topic_id, "keeps_topic": keeps_topic}
            message = f"stream {name} was deleted{'' if keeps_topic else ', with its topic'}"
            event = NewEvent(_STREAM_DELETED, message, facts=facts, principal=principal)
            insert_event(self._database, connection, self._clock_ms(), event)

    def keep_topic_of_deleted_stream(self, name: str, principal: str | None = None) -> None:
        """Record that the topic of a deleted stream is kept: the next stream with this name uses it."""
        with self._database.writing(f"keep the topic of deleted stream {name}") as connection:
            facts = {"stream": name, "topic_id": None, "keeps_topic": True}
            event = NewEvent(
                _STREAM_DELETED, f"the topic of deleted stream {name} stays", facts=facts, principal=principal
            )
            insert_event(self._database, connection, self._clock_ms(), event)


def _end_deletion(connection: sa.Connection, job: str, deletion: int, letters_first: int) -> None:
    of_deletion = (jobs.c.name == job) & (jobs.c.letters_first == deletion)
    ended = sa.update(jobs).where(of_deletion).values(letters_first=letters_first)
    if not connection.execute(ended).rowcount:
        raise _another_deletion(job)


def _another_deletion(job: str) -> Conflict:
    return Conflict(f"another deletion of the dead letters of job {job} continues or has ended, so this one stops")


def _forget_results(connection: sa.Connection, stream: str) -> None:
    newest = sa.select(checkpoints.c.job, sa.func.max(checkpoints.c.slice).label("slice")).group_by(checkpoints.c.job)
    last = newest.subquery()
    of_last = (checkpoints.c.job == last.c.job) & (checkpoints.c.slice == last.c.slice)
    shown = checkpoints.c.job, checkpoints.c.slice, checkpoints.c.result_offsets
    for job, number, offsets in connection.execute(sa.select(*shown).join(last, of_last)).all():
        if offsets.get(stream):
            of_row = (checkpoints.c.job == job) & (checkpoints.c.slice == number)
            connection.execute(sa.update(checkpoints).where(of_row).values(result_offsets={**offsets, stream: {}}))


def _refuse_open_backfill(connection: sa.Connection, job: str) -> None:
    is_open = (backfills.c.job == job) & backfills.c.state.in_(OPEN_BACKFILLS)
    generation = connection.execute(sa.select(backfills.c.generation).where(is_open)).scalar()
    if generation is not None:
        raise Conflict(
            f"backfill {generation} of job {job} is running; wait for its end, or cancel it with "
            f"strandline job backfill {job} --cancel"
        )


def _no_deleted_job(job: str) -> NotFound:
    return NotFound(f"There is no deleted job {job}.")
