"""A short piece of the ladder over several control services and three jobs at once. One of the jobs reads another's results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.job_ladder import run
from tests.support.chaos.job_sets import ReadingJobs

KINDS = ["control", "control-2", "runner-family", "leader-away"]


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_three_jobs_and_two_control_services_that_are_killed_leave_every_result_once_and_right(tmp_path: Path) -> None:
    """Both services lead jobs. Each is killed, and a runner with all its processes; a leader stays away: 0 violations."""
    outcome = run(tmp_path, len(KINDS), 8, print, only=KINDS, services=2, job_set=ReadingJobs(3))
    assert outcome.violations == []
    assert outcome.ingested is not None
    assert list(outcome.jobs) == ["chaos", "chaos-second", "chaos-third"]
    assert min(verdict.expected for verdict in outcome.jobs.values()) > 0
    assert sum(verdict.epochs for verdict in outcome.jobs.values()) > len(outcome.jobs) + 1
    done = {fault.target if fault.kind == "kill" else fault.kind for one in outcome.rounds for fault in one.faults}
    assert {kind.replace("leader-away", "leader away") for kind in KINDS} <= done
