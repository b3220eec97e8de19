"""Rows that the start of a run reads, read together for the runs of many jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa

from strandline.ledger.database import Database
from strandline.ledger.jobs import IS_NAMED, NAMES, last_of_job, no_job, read_jobs
from strandline.ledger.many_rows import Refusals
from strandline.ledger.models import (
    checkpoints,
    inputs,
    job_versions,
    jobs,
    result_indices,
    runs,
    slices,
    stream_versions,
    streams,
)
from strandline.ledger.roles import RunLedger
from strandline.ledger.states import (
    CheckpointRow,
    JobRow,
    JobVersionRow,
    Offsets,
    RunRow,
    SliceRow,
    StreamRow,
)

_LAST_SLICES, _LAST_CHECKPOINTS, _LAST_EMITTING = 20, 21, 40
"""Number of the newest rows that are read of each job. The last one: of the checkpoints with results."""
_CHECKPOINT = [checkpoints.c[field.name] for field in fields(CheckpointRow)]
_SLICES = (
    sa.select(slices)
    .join(jobs, slices.c.job == jobs.c.name)
    .where(IS_NAMED, slices.c.number > last_of_job(slices.c.number) - _LAST_SLICES)
    .order_by(slices.c.job, slices.c.number)
)
_LAST_NUMBER = last_of_job(checkpoints.c.slice)
_CHECKPOINTS = (
    sa.select(*_CHECKPOINT)
    .join(jobs, checkpoints.c.job == jobs.c.name)
    .where(
        IS_NAMED,
        checkpoints.c.slice > _LAST_NUMBER - _LAST_EMITTING,
        sa.or_(checkpoints.c.slice > _LAST_NUMBER - _LAST_CHECKPOINTS, checkpoints.c.stored != {}),
    )
    .order_by(checkpoints.c.job, checkpoints.c.slice.desc())
)
_OLDEST = (
    sa.select(slices.c.job, sa.func.min(slices.c.number))
    .where(slices.c.job.in_(sa.bindparam(NAMES, expanding=True)))
    .group_by(slices.c.job)
)


@dataclass(frozen=True)
class StartRows:
    """Rows of one job, as of one moment."""

    job: JobRow
    runs: Sequence[RunRow]
    """All of them, the oldest first."""
    versions: Mapping[int, JobVersionRow]
    """Number -> the current version, and that of the newest run."""
    slices: Sequence[SliceRow]
    """The newest ones, without a gap, the oldest first."""
    floor: int
    """Last slice that can't be replayed any more. 0 if all can be."""
    checkpoints: Sequence[CheckpointRow]
    """The newest ones, without a gap, the newest first."""
    has_all_checkpoints: bool
    """True if `checkpoints` are all that the ledger contains."""
    emitting: Sequence[CheckpointRow]
    """The newest ones with results in stores that can be compared, the newest first."""
    indices: frozenset[str]
    """Indices that the job created."""
    streams: Mapping[str, StreamRow]
    """Streams that `versions` read."""
    stream_documents: Mapping[str, Mapping[int, dict[str, Any]]]
    """Stream -> version -> its document."""
    inputs: Mapping[str, dict[str, Any]]
    """Stream -> document with which the first run decoded its records."""


def start_ledgers(
    ledger: RunLedger, names: Collection[str], inputs_of: Callable[[JobVersionRow], Sequence[str]]
) -> dict[str, StartLedger | Exception]:
    """Return the ledger for the start of a run of each of these jobs, which has begun already. Raises LedgerUnavailable.

    The rows of all jobs are read with a few queries, as of one moment. The answer of a job that doesn't exist is NotFound.
    `inputs_of`: returns the streams that a version of a job reads.
    """
    found = _read(ledger._database, names, inputs_of)
    return {name: StartLedger(ledger, found[name]) if name in found else no_job(name) for name in names}


def _read(
    database: Database, names: Collection[str], inputs_of: Callable[[JobVersionRow], Sequence[str]]
) -> dict[str, StartRows]:
    these = {NAMES: list(names)}
    with database.reading(f"read the rows for the starts of {len(names)} jobs") as connection:
        found = read_jobs(connection, names)
        of_runs = _by_job(
            RunRow(*row)
            for row in connection.execute(
                sa.select(runs).where(runs.c.job.in_(names)).order_by(runs.c.job, runs.c.epoch)
            )
        )
        wanted = {(job, row.version) for job, row in found.items()}
        wanted |= {(job, rows[-1].version) for job, rows in of_runs.items()}
        is_wanted = sa.tuple_(job_versions.c.job, job_versions.c.version).in_(list(wanted))
        of_versions = _by_job(
            JobVersionRow(*row) for row in connection.execute(sa.select(job_versions).where(is_wanted))
        )
        of_slices = _by_job(SliceRow(*row) for row in connection.execute(_SLICES, these))
        of_checkpoints = _by_job(CheckpointRow(*row) for row in connection.execute(_CHECKPOINTS, these))
        oldest = {job: int(number) for job, number in connection.execute(_OLDEST, these)}
        of_inputs: dict[str, dict[str, dict[str, Any]]] = {}
        for job, stream, document in connection.execute(
            sa.select(inputs.c.job, inputs.c.stream, inputs.c.document).where(inputs.c.job.in_(names))
        ):
            of_inputs.setdefault(job, {})[stream] = document
        of_indices: dict[str, set[str]] = {}
        for job, index in connection.execute(
            sa.select(result_indices.c.job, result_indices.c.name).where(result_indices.c.job.in_(names))
        ):
            of_indices.setdefault(job, set()).add(index)
        read = {stream for rows in of_versions.values() for row in rows for stream in inputs_of(row)}
        of_streams = {
            row.name: StreamRow(*row) for row in connection.execute(sa.select(streams).where(streams.c.name.in_(read)))
        }
        documents: dict[str, dict[int, dict[str, Any]]] = {}
        kept = sa.select(stream_versions.c.stream, stream_versions.c.version, stream_versions.c.document)
        kept = kept.where(stream_versions.c.stream.in_(read)).order_by(
            stream_versions.c.stream, stream_versions.c.version
        )
        for stream, version, document in connection.execute(kept):
            documents.setdefault(stream, {})[version] = document
    rows = {}
    for name, job in found.items():
        versions = {row.version: row for row in of_versions.get(name, ())}
        used = {stream for row in versions.values() for stream in inputs_of(row)}
        committed = of_checkpoints.get(name, [])
        last = committed[0].slice if committed else 0
        floor = oldest[name] if oldest.get(name, 1) > 1 else 0
        rows[name] = StartRows(
            job,
            of_runs.get(name, []),
            versions,
            of_slices.get(name, []),
            floor,
            [row for row in committed if row.slice > last - _LAST_CHECKPOINTS],
            last - _LAST_CHECKPOINTS < max(1, floor),
            [row for row in committed if row.stored],
            frozenset(of_indices.get(name, ())),
            {stream: of_streams[stream] for stream in used if stream in of_streams},
            {stream: documents[stream] for stream in used if stream in documents},
            of_inputs.get(name, {}),
        )
    return rows


class StartLedger(RunLedger):
    """The ledger for the start of one run. It answers from rows that were read after the run had begun, as long as it has them.

    From then on, only this run can write rows of its job: the ledger refuses the writes of older runs. If this run loses the job,
    its own writes are refused. A write that changes the rows drops them. Call `forget` before the first slice is planned.
    Backfills aren't kept: a control service completes them meanwhile, and the aliases depend on them.
    """

    def __init__(self, ledger: RunLedger, rows: StartRows) -> None:
        super().__init__(ledger._database, ledger._clock_ms)
        self._rows: StartRows | None = rows
        self._owners: dict[tuple[str, str], str | None] = {}
        self._result_offsets: dict[str, Offsets] | None = None

    def forget(self) -> None:
        """Read all rows from the database from now on."""
        self._rows = None

    def _of(self, job: str) -> StartRows | None:
        rows = self._rows
        return rows if rows is not None and rows.job.name == job else None

    def job(self, name: str) -> JobRow:
        rows = self._of(name)
        return super().job(name) if rows is None else rows.job

    def job_version(self, name: str, version: int | None = None) -> JobVersionRow:
        rows = self._of(name)
        found = None if rows is None else rows.versions.get(rows.job.version if version is None else version)
        return super().job_version(name, version) if found is None else found

    def runs(self, job: str, limit: int | None = None) -> list[RunRow]:
        rows = self._of(job)
        return super().runs(job, limit) if rows is None or limit is not None else list(rows.runs)

    def floor(self, job: str) -> int:
        rows = self._of(job)
        return super().floor(job) if rows is None else rows.floor

    def last_slice(self, job: str) -> SliceRow | None:
        rows = self._of(job)
        return super().last_slice(job) if rows is None else next(iter(rows.slices[-1:]), None)

    def slices(self, job: str, first: int, last: int) -> list[SliceRow]:
        rows = self._of(job)
        if rows is None or (rows.slices and first < rows.slices[0].number > max(1, rows.floor)):
            return super().slices(job, first, last)
        return [row for row in rows.slices if first <= row.number <= last]

    def checkpoints(self, job: str, limit: int = 100, before: int | None = None) -> list[CheckpointRow]:
        rows = self._of(job)
        if rows is None:
            return super().checkpoints(job, limit, before)
        found = [row for row in rows.checkpoints if before is None or row.slice < before][:limit]
        return found if len(found) == limit or rows.has_all_checkpoints else super().checkpoints(job, limit, before)

    def emitting_checkpoints(self, job: str, limit: int | None = None) -> list[CheckpointRow]:
        rows = self._of(job)
        if rows is None or not (rows.has_all_checkpoints or (limit is not None and limit <= len(rows.emitting))):
            return super().emitting_checkpoints(job, limit)
        return list(rows.emitting[:limit])

    def first_slice_reaching(self, job: str, event_ms: int) -> int | None:
        rows = self._of(job)
        if rows is None or not (rows.has_all_checkpoints or _is_below(rows.checkpoints[-1], event_ms)):
            return super().first_slice_reaching(job, event_ms)
        # The latest event time never falls.
        return min((row.slice for row in rows.checkpoints if not _is_below(row, event_ms)), default=None)

    def result_indices(self, job: str) -> set[str]:
        rows = self._of(job)
        return super().result_indices(job) if rows is None else set(rows.indices)

    def stream(self, name: str) -> StreamRow:
        found = None if self._rows is None else self._rows.streams.get(name)
        return super().stream(name) if found is None else found

    def current_versions(self, names: Collection[str]) -> dict[str, int]:
        known = {} if self._rows is None else self._rows.streams
        if not all(name in known for name in names):
            return super().current_versions(names)
        return {name: known[name].version for name in names}

    def stream_documents(self, name: str) -> dict[int, dict[str, Any]]:
        found = None if self._rows is None else self._rows.stream_documents.get(name)
        return super().stream_documents(name) if found is None else dict(found)

    def owner_of_sink(self, kind: str, name: str) -> str | None:
        if self._rows is None:
            return super().owner_of_sink(kind, name)
        if (kind, name) not in self._owners:
            self._owners[kind, name] = super().owner_of_sink(kind, name)
        return self._owners[kind, name]

    def last_result_offsets(self) -> dict[str, Offsets]:
        if self._rows is None:
            return super().last_result_offsets()
        if self._result_offsets is None:
            self._result_offsets = super().last_result_offsets()
        return self._result_offsets

    def record_input(self, job: str, stream: str, document: dict[str, Any]) -> dict[str, Any]:
        rows = self._of(job)
        known = None if rows is None else rows.inputs.get(stream)
        return super().record_input(job, stream, document) if known is None else known

    def plan_slices(self, rows: Sequence[SliceRow]) -> Refusals:
        self.forget()
        return super().plan_slices(rows)

    def record_ends(self, name: str, epoch: int, ends: Offsets) -> Offsets:
        self.forget()
        return super().record_ends(name, epoch, ends)

    def end_restore(self, name: str, epoch: int) -> None:
        self.forget()
        super().end_restore(name, epoch)

    def forget_indices(self, job: str, names: Collection[str]) -> None:
        self.forget()
        super().forget_indices(job, names)


def _is_below(row: CheckpointRow, event_ms: int) -> bool:
    return row.latest_event_ms is None or row.latest_event_ms < event_ms


class _OfJob(Protocol):
    @property
    def job(self) -> str: ...


_Row = TypeVar("_Row", bound=_OfJob)


def _by_job(rows: Iterable[_Row]) -> dict[str, list[_Row]]:
    """Return job -> its rows, in their order."""
    found: dict[str, list[_Row]] = {}
    for row in rows:
        found.setdefault(row.job, []).append(row)
    return found
