"""The supervisor with real processes and a real ledger; the runners keep or break the agreement and do no work."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from strandline.core.process_identity import process_identity
from strandline.ledger.jobs import JobMove
from strandline.ledger.ledger import Ledger
from strandline.ledger.many_rows import Refusals
from strandline.ledger.states import Desired, JobRow, JobState
from strandline.services.processes.pids import PidFile
from strandline.services.processes.process_tree import MARK_VARIABLE, tree_mark
from strandline.services.supervision.failures import FAILURES_MAX
from strandline.services.supervision.leadership import ServiceIdentity
from strandline.services.supervision.supervision_times import SupervisionTimes
from strandline.services.supervision.supervisor import Supervisor
from tests.support.ledger_server import LedgerServer
from tests.support.ledgers import run_sql
from tests.support.waiting import wait_until

JOB = "power"
DEATHS, AWAYS = 3, 4
"""The limits of these supervisors: each death costs the start of a process. tests/unit/test_sound_runs.py has the real ones."""


@dataclass
class Stage:
    """A data directory with a ledger and one job; supervisors come and go on it."""

    directory: Path
    ledger: Ledger
    server: LedgerServer
    closing: ExitStack

    @property
    def url(self) -> str:
        return f"sqlite:///{self.directory / 'ledger.sqlite'}"

    def behave(self, behaviour: str) -> None:
        (self.directory / "behaviour").write_text(behaviour, encoding="utf-8")

    def supervise(
        self,
        directory: Path | None = None,
        *,
        standbys: int = 0,
        external_services_up: Callable[[], bool] = lambda: False,
        **patience: float,
    ) -> Supervisor:
        def command(job: str | None, lease: int | None, alive_fd: int) -> list[str]:
            port, behaviour = str(self.server.port), str(self.directory / "behaviour")
            arguments = [port, job or "", behaviour, str(lease), str(alive_fd)]
            return [sys.executable, "-m", "tests.support.fake_runner", *arguments]

        # A machine that is busy for some seconds is no reason to lose a job.
        defaults = {"lease_s": 30.0, "pause_first_s": 0.05, "stop_patience_s": 20.0, "close_patience_s": 10.0}
        place = directory or self.directory
        service = ServiceIdentity(place.name, "", str(place))
        supervisor = Supervisor(
            self.ledger,
            place,
            service=service,
            standbys=standbys,
            external_services_up=external_services_up,
            command=command,
            times=SupervisionTimes(**defaults | patience, failures_max=DEATHS, outage_exits_max=AWAYS),
        )
        supervisor.start()
        self.closing.callback(supervisor.close)
        return supervisor

    def want(self, desired: Desired) -> None:
        self.ledger.set_desired(JOB, desired)

    def wait_for(self, state: JobState, is_so: Callable[[JobRow], bool] = lambda job: True) -> JobRow:
        # On a busy machine a single start of a process may take half a minute.
        return wait_until(lambda: self.ledger.job(JOB), lambda job: job.state is state and is_so(job), state.value, 180)

    def recorded_pid(self) -> int:
        pid = json.loads((self.directory / "pids.json").read_text(encoding="utf-8"))[f"runner-{JOB}"]
        assert isinstance(pid, int)
        return pid

    def family(self, directory: Path | None = None) -> list[int]:
        """Every process that carries the job's mark."""
        wanted = f"{MARK_VARIABLE}={tree_mark(directory or self.directory, JOB)}".encode()
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if wanted in _environment(path)]

    def leader(self) -> str:
        lease = self.ledger.leases().get(JOB)
        return lease.holder if lease and lease.is_held else ""

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
        server = LedgerServer(ledger)
        closing.callback(server.close)
        stage = Stage(tmp_path, ledger, server, closing)
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


@pytest.mark.guarantee(
    "G13",
    "A runner that crashes is replaced, and no process of it remains.",
    promise="kills-and-restarts-change-no-result",
)
def test_killed_runner_is_replaced_at_once_and_leaves_nobody_behind(stage: Stage) -> None:
    stage.supervise(pause_first_s=600, pause_max_s=600)
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
    assert failed.epoch == DEATHS
    assert f"exited {DEATHS} times without progress; the last time it ended unexpectedly with code 3" in failed.message
    assert f"runner-{JOB}.log" in failed.message
    stage.behave("obey")
    stage.ledger.move_job(JOB, JobState.STARTING)
    supervisor.wake()
    stage.wait_for(JobState.RUNNING, lambda job: job.epoch == DEATHS + 1)


@pytest.mark.guarantee("G77")
def test_a_runner_that_is_killed_again_and_again_fails_the_job_with_that_cause(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel kills it because of missing memory. Meanwhile the status shows how often."""
    messages: list[str] = []
    move_jobs = stage.ledger.move_jobs

    def record(moves: Sequence[JobMove]) -> tuple[dict[str, JobRow], Refusals]:
        messages.extend(move.message for move in moves)
        return move_jobs(moves)

    monkeypatch.setattr(stage.ledger, "move_jobs", record)
    stage.behave("starve")
    stage.supervise()
    failed = wait_until(lambda: stage.ledger.job(JOB), lambda job: job.state is JobState.FAILED, "failed", 180)
    how_often = f"({DEATHS - 1} ends in a row without progress); the next one starts in"
    assert any(how_often in message for message in messages), messages
    assert "the last time it was killed by SIGKILL" in failed.message and "lack of memory" in failed.message


@pytest.mark.guarantee("G77")
def test_a_runner_that_can_not_be_started_fails_the_job_in_the_end(stage: Stage) -> None:
    """And the job starts after the remedy."""
    logs = stage.directory / "logs"
    supervisor = stage.supervise(pause_first_s=0.001, outage_pause_max_s=0.05)
    stage.wait_for(JobState.RUNNING)
    stage.want(Desired.STOPPED)
    stage.wait_for(JobState.STOPPED)
    logs.rename(stage.directory / "kept")
    logs.touch()  # no process gets a log
    stage.want(Desired.RUNNING)
    failed = wait_until(lambda: stage.ledger.job(JOB), lambda job: job.state is JobState.FAILED, "failed", 180)
    assert f"could not be started {AWAYS} times in a row; the last time it could not be started: " in failed.message
    assert failed.epoch == 1
    logs.unlink()
    stage.ledger.move_job(JOB, JobState.STARTING)
    supervisor.wake()
    stage.wait_for(JobState.RUNNING, lambda job: job.epoch == 2)


@pytest.mark.guarantee("G77")
def test_what_is_away_outside_is_not_held_against_the_job(stage: Stage) -> None:
    stage.behave("away")
    stage.supervise()
    waiting = wait_until(lambda: stage.ledger.job(JOB), lambda job: job.epoch > DEATHS + 1, "started often enough", 180)
    assert waiting.state is not JobState.FAILED
    wait_until(
        lambda: stage.ledger.job(JOB).message, lambda text: "Kafka does not answer" in text, "says what it waits for"
    )
    stage.behave("obey")
    stage.wait_for(JobState.RUNNING)


@pytest.mark.guarantee(
    "G77",
    "A runner that fails repeatedly without progress makes its job `failed`, with the cause and the number of "
    "failures. This includes runners that run out of memory, can't start, or hang. While an external service doesn't "
    "respond, the job waits. Repeated failures of backfills, standbys, servers, and gateways are reported, too.",
    promise="failures-are-reported-with-their-remedy",
)
def test_what_is_called_away_and_answers_fails_the_job_in_the_end(stage: Stage) -> None:
    """For example a record that Kafka refuses for its size, if this were treated as an outage."""
    stage.behave("away")
    stage.supervise(external_services_up=lambda: True, pause_first_s=0.001)
    failed = wait_until(lambda: stage.ledger.job(JOB), lambda job: job.state is JobState.FAILED, "failed", 180)
    assert failed.epoch == AWAYS
    assert f"ended {AWAYS} times without progress, although Kafka, Elasticsearch" in failed.message
    assert "Kafka does not answer" in failed.message, "the cause, as the runner reported it"
    assert f"strandline job start {JOB}" in failed.message


def test_an_outage_between_two_ends_begins_the_count_anew(stage: Stage) -> None:
    """Ends count when everything answered at each of them, without an outage in between. Here there is always an outage just
    before the limit."""
    stage.behave("away")
    asked: list[int] = []

    def answers() -> bool:
        asked.append(stage.ledger.job(JOB).epoch)
        return len(asked) % (AWAYS - 1) != 0

    stage.supervise(external_services_up=answers, pause_first_s=0.001)
    waiting = wait_until(lambda: stage.ledger.job(JOB), lambda job: job.epoch > AWAYS + 1, "goes on", 180)
    assert waiting.state is not JobState.FAILED


def test_ends_with_progress_between_them_are_an_outage(stage: Stage) -> None:
    stage.behave("away_stepping")
    stage.supervise(external_services_up=lambda: True, pause_first_s=0.001)
    wait_until(lambda: stage.ledger.job(JOB), lambda job: job.epoch > AWAYS + 1, "started often enough", 180)
    assert stage.ledger.job(JOB).state is not JobState.FAILED


def test_deaths_with_progress_between_them_are_not_held_against_the_job(stage: Stage) -> None:
    stage.behave("die_stepping")
    stage.supervise()
    wait_until(lambda: stage.ledger.job(JOB), lambda job: job.epoch > DEATHS + 1, "started often enough", 180)
    assert stage.ledger.job(JOB).state is not JobState.FAILED


def test_job_that_its_runner_failed_stays_failed(stage: Stage) -> None:
    stage.behave("fail")
    stage.supervise()
    assert stage.wait_for(JobState.FAILED).message == "no such field"
    wait_until(stage.family, lambda pids: not pids, "the family gone")
    time.sleep(1.0)  # sleeps: long enough for a wrong supervisor to start it again
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


def test_a_runner_that_hangs_in_its_exit_is_killed_and_the_job_starts_again(stage: Stage) -> None:
    stage.behave("hang")
    stage.supervise(stop_patience_s=0.5)
    stage.wait_for(JobState.RUNNING)
    hanging = stage.recorded_pid()
    stage.want(Desired.DRAINED)
    stage.wait_for(JobState.DRAINED)
    stage.behave("obey")
    stage.want(Desired.RUNNING)
    stage.wait_for(JobState.RUNNING, lambda job: job.epoch == 2)
    assert hanging not in stage.family()
    assert stage.event_kinds() == ["runner_killed"], "it is no death"


def test_restart_is_no_death(stage: Stage) -> None:
    supervisor = stage.supervise()
    stage.wait_for(JobState.RUNNING)
    stage.ledger.ask_restart(JOB)
    supervisor.wake()
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
    """After `kill -9` of the control service, its runner goes on, and a runner's child has even lost its parent."""
    stage.supervise()
    stage.wait_for(JobState.RUNNING)
    first = wait_until(stage.family, lambda pids: len(pids) == 2, "runner and child")
    supervisor = Supervisor(stage.ledger, stage.directory, command=lambda job, lease, alive_fd: ["sleep", "60"])
    stage.closing.callback(supervisor.close)
    supervisor.start()
    assert not set(first) & set(stage.family())


def test_a_silent_runner_is_replaced(stage: Stage) -> None:
    """The runner was stopped: its process exists, which proves nothing."""
    stage.behave("silent")
    stage.supervise(lease_s=2.0)
    stage.wait_for(JobState.RUNNING, lambda job: job.epoch == 1)
    stage.behave("obey")
    stage.wait_for(JobState.RUNNING, lambda job: job.epoch == 2)
    killed = next(event for event in stage.ledger.events(JOB) if event.kind == "runner_killed")
    assert "no heartbeat for 2 s or more" in killed.message


def test_two_services_run_a_job_once_and_the_second_goes_on_when_the_first_ends(stage: Stage) -> None:
    places = [stage.directory / name for name in ("one", "other")]
    first = stage.supervise(places[0])
    stage.wait_for(JobState.RUNNING)
    stage.supervise(places[1])
    wait_until(stage.ledger.living_services, lambda count: count == 2, "two living")
    assert (stage.leader(), stage.ledger.job(JOB).epoch) == ("one", 1)
    assert stage.family(places[1]) == []
    first.close()
    stage.wait_for(JobState.RUNNING, lambda job: job.epoch == 2)
    assert stage.leader() == "other"
    assert stage.family(places[0]) == []
    assert len(stage.family(places[1])) == 2


@pytest.mark.parametrize(("machine", "is_killed"), [(socket.gethostname(), True), ("elsewhere", False)])
def test_who_takes_over_kills_what_the_former_leader_left_on_this_machine_alone(
    stage: Stage, machine: str, is_killed: bool
) -> None:
    """On another machine the same path may be of a service that is alive here."""
    former, length_ms = f"{machine}-00000001", 1
    place = stage.directory / "former"
    place.mkdir()
    left = subprocess.Popen(["sleep", "60"], env={MARK_VARIABLE: tree_mark(place, "another")})
    try:
        stage.ledger.announce_service(former, "", str(place), length_ms)
        stage.ledger.claim_lease(JOB, former, length_ms)
        stage.supervise()
        wait_until(stage.event_kinds, lambda kinds: "leader_changed" in kinds, "taken over", 60)
        assert (left.poll() is not None) is is_killed
    finally:
        left.kill()
        left.wait()


def steal(stage: Stage) -> None:
    """Take the lease over behind the service's back."""
    far = 9_000_000_000_000
    run_sql(stage.url, f"UPDATE leases SET holder = 'thief', epoch = epoch + 1, until_ms = {far}, length_ms = {far}")


def test_a_job_that_was_taken_over_loses_its_runner_at_the_next_renewal(stage: Stage) -> None:
    stage.supervise(lease_s=2.0)
    stage.wait_for(JobState.RUNNING)
    steal(stage)
    wait_until(stage.family, lambda pids: not pids, "the family gone")
    wait_until(lambda: _pids(stage), lambda pids: f"runner-{JOB}" not in pids, "forgotten")
    assert (stage.ledger.job(JOB).epoch, stage.leader()) == (1, "thief")
    assert "runner_died" not in stage.event_kinds()


@pytest.mark.guarantee(
    "G83",
    "A leader and a runner that were paused longer than the lease change nothing when they continue: no slice, no "
    "checkpoint, no changed document. The runner ends.",
    promise="one-leader-and-one-run-write",
)
def test_a_leader_that_was_replaced_moves_nothing_although_it_does_not_know_yet(stage: Stage) -> None:
    """The lease is long and the next renewal far away: the ledger refuses the leader's first move, and it stops leading."""
    stage.behave("ignore")
    stage.supervise(lease_s=200.0)
    stage.wait_for(JobState.RUNNING)
    steal(stage)
    # As if the stop had been ordered while the job was starting: else the order moves it, and the leader needn't.
    run_sql(stage.url, "UPDATE jobs SET desired = 'stopped'")
    wait_until(stage.family, lambda pids: not pids, "the family gone")
    job = stage.ledger.job(JOB)
    assert (job.state, job.epoch, stage.leader()) == (JobState.RUNNING, 1, "thief")
    assert "runner_died" not in stage.event_kinds()


def test_a_leader_that_was_replaced_ends_no_run_of_the_next_leader(stage: Stage) -> None:
    """The other leader's runner, on another machine, has the same pid as the one that died here."""
    stage.behave("ignore")
    stage.supervise(lease_s=200.0)
    stage.wait_for(JobState.RUNNING)
    steal(stage)
    pid = stage.recorded_pid()
    run = stage.ledger.begin_run(JOB, pid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: _pids(stage), lambda pids: f"runner-{JOB}" not in pids, "forgotten")
    assert "runner_died" not in stage.event_kinds()
    assert (stage.ledger.runs(JOB)[-1], stage.leader()) == (run, "thief")


def test_a_standby_takes_the_next_start(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.services.supervision.standbys.CALM_S", 0.2)
    monkeypatch.setattr("strandline.services.supervision.supervisor.SETTLE_MAX_S", 0.0)
    stage.want(Desired.STOPPED)
    stage.supervise(standbys=1)
    pids = wait_until(lambda: _pids(stage), lambda pids: "standby-1" in pids, "a standby")
    stage.want(Desired.RUNNING)
    stage.wait_for(JobState.RUNNING)
    assert stage.recorded_pid() == pids["standby-1"]
    pids = wait_until(lambda: _pids(stage), lambda pids: "standby-2" in pids, "another standby")
    os.kill(stage.recorded_pid(), signal.SIGKILL)
    stage.wait_for(JobState.RUNNING, lambda job: job.epoch == 2)
    assert stage.recorded_pid() == pids["standby-2"]
    assert not (stage.directory / "logs" / "standby-1.log").exists(), "what it said is in the job's log now"


def test_a_dead_standby_is_replaced_and_delays_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.services.supervision.standbys.CALM_S", 0.2)
    monkeypatch.setattr("strandline.services.supervision.supervisor.SETTLE_MAX_S", 0.0)
    stage.want(Desired.STOPPED)
    stage.supervise(standbys=1)
    pids = wait_until(lambda: _pids(stage), lambda pids: "standby-1" in pids, "a standby")
    os.kill(pids["standby-1"], signal.SIGKILL)
    wait_until(lambda: _pids(stage), lambda pids: "standby-2" in pids, "another standby")
    stage.want(Desired.RUNNING)
    stage.wait_for(JobState.RUNNING)


def test_a_standby_that_cannot_be_recorded_as_a_runner_is_ended_and_the_job_starts_without(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full. The standby already has its job."""
    monkeypatch.setattr("strandline.services.supervision.standbys.CALM_S", 0.2)
    monkeypatch.setattr("strandline.services.supervision.supervisor.SETTLE_MAX_S", 0.0)
    stage.want(Desired.STOPPED)
    stage.supervise(standbys=1)
    standby = wait_until(lambda: _pids(stage), lambda pids: "standby-1" in pids, "a standby")["standby-1"]
    add = PidFile.add

    def without_room(pids: PidFile, name: str, pid: int) -> None:
        if pid == standby:
            raise OSError(errno.ENOSPC, "No space left on device")
        add(pids, name, pid)

    monkeypatch.setattr(PidFile, "add", without_room)
    stage.want(Desired.RUNNING)
    wait_until(lambda: _pids(stage), lambda pids: pids.get(f"runner-{JOB}", standby) != standby, "a runner")
    stage.wait_for(JobState.RUNNING)
    assert process_identity(standby) is None


@pytest.mark.guarantee("G77")
def test_standbys_that_die_in_a_row_are_given_up_and_the_event_says_why(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs start without."""
    monkeypatch.setattr("strandline.services.supervision.standbys.CALM_S", 0.01)
    stage.behave("die_standing_by")
    stage.want(Desired.STOPPED)
    stage.supervise(standbys=1)
    (told,) = wait_until(
        lambda: [event for event in stage.ledger.events() if event.kind == "standbys_given_up"], bool, "given up", 60
    )
    assert f"{FAILURES_MAX} standbys in a row exited; the last ended unexpectedly with code 3" in told.message
    assert f"standby-{FAILURES_MAX}.log" in told.message
    stage.behave("obey")
    stage.want(Desired.RUNNING)
    stage.wait_for(JobState.RUNNING)
    assert not [name for name in _pids(stage) if name.startswith("standby-")]


def _pids(stage: Stage) -> dict[str, int]:
    path = stage.directory / "pids.json"
    found: dict[str, int] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found
