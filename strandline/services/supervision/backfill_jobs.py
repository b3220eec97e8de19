"""Backfills in the background: requested and cancelled in the ledger, run by the control service that leads the job.

Every control service accepts requests and shows progress, because both are rows of the ledger. The service that leads the job
runs a process (`python -m strandline.processing.backfill.process`) while a backfill is open, one process at a time. If the
process exits early, another one starts after an increasing pause and continues after the last recorded chunk.

If several exit in a row without a new chunk, the backfill has failed. But while Kafka, Elasticsearch, or the ledger does not
respond, it waits, as a job does, and its message names the server. A control service that loses the job kills its process. The
process of the next leader fences it in the ledger, and finds its results in the index.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from strandline.core.errors import Conflict, LedgerUnavailable, StrandlineError
from strandline.ledger.roles import BackfillLedger
from strandline.ledger.states import OPEN_BACKFILLS, BackfillRow, BackfillState
from strandline.processing.backfill.plan import plan_backfill, stores_of
from strandline.processing.pipelines.checked_pipeline import aliases_of
from strandline.processing.pipelines.stored import load_pipeline, streams_of_version
from strandline.services.processes.worker_process import WorkerProcess
from strandline.services.supervision.failures import (
    FAILURES_MAX,
    OUTAGE_EXITS_MAX,
    FailureCause,
    JobFailures,
    cause_of_exit,
)
from strandline.services.supervision.repeated_errors import RepeatedErrors

logger = structlog.get_logger()

POLL_INTERVAL_S = 0.5
PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 30.0
OUTAGE_PAUSE_MAX_S = 10.0
"""Maximum pause while an external service doesn't respond, so that the backfill soon notices its return."""
SWAP_PAUSE_S = 600.0
"""Pause between attempts at a swap, after FAILURES_MAX failures in a row."""
END_PATIENCE_S = 30.0
_NEVER_SHOWN = (BackfillState.CANCELLED, BackfillState.FAILED)


def backfill_command(job: str, generation: int) -> Sequence[str]:
    """Return the command of a backfill process."""
    module = "strandline.processing.backfill.process"
    return [sys.executable, "-m", module, "--job", job, "--generation", str(generation)]


@dataclass
class _Work:
    """The running process, and its backfill."""

    row: BackfillRow
    process: WorkerProcess
    end_by: float | None = None
    """Monotonic time at which it is killed, set when the ledger shows that its work has ended."""


class BackfillJobs:
    """Runs in its own thread between `start` and `close`. The other methods can be called from any thread."""

    def __init__(
        self,
        ledger: BackfillLedger,
        data_dir: Path,
        leads: Callable[[str], bool],
        log_starts: Callable[[str], Mapping[int, int]],
        discard: Callable[[str, int], None],
        *,
        external_services_up: Callable[[], bool] = lambda: False,
        newest_generation: Callable[[Sequence[str]], int] = lambda stores: 0,
        command: Callable[[str, int], Sequence[str]] = backfill_command,
        pause_first_s: float = PAUSE_FIRST_S,
    ) -> None:
        """Args: leads: Returns True if this control service leads the job now.
        `log_starts`: Returns the first offset that each partition of a stream still contains.
        `discard`: Deletes the documents of a generation in a store.
        `external_services_up`: Returns True if Kafka and Elasticsearch respond to this service now.
        `newest_generation`: Returns the highest generation with an index."""
        self._newest_generation = newest_generation
        self._ledger = ledger
        self._data_dir = data_dir
        self._leads = leads
        self._log_starts = log_starts
        self._discard = discard
        self._external_services_up = external_services_up
        self._command = command
        self._pause_first_s = pause_first_s
        self._work: _Work | None = None
        self._failures: dict[tuple[str, int], JobFailures] = {}
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="backfill-jobs", daemon=True)

    def start(self) -> None:
        """Start polling for open backfills."""
        self._thread.start()

    def close(self) -> None:
        """Kill the running process. The next control service continues its backfill."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def request(self, job: str, from_ms: int, to_ms: int | None, principal: str | None = None) -> BackfillRow:
        """Request a backfill of the windows that end after `from_ms`, up to `to_ms` or to the last emission, for `principal`.
        While it is open, the same call again changes nothing, unless the job has another version. Raises NotFound,
        LogTruncated, LogUnavailable, IndexUnavailable; Conflict if another backfill is open or there is nothing to compute."""
        requested = (self._ledger.job(job).version, from_ms, to_ms)
        for row in self._ledger.backfills(job):
            if row.state in OPEN_BACKFILLS and (row.version, row.from_ms, row.to_ms) == requested:
                return row
        load = partial(load_pipeline, self._ledger, job)
        plan = plan_backfill(self._ledger, job, load, self._log_starts, from_ms, to_ms)
        aliases = aliases_of(load(plan.version))
        stores = sorted({alias for stage in plan.windows for alias in aliases[stage]})
        row = self._ledger.request_backfill(
            job,
            plan.version,
            (from_ms, to_ms),
            plan.windows,
            plan.slice_committed,
            plan.records,
            streams_of_version(self._ledger, job, plan.version),
            self._newest_generation(stores),
        )
        message = f"backfill {row.generation} of job {job} was requested, with version {row.version}"
        facts = {"generation": row.generation}
        self._ledger.record_event("backfill_requested", message, job, facts=facts, principal=principal)
        self._wake.set()
        return row

    def cancel(self, job: str, generation: int, principal: str | None = None) -> BackfillRow:
        """Cancel a backfill, and kill its process immediately. Raises NotFound; Conflict if it has ended or is swapping."""
        row = self._ledger.move_backfill(job, generation, BackfillState.CANCELLED, "cancelled as asked")
        if principal is not None:
            message = f"{principal} cancelled backfill {generation} of job {job}"
            facts = {"generation": generation}
            self._ledger.record_event("backfill_cancelled", message, job, facts=facts, principal=principal)
        self._wake.set()
        return row

    def _run(self) -> None:
        errors = RepeatedErrors(logger)
        while not self._closing.is_set():
            self._wake.clear()
            try:
                self._look()
                errors.worked("backfills are processed again", action="look")
            except (StrandlineError, OSError) as error:
                errors.failed("can't process the backfills", error, action="look")
            self._wake.wait(POLL_INTERVAL_S)
        if self._work is not None:
            self._end(self._work)

    def _look(self) -> None:
        """Poll once: handle the end of a process, kill a process that should not run, start the next process."""
        work = self._work
        if work is not None and work.process.has_ended():
            self._handle_end(work)
            work = None
        if work is not None:
            row = self._ledger.backfill(work.row.job, work.row.generation)
            if self._leads(row.job) and not self._should_end(work, row):
                return
            self._end(work)
            if row.state in _NEVER_SHOWN:
                self._clear(row)
        self._forget_cancelled()
        for row in self._ledger.open_backfills():
            failures = self._failures.get((row.job, row.generation))
            if self._leads(row.job) and (failures is None or failures.may_start()):
                self._start(row)
                return

    def _start(self, row: BackfillRow) -> None:
        name, command = f"backfill-{row.job}", self._command(row.job, row.generation)
        try:
            self._work = _Work(row, WorkerProcess(self._data_dir, name, command))
        except OSError as error:
            why = f"its process could not be started: {error}"
            self._count_failure(row, why, self._data_dir / "logs" / f"{name}.log", FailureCause.JOB)

    def _should_end(self, work: _Work, row: BackfillRow) -> bool:
        """Return True if the process must be killed. If its backfill has ended, it has END_PATIENCE_S to exit."""
        if row.state in OPEN_BACKFILLS:
            return False
        work.end_by = work.end_by or time.monotonic() + END_PATIENCE_S
        return row.state is BackfillState.CANCELLED or time.monotonic() > work.end_by

    def _forget_cancelled(self) -> None:
        """Clear the backfills that were cancelled between two attempts."""
        for job, generation in list(self._failures):
            row = self._ledger.backfill(job, generation)
            if row.state is BackfillState.CANCELLED:
                self._clear(row)
                del self._failures[job, generation]

    def _handle_end(self, work: _Work) -> None:
        """Count a failure, or log that the backfill has ended."""
        code = self._end(work)
        row = self._ledger.backfill(work.row.job, work.row.generation)
        if row.state not in OPEN_BACKFILLS:
            logger.info("backfill ended", action="backfill", job=row.job, generation=row.generation, state=row.state)
            if row.state in _NEVER_SHOWN:
                self._clear(row)
            self._failures.pop((row.job, row.generation), None)
            return
        cause = cause_of_exit(code, self._external_services_up)
        self._count_failure(row, row.message or f"its process ended with code {code}", work.process.log, cause)

    def _count_failure(self, row: BackfillRow, why: str, log: Path, cause: FailureCause) -> None:
        """Count a failure. After too many without a chunk, the backfill has failed. A swap is retried forever, with longer
        pauses."""
        failures = self._failures.get((row.job, row.generation))
        if failures is None or failures.progress != row.done_ms:
            failures = self._failures[row.job, row.generation] = JobFailures(row.done_ms)
        too_often = failures.note(cause, FAILURES_MAX, OUTAGE_EXITS_MAX)
        if cause is FailureCause.JOB:
            failures.add(self._pause_first_s, PAUSE_MAX_S if failures.job_exits <= FAILURES_MAX else SWAP_PAUSE_S)
        else:
            failures.add(self._pause_first_s, OUTAGE_PAUSE_MAX_S)
        in_a_row = f"{failures.count} attempts in a row made no progress; the last: {why}; see its log {log}"
        message = f"an attempt at backfill {row.generation} of job {row.job} ended: {in_a_row}"
        logger.warning(message, action="backfill", job=row.job, generation=row.generation, failures=failures.count)
        if (
            failures.count.bit_count() == 1
        ):  # the 1st, 2nd, 4th, ...: an outage of days must not fill the ledger; the log has each
            self._ledger.record_event("backfill_died", message, row.job, facts={"generation": row.generation})
        if too_often and row.state is not BackfillState.SWAPPING:
            try:
                self._clear(self._ledger.move_backfill(row.job, row.generation, BackfillState.FAILED, in_a_row))
            except Conflict:
                logger.info("the backfill has ended in the meantime", action="backfill", job=row.job)

    def _clear(self, row: BackfillRow) -> None:
        """Delete the documents of a backfill that will never be visible. The next backfill of the job deletes the remaining
        ones."""
        try:
            pipeline = load_pipeline(self._ledger, row.job, row.version, row.stream_versions)
            for store in stores_of(row, pipeline):
                self._discard(store, row.generation)
        except LedgerUnavailable:
            raise
        except StrandlineError as error:
            logger.warning("can't delete the results of a backfill", action="backfill", job=row.job, error=str(error))

    def _end(self, work: _Work) -> int:
        """Kill the process and its descendants, forget it, and return its exit code."""
        code = work.process.reap()
        self._work = None
        return code
