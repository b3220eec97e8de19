"""Records runners that ended without an order, and decides whether and when their jobs start again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from strandline.ledger.jobs import JobMove
from strandline.ledger.journal import NewEvent
from strandline.ledger.many_rows import Refusals
from strandline.ledger.progress import RunEnd
from strandline.ledger.roles import SupervisionLedger
from strandline.ledger.states import Desired, JobRow, JobState
from strandline.processing.slices.rewind import RUN_BEGINS
from strandline.services.supervision.failures import FailureCause, JobFailures, cause_of_exit, was_sound
from strandline.services.supervision.runner_process import ending
from strandline.services.supervision.supervision_times import SupervisionTimes

logger = structlog.get_logger()


@dataclass(frozen=True)
class EndedRunner:
    """A runner that ended without an order."""

    job: JobRow
    lease: int
    """Epoch of the lease under which it was started."""
    pid: int
    code: int
    """Exit code."""
    lived_s: float
    log: Path
    has_lost_pool: bool = False
    """True if its pool ended before the run did."""


class RunFailures:
    """Failures of all jobs of one supervisor since their last progress. Only the supervisor's thread calls it."""

    def __init__(
        self, ledger: SupervisionLedger, times: SupervisionTimes, external_services_up: Callable[[], bool]
    ) -> None:
        self._ledger, self._times, self._external_services_up = ledger, times, external_services_up
        self._failures: dict[str, JobFailures] = {}

    def forget(self, job: str) -> None:
        """Forget the failures of a job."""
        self._failures.pop(job, None)

    def may_start(self, job: JobRow) -> bool:
        """Return True if the pause after the last failure has passed. A requested restart clears the failures."""
        failures = self._failures.get(job.name)
        if failures is not None and job.restarts != failures.restarts:
            self.forget(job.name)
            return True
        return failures is None or failures.may_start()

    def count(self, ended: Sequence[EndedRunner]) -> tuple[list[JobMove], Refusals]:
        """Record the failures of these runners, each of another job. Return the moves of the jobs, which report the next start or
        that the job has failed.

        The number of transactions doesn't depend on the number of runners. The failure of a job that another service leads now
        isn't counted: its error is returned.
        """
        if not ended:
            return [], {}
        names = [one.job.name for one in ended]
        newest = self._ledger.newest_runs(names)
        # Under the lease: on another machine, the run of a new leader can have the same pid.
        ends = [
            RunEnd(run.job, run.epoch, "died", ending(one.code), one.lease)
            for one in ended
            if (run := newest.get(one.job.name)) is not None and run.pid == one.pid
        ]
        closed, refusals = self._ledger.end_each_run(ends)
        progress, begun = self._ledger.progress_of(names), self._ledger.last_events(names, RUN_BEGINS)
        counted = [one for one in ended if one.job.name not in refusals and one.job.name in progress]
        hows = {
            one.job.name: self._how(one, closed[one.job.name].message if one.job.name in closed else "")
            for one in counted
        }
        self._ledger.record_events([_event(one, hows[one.job.name]) for one in counted])
        moves = []
        for one in counted:
            name = one.job.name
            last, checkpoint = progress[name].last_slice, progress[name].last_checkpoint
            if was_sound(one.job, begun.get(name), last, one.lived_s):
                self.forget(name)
            cause = FailureCause.POOL if one.has_lost_pool else cause_of_exit(one.code, self._external_services_up)
            move = self.note(one.job, hows[name], cause, checkpoint.slice if checkpoint else 0, one.log)
            moves += [move] if move is not None else []
        return moves, refusals

    def note(self, job: JobRow, how: str, cause: FailureCause, slice_done: int, log: Path) -> JobMove | None:
        """Count a failure. Return the move of the job, which reports the next start or that the job has failed. None if no runner
        starts because the job must stop."""
        failures = self._failures.get(job.name)
        if failures is None or failures.progress != slice_done:
            failures = self._failures[job.name] = JobFailures(slice_done)
        failures.restarts = job.restarts
        if too_often := failures.note(cause, self._times.failures_max, self._times.outage_exits_max):
            del self._failures[job.name]
            message = (
                f"the runner {too_often}; the last time it {how}. See the end of {log}, fix the cause, then run "
                f"strandline job start {job.name}"
            )
            return JobMove(job.name, JobState.FAILED, message)
        pause_max_s = self._times.pause_max_s if cause is FailureCause.JOB else self._times.outage_pause_max_s
        is_first = failures.count == 0 and cause in (FailureCause.JOB, FailureCause.POOL)
        pause_s = failures.add(0.0 if is_first else self._times.pause_first_s, pause_max_s)
        if job.desired is Desired.STOPPED:
            return None
        how_often = f" ({failures.count} ends in a row without progress)" if failures.count > 1 else ""
        message = (
            f"the runner {how}{how_often}; the next one starts {f'in {pause_s:g} s' if pause_s else 'immediately'}"
        )
        return JobMove(job.name, JobState.STARTING, message)

    @staticmethod
    def _how(ended: EndedRunner, recorded: str) -> str:
        """Return how the runner ended. `recorded`: message of its run."""
        how = ending(ended.code)
        return f"{how} ({recorded})" if recorded and recorded != how else how  # it recorded its reason before it ended


def _event(ended: EndedRunner, how: str) -> NewEvent:
    """Return the event that reports the end, and log it."""
    job, message = ended.job, f"the runner {how}; see its log {ended.log}"
    logger.warning(message, action="runner_died", job=job.name, epoch=job.epoch, pid=ended.pid)
    return NewEvent("runner_died", message, job.name, job.epoch, {"pid": ended.pid})
