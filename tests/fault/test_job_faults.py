"""A short piece of the ladder of tests/fault/job_ladder.py, with everything that it checks."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from strandline.core.failpoints import FAILPOINTS
from tests.fault.job_ladder import run
from tests.support.chaos.checking.graph.pipeline import STAGES
from tests.support.chaos.dump import Dump
from tests.support.chaos.job_sets import GraphJobs
from tests.support.chaos.shapes.job_set import ShapeJobs

TARGETS = ["runner-jvm", "python-worker", "control", "kafka", "elasticsearch"]
KINDS = [
    "power-cut",
    "foreign-transaction",
    "index-refusals",
    "index-cut",
    "kafka-delay",
    "kafka-answers-empty",
    "kafka-holes",
    "kafka-unwritable",
    "rewind-kill",
    "ledger-restored",
    "index-restored",
    "template-deleted",
    "partitions-added",
    "stop-and-start",
    "upgrade",
    "backfill",
    "clock-step",
    "runner-clock",
    "kafka-clock",
    "control-clock",
    "disk-full",
]
CHOSEN = ["emit.written", "commit.before_checkpoint"]
"""Where a kill leaves the most half done: results out, and everything out, and nothing committed."""


@pytest.mark.guarantee("G70")
@pytest.mark.long
@pytest.mark.timeout(1_500)
def test_killed_again_and_again_every_result_is_there_once_and_right(tmp_path: Path) -> None:
    """Each kind of process once, then at some failpoints: 0 lost, 0 repeated, 0 wrong, 0 divergence, and accounts close."""
    outcome = run(tmp_path, len(TARGETS), 8, print, only=TARGETS, failpoints=CHOSEN)
    assert outcome.failure == ""
    assert outcome.ingested is not None and outcome.ingested.violations == []
    assert outcome.job is not None and outcome.job.violations == []
    found = outcome.job
    assert found.epochs > len(CHOSEN) and min(found.late, found.refused, found.expected, found.unusable, found.idle) > 0
    faults = [fault for one in outcome.rounds for fault in one.faults]
    assert {fault.target for fault in faults if fault.kind == "kill"} == {*TARGETS, *CHOSEN}
    assert outcome.reached == set(FAILPOINTS)
    print(f"results after {sorted(round(one.recovery_s, 1) for one in outcome.rounds)} s")


@pytest.mark.guarantee("G752")
@pytest.mark.long
@pytest.mark.timeout(2_400)
def test_under_every_kind_of_fault_some_at_a_time_every_result_is_there_once_and_right(tmp_path: Path) -> None:
    """Each kind once, up to three of them together: 0 violations, and none is left out but what the machine can't do."""
    said: list[str] = []
    outcome = run(tmp_path, None, 8, said.append)
    print("\n".join(said))
    assert outcome.violations == []
    assert outcome.job is not None and min(outcome.job.late, outcome.job.refused, outcome.job.expected) > 0
    done = {fault.kind for one in outcome.rounds for fault in one.faults}
    left_out = {name.replace("-", " ") for name in outcome.left_out}
    assert {"kill", *(name.replace("-", " ") for name in KINDS)} <= done | left_out
    assert any(len(one.faults) > 1 for one in outcome.rounds)


@pytest.mark.guarantee("G599")
@pytest.mark.long
@pytest.mark.timeout(1_500)
def test_of_a_job_with_branches_sessions_a_join_and_a_lookup_that_changes_every_result_is_there_once_and_right(
    tmp_path: Path,
) -> None:
    """Kafka and a worker are killed, answers are lost, and the lookup changes in both rounds: 0 violations."""
    outcome = run(tmp_path, math.inf, 12, print, rounds=2, job_set=GraphJobs())
    assert outcome.violations == []
    assert outcome.job is not None and min(outcome.job.late, outcome.job.refused, outcome.job.expected) > 0
    kinds = [fault.kind for one in outcome.rounds for fault in one.faults]
    assert kinds.count("lookup change") == 2 and "kill" in kinds
    dump = Dump.load(tmp_path / "dump-chaos.json.gz")
    assert {row["lookup_versions"]["chaos-plans"] for row in dump.tables["slices"]} >= {1, 2, 3}
    assert {one["_source"]["strandline"]["stage"] for one in dump.documents} == {*STAGES}


@pytest.mark.guarantee(
    "G1030",
    "Jobs over records of many shapes, from HTTP, MQTT, TCP, and UDP, are killed with their gateways and servers. Each row, each "
    "window, each difference of counters, and each dead letter of a row is there once and right.",
    promise="kills-and-restarts-change-no-result",
)
@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_of_records_of_mixed_shapes_every_row_result_and_dead_letter_is_there_once_and_right(tmp_path: Path) -> None:
    """A gateway, a worker, and a runner with all its processes are killed: 0 violations, and each special value occurs."""
    killed = ["gateway-mqtt-listener", "python-worker", "runner-family"]
    outcome = run(tmp_path, len(killed), 5, print, only=killed, speed=20, job_set=ShapeJobs())
    assert outcome.violations == []
    assert outcome.ingested is not None
    assert len(outcome.jobs) == 11 and min(verdict.accepted for verdict in outcome.jobs.values()) > 0
