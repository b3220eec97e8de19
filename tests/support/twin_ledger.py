"""The ledger in memory, for the simulation: as much of `RunLedger` and `OrderLedger` as planner, rewind and runner need.

`tests/contract/test_twin_ledger.py` holds it against the promises that the real one keeps.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from strandline.core.errors import Conflict, Fenced, LedgerBehind, NotFound
from strandline.ledger import progress
from strandline.ledger.many_rows import Refusals, different_jobs, raise_refusal, refusals_of_each
from strandline.ledger.states import (
    NO_TOTALS,
    ORDERED_MOVES,
    CheckpointRow,
    Desired,
    JobRow,
    JobState,
    JobVersionRow,
    RunRow,
    SliceRow,
    SliceStatus,
    Totals,
)


class TwinLedger:
    """Each method is one step: nothing else happens between its beginning and its end."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobRow] = {}
        self._versions: dict[str, list[JobVersionRow]] = {}
        self._runs: dict[str, list[RunRow]] = {}
        self._slices: dict[str, list[SliceRow]] = {}
        self._checkpoints: dict[str, list[CheckpointRow]] = {}
        self._totals: dict[str, Totals] = {}

    def submit_job(self, name: str, text: str, document: dict[str, Any]) -> JobRow:
        known = self._versions.setdefault(name, [])
        if name not in self._jobs:
            self._jobs[name] = JobRow(name, 0, Desired.RUNNING, JobState.CREATED, "", 0, 0, 0, 0)
            self._runs[name], self._slices[name], self._checkpoints[name] = [], [], []
        elif known[-1].document == document:
            return self._jobs[name]
        known.append(JobVersionRow(name, len(known) + 1, text, document, 0))
        return self._change(name, version=len(known))

    def job(self, name: str) -> JobRow:
        if name not in self._jobs:
            raise NotFound(f"There is no job {name}.")
        return self._jobs[name]

    def job_version(self, name: str, version: int | None = None) -> JobVersionRow:
        return self._versions[name][(version or self.job(name).version) - 1]

    def set_desired(self, name: str, desired: Desired) -> JobRow:
        state = ORDERED_MOVES.get((self.job(name).state, desired))
        return self._change(name, desired=desired, **({"state": state, "message": ""} if state else {}))

    def begin_run(self, job: str, pid: int, *, present_version: bool = False) -> RunRow:
        begun, refusals = self.begin_runs([progress.RunRequest(job, pid, present_version)])
        raise_refusal(refusals)
        return begun[job]

    def begin_runs(self, requests: Sequence[progress.RunRequest]) -> tuple[dict[str, RunRow], Refusals]:
        different_jobs(requests)
        begun: dict[str, RunRow] = {}
        refusals = refusals_of_each(requests, lambda one: begun.update({one.job: self._begin(one)}))
        return begun, refusals

    def _begin(self, asked: progress.RunRequest) -> RunRow:
        assert asked.lease is None, "no lease is kept here"
        job = asked.job
        known, runs = self.job(job), self._runs[job]
        runs[:] = [
            replace(run, ended_ms=0, outcome="superseded", message=f"run {known.epoch + 1} took over")
            if run.ended_ms is None
            else run
            for run in runs
        ]
        self._change(job, epoch=known.epoch + 1)
        last = self.last_slice(job)
        is_planned = last is not None and last.status is SliceStatus.PLANNED
        version = known.version
        if last is not None and is_planned and not asked.present_version:
            writers = [run.version for run in runs if run.epoch >= last.epoch and run.slots]
            version = [last.version, *writers][-1]
        runs.append(RunRow(job, known.epoch + 1, version, asked.pid, 0, None, None, ""))
        return runs[-1]

    def end_run(self, job: str, epoch: int, outcome: str, message: str = "") -> RunRow:
        runs = self._runs[job]
        if runs[epoch - 1].ended_ms is None:
            runs[epoch - 1] = replace(runs[epoch - 1], ended_ms=0, outcome=outcome, message=message)
        return runs[epoch - 1]

    def set_run_slots(self, job: str, epoch: int, slots: int) -> None:
        if epoch != self.job(job).epoch:
            raise Fenced(f"Run {epoch} of job {job} no longer owns it, run {self.job(job).epoch} does.")
        self._runs[job][epoch - 1] = replace(self._runs[job][epoch - 1], slots=slots)

    def runs(self, job: str) -> list[RunRow]:
        return list(self._runs[job])

    def plan_slice(self, row: SliceRow) -> None:
        raise_refusal(self.plan_slices([row]))

    def plan_slices(self, rows: Sequence[SliceRow]) -> Refusals:
        return refusals_of_each(rows, self._plan)

    def _plan(self, row: SliceRow) -> None:
        self._refuse_old_epoch(row.job, row.epoch)
        last = self.last_slice(row.job)
        if row == last:
            return
        progress._refuse_gap(row, last)
        self._slices[row.job].append(row)

    def last_slice(self, job: str) -> SliceRow | None:
        return self._slices[job][-1] if self._slices[job] else None

    def progress_of(self, names: Collection[str]) -> dict[str, progress.JobProgress]:
        return {
            name: progress.JobProgress(
                self._jobs[name], self.last_slice(name), self.last_checkpoint(name), self.totals(name)
            )
            for name in names
            if name in self._jobs
        }

    def jobs_named(self, names: Collection[str]) -> dict[str, JobRow]:
        return {name: self._jobs[name] for name in names if name in self._jobs}

    def slices(self, job: str, first: int, last: int) -> list[SliceRow]:
        return self._slices[job][max(0, first - 1) : max(0, last)]

    def slice_count(self, job: str) -> int:
        return len(self._slices[job])

    def commit_checkpoint(self, row: CheckpointRow) -> None:
        raise_refusal(self.commit_checkpoints([row]))

    def commit_checkpoints(self, rows: Sequence[CheckpointRow]) -> Refusals:
        return refusals_of_each(rows, self._commit)

    def _commit(self, row: CheckpointRow) -> None:
        self._refuse_old_epoch(row.job, row.epoch)
        last = self.last_checkpoint(row.job)
        if row == last:
            return
        progress._refuse_fall(row, last)
        planned = self.last_slice(row.job)
        if planned is None or planned.number != row.slice or planned.status is not SliceStatus.PLANNED:
            raise LedgerBehind.of(row.job, f"slice {row.slice} isn't planned")
        if row.records < 0 or row.accepted < 0:
            raise Conflict(f"The checkpoint of slice {row.slice} of job {row.job} counts below zero.")
        self._slices[row.job][-1] = replace(planned, status=SliceStatus.COMMITTED)
        self._checkpoints[row.job].append(row)
        self._totals[row.job] = progress._add(self.totals(row.job), row)

    def last_checkpoint(self, job: str) -> CheckpointRow | None:
        return self._checkpoints[job][-1] if self._checkpoints[job] else None

    def checkpoint(self, job: str, slice: int) -> CheckpointRow:
        if not 1 <= slice <= len(self._checkpoints[job]):
            raise NotFound(f"Slice {slice} of job {job} is not committed.")
        return self._checkpoints[job][slice - 1]

    def checkpoints(self, job: str, limit: int = 100, before: int | None = None) -> list[CheckpointRow]:
        found = self._checkpoints[job][: before - 1 if before is not None else None]
        return found[::-1][:limit]

    def floor(self, job: str) -> int:
        """No slice is removed here, and no job reset."""
        return 0

    def first_slice_reaching(self, job: str, event_ms: int) -> int | None:
        return next(
            (
                row.slice
                for row in self._checkpoints[job]
                if row.latest_event_ms is not None and row.latest_event_ms >= event_ms
            ),
            None,
        )

    def totals(self, job: str) -> Totals:
        return self._totals.get(job, NO_TOTALS)

    def close(self) -> None:
        pass

    def _change(self, name: str, **values: Any) -> JobRow:
        self._jobs[name] = replace(self.job(name), **values)
        return self._jobs[name]

    def _refuse_old_epoch(self, job: str, epoch: int) -> None:
        if epoch != self.job(job).epoch:
            raise Fenced(f"Run {epoch} of job {job} no longer owns it, run {self.job(job).epoch} does.")
        if self._runs[job] and self._runs[job][-1].ended_ms is not None:
            raise Fenced(f"Run {epoch} of job {job} was ended: stop it now.")
