"""Backfills in the ledger: the windows to recompute, and the progress.

Invariants, each kept by a transaction that locks the job's row:

- Generations of a job are numbered from 2. Generation 1 contains the results that the job itself writes. After a reset
  (`lifecycle.py`), the job writes the generation in `jobs.generation`; lower generations belong to earlier incarnations of
  the job.
- A job has at most one open backfill.
- Only the newest attempt at a backfill may change its row; older attempts are Fenced.
- The row of an ended backfill never changes.

A write whose answer was lost may be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sqlalchemy as sa

from strandline.core.errors import Conflict, Fenced, NotFound
from strandline.ledger.jobs import lock_job
from strandline.ledger.journal import NewEvent, insert_event
from strandline.ledger.models import backfills, jobs
from strandline.ledger.part import Part
from strandline.ledger.states import (
    BACKFILL_MOVES,
    OPEN_BACKFILLS,
    BackfillRow,
    BackfillState,
    StreamVersions,
    WindowRange,
)

GENERATION_FIRST = 2
SAMPLE_MAX = 20
"""Maximum number of refused results that a row describes."""


class BackfillReader(Part):
    """Reads backfills."""

    def backfills(self, job: str) -> list[BackfillRow]:
        """Return all backfills of a job, the oldest first."""
        with self._database.reading(f"list the backfills of job {job}") as connection:
            return _read(connection, backfills.c.job == job)

    def newest_backfills(self, limit: int) -> list[BackfillRow]:
        """Return the newest backfills of the jobs that exist, the newest first."""
        of_jobs = backfills.c.job.in_(sa.select(jobs.c.name).where(jobs.c.deleted_ms.is_(None)))
        newest = sa.select(backfills).where(of_jobs)
        newest = newest.order_by(backfills.c.requested_ms.desc(), backfills.c.job, backfills.c.generation.desc())
        with self._database.reading("list the newest backfills") as connection:
            return [BackfillRow(*row) for row in connection.execute(newest.limit(limit))]

    def backfill(self, job: str, generation: int) -> BackfillRow:
        """Return the row of this backfill. Raises NotFound if there is none."""
        with self._database.reading(f"read backfill {generation} of job {job}") as connection:
            return _one(connection, job, generation)

    def open_backfills(self) -> list[BackfillRow]:
        """Return the backfills of all jobs that have not ended, by the time of their request."""
        with self._database.reading("look for open backfills") as connection:
            found = _read(connection, backfills.c.state.in_(OPEN_BACKFILLS))
            return sorted(found, key=lambda row: (row.requested_ms, row.job))


class Backfills(Part):
    """Records backfills. Each method is one transaction."""

    def request_backfill(
        self,
        job: str,
        version: int,
        requested: tuple[int, int | None],
        windows: Mapping[str, WindowRange],
        slice: int,
        records: int,
        stream_versions: StreamVersions,
        generation_taken: int = 0,
    ) -> BackfillRow:
        """Request a backfill of `windows` with this version of the job.

        An equal request changes nothing while the backfill is open. Raises Conflict while another one is open;
        NotFound.

        Args:
        - requested: Range (from, to) in event-time ms. `to`: None if the caller set no end.
        - windows: Stage -> the range of their ends.
        - slice: Last committed slice when the windows were chosen.
        - records: Number of records that it will read.
        - stream_versions: Versions of the streams' documents with which the pipeline is compiled.
        - generation_taken: Highest generation that has results in a store. The new one is above it, even if the ledger,
          restored from an older copy, doesn't contain it.
        """
        with self._database.writing(f"ask for a backfill of job {job}") as connection:
            own = lock_job(connection, job).generation
            known = _read(connection, backfills.c.job == job)
            for row in known:
                if row.state in OPEN_BACKFILLS:
                    if (row.version, row.from_ms, row.to_ms) == (version, *requested):
                        return row
                    raise Conflict(
                        f"backfill {row.generation} of job {job} is {row.state.value}, and a job has one at a time; wait "
                        "for its end, or cancel it"
                    )
            now_ms = self._clock_ms()
            fresh = BackfillRow(
                job=job,
                generation=max(own, generation_taken, *(row.generation for row in known), GENERATION_FIRST - 1) + 1,
                version=version,
                from_ms=requested[0],
                to_ms=requested[1],
                windows=dict(windows),
                slice=slice,
                state=BackfillState.REQUESTED,
                epoch=0,
                done_ms=None,
                records=records,
                records_done=0,
                results={},
                refused={},
                sample=[],
                message="",
                requested_ms=now_ms,
                updated_ms=now_ms,
                ended_ms=None,
                stream_versions=dict(stream_versions),
            )
            connection.execute(sa.insert(backfills).values(vars(fresh)))
            return fresh

    def begin_backfill(self, job: str, generation: int) -> BackfillRow:
        """Begin an attempt, and fence earlier ones. A backfill in state `swapping` stays there.

        Raises Conflict if it has ended; NotFound.
        """
        with self._database.writing(f"begin backfill {generation} of job {job}") as connection:
            row = _locked(connection, job, generation)
            _refuse_ended(row)
            state = row.state if row.state is BackfillState.SWAPPING else BackfillState.RUNNING
            return self._put(connection, replace(row, epoch=row.epoch + 1, state=state, message=""))

    def record_backfill(
        self,
        job: str,
        generation: int,
        epoch: int,
        *,
        done_ms: int,
        records_done: int,
        results: Mapping[str, int],
        refused: Mapping[str, int],
        sample: list[str],
    ) -> BackfillRow:
        """Record that all windows that end up to `done_ms` are in the index.

        Raises Fenced if another attempt has begun; Conflict if the backfill has ended, or was cancelled.

        Args: results, refused: Stage -> number since the last call. sample: Descriptions of refused results.
        """
        with self._database.writing(f"note how far backfill {generation} of job {job} is") as connection:
            row = _locked(connection, job, generation)
            _refuse_other_attempt(row, epoch)
            if row.done_ms is not None and done_ms <= row.done_ms:
                return row
            return self._put(
                connection,
                replace(
                    row,
                    done_ms=done_ms,
                    records_done=records_done,
                    results=_add(row.results, results),
                    refused=_add(row.refused, refused),
                    sample=(row.sample + sample)[:SAMPLE_MAX],
                ),
            )

    def move_backfill(
        self, job: str, generation: int, to: BackfillState, message: str = "", epoch: int | None = None
    ) -> BackfillRow:
        """Change a backfill's state and its message. Only this method and `begin_backfill` change the state.

        `epoch`: Number of the calling attempt; None if an operator's request is the caller. Raises Fenced if a newer
        attempt has begun; Conflict for a move that isn't in BACKFILL_MOVES; NotFound.
        """
        with self._database.writing(f"move backfill {generation} of job {job} to {to.value}") as connection:
            row = _locked(connection, job, generation)
            if row.state is to and (epoch is None or epoch == row.epoch):
                return self._put(connection, replace(row, message=message)) if to in OPEN_BACKFILLS else row
            if epoch is not None:
                _refuse_other_attempt(row, epoch)
            if to not in BACKFILL_MOVES[row.state]:
                raise Conflict(
                    f"backfill {generation} of job {job} is {row.state.value} and can't become {to.value} from there"
                )
            if to in (BackfillState.COMPLETE, BackfillState.FAILED):
                why = f": {message}" if message else ""
                text = f"backfill {generation} of job {job} is {to.value}{why}"
                facts = {"generation": generation, "state": to.value}
                event = NewEvent("backfill_ended", text, job, facts=facts)
                insert_event(self._database, connection, self._clock_ms(), event)
            return self._put(connection, replace(row, state=to, message=message))

    def _put(self, connection: sa.Connection, row: BackfillRow) -> BackfillRow:
        now_ms = self._clock_ms()
        row = replace(row, updated_ms=now_ms, ended_ms=None if row.state in OPEN_BACKFILLS else now_ms)
        of_row = (backfills.c.job == row.job) & (backfills.c.generation == row.generation)
        connection.execute(sa.update(backfills).where(of_row).values(vars(row)))
        return row


def _read(connection: sa.Connection, wanted: sa.ColumnElement[bool]) -> list[BackfillRow]:
    rows = connection.execute(sa.select(backfills).where(wanted).order_by(backfills.c.job, backfills.c.generation))
    return [BackfillRow(*row) for row in rows]


def _one(connection: sa.Connection, job: str, generation: int) -> BackfillRow:
    found = _read(connection, (backfills.c.job == job) & (backfills.c.generation == generation))
    if not found:
        raise NotFound(f"Job {job} has no backfill {generation}; list them with: strandline job backfills {job}")
    return found[0]


def _locked(connection: sa.Connection, job: str, generation: int) -> BackfillRow:
    lock_job(connection, job)
    return _one(connection, job, generation)


def _refuse_ended(row: BackfillRow) -> None:
    if row.state not in OPEN_BACKFILLS:
        raise Conflict(
            f"backfill {row.generation} of job {row.job} is {row.state.value}, so it has no remaining work; to start another "
            f"one, run strandline job backfill {row.job}"
        )


def _refuse_other_attempt(row: BackfillRow, epoch: int) -> None:
    _refuse_ended(row)
    if row.epoch != epoch:
        raise Fenced(
            f"Attempt {epoch} at backfill {row.generation} of job {row.job} has ended, because attempt {row.epoch} has begun; "
            "stop this one now."
        )


def _add(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}
