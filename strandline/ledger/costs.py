"""Costs of jobs in the ledger: CPU time, bytes, and size of the state.

A cost depends on the machine and its load, so no result, digest, or comparison contains one. Each job has one row. Its newest run
updates it at a bounded rate, with sums over the run, so a repeated write changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from strandline.ledger.jobs import lock_jobs
from strandline.ledger.models import job_costs
from strandline.ledger.part import Part
from strandline.ledger.states import JobCost, RunCost


class CostReader(Part):
    """Reads the costs of jobs."""

    def costs_of(self, names: Collection[str]) -> dict[str, JobCost]:
        """Return the cost of each of these jobs. A job without a noted cost is left out."""
        with self._database.reading(f"read the costs of {len(names)} jobs") as connection:
            rows = connection.execute(sa.select(job_costs).where(job_costs.c.job.in_(names))).all()
        return {
            row.job: JobCost(
                cpu_us=row.cpu_us_before + row.cpu_us,
                bytes=row.bytes_before + row.bytes,
                state_bytes=row.state_bytes,
                cpu_us_recent=row.cpu_us_recent,
                noted_ms=row.noted_ms,
            )
            for row in rows
        }


class Costs(Part):
    """Notes the costs of jobs."""

    def note_costs(self, costs: Sequence[RunCost]) -> None:
        """Note the costs of these runs in one transaction, at most one run of each job.

        A run that isn't the newest of its job any more changes nothing. Raises LedgerUnavailable.
        """
        if not costs:
            return
        names = [one.job for one in costs]
        with self._database.writing(f"note the costs of {len(names)} jobs") as connection:
            known, now_ms = lock_jobs(connection, names), self._clock_ms()
            rows = connection.execute(sa.select(job_costs).where(job_costs.c.job.in_(names)))
            before = {row.job: row for row in rows}
            noted = []
            for one in costs:
                if one.job not in known or known[one.job].epoch != one.epoch:
                    continue
                cpu_us_before, bytes_before, row = 0, 0, before.get(one.job)
                if row is not None:
                    cpu_us_before, bytes_before = row.cpu_us_before, row.bytes_before
                    if row.epoch != one.epoch:
                        cpu_us_before, bytes_before = cpu_us_before + row.cpu_us, bytes_before + row.bytes
                sums = {"cpu_us_before": cpu_us_before, "bytes_before": bytes_before, "noted_ms": now_ms}
                noted.append(one._asdict() | sums)
            if noted:
                replaced = job_costs.c.job.in_([one["job"] for one in noted])
                connection.execute(sa.delete(job_costs).where(replaced))
                connection.execute(sa.insert(job_costs), noted)
