"""The supervisor with real processes and a real ledger; the runners keep or break the agreement and do no work."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from strandline.ledger.ledger import Ledger
from strandline.ledger.states import Desired, JobRow, JobState
from strandline.services.families import MARK_VARIABLE, family_mark
from strandline.services.supervisor import DEATHS_MAX, Supervisor
from tests.support.waiting import wait_until

JOB = "power"


@dataclass
class Stage:
    """A data directory with a ledger and one job; supervisors come and go on it."""

    directory: Path
    ledger: Ledger
    closing: ExitStack

    @property
    def url(self) -> str:
        return f"sqlite:///{self.directory / 'ledger.sqlite'}"

    def behave(self, behaviour: str) -> None:
        (self.directory / "behaviour").write_text(behaviour, encoding="utf-8")

    def supervise(self, **patience: float) -> Supervisor:
        def command(job: str) -> list[str]:
            module = "tests.support.fake_runner"
            return [sys.executable, "-m", module, self.url, job, str(self.directory / "behaviour")]

        defaults = {"pause_first_s": 0.05, "stop_patience_s": 20.0, "close_patience_s": 10.0}
        supervisor = Supervisor(self.ledger, self.directory, command=command, **defaults | patience)
        supervisor.start()
        self.closing.callback(supervisor.close)
        return supervisor

    def want(self, desired: Desired) -> None:
        self.ledger.set_desired(JOB, desired)

    def wait_for(self, state: JobState, is_so: Callable[[JobRow], bool] = lambda job: True) -> JobRow:
        return wait_until(lambda: self.ledger.job(JOB), lambda job: job.state is state and is_so(job), state.value)

    def recorded_pid(self) -> int:
        pid = json.loads((self.directory / "pids.json").read_text(encoding="utf-8"))[f"runner-{JOB}"]
        assert isinstance(pid, int)
        return pid

    def family(self) -> list[int]:
        """Every process that carries the job's mark."""
        wanted = f"{MARK_VARIABLE}={family_mark(self.directory, JOB)}".encode()
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if wanted in _environment(path)]

    def event_kinds(self) -> list[str]:
        return [event.kind for event in self.ledger.events(JOB)]


def _environment(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    ledger.submit_job(JOB, "pipeline: power", {"pipeline": JOB})
    with ExitStack() as closing:
        closing.callback(ledger.close)
        stage = Stage(tmp_path, ledger, closing)
        stage.behave("obey")
        yield stage


def test_new_job_is_started_and_stopped(stage: Stage) -> None:
    stage.supervise()
    stage.wait_for(JobState.RUNNING, lambda job: job.epoch == 1)
    assert stage.recorded_pid() in stage.family()
    stage.want(Desired.STOPPED)
    stage.wait_for(JobState.STOPPED)
    wait_until(stage.family, lambda pids: not pids, "the family gone")
    wait_until(lambda: (stage.directory / "pids.json").read_text(), lambda text: JOB not in text, "forgotten")
    assert "runner_died" not in stage.event_kinds()


def test_stopped_job_drains_and_starts_again(stage: Stage) -> None:
    stage.supervise()
    stage.wait_for(JobState.RUNNING)
    stage.want(Desired.STOPPED)
    stage.wait_for(JobState.STOPPED)
    stage.want(Desired.DRAINED)
    stage.wait_for(JobState.DRAINED, lambda job: job.epoch == 2)
    stage.want(Desired.RUNNING)
    stage.wait_for(JobState.RUNNING, lambda job: job.epoch == 3)


@pytest.mark.parametrize("behaviour", ["obey", "ignore"])
def test_job_that_never_ran_comes_to_rest(stage: Stage, behaviour: str) -> None:
    stage.want(Desired.STOPPED)
    stage.supervise()
    assert stage.wait_for(JobState.STOPPED).epoch == 0


def test_killed_runner_is_replaced_and_leaves_nobody_behind(stage: Stage) -> None:
    stage.supervise()
    stage.wait_for(JobState.RUNNING)
    first = wait_until(stage.family, lambda pids: len(pids) == 2, "runner and child")
    os.kill(stage.recorded_pid(), signal.SIGKILL)
    stage.wait_for(JobState.RUNNING, lambda job: job.epoch == 2)
    assert not set(first) & set(stage.family())
    died = next(event for event in stage.ledger.events(JOB) if event.kind == "runner_died")
    assert "SIGKILL" in died.message
    assert stage.ledger.runs(JOB)[0].outcome == "died"


def test_job_fails_after_deaths_without_progress_until_a_person_starts_it(stage: Stage) -> None:
    stage.behave("die")
    supervisor = stage.supervise()
    failed = stage.wait_for(JobState.FAILED)
    assert failed.epoch == DEATHS_MAX
    assert "code 3" in failed.message
    assert f"runner-{JOB}.log" in failed.message
    stage.behave("obey")
    stage.ledger.move_job(JOB, JobState.STARTING)
    supervisor.wake()
    stage.wait_for(JobState.RUNNING, lambda job: job.epoch == DEATHS_MAX + 1)


def test_deaths_with_progress_between_them_are_not_held_against_the_job(stage: Stage) -> None:
    stage.behave("die_stepping")
    stage.supervise()
    wait_until(lambda: stage.ledger.job(JOB), lambda job: job.epoch > DEATHS_MAX + 1, "started often enough", 60)
    assert stage.ledger.job(JOB).state is not JobState.FAILED


def test_job_that_its_runner_failed_stays_failed(stage: Stage) -> None:
    stage.behave("fail")
    stage.supervise()
    assert stage.wait_for(JobState.FAILED).message == "no such field"
    wait_until(stage.family, lambda pids: not pids, "the family gone")
    time.sleep(1.0)  # long enough for a wrong supervisor to start it again
    assert stage.ledger.job(JOB).epoch == 1
    stage.want(Desired.STOPPED)
    stage.wait_for(JobState.STOPPED)


def test_runner_that_does_not_stop_is_killed(stage: Stage) -> None:
    stage.behave("ignore")
    stage.supervise(stop_patience_s=0.5)
    stage.wait_for(JobState.RUNNING)
    stage.want(Desired.STOPPED)
    stage.wait_for(JobState.STOPPED)
    assert stage.family() == []
    assert "runner_killed" in stage.event_kinds()


def test_restart_is_no_death(stage: Stage) -> None:
    supervisor = stage.supervise()
    stage.wait_for(JobState.RUNNING)
    supervisor.restart(JOB)
    stage.wait_for(JobState.RUNNING, lambda job: job.epoch == 2)
    assert "runner_died" not in stage.event_kinds()


def test_stop_that_was_taken_back_ends_in_a_running_job(stage: Stage) -> None:
    stage.behave("ignore")
    supervisor = stage.supervise(stop_patience_s=1.0)
    stage.wait_for(JobState.RUNNING)
    stage.want(Desired.STOPPED)
    stage.wait_for(JobState.STOPPING)
    stage.behave("obey")
    stage.want(Desired.RUNNING)
    supervisor.wake()
    stage.wait_for(JobState.RUNNING, lambda job: job.epoch == 2)


def test_close_ends_all_and_the_next_control_service_goes_on(stage: Stage) -> None:
    stage.supervise().close()
    assert stage.family() == []
    stage.supervise()
    job = stage.wait_for(JobState.RUNNING)
    assert job.desired is Desired.RUNNING


def test_runners_left_over_are_ended_before_new_ones_start(stage: Stage) -> None:
    """As after `kill -9` of the control service: its runner goes on, and a runner's child has even lost its parent."""
    stage.supervise()
    stage.wait_for(JobState.RUNNING)
    first = wait_until(stage.family, lambda pids: len(pids) == 2, "runner and child")
    supervisor = Supervisor(stage.ledger, stage.directory, command=lambda job: ["sleep", "60"])
    stage.closing.callback(supervisor.close)
    supervisor.start()
    assert not set(first) & set(stage.family())
