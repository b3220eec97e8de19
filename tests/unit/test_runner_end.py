"""How a run that failed is told of in the ledger. Real ledger; no Spark, no Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import LogUnavailable, RecordTooLarge, StrandlineError
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import JobState
from strandline.processing.run.exit_codes import EXIT_AWAY, EXIT_FAILED, EXIT_TRY_AGAIN
from strandline.processing.run.runner import Runner
from tests.support.control import BOTH, Api

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
