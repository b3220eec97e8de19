"""Deaths in a row: how often a process died without progress, when the next one may start, and when it is enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from strandline.ledger.roles import LedgerReader
from strandline.ledger.states import JobRow, JobState, SliceStatus
from strandline.processing.run.exit_codes import EXIT_AWAY, EXIT_AWAY_UNSEEN
from strandline.processing.slices.rewind import REPLAY_RECORDS_PER_S_MIN, RUN_BEGINS

_DOUBLINGS_MAX = 16
DEATHS_MAX = 5
"""A job fails after so many deaths in a row without a new checkpoint between them, a backfill without a new chunk. During its
swap a backfill never fails."""
AWAY_DEATHS_MAX = 20
"""The limit for runners that ended because, they say, Kafka, Elasticsearch or the ledger did not answer, although the supervisor
found that all of them did; and for those that could not be started. It is higher, since an outage may be partial or short, and so
may a lack of disk or memory: so many deaths take over two minutes."""
SOUND_S = 600.0
"""A standby, or a run without anything to do, that lived for so long was sound: the deaths before its own are forgotten."""


@dataclass
class Deaths:
    """The deaths of one job's runners, or of one backfill's processes, since its last progress."""

    progress: object
    """What was done at these deaths: the last committed slice, or the last chunk. After progress, begin a new `Deaths`."""
    count: int = 0
    next_start: float = 0.0
    """Monotonic time before which no new process may start."""

    def add(self, pause_first_s: float, pause_max_s: float) -> float:
        """Count a death; returns the pause before the next start. It doubles with each death."""
        pause_s = min(pause_max_s, pause_first_s * 2.0 ** min(self.count, _DOUBLINGS_MAX))
        self.count += 1
        self.next_start = time.monotonic() + pause_s
        return pause_s

    def may_start(self) -> bool:
        return time.monotonic() >= self.next_start


class Blame(Enum):
    """Against whom a death counts."""

    JOB = "job"
    OUTSIDE = "outside"
    """Something outside does not answer: such a death is held against nobody."""
    OUTSIDE_WRONGLY = "outside, wrongly"
    """The runner says so, and all outside answers."""
    MACHINE = "machine"
    """The process could not be started."""


def blame_of(code: int, outside_answers: Callable[[], bool]) -> Blame:
    """Against whom it counts that a process ended with this exit code. `outside_answers`: as the supervisor has found it."""
    if code == EXIT_AWAY:
        return Blame.OUTSIDE_WRONGLY if outside_answers() else Blame.OUTSIDE
    return Blame.OUTSIDE if code == EXIT_AWAY_UNSEEN else Blame.JOB


@dataclass
class JobDeaths(Deaths):
    """Which of them count against the job, or the backfill."""

    restarts: int = 0
    """How often a restart had been requested then: a new request clears the job."""
    held: int = 0
    """Those that are the job's own."""
    away: int = 0
    """Those in a row for which the runner blamed something outside, although all outside answered the supervisor."""
    unstarted: int = 0
    """Those in a row in which no process came to life."""

    def note(self, blame: Blame, held_max: int, away_max: int) -> str:
        """Count one death by who is to blame. Returns how often the runner died, once that is too often; empty before.
        The limits are those of DEATHS_MAX and AWAY_DEATHS_MAX."""
        if blame is Blame.JOB:
            self.held += 1
        elif blame is not Blame.MACHINE:
            self.away = self.away + 1 if blame is Blame.OUTSIDE_WRONGLY else 0
        self.unstarted = self.unstarted + 1 if blame is Blame.MACHINE else 0
        if self.held >= held_max:
            return f"died {self.held} times without progress"
        if self.away >= away_max:
            return f"ended {self.away} times without progress, although Kafka, Elasticsearch and the ledger answer"
        if self.unstarted >= away_max:
            return f"could not be started {self.unstarted} times in a row"
        return ""


def was_sound(ledger: LedgerReader, job: JobRow, lived_s: float) -> bool:
    """Whether the job's run, which has died, lived for SOUND_S longer than its replay takes, and left no slice undone. The job
    may have had no records for weeks, so that no checkpoint tells of progress."""
    begun, last = ledger.last_event(job.name, RUN_BEGINS), ledger.last_slice(job.name)
    if job.state is not JobState.RUNNING or begun is None or begun.epoch != job.epoch:
        return False
    if last is not None and last.status is SliceStatus.PLANNED:
        return False
    replayed: int = begun.facts["records"]
    return lived_s > SOUND_S + replayed / REPLAY_RECORDS_PER_S_MIN
