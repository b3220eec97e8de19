"""Newest result of each job, for explanations.

To find it, the ledger is searched, unless the last checkpoint has a result. Each service keeps what it found, and searches again
only for jobs whose sum of results has changed since.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass

from strandline.ledger.progress import CountedCheckpoint, JobProgress
from strandline.ledger.roles import LedgerReader
from strandline.ledger.states import CheckpointRow, Offsets
from strandline.services.jobs.recent_counts import risen

_JOBS_MAX = 10_000


@dataclass(frozen=True)
class _Known:
    """Newest result of a job. Valid until `results` changes, or the job is reset or created again."""

    life: tuple[int, int]
    """Creation time and generation of the job."""
    results: int
    """Number of all results up to it."""
    found: CountedCheckpoint


class NewestResults:
    """Newest results of jobs. Thread-safe."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._risen: dict[str, tuple[CheckpointRow, Offsets]] = {}
        """Job -> its newest result, and the return value of `reached_after` for it."""

    def of(self, names: Collection[str]) -> tuple[dict[str, CountedCheckpoint], dict[str, JobProgress]]:
        """Return the newest result of each of these jobs, and the progress of each. The progress contains the result.

        A job without a result is left out of the results.
        """
        progress = self._ledger.progress_of(names)
        with self._lock:
            known = {name: self._known.get(name) for name in progress}
        found: dict[str, _Known] = {}
        has_searched = False
        for name, one in progress.items():
            results, life = sum(one.totals.results.values()), (one.job.created_ms, one.job.generation)
            before = known[name]
            if before is not None and (before.life, before.results) == (life, results):
                found[name] = before
            elif one.last_checkpoint is not None and any(one.last_checkpoint.results.values()):
                found[name] = _Known(life, results, CountedCheckpoint(one.last_checkpoint, one.totals))
            elif results:
                has_searched = True
                if (result := self._ledger.last_result(name)) is not None:
                    found[name] = _Known(life, sum(result.totals.results.values()), result)
        if has_searched:  # a result that was found may be newer than the progress
            progress = self._ledger.progress_of(names)
        with self._lock:
            if len(self._known) > _JOBS_MAX:
                self._known.clear()
            self._known |= found
        return {name: one.found for name, one in found.items()}, progress

    def reached_after(self, result: CountedCheckpoint, last: CheckpointRow | None) -> Offsets:
        """Return event times of records that were accepted after the slice of the newest result, by the partition that they
        advanced.

        `last`: last checkpoint of the job. The first slice after the result that reached a later event time is searched once.
        """
        latest_ms, job = result.row.latest_event_ms, result.row.job
        if latest_ms is None or last is None or last.latest_event_ms is None or last.latest_event_ms <= latest_ms:
            return {}
        with self._lock:
            of_row, reached = self._risen.get(job, (None, {}))
        if of_row is result.row:
            return reached
        later = self._ledger.first_slice_reaching(job, latest_ms + 1)
        reached = {} if later is None else risen(result.row.reached, self._ledger.checkpoint(job, later).reached)
        with self._lock:
            if len(self._risen) > _JOBS_MAX:
                self._risen.clear()
            self._risen[job] = result.row, reached
        return reached
