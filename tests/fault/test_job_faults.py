"""A short piece of the ladder of tests/fault/job_ladder.py, with everything that it checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.core.failpoints import FAILPOINTS
from tests.fault.job_ladder import run
from tests.support.chaos.nemesis import FLOW_LIMIT_S

TARGETS = ["runner-jvm", "python-worker", "control", "kafka", "elasticsearch"]
CHOSEN = ["emit.written", "commit.before_checkpoint"]
"""Where a kill leaves the most half done: results out, and everything out, and nothing committed."""


@pytest.mark.long
@pytest.mark.timeout(1_500)
def test_killed_again_and_again_every_result_is_there_once_and_right(tmp_path: Path) -> None:
    """Each kind of process once, then at some failpoints: 0 lost, 0 repeated, 0 wrong, 0 divergence, and accounts close."""
    outcome = run(tmp_path, len(TARGETS), 8, print, only=TARGETS, failpoints=CHOSEN)
    assert outcome.failure == ""
    assert outcome.ingested is not None and outcome.ingested.violations == []
    assert outcome.job is not None and outcome.job.violations == []
    assert outcome.job.epochs > len(CHOSEN) and min(outcome.job.late, outcome.job.refused, outcome.job.expected) > 0
    assert {fault.target for fault in outcome.faults if fault.kind == "kill"} == {*TARGETS, *CHOSEN}
    assert outcome.reached == set(FAILPOINTS)
    print(f"results after {sorted(round(fault.recovery_s, 1) for fault in outcome.faults)} s, limit {FLOW_LIMIT_S:g} s")
