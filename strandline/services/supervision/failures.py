"""Failures in a row: the number of exits of a process without progress, the next start, and the limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from strandline.ledger.states import EventRow, JobRow, JobState, SliceRow, SliceStatus
from strandline.processing.run.exit_codes import EXIT_AWAY, EXIT_AWAY_UNSEEN
from strandline.processing.slices.rewind import REPLAY_RECORDS_PER_S_MIN

_DOUBLINGS_MAX = 16
FAILURES_MAX = 5
"""Maximum number of failures in a row without progress: a new checkpoint of a job, or a new chunk of a backfill. A backfill
never fails during its swap."""
OUTAGE_EXITS_MAX = 20
"""Maximum number of exits that a runner attributes to an external service, although the supervisor found all services
available. It is also the maximum number of failed starts. It is higher, because an outage can be partial or short, and so can a
lack of disk or memory. This number of failures takes over two minutes."""
SOUND_S = 600.0
"""Running time in seconds after which a standby, or a run without work, counts as sound. Its earlier failures are forgotten."""


@dataclass
class FailureCounter:
    """Failures of one job's runners, or of one backfill's processes, since the last progress."""

    progress: object
    """Progress at these failures: the last committed slice, or the last chunk. After progress, create a new `FailureCounter`."""
    count: int = 0
    next_start: float = 0.0
    """Monotonic time before which no new process may start."""

    def add(self, pause_first_s: float, pause_max_s: float) -> float:
        """Count a failure, and return the pause before the next start. It doubles with each failure."""
        pause_s = min(pause_max_s, pause_first_s * 2.0 ** min(self.count, _DOUBLINGS_MAX))
        self.count += 1
        self.next_start = time.monotonic() + pause_s
        return pause_s

    def may_start(self) -> bool:
        return time.monotonic() >= self.next_start


class FailureCause(Enum):
    """Cause to which an exit is attributed."""

    JOB = "job"
    EXTERNAL = "external"
    """An external service doesn't respond. The exit isn't counted."""
    EXTERNAL_WRONGLY = "external, wrongly"
    """The runner reports that an external service doesn't respond, but all of them do."""
    MACHINE = "machine"
    """The process could not be started."""
    POOL = "pool"
    """The pool ended before the run did. The end isn't counted: a job that ends pools is moved out."""


def cause_of_exit(code: int, external_services_up: Callable[[], bool]) -> FailureCause:
    """Return the cause of an exit with this code. `external_services_up`: result of the supervisor's own check."""
    if code == EXIT_AWAY:
        return FailureCause.EXTERNAL_WRONGLY if external_services_up() else FailureCause.EXTERNAL
    return FailureCause.EXTERNAL if code == EXIT_AWAY_UNSEEN else FailureCause.JOB


@dataclass
class JobFailures(FailureCounter):
    """Failures of a job or a backfill, by their cause."""

    restarts: int = 0
    """Number of requested restarts at that time. A new request clears the failures."""
    job_exits: int = 0
    """Number of failures that are attributed to the job."""
    outage_exits: int = 0
    """Number of exits in a row that the runner attributed to an external service, although all responded to the supervisor."""
    unstarted: int = 0
    """Number of failed starts in a row."""

    def note(self, cause: FailureCause, failures_max: int, outage_exits_max: int) -> str:
        """Count one failure by its cause. Return a description if a limit is reached; empty otherwise. The limits are those of
        FAILURES_MAX and OUTAGE_EXITS_MAX."""
        if cause is FailureCause.JOB:
            self.job_exits += 1
        elif cause in (FailureCause.EXTERNAL, FailureCause.EXTERNAL_WRONGLY):
            self.outage_exits = self.outage_exits + 1 if cause is FailureCause.EXTERNAL_WRONGLY else 0
        self.unstarted = self.unstarted + 1 if cause is FailureCause.MACHINE else 0
        if self.job_exits >= failures_max:
            return f"exited {self.job_exits} times without progress"
        if self.outage_exits >= outage_exits_max:
            return f"ended {self.outage_exits} times without progress, although Kafka, Elasticsearch, and the ledger respond"
        if self.unstarted >= outage_exits_max:
            return f"could not be started {self.unstarted} times in a row"
        return ""


def was_sound(job: JobRow, begun: EventRow | None, last: SliceRow | None, lived_s: float) -> bool:
    """Return True if the job's ended run lived for SOUND_S longer than its replay takes, and left no slice uncommitted. A job
    can have no records for weeks, so a missing checkpoint doesn't mean that it made no progress.

    `begun`: last event RUN_BEGINS of the job. `last`: its last slice.
    """
    if job.state is not JobState.RUNNING or begun is None or begun.epoch != job.epoch:
        return False
    if last is not None and last.status is SliceStatus.PLANNED:
        return False
    replayed: int = begun.facts["records"]
    return lived_s > SOUND_S + replayed / REPLAY_RECORDS_PER_S_MIN
