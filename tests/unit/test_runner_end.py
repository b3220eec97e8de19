"""The ledger's report of a failed run. Real ledger; no Spark, no Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import InvalidSettings, LogUnavailable, RecordTooLarge, StrandlineError
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import Desired, JobState
from strandline.processing.run.exit_codes import EXIT_AWAY, EXIT_DONE, EXIT_FAILED, EXIT_OTHER_RUNNER, EXIT_TRY_AGAIN
from strandline.processing.run.runner import Runner
from strandline.services.jobs.job_status import present_pipeline
from tests.support.control import BOTH, Api
from tests.support.ledgers import a_checkpoint, a_slice

JOB = "power"


def runner_that_meets(error: Exception, directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Runner, Ledger]:
    url = f"sqlite:///{directory / 'ledger.sqlite'}"
    ledger = Ledger.open(url)
    assert Api(ledger).outcomes(BOTH) == ["created", "created"]
    ledger.move_job(JOB, JobState.STARTING)
    runner = Runner(Settings(data_dir=directory, ledger_url=url), JOB)

    def run_version(*_: Any) -> None:
        raise error

    monkeypatch.setattr(runner, "_run_version", run_version)
    return runner, ledger


@pytest.mark.parametrize(
    ("error", "code", "state"),
    [
        (RecordTooLarge("the topic takes less; apply the document again"), EXIT_FAILED, JobState.FAILED),
        (LogUnavailable("Kafka does not answer"), EXIT_AWAY, JobState.STARTING),
        (StrandlineError("the JVM has died"), EXIT_TRY_AGAIN, JobState.STARTING),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_exit_code_says_whether_trying_again_may_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: StrandlineError, code: int, state: JobState
) -> None:
    runner, ledger = runner_that_meets(error, tmp_path, monkeypatch)
    assert runner.run() == code
    assert ledger.job(JOB).state is state
    assert ledger.runs(JOB)[-1].message == str(error)


def test_a_defect_is_named_in_the_ledger_and_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor puts the message into the job's status when it has seen it often enough."""
    runner, ledger = runner_that_meets(KeyError("readings"), tmp_path, monkeypatch)
    with pytest.raises(KeyError):
        runner.run()
    assert ledger.runs(JOB)[-1].message == "KeyError: 'readings'"


def running_job(directory: Path) -> tuple[Runner, Ledger]:
    url = f"sqlite:///{directory / 'ledger.sqlite'}"
    ledger = Ledger.open(url)
    assert Api(ledger).outcomes(BOTH) == ["created", "created"]
    ledger.move_job(JOB, JobState.STARTING)
    ledger.move_job(JOB, JobState.RUNNING)
    return Runner(Settings(data_dir=directory, ledger_url=url), JOB), ledger


@pytest.mark.guarantee(
    "G636",
    "A stop that is requested while a drain or a batch ends, or between the runs of two versions, stops the job. It "
    "isn't a failure.",
    promise="kills-and-restarts-change-no-result",
)
def test_a_stop_between_the_runs_of_two_versions_ends_the_job_as_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, ledger = running_job(tmp_path)
    run_version = runner._run_version

    def replaced_and_stopped(*_: Any) -> str:
        monkeypatch.setattr(runner, "_run_version", run_version)
        ledger.set_desired(JOB, Desired.STOPPED)
        return "replaced"

    monkeypatch.setattr(runner, "_run_version", replaced_and_stopped)
    assert runner.run() == EXIT_DONE
    assert ledger.job(JOB).state is JobState.STOPPED
    assert [run.outcome for run in ledger.runs(JOB)] == ["replaced", "stopped"]


@pytest.mark.guarantee("G636")
@pytest.mark.parametrize("at", [JobState.DRAINING, JobState.DRAINED])
def test_a_stop_while_a_drain_ends_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: JobState) -> None:
    """All was read and emitted: its run says so. The job is stopped, as was asked last."""
    runner, ledger = running_job(tmp_path)
    move_job = runner._ledger.move_job

    def moved_after_a_stop(job: str, to: JobState, *more: Any, **named: Any) -> Any:
        if to is at:
            ledger.set_desired(job, Desired.STOPPED)
        return move_job(job, to, *more, **named)

    monkeypatch.setattr(runner._ledger, "move_job", moved_after_a_stop)
    monkeypatch.setattr(runner, "_run_version", lambda *_: JobState.DRAINED)
    assert runner.run() == EXIT_DONE
    assert ledger.job(JOB).state is JobState.STOPPED
    assert [run.outcome for run in ledger.runs(JOB)] == ["drained"]


MISFIT = InvalidSettings("the key and the certificate don't match")


@pytest.mark.guarantee(
    "G637",
    "A running job that has committed a slice doesn't fail while a secret or certificate is being replaced: the run "
    "is repeated in the same version. An unusable login for Elasticsearch leaves the previous one effective.",
    promise="kills-and-restarts-change-no-result",
)
@pytest.mark.parametrize(
    ("has_committed", "has_begun", "code"),
    [(True, True, EXIT_TRY_AGAIN), (False, True, EXIT_FAILED), (True, False, EXIT_FAILED)],
    ids=["was right", "never committed", "starts"],
)
def test_settings_with_which_a_job_ran_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_committed: bool, has_begun: bool, code: int
) -> None:
    """A certificate is just being replaced; the supervisor counts the deaths. What was never right fails at once."""
    runner, ledger = runner_that_meets(MISFIT, tmp_path, monkeypatch)
    if has_committed:
        epoch = ledger.begin_run(JOB, 1).epoch
        ledger.plan_slice(a_slice(1, epoch, JOB))
        ledger.commit_checkpoint(a_checkpoint(1, epoch, JOB))
    if has_begun:
        ledger.move_job(JOB, JobState.RUNNING)
    assert runner.run() == code
    assert (ledger.job(JOB).state is JobState.FAILED) == (code == EXIT_FAILED)
    assert (ledger.runs(JOB)[-1].outcome, ledger.runs(JOB)[-1].message) == ("failed", str(MISFIT))


@pytest.mark.guarantee("G637")
def test_a_slice_is_not_handed_on_because_a_certificate_is_just_being_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of it may be out, by the version that began it."""
    runner, ledger = runner_that_meets(MISFIT, tmp_path, monkeypatch)
    epoch = ledger.begin_run(JOB, 1).epoch
    ledger.plan_slice(a_slice(1, epoch, JOB))
    ledger.commit_checkpoint(a_checkpoint(1, epoch, JOB))
    ledger.plan_slice(a_slice(2, epoch, JOB))
    ledger.move_job(JOB, JobState.RUNNING)
    ledger.submit_job(JOB, "", {"pipeline": JOB})
    assert ledger.job(JOB).version == 2
    assert runner.run() == EXIT_TRY_AGAIN
    assert [run.version for run in ledger.runs(JOB)] == [1, 1]
    assert ledger.job(JOB).state is JobState.RUNNING


def test_a_secret_of_the_ledger_that_is_just_being_replaced_hides_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, _ = runner_that_meets(LogUnavailable("Kafka does not answer"), tmp_path, monkeypatch)

    def end_run(*_: Any) -> None:
        raise MISFIT

    monkeypatch.setattr(runner._ledger, "end_run", end_run)
    assert runner.run() == EXIT_AWAY


@pytest.mark.guarantee(
    "G991",
    "A new version with another `placement` moves the job between two slices. The generation of its results and the digest of "
    "its pipeline stay.",
    promise="upgrades-backfills-and-resets-mix-no-results",
)
@pytest.mark.parametrize(
    ("before", "after", "runs", "code"),
    [
        ("own", "pool", 1, EXIT_OTHER_RUNNER),
        ("own", None, 1, EXIT_OTHER_RUNNER),
        (None, "pool", 1, EXIT_OTHER_RUNNER),
        ("pool", "own", 2, EXIT_DONE),
        ("own", "own", 2, EXIT_DONE),
    ],
)
def test_a_runner_leaves_a_job_that_another_runner_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None, after: str | None, runs: int, code: int
) -> None:
    def document(placement: str | None, more: str = "") -> str:
        return f"{BOTH}{more}" if placement is None else f"{BOTH}{more}placement: {placement}\n"

    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    ledger = Ledger.open(url)
    api = Api(ledger)
    assert api.outcomes(document(before)) == ["created", "created"]
    digest, generation = present_pipeline(ledger, ledger.job(JOB)).digest, ledger.job(JOB).generation
    claimed = ledger.claim_lease(JOB, "me", 60_000)
    assert claimed is not None
    ledger.move_job(JOB, JobState.STARTING)
    ledger.move_job(JOB, JobState.RUNNING)
    runner = Runner(Settings(data_dir=tmp_path, ledger_url=url), JOB, lease=claimed[0].epoch)
    more = "checkpoint: {every: 3s}\n" if before == after else ""

    def run_version(row: Any, *_: Any) -> Any:
        if row.version == 2:
            return JobState.STOPPED
        assert api.outcomes(document(after, more))[1] == "changed"
        return "replaced"

    monkeypatch.setattr(runner, "_run_version", run_version)
    assert runner.run() == code
    assert len(ledger.runs(JOB)) == runs
    assert present_pipeline(ledger, ledger.job(JOB)).digest == digest and ledger.job(JOB).generation == generation
