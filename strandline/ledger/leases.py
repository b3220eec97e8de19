"""Leases in the ledger: the control service that leads each job.

Leases use the *database's* clock, which all control services share; the clocks of two services are never compared. Each
grant has a higher epoch than the grant before. A leader passes the epoch of its lease when it moves the job, and its
runner passes it when it begins a run. After a takeover, the ledger refuses both to the old leader (Fenced). So two
services may briefly both act as leader, but only one can move the job or have it run.

Invariants, each kept by a transaction that locks the job's row:

- A job has at most one lease, and its epoch never falls.
- A lease passes to another service only when it was released or has expired.

A lease that ends later than its own length from now was granted before the database's clock was set back. If the
difference is more than a length, the lease counts as expired: otherwise no service could take the job over until the
clock has caught up. If it is less, the holder keeps the lease: the next renewal corrects it, and a takeover can be at
most a length later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from strandline.core.errors import NotFound
from strandline.ledger.jobs import lock_job, lock_jobs
from strandline.ledger.models import control_services, jobs, leases, runs
from strandline.ledger.part import Part
from strandline.ledger.states import FreeJob, LeaseRow, RunRow

_FORGET_SERVICE_MS = 86_400_000
"""A control service that leads no job is deleted after this time without an announcement."""
_SHOWN = [leases.c[name] for name in ("job", "holder", "epoch", "granted_ms", "until_ms")]


class Standing(NamedTuple):
    """Epochs that show whether a run is fenced."""

    run: int
    """The epoch of the job's newest run."""
    lease: int | None
    """The epoch of the job's lease. None if no control service has led it yet."""


class LeaseReader(Part):
    """Reads which control service leads each job, and which run is its newest."""

    def newest_runs(self, names: Collection[str]) -> dict[str, RunRow]:
        """Return the newest run of each of these jobs. A job without a run is left out."""
        newest = sa.select(runs.c.job, sa.func.max(runs.c.epoch).label("epoch")).where(runs.c.job.in_(names))
        last = newest.group_by(runs.c.job).subquery()
        of_run = (runs.c.job == last.c.job) & (runs.c.epoch == last.c.epoch)
        with self._database.reading(f"read the newest runs of {len(names)} jobs") as connection:
            return {row.job: RunRow(*row) for row in connection.execute(sa.select(runs).join(last, of_run))}

    def standing(self, job: str) -> Standing:
        """Return the epochs with which a run compares its own to see if it is fenced. Raises NotFound."""
        found = self.standings([job]).get(job)
        if found is None:
            raise NotFound(f"There is no job {job} any more.")
        return found

    def standings(self, names: Collection[str]) -> dict[str, Standing]:
        """Return the standing of each of these jobs, as of one moment. A job that doesn't exist any more is left out."""
        wanted = sa.select(jobs.c.name, jobs.c.epoch, leases.c.epoch).select_from(
            jobs.outerjoin(leases, leases.c.job == jobs.c.name)
        )
        with self._database.reading(f"read who runs and who leads {len(names)} jobs") as connection:
            rows = connection.execute(wanted.where(jobs.c.name.in_(names), jobs.c.deleted_ms.is_(None)))
            return {name: Standing(run, lease) for name, run, lease in rows}

    def leases(self, names: Collection[str] | None = None) -> dict[str, LeaseRow]:
        """Return job -> its lease, held or not, for all jobs, or for those of `names` that have one."""
        with self._database.reading("read who leads the jobs") as connection:
            return {row.job: row for row in _read_leases(connection, self._database.clock_ms(), names)}


class Leases(Part):
    """Leases of jobs, and the control services that hold them. Each method is one transaction."""

    def announce_service(self, name: str, address: str, data_dir: str, length_ms: int) -> None:
        """Record that this control service is alive, for `length_ms` from now."""
        now_ms = self._database.clock_ms()
        with self._database.writing(f"announce control service {name}") as connection:
            values = {"address": address, "data_dir": data_dir, "until_ms": now_ms + length_ms}
            of_service = control_services.c.name == name
            known = connection.execute(sa.update(control_services).where(of_service).values(values))
            if known.rowcount == 0:
                connection.execute(sa.insert(control_services).values(values | {"name": name}))
                leading = sa.select(leases.c.holder)
                connection.execute(
                    sa.delete(control_services).where(
                        control_services.c.until_ms < now_ms - _FORGET_SERVICE_MS,
                        control_services.c.name.not_in(leading),
                    )
                )

    def living_services(self) -> int:
        """Return the number of control services that are alive."""
        living = sa.select(sa.func.count()).where(control_services.c.until_ms > self._database.clock_ms())
        with self._database.reading("count the control services") as connection:
            return int(connection.execute(living).scalar_one())

    def free_jobs(self, holder: str) -> list[FreeJob]:
        """Return the jobs whose lease `holder` could claim now, by name: never led, released, or expired.

        They include leases that `holder` still has from an earlier start. The caller leaves out the jobs that it leads.
        """
        now_ms = self._database.clock_ms()
        free_since_ms = sa.func.coalesce(leases.c.until_ms, jobs.c.created_ms)
        wanted = (
            sa.select(jobs.c.name, now_ms - free_since_ms)
            .select_from(jobs.outerjoin(leases, leases.c.job == jobs.c.name))
            .where(jobs.c.deleted_ms.is_(None))
            .where(leases.c.job.is_(None) | (leases.c.holder == holder) | _has_run_out(now_ms))
            .order_by(jobs.c.name)
        )
        with self._database.reading("look for jobs without a leader") as connection:
            return [FreeJob(name, int(free_for_ms)) for name, free_for_ms in connection.execute(wanted)]

    def claim_lease(self, job: str, holder: str, length_ms: int) -> tuple[LeaseRow, LeaseRow | None] | None:
        """Claim the job's lease for `length_ms`, under a new epoch. None if another control service has it.

        Also returns the previous lease, if there was one. If another service held it, the job's open run is ended and
        can't write slices or checkpoints any more. The lease's length counts from before this call. A claim whose
        answer was lost may be repeated: the epoch rises once more. Raises NotFound.
        """
        with self._database.writing(f"claim the lease of job {job}") as connection:
            lock_job(connection, job)
            return self._claim(connection, [job], holder, length_ms).get(job)

    def claim_leases(
        self, names: Collection[str], holder: str, length_ms: int
    ) -> dict[str, tuple[LeaseRow, LeaseRow | None]]:
        """Claim the leases of several jobs in one transaction. Return job -> its lease and the previous one, as
        `claim_lease` does.

        A job that doesn't exist, or whose lease another control service has or just renews, is left out.
        """
        if not names:
            return {}
        with self._database.writing(f"claim the leases of {len(names)} jobs") as connection:
            return self._claim(connection, list(lock_jobs(connection, names)), holder, length_ms)

    def _claim(
        self, connection: sa.Connection, names: Collection[str], holder: str, length_ms: int
    ) -> dict[str, tuple[LeaseRow, LeaseRow | None]]:
        """Claim the leases of these jobs, whose rows are locked."""
        # Claims lock the job's row, renewals don't: so lock the lease's row, too. Without a wait: a renewal locks several rows
        # in any order, and a lease that is being renewed is not free.
        wanted = sa.select(leases.c.job).where(leases.c.job.in_(names)).with_for_update(skip_locked=True)
        locked = set(connection.execute(wanted).scalars())
        now_ms = connection.execute(sa.select(self._database.clock_ms())).scalar_one()
        before = {row.job: row for row in _read_leases(connection, now_ms, names)}
        taken = [job for job in locked if before[job].holder == holder or not before[job].is_held]
        new = [job for job in names if job not in before]
        values = {"holder": holder, "granted_ms": now_ms, "until_ms": now_ms + length_ms, "length_ms": length_ms}
        if new:
            connection.execute(sa.insert(leases), [values | {"job": job, "epoch": 1} for job in new])
        if taken:
            renewed = sa.update(leases).where(leases.c.job.in_(taken))
            connection.execute(renewed.values(values | {"epoch": leases.c.epoch + 1}))
            left = [job for job in taken if before[job].holder != holder]
            _end_open_runs(connection, left, holder, self._clock_ms())
        after = _read_leases(connection, now_ms, [*new, *taken])
        return {row.job: (row, before.get(row.job)) for row in after}

    def renew_leases(self, holder: str, held: Mapping[str, int], length_ms: int) -> set[str]:
        """Renew the leases in `held` (job -> epoch) for `length_ms` from now. Return the jobs whose lease was renewed.

        The others are lost: another service has taken them over. An expired lease that no other service has claimed is
        renewed. The length counts from before this call.
        """
        if not held:
            return set()
        with self._database.writing(f"renew the leases of control service {holder}") as connection:
            renewed = connection.execute(
                sa.update(leases)
                .where(leases.c.holder == holder, sa.tuple_(leases.c.job, leases.c.epoch).in_(list(held.items())))
                .values(until_ms=self._database.clock_ms() + length_ms, length_ms=length_ms)
                .returning(leases.c.job)
            )
            return set(renewed.scalars())

    def release_leases(self, holder: str, held: Mapping[str, int]) -> None:
        """Release the leases in `held` (job -> epoch), so that another service can lead the jobs immediately.

        A lease that was lost doesn't change.
        """
        if not held:
            return
        with self._database.writing(f"release the leases of control service {holder}") as connection:
            connection.execute(
                sa.update(leases)
                .where(leases.c.holder == holder, sa.tuple_(leases.c.job, leases.c.epoch).in_(list(held.items())))
                .values(until_ms=self._database.clock_ms())
            )

    def withdraw_service(self, name: str) -> None:
        """Record that this control service has ended, so that the others take over its jobs."""
        with self._database.writing(f"withdraw control service {name}") as connection:
            ended = sa.update(control_services).where(control_services.c.name == name)
            connection.execute(ended.values(until_ms=self._database.clock_ms()))


def _has_run_out(now_ms: Any) -> sa.ColumnElement[bool]:
    was_set_back = leases.c.until_ms > 2 * leases.c.length_ms + now_ms
    return sa.or_(leases.c.until_ms <= now_ms, was_set_back)


def _read_leases(connection: sa.Connection, now_ms: Any, names: Collection[str] | None = None) -> list[LeaseRow]:
    services = control_services
    wanted = sa.select(
        *_SHOWN,
        sa.func.coalesce(services.c.address, "").label("address"),
        sa.func.coalesce(services.c.data_dir, "").label("data_dir"),
        sa.not_(_has_run_out(now_ms)).label("is_held"),
    ).select_from(leases.outerjoin(services, services.c.name == leases.c.holder))
    if names is not None:
        wanted = wanted.where(leases.c.job.in_(names))
    return [LeaseRow(**row) for row in connection.execute(wanted.order_by(leases.c.job)).mappings()]


def _end_open_runs(connection: sa.Connection, names: Collection[str], holder: str, now_ms: int) -> None:
    connection.execute(
        sa.update(runs)
        .where(runs.c.job.in_(names), runs.c.ended_ms.is_(None))
        .values(ended_ms=now_ms, outcome="superseded", message=f"control service {holder} took the job over")
    )
