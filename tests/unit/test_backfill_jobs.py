"""Backfills as background work: through the API and the command line, over processes that compute nothing."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import IndexUnavailable, LogUnavailable
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import BackfillRow, BackfillState
from strandline.processing.backfill.process import Backfill
from strandline.processing.run.exit_codes import EXIT_AWAY
from strandline.services import control
from strandline.services.cli import commands as command_line
from strandline.services.processes.limited_work import LimitedWork
from strandline.services.supervision.backfill_jobs import BackfillJobs, backfill_command
from tests.support.control import BOTH, PIPELINE, Api, ObedientSupervisor, serving
from tests.support.ledger_server import LedgerServer
from tests.support.ledgers import a_checkpoint, a_slice
from tests.support.waiting import wait_until

PATH = "/v1/jobs/power/backfills"
ATTEMPTS = 3
"""Fewer than the product makes: each is a process that starts."""


class Lab:
    """The API with backfills whose processes are scripted, over a job with three committed slices."""

    def __init__(self, ledger: Ledger, directory: Path) -> None:
        self.ledger, self.directory = ledger, directory
        self.server = LedgerServer(ledger)
        self.started: list[tuple[str, int]] = []
        self.discarded: list[tuple[str, int]] = []
        self.index_is_away = False
        self.generation_in_index = 0
        self.leads = True
        self.external_services_up = True
        self.backfills = BackfillJobs(
            ledger,
            directory,
            lambda job: self.leads,
            lambda stream: self.api.log.range(stream).offset_first,
            self._discard,
            external_services_up=lambda: self.external_services_up,
            newest_generation=self._newest_generation,
            command=self._command,
            pause_first_s=0.01,
        )
        self.api = Api(ledger, ObedientSupervisor(ledger), backfills=self.backfills)
        self.api.apply(BOTH)
        self.api.log.ranges["turbines"].offset_first.update({0: 0, 1: 0})
        for number in (1, 2, 3):
            ledger.plan_slice(a_slice(number))
            ledger.commit_checkpoint(
                a_checkpoint(number, latest_event_ms=60_000 * number + 20_000, closes_ms=60_000 * number)
            )

    def _command(self, job: str, generation: int) -> list[str]:
        self.started.append((job, generation))
        arguments = [str(self.server.port), str(self.directory / "say"), job, str(generation)]
        return [sys.executable, "-m", "tests.support.fake_backfill", *arguments]

    def _discard(self, store: str, generation: int) -> None:
        if self.index_is_away:
            raise IndexUnavailable("Elasticsearch does not answer")
        self.discarded.append((store, generation))

    def _newest_generation(self, stores: Sequence[str]) -> int:
        assert stores == ["turbine-minute"]
        return self.generation_in_index

    def say(self, what: str) -> None:
        new = self.directory / "say.new"
        new.write_text(what, encoding="utf-8")
        new.rename(self.directory / "say")

    def ask(self, from_ms: int = 0, **more: int) -> dict[str, Any]:
        answer = self.api.ask("POST", PATH, params={"from_ms": from_ms, **more})
        assert answer.status_code == 202, answer.text
        return dict(answer.json())

    def wait_for(self, is_so: Callable[[BackfillRow], bool], what: str, generation: int = 2) -> BackfillRow:
        return wait_until(lambda: self.ledger.backfill("power", generation), is_so, what)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("STRANDLINE_LEDGER_URL", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    monkeypatch.setattr("strandline.services.supervision.backfill_jobs.FAILURES_MAX", ATTEMPTS)
    ledger = Ledger.open(os.environ["STRANDLINE_LEDGER_URL"])
    made = Lab(ledger, tmp_path)
    yield made
    made.backfills.close()
    made.server.close()
    ledger.close()


def processes_of(lab: Lab) -> list[int]:
    text, found = f"{lab.directory}:.backfill-power", []
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and text.encode() in Path(entry.path, "environ").read_bytes():
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def is_running(row: BackfillRow) -> bool:
    return row.state is BackfillState.RUNNING


def test_a_backfill_is_asked_for_carried_out_and_shown(lab: Lab) -> None:
    asked = lab.ask(30_000, to_ms=150_000)
    assert (asked["generation"], asked["state"], asked["version"]) == (2, "requested", 1)
    assert asked["windows"] == {"per_minute": {"after_ms": 0, "up_to_ms": 120_000}}
    assert lab.ask(30_000, to_ms=150_000) == asked, "the same again is the same"
    assert lab.api.ask("POST", PATH, params={"from_ms": 0}).status_code == 409
    lab.backfills.start()
    lab.wait_for(is_running, "running")
    pids = lab.directory / "pids.json"  # written at the same time as the process, which can report first that it runs
    wait_until(
        lambda: pids.exists() and json.loads(pids.read_text()), lambda found: "backfill-power" in (found or {}), "noted"
    )
    lab.say("chunk")
    lab.wait_for(lambda row: row.done_ms == 60_000, "a chunk further")
    shown = lab.api.ask("GET", f"{PATH}/2").json()
    assert (shown["done_ms"], shown["records_done"], shown["results"]) == (60_000, 10, {"per_minute": 4})
    lab.say("complete")
    lab.wait_for(lambda row: row.state is BackfillState.COMPLETE, "complete")
    wait_until(lambda: processes_of(lab), lambda found: not found, "all gone")
    (listed,) = lab.api.ask("GET", PATH).json()["backfills"]
    assert (listed["state"], listed["attempts"], listed["ended_ms"] is not None) == ("complete", 1, True)
    assert lab.discarded == []
    kinds = [event.kind for event in lab.ledger.events("power")]
    assert "backfill_requested" in kinds


@pytest.mark.guarantee("G766")
def test_the_number_of_a_backfill_that_the_ledger_does_not_contain_is_not_used_again(lab: Lab) -> None:
    lab.generation_in_index = 4
    assert lab.ask()["generation"] == 5


def test_the_control_service_asks_the_index_for_the_newest_generation(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "http://127.0.0.1:1"
    monkeypatch.setattr(LimitedWork, "start", lambda self: None)
    monkeypatch.setattr(control, "KafkaStatus", lambda bootstrap: lab.api.log)
    monkeypatch.setattr(control, "newest_generation", lambda asked, stores: 4 if asked == url else 0)
    settings = control.ControlSettings(data_dir=tmp_path, kafka_bootstrap="127.0.0.1:1", elasticsearch_url=url)
    made = control._dependencies(settings, lab.ledger, "control-test")
    try:
        assert made.backfills.request("power", 0, None, None).generation == 5
    finally:
        made.close_limited()


def test_a_process_that_dies_is_followed_by_one_that_goes_on(lab: Lab) -> None:
    lab.backfills.start()
    lab.ask()
    lab.wait_for(is_running, "running")
    lab.say("chunk")
    lab.wait_for(lambda row: row.done_ms == 60_000, "a chunk further")
    os.kill(json.loads((lab.directory / "pids.json").read_text())["backfill-power"], signal.SIGKILL)
    lab.wait_for(lambda row: row.epoch == 2, "at its second attempt")
    lab.say("complete")
    row = lab.wait_for(lambda row: row.state is BackfillState.COMPLETE, "complete")
    assert (row.done_ms, row.results) == (60_000, {"per_minute": 4})
    assert "backfill_died" in [event.kind for event in lab.ledger.events("power")]


def test_after_some_attempts_without_a_chunk_it_has_failed(lab: Lab) -> None:
    lab.backfills.start()
    lab.ask()
    for attempt in range(1, ATTEMPTS + 1):
        lab.wait_for(lambda row, n=attempt: row.epoch == n, "at the next attempt")
        lab.say("3")
    row = lab.wait_for(lambda row: row.state is BackfillState.FAILED, "failed")
    assert row.message.startswith(
        f"{ATTEMPTS} attempts in a row made no progress; the last: its process ended with code 3"
    )
    said = [event.message for event in lab.ledger.events("power") if event.kind == "backfill_died"]
    told = [n for n in range(1, ATTEMPTS + 1) if n.bit_count() == 1]
    assert [f"{n} attempts in a row" in message for n, message in zip(told, said, strict=True)] == [True] * len(told)
    wait_until(lambda: lab.discarded, lambda found: found == [("turbine-minute", 2)], "deleted")
    assert len(lab.started) == ATTEMPTS


def end_away(lab: Lab, times: int) -> None:
    """Let `times` attempts in a row report that an outside service does not answer."""
    first = lab.wait_for(is_running, "running").epoch
    for epoch in range(first, first + times):
        lab.wait_for(lambda row, n=epoch: row.epoch == n, "at the next attempt")
        lab.say(str(EXIT_AWAY))


@pytest.mark.guarantee("G77")
def test_while_something_outside_does_not_answer_it_waits(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.services.supervision.backfill_jobs.OUTAGE_PAUSE_MAX_S", 0.05)
    lab.external_services_up = False
    lab.backfills.start()
    lab.ask()
    end_away(lab, ATTEMPTS + 2)
    lab.wait_for(lambda row: row.epoch == ATTEMPTS + 3, "at the next attempt")
    lab.say("complete")
    lab.wait_for(lambda row: row.state is BackfillState.COMPLETE, "complete")
    assert lab.discarded == []


def test_one_that_calls_away_what_answers_has_failed_in_the_end(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.services.supervision.backfill_jobs.OUTAGE_EXITS_MAX", 3)
    lab.backfills.start()
    lab.ask()
    end_away(lab, 3)
    row = lab.wait_for(lambda row: row.state is BackfillState.FAILED, "failed")
    assert row.message.startswith("3 attempts in a row made no progress")


def test_an_attempt_says_what_does_not_answer(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def complete(self: Backfill, row: BackfillRow) -> None:
        raise LogUnavailable("Kafka at k:9092 does not answer")

    monkeypatch.setattr(Backfill, "_complete", complete)
    lab.ask()
    settings = Settings(data_dir=lab.directory, ledger_url=os.environ["STRANDLINE_LEDGER_URL"])
    assert Backfill(settings, "power", 2).run() == EXIT_AWAY
    row = lab.ledger.backfill("power", 2)
    assert (row.state, row.message) == (BackfillState.RUNNING, "Kafka at k:9092 does not answer")


@pytest.mark.guarantee("G77")
def test_one_whose_process_can_not_be_started_has_failed_in_the_end(lab: Lab) -> None:
    (lab.directory / "logs").touch()  # no process gets a log
    lab.backfills.start()
    lab.ask()
    row = lab.wait_for(lambda row: row.state is BackfillState.FAILED, "failed")
    assert f"{ATTEMPTS} attempts in a row made no progress; the last: its process could not be started" in row.message
    assert len(lab.started) == ATTEMPTS


def test_one_that_fails_for_good_is_not_tried_again(lab: Lab) -> None:
    lab.backfills.start()
    lab.ask()
    lab.wait_for(is_running, "running")
    lab.say("fail")
    row = lab.wait_for(lambda row: row.state is BackfillState.FAILED, "failed")
    assert row.message == "the log is gone"
    wait_until(lambda: lab.discarded, bool, "deleted")
    assert len(lab.started) == 1


def test_one_that_is_cancelled_ends_at_once_and_leaves_nothing(lab: Lab) -> None:
    lab.backfills.start()
    lab.ask()
    lab.wait_for(is_running, "running")
    status = lab.api.ask("GET", PATH.rpartition("/")[0]).json()
    assert (status["backfill"]["generation"], status["backfill"]["state"]) == (2, "running")
    answer = lab.api.ask("POST", f"{PATH}/2/cancel")
    assert (answer.status_code, answer.json()["state"]) == (202, "cancelled")
    wait_until(lambda: processes_of(lab), lambda found: not found, "all gone")
    wait_until(lambda: lab.discarded, lambda found: found == [("turbine-minute", 2)], "deleted")
    assert lab.ledger.open_backfills() == []
    assert lab.api.ask("GET", PATH.rpartition("/")[0]).json()["backfill"] is None
    assert lab.api.ask("POST", f"{PATH}/3/cancel").status_code == 404
    assert lab.ask()["generation"] == 3


def test_one_that_is_cancelled_while_the_index_is_away_is_ended_all_the_same(lab: Lab) -> None:
    lab.index_is_away = True
    lab.backfills.start()
    lab.ask()
    lab.wait_for(is_running, "running")
    lab.api.ask("POST", f"{PATH}/2/cancel")
    wait_until(lambda: processes_of(lab), lambda found: not found, "all gone")
    assert lab.ask()["generation"] == 3
    lab.wait_for(is_running, "running", 3)


def test_only_who_leads_the_job_carries_it_out(lab: Lab) -> None:
    lab.backfills.start()
    lab.leads = False
    lab.ask()
    # The next look after this one has seen it.
    wait_until(lambda: lab.backfills.is_alive() and lab.ledger.open_backfills(), bool, "asked for")
    assert lab.started == []
    lab.leads = True
    lab.wait_for(is_running, "running")
    lab.leads = False
    wait_until(lambda: processes_of(lab), lambda found: not found, "all gone")
    assert lab.ledger.backfill("power", 2).state is BackfillState.RUNNING, "it is the next leader's to go on with"
    assert lab.discarded == []


def test_a_service_that_begins_takes_up_what_is_open(lab: Lab) -> None:
    lab.ask()
    lab.ledger.begin_backfill("power", 2)
    lab.backfills.start()
    assert lab.wait_for(lambda row: row.epoch == 2, "taken up").state is BackfillState.RUNNING
    lab.backfills.close()
    assert processes_of(lab) == []


def test_what_can_not_be_done_is_said(lab: Lab) -> None:
    assert lab.api.ask("POST", "/v1/jobs/nobody/backfills", params={"from_ms": 0}).status_code == 404
    assert lab.api.ask("POST", PATH).status_code == 422
    assert lab.api.ask("GET", f"{PATH}/2").status_code == 404
    assert lab.api.ask("GET", "/v1/jobs/nobody/backfills").status_code == 404
    nothing = lab.api.ask("POST", PATH, params={"from_ms": 10**13})
    assert (nothing.status_code, "nothing to recompute" in nothing.json()["detail"]) == (409, True)
    lab.api.log.ranges["turbines"].offset_first.update({0: 11})
    lost = lab.api.ask("POST", PATH, params={"from_ms": 0})
    assert (lost.status_code, lost.json()["code"]) == (409, "log_truncated")
    assert "--from 1970-01-01T00:03:00.000Z" in lost.json()["detail"]


def test_one_by_the_version_before_does_not_answer_for_the_present_one(lab: Lab) -> None:
    """After an upgrade of the job, a new request must not return the older backfill.

    The client would take its results for those of the new version.
    """
    lab.ask()
    assert lab.api.outcomes(PIPELINE.replace("max(power)", "max(power * 2)")) == ["changed"]
    epoch = lab.ledger.begin_run("power", 1).epoch
    lab.ledger.plan_slice(a_slice(4, epoch, version=2))
    last = a_checkpoint(4, epoch, version=2, latest_event_ms=260_000, closes_ms=240_000)
    lab.ledger.commit_checkpoint(last)
    refused = lab.api.ask("POST", PATH, params={"from_ms": 0})
    assert refused.status_code == 409 and "backfill 2 of job power is requested" in refused.json()["detail"]


def run(monkeypatch: pytest.MonkeyPatch, url: str, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["strandline", "job", *arguments, "--url", url])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    return int(ended.value.code or 0)


def test_the_command_waits_shows_and_cancels(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with serving(lab.api.app) as url:
        asked = ("backfill", "power", "--from", "1970-01-01T00:01:00Z")
        lab.say("complete")  # at once, when it has begun
        assert run(monkeypatch, url, *asked) == 0
        assert "after 1970-01-01 00:01:00Z, up to 1970-01-01 00:03:00Z" in capsys.readouterr().out
        assert run(monkeypatch, url, "backfill", "power", "--cancel") == 1
        assert "has no running backfill" in capsys.readouterr().err
        assert run(monkeypatch, url, *asked, "--no-wait", "--json") == 0
        assert json.loads(capsys.readouterr().out)["windows"]["per_minute"] == {"after_ms": 60_000, "up_to_ms": 180_000}
        assert run(monkeypatch, url, "backfill", "power", "--cancel") == 0
        assert run(monkeypatch, url, "backfills", "power") == 0
        shown = capsys.readouterr().out
        assert "complete" in shown
        assert "cancelled as asked" in shown
        for wrong in ((), ("--cancel", "--from", "1970-01-01"), ("--cancel", "--to", "1970-01-01"), ("--from", "soon")):
            assert run(monkeypatch, url, "backfill", "power", *wrong) == 2


def test_the_command_fails_with_the_backfill(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(lab.api.app) as url:
        lab.say("fail")
        assert run(monkeypatch, url, "backfill", "power", "--from", "1970-01-01") == 1
        assert "is failed, and its results are not visible: the log is gone" in capsys.readouterr().err


def test_the_process_is_asked_for_what_was_asked() -> None:
    module = "strandline.processing.backfill.process"
    assert list(backfill_command("power", 3)[1:]) == ["-m", module, "--job", "power", "--generation", "3"]
