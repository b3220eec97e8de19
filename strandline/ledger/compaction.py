"""Removal of rows from the ledger: slices and checkpoints that will not be read any more, and runs without any.

Slices are removed from the oldest on, so the remaining slices have no gap. The oldest remaining slice is the job's
*floor*. It can't be replayed, because the checkpoint before it was removed. Its own checkpoint is still used: it
contains the sums over all slices up to it. Slices above the floor can be replayed, audited, and backfilled.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from strandline.ledger.jobs import lock_job, read_floor
from strandline.ledger.lookups.needs import forget_tables
from strandline.ledger.models import backfills, checkpoints, events, runs, slices
from strandline.ledger.part import Part
from strandline.ledger.states import OPEN_BACKFILLS, SliceStatus


class Compaction(Part):
    """Removes old slices and runs. Each method is one transaction."""

    def raise_floor(self, job: str, version: int, floor: int, limit: int) -> int:
        """Remove at most `limit` slices below `floor`, with their checkpoints, the oldest first. Return their number.

        The last committed slice stays above the floor. Nothing is removed while a backfill is open, because it reads
        old slices. Nothing is removed either if the job's current version isn't `version`: the floor was computed for
        that version, and another one may reach back longer. Raises NotFound if the job doesn't exist.
        """
        with self._database.writing(f"remove old slices of job {job}") as connection:
            if lock_job(connection, job).version != version:
                return 0
            is_open = (backfills.c.job == job) & backfills.c.state.in_(OPEN_BACKFILLS)
            if connection.execute(sa.select(backfills.c.generation).where(is_open)).first() is not None:
                return 0
            committed = (slices.c.job == job) & (slices.c.status == SliceStatus.COMMITTED)
            last = connection.execute(
                sa.select(slices.c.number).where(committed).order_by(slices.c.number.desc()).limit(1)
            ).scalar()
            oldest = max(1, read_floor(connection, job))
            end = min(floor, (last or 0) - 1, oldest + limit)
            if end <= oldest:
                return 0
            for table, number in ((checkpoints, checkpoints.c.slice), (slices, slices.c.number)):
                connection.execute(sa.delete(table).where(table.c.job == job, number < end))
            forget_tables(self._database, connection, self._clock_ms())
            return end - oldest

    def remove_runs(self, job: str, epochs: Collection[int]) -> int:
        """Remove these runs and the events about them. Return how many runs were removed.

        A run stays if it is open, or if the ledger has a slice or a checkpoint of it. Raises NotFound if the job
        doesn't exist.
        """
        with self._database.writing(f"remove old runs of job {job}") as connection:
            lock_job(connection, job)
            is_named = [
                sa.exists().where(table.c.job == runs.c.job, table.c.epoch == runs.c.epoch)
                for table in (slices, checkpoints)
            ]
            old = (runs.c.job == job) & runs.c.epoch.in_(epochs) & runs.c.ended_ms.is_not(None) & ~sa.or_(*is_named)
            gone = connection.execute(sa.delete(runs).where(old).returning(runs.c.epoch)).scalars().all()
            connection.execute(sa.delete(events).where(events.c.job == job, events.c.epoch.in_(gone)))
            return len(gone)
