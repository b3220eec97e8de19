"""Counts of jobs in the last 24 hours, from the checkpoints in the ledger.

A job can commit a slice each second. Therefore each control service keeps the counts by step in memory, and a request reads only
the slices that were committed since the last request. The first request for a job reads at most CHECKPOINTS_MAX slices.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from strandline.core.described import Described
from strandline.core.record_headers import REASON_DUPLICATE
from strandline.ledger.roles import LedgerReader
from strandline.ledger.states import JobRow, SliceCounts

STEP_MS = 600_000
STEPS = 144
CHECKPOINTS_MAX = 20_000
"""Maximum number of slices that one request reads. Older slices are left out."""
JOBS_MAX = 1_000
"""Maximum number of jobs whose counts are cached."""
_RUNS_MAX = 500


@dataclass(frozen=True)
class HistoryView(Described):
    """Counts of a job over time. Each list has one value for each step, the oldest first."""

    from_ms: int
    """Begin of the first step."""
    step_ms: int
    records: list[int]
    accepted: list[int]
    rejected: list[int]
    """Number of rejected records, without duplicates (`duplicate`)."""
    results: list[int]
    runs: list[int]
    """Runs that began."""
    behind_ms: list[int | None]
    """Maximum time from the newest log time of a slice to its commit; null without a commit."""


@dataclass(frozen=True)
class JobHistoryView(HistoryView):
    job: str


@dataclass
class _Step:
    """Sums of one step."""

    records: int = 0
    accepted: int = 0
    rejected: int = 0
    results: int = 0
    behind_ms: int | None = None


@dataclass
class _Job:
    created_ms: int
    """Creation time of the job. A job that was deleted and recreated counts from 1 again."""
    slice_last: int = 0
    steps: dict[int, _Step] = field(default_factory=dict)
    """Number of the step since 1970 -> its sums."""


class Histories:
    """Counts of all jobs. Thread-safe."""

    def __init__(self, ledger: LedgerReader, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._ledger = ledger
        self._now_ms = now_ms
        self._jobs: dict[str, _Job] = {}
        self._lock = threading.Lock()

    def of(self, row: JobRow) -> HistoryView:
        """Return the counts of the job with this row."""
        job = row.name
        last = self._now_ms() // STEP_MS
        first = last - STEPS + 1
        with self._lock:
            known = self._jobs.get(job)
            if known is None or known.created_ms != row.created_ms:
                if len(self._jobs) >= JOBS_MAX:
                    self._jobs.clear()
                known = self._jobs[job] = _Job(row.created_ms)
            self._read(job, known, first)
            steps = [known.steps.get(at, _Step()) for at in range(first, last + 1)]
        runs = [0] * STEPS
        for run in self._ledger.runs(job, _RUNS_MAX):
            at = run.started_ms // STEP_MS - first
            if 0 <= at < STEPS:
                runs[at] += 1
        return HistoryView(
            from_ms=first * STEP_MS,
            step_ms=STEP_MS,
            records=[one.records for one in steps],
            accepted=[one.accepted for one in steps],
            rejected=[one.rejected for one in steps],
            results=[one.results for one in steps],
            runs=runs,
            behind_ms=[one.behind_ms for one in steps],
        )

    def _read(self, job: str, known: _Job, first: int) -> None:
        """Add the slices that were committed since the last call, and remove steps before `first`."""
        counts = self._ledger.slice_counts(job, known.slice_last, CHECKPOINTS_MAX)
        for one in counts:
            if one.committed_ms // STEP_MS >= first:
                _add(known.steps.setdefault(one.committed_ms // STEP_MS, _Step()), one)
        if counts:
            known.slice_last = counts[0].slice
        known.steps = {at: step for at, step in known.steps.items() if at >= first}


def _add(step: _Step, one: SliceCounts) -> None:
    step.records += one.records
    step.accepted += one.accepted
    step.rejected += sum(count for reason, count in one.rejected.items() if reason != REASON_DUPLICATE)
    step.results += sum(one.results.values())
    if one.records and one.latest_log_ms is not None:
        step.behind_ms = max(step.behind_ms or 0, one.committed_ms - one.latest_log_ms)
