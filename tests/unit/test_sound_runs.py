"""Whether deaths of a job without records are forgotten. A real ledger; the runners are made up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import LogUnavailable, SinkUnavailable, SparkUnavailable, StrandlineError, TransientError
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import JobRow, JobState
from strandline.processing.run.exit_codes import EXIT_TRY_AGAIN, exit_code_of
from strandline.processing.slices.rewind import REPLAY_RECORDS_PER_S_MIN, RUN_BEGINS
from strandline.services.supervision.failures import FAILURES_MAX, OUTAGE_EXITS_MAX, SOUND_S
from strandline.services.supervision.run_failures import EndedRunner, RunFailures
from strandline.services.supervision.supervision_times import SupervisionTimes
from tests.support.ledgers import a_checkpoint, a_slice

JOB = "power"
LONG_S = SOUND_S + 10


class Deadly:
    """A job with one committed slice, whose runners die one after the other."""

    def __init__(self, directory: Path) -> None:
        self.ledger = Ledger.open(f"sqlite:///{directory / 'ledger.sqlite'}")
        self.ledger.submit_job(JOB, "pipeline: power", {"pipeline": JOB})
        self.failures = RunFailures(self.ledger, SupervisionTimes(), external_services_up=lambda: True)

    def die(
        self, lived_s: float, *, state: JobState = JobState.RUNNING, replays: int = 0, code: int = EXIT_TRY_AGAIN
    ) -> JobRow:
        run = self.ledger.begin_run(JOB, 1)
        if self.ledger.last_slice(JOB) is None:
            self.ledger.plan_slice(a_slice(1, run.epoch))
            self.ledger.commit_checkpoint(a_checkpoint(1, run.epoch))
        self.ledger.record_event(RUN_BEGINS, "begins", JOB, run.epoch, {"records": replays})
        for step in (JobState.STARTING, state):
            if self.ledger.job(JOB).state is not step:
                self.ledger.move_job(JOB, step)
        ended = EndedRunner(self.ledger.job(JOB), 1, 7, code, lived_s, Path("runner.log"))
        moves, refusals = self.failures.count([ended])
        assert not refusals and not self.ledger.move_jobs(moves)[1]
        return self.ledger.job(JOB)


@pytest.fixture
def deadly(tmp_path: Path) -> Iterator[Deadly]:
    deadly = Deadly(tmp_path)
    yield deadly
    deadly.ledger.close()


def test_a_quiet_job_whose_runs_live_for_long_never_fails(deadly: Deadly) -> None:
    for _ in range(2 * FAILURES_MAX):
        job = deadly.die(LONG_S, replays=REPLAY_RECORDS_PER_S_MIN)
        assert (job.state, "in a row" in job.message) == (JobState.STARTING, False)


@pytest.mark.parametrize(
    "death",
    [
        {"lived_s": SOUND_S - 10},
        {"lived_s": LONG_S, "state": JobState.STARTING},
        {"lived_s": LONG_S, "replays": 20 * REPLAY_RECORDS_PER_S_MIN},
    ],
    ids=["short", "never ran", "was still replaying"],
)
def test_a_run_that_was_not_sound_ends_no_row_of_deaths(deadly: Deadly, death: dict[str, Any]) -> None:
    states = [deadly.die(**death).state for _ in range(FAILURES_MAX)]
    assert states == [JobState.STARTING] * (FAILURES_MAX - 1) + [JobState.FAILED]


def test_a_run_that_leaves_a_slice_undone_ends_no_row_of_deaths(deadly: Deadly) -> None:
    deadly.die(0)
    deadly.ledger.plan_slice(a_slice(2, 1))
    states = [deadly.die(LONG_S).state for _ in range(FAILURES_MAX - 1)]
    assert states[-1] is JobState.FAILED


@pytest.mark.guarantee("G77")
@pytest.mark.parametrize(
    ("error", "last"),
    [
        (SinkUnavailable("the database takes no results now"), JobState.STARTING),
        (SparkUnavailable("no executor"), JobState.STARTING),
        (TransientError("the server of a package does not respond"), JobState.STARTING),
        (LogUnavailable("no answer"), JobState.FAILED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_outage_counts_against_a_job_only_where_the_supervisor_can_see_that_there_is_none(
    deadly: Deadly, error: StrandlineError, last: JobState
) -> None:
    """Kafka, Elasticsearch and the registry answer it all the while; a sink and the Spark cluster it can't ask."""
    states = [deadly.die(0, code=exit_code_of(error)).state for _ in range(OUTAGE_EXITS_MAX)]
    assert states == [JobState.STARTING] * (OUTAGE_EXITS_MAX - 1) + [last]
