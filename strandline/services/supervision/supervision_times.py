"""Waiting times and limits of a supervisor."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.services.supervision.failures import FAILURES_MAX, OUTAGE_EXITS_MAX


@dataclass(frozen=True)
class SupervisionTimes:
    """Waiting times of the supervisor."""

    lease_s: float = 8.0
    """Length of a job's lease in seconds, and maximum silence of a runner."""
    pause_first_s: float = 0.5
    """First pause in seconds. It doubles with each failure. After a first failure of the job itself, the next runner starts
    immediately: most have external causes, and until then the job has no results."""
    pause_max_s: float = 30.0
    outage_pause_max_s: float = 10.0
    """Maximum pause while an external service doesn't respond, so that the job soon notices its return."""
    stop_patience_s: float = 60.0
    """Seconds that a runner has to stop, after its slice or immediately, before the supervisor kills it. The next run rewinds."""
    close_patience_s: float = 15.0
    """Seconds that all runners together have to stop when the control service ends."""
    failures_max: int = FAILURES_MAX
    outage_exits_max: int = OUTAGE_EXITS_MAX


TIMES = SupervisionTimes()
