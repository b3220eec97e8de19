"""The registry in the ledger: streams, jobs, their versions, and what the operator wants of them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from strandline.core.errors import Conflict, Fenced, NotFound
from strandline.ledger.database import Part
from strandline.ledger.models import job_versions, jobs, leases, streams
from strandline.ledger.states import JOB_MOVES, Desired, JobRow, JobState, JobVersionRow, StreamRow


class Registry(Part):
    """Streams, jobs and versions. Each method is one transaction."""

    def put_stream(self, name: str, document: dict[str, Any]) -> StreamRow:
        """Register a stream, or give it a new version. The same document again changes nothing."""
        with self._database.writing(f"register stream {name}") as connection:
            known = connection.execute(sa.select(streams).where(streams.c.name == name).with_for_update()).first()
            if known is None:
                found = StreamRow(name, document, version=1, topic_id=None, created_ms=self._clock_ms())
                connection.execute(sa.insert(streams).values(vars(found)))
            elif known.document != document:
                connection.execute(
                    sa.update(streams)
                    .where(streams.c.name == name)
                    .values(document=document, version=known.version + 1)
                )
            return _stream(connection, name)

    def stream(self, name: str) -> StreamRow:
        """Raises NotFound."""
        with self._database.reading(f"read stream {name}") as connection:
            return _stream(connection, name)

    def streams(self) -> list[StreamRow]:
        """All streams, by name."""
        with self._database.reading("list the streams") as connection:
            rows = connection.execute(sa.select(streams).order_by(streams.c.name))
            return [StreamRow(*row) for row in rows]

    def set_topic_id(self, name: str, topic_id: str) -> None:
        """Record Kafka's id of the stream's topic. Raises NotFound."""
        with self._database.writing(f"note the topic of stream {name}") as connection:
            changed = connection.execute(sa.update(streams).where(streams.c.name == name).values(topic_id=topic_id))
            if changed.rowcount == 0:
                raise _no_stream(name)

    def submit_job(self, name: str, text: str, document: dict[str, Any]) -> JobRow:
        """Register a job (version 1, wanted running), or give it a new version.

        The same document as the present version changes nothing; what is desired of a known job is left as it is.
        """
        with self._database.writing(f"submit job {name}") as connection:
            now_ms = self._clock_ms()
            known = connection.execute(sa.select(jobs).where(jobs.c.name == name).with_for_update()).first()
            if known is None:
                fresh = JobRow(name, 1, Desired.RUNNING, JobState.CREATED, "", 0, now_ms, now_ms, 0)
                connection.execute(sa.insert(jobs).values(vars(fresh)))
                version = 1
            elif _version(connection, name, known.version).document == document:
                return JobRow(*known)
            else:
                version = known.version + 1
                connection.execute(
                    sa.update(jobs).where(jobs.c.name == name).values(version=version, updated_ms=now_ms)
                )
            row = JobVersionRow(name, version, text, document, now_ms)
            connection.execute(sa.insert(job_versions).values(vars(row)))
            return read_job(connection, name)

    def job(self, name: str) -> JobRow:
        """Raises NotFound."""
        with self._database.reading(f"read job {name}") as connection:
            return read_job(connection, name)

    def jobs(self) -> list[JobRow]:
        """All jobs, by name."""
        with self._database.reading("list the jobs") as connection:
            return [JobRow(*row) for row in connection.execute(sa.select(jobs).order_by(jobs.c.name))]

    def job_version(self, name: str, version: int | None = None) -> JobVersionRow:
        """One version of a job, by default the present one. Raises NotFound."""
        with self._database.reading(f"read job {name}") as connection:
            return _version(connection, name, read_job(connection, name).version if version is None else version)

    def set_desired(self, name: str, desired: Desired) -> JobRow:
        """Record what the operator wants of the job; the control service acts on it. Raises NotFound."""
        with self._database.writing(f"set what job {name} should do") as connection:
            lock_job(connection, name)
            connection.execute(
                sa.update(jobs).where(jobs.c.name == name).values(desired=desired, updated_ms=self._clock_ms())
            )
            return read_job(connection, name)

    def ask_restart(self, name: str) -> JobRow:
        """Request a restart: the leader replaces the job's run by a new one. Raises NotFound."""
        with self._database.writing(f"ask for a restart of job {name}") as connection:
            job = lock_job(connection, name)
            asked = sa.update(jobs).where(jobs.c.name == name)
            connection.execute(asked.values(restarts=job.restarts + 1, updated_ms=self._clock_ms()))
            return read_job(connection, name)

    def move_job(
        self, name: str, to: JobState, message: str = "", epoch: int | None = None, *, lease: int | None = None
    ) -> JobRow:
        """Change the job's state. No other method does.

        To stay in the same state is legal and renews the message. With `epoch`, the caller speaks for that run; with
        `lease`, for the leader under the lease of that epoch.

        Raises NotFound; Conflict for a move that JOB_MOVES doesn't hold; Fenced when a newer run or another leader owns
        the job.
        """
        with self._database.writing(f"move job {name} to {to.value}") as connection:
            job = lock_job(connection, name)
            if lease is not None:
                refuse_old_lease(connection, name, lease)
            if epoch is not None:
                refuse_old_epoch(job, epoch)
            if to is not job.state and to not in JOB_MOVES[job.state]:
                legal = ", ".join(sorted(JOB_MOVES[job.state]))
                raise Conflict(f"Job {name} is {job.state.value} and can't become {to.value} from there, only {legal}.")
            connection.execute(
                sa.update(jobs)
                .where(jobs.c.name == name)
                .values(state=to, message=message, updated_ms=self._clock_ms())
            )
            return read_job(connection, name)


def read_job(connection: sa.Connection, name: str) -> JobRow:
    row = connection.execute(sa.select(jobs).where(jobs.c.name == name)).first()
    if row is None:
        raise _no_job(name)
    return JobRow(*row)


def lock_job(connection: sa.Connection, name: str) -> JobRow:
    """Lock and return the job's row until the transaction ends. Every writer of a job locks it first, so they take turns."""
    row = connection.execute(sa.select(jobs).where(jobs.c.name == name).with_for_update(key_share=True)).first()
    if row is None:
        raise _no_job(name)
    return JobRow(*row)


def refuse_old_epoch(job: JobRow, epoch: int) -> None:
    """Raises Fenced unless `epoch` is the job's present run."""
    if epoch != job.epoch:
        raise Fenced(f"Run {epoch} of job {job.name} no longer owns it, run {job.epoch} does: stop this run now.")


def refuse_old_lease(connection: sa.Connection, job: str, epoch: int) -> None:
    """Raises Fenced unless `epoch` is the job's present lease. The caller has locked the job's row, so no other lease can
    begin before its transaction ends."""
    present = connection.execute(sa.select(leases.c.epoch).where(leases.c.job == job)).scalar()
    if present != epoch:
        raise Fenced(
            f"Lease {epoch} of job {job} is over, the present one is {present}: another control service leads the job."
        )


def _stream(connection: sa.Connection, name: str) -> StreamRow:
    row = connection.execute(sa.select(streams).where(streams.c.name == name)).first()
    if row is None:
        raise _no_stream(name)
    return StreamRow(*row)


def _version(connection: sa.Connection, name: str, version: int) -> JobVersionRow:
    of_version = (job_versions.c.job == name) & (job_versions.c.version == version)
    row = connection.execute(sa.select(job_versions).where(of_version)).first()
    if row is None:
        raise NotFound(f"Job {name} has no version {version}.")
    return JobVersionRow(*row)


def _no_stream(name: str) -> NotFound:
    return NotFound(f"There is no stream {name}; register it with `strandline apply FILE`.")


def _no_job(name: str) -> NotFound:
    return NotFound(f"There is no job {name}; submit it with `strandline apply FILE`.")
