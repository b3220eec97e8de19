"""Audits as background work: through the API and the command line, over processes that compute nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import Conflict, NotFound
from strandline.ledger.ledger import Ledger
from strandline.services.cli import commands as command_line
from strandline.services.supervision.audit_jobs import AuditJobs, AuditState, audit_command
from tests.support.control import BOTH, Api, ObedientSupervisor, serving
from tests.support.waiting import wait_until

REPORT: dict[str, Any] = {
    "job": "power",
    "outcome": "clean",
    "incomplete": "",
    "requested_after_ms": None,
    "requested_up_to_ms": None,
    "slice_first": 1,
    "slice_last": 9,
    "computed": {
        "records": 1_000,
        "accepted": 990,
        "rejected": {"late": 10},
        "results": {"per_minute": 40},
        "refused": None,
    },
    "ledger": {
        "records": 1_000,
        "accepted": 990,
        "rejected": {"late": 10},
        "results": {"per_minute": 40},
        "refused": None,
    },
    "totals_differences": [],
    "event_time_differences": [],
    "stores": [
        {
            "store": "turbine-minute",
            "stage": "per_minute",
            "after_ms": None,
            "up_to_ms": 60_000,
            "counts": {"same": 40},
        },
        {"store": "(dead letters)", "stage": "", "after_ms": None, "up_to_ms": None, "counts": {"same": 10}},
    ],
    "differences": 0,
    "sample": [],
    "seconds": 1.5,
}
MISSING = {
    "kind": "missing",
    "store": "turbine-minute",
    "label": "",
    "count": 1,
    "id": "abc",
    "place": "turbine-minute-2026.11",
    "end_ms": 60_000,
    "detail": "belongs in turbine-minute-2026.11",
}


class AuditLab:
    """The API with audits whose processes are scripted."""

    def __init__(self, ledger: Ledger, directory: Path) -> None:
        self.directory = directory
        self.commands: list[tuple[str, int | None, int | None]] = []
        self.audits = AuditJobs(ledger, directory, command=self._command)
        self.api = Api(ledger, ObedientSupervisor(ledger), self.audits)
        self.api.apply(BOTH)

    def _command(self, job: str, after_ms: int | None, up_to_ms: int | None) -> list[str]:
        self.commands.append((job, after_ms, up_to_ms))
        return [sys.executable, "-m", "tests.support.fake_audit", str(self.directory / "say"), job]

    def say(self, **what: object) -> None:
        new = self.directory / "say.new"
        new.write_text(json.dumps(what) if what else "", encoding="utf-8")
        new.rename(self.directory / "say")

    def wait_until_ended(self) -> AuditState:
        return wait_until(lambda: self.audits.state("power"), lambda state: state.state != "running", "ended")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AuditLab]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    lab = AuditLab(ledger, tmp_path)
    yield lab
    lab.audits.close()
    ledger.close()


def processes_with(text: str) -> list[int]:
    found = []
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and text.encode() in Path(entry.path, "environ").read_bytes():
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def test_an_audit_tells_its_progress_and_then_its_report(lab: AuditLab) -> None:
    answer = lab.api.ask("POST", "/v1/jobs/power/audit", params={"after_ms": 60_000})
    assert (answer.status_code, answer.json()["state"]) == (202, "running")
    assert answer.headers["location"] == "/v1/jobs/power/audit"

    def look() -> dict[str, Any]:
        return dict(lab.api.ask("GET", "/v1/jobs/power/audit").json())

    under_way = wait_until(look, lambda one: bool(one["total"]), "under way")
    assert (under_way["step"], under_way["done"], under_way["total"]) == ("reading the log", 3, 8)
    assert under_way["requested_after_ms"] == 60_000
    assert "audit-power" in json.loads((lab.directory / "pids.json").read_text())
    lab.say(report=REPORT)
    done = wait_until(look, lambda one: one["state"] != "running", "done")
    assert (done["state"], done["report"]) == ("done", REPORT)
    assert lab.commands == [("power", 60_000, None)]
    lab.audits.close()
    assert processes_with(f"{lab.directory}:.audit-power") == []
    assert "audit-power" not in json.loads((lab.directory / "pids.json").read_text())


def test_one_audit_at_a_time_and_the_same_again_is_the_same(lab: AuditLab) -> None:
    first = lab.audits.start("power", None, None)
    assert lab.audits.start("power", None, None).started_ms == first.started_ms
    with pytest.raises(Conflict, match="an audit of job power is running"):
        lab.audits.start("power", 1, None)
    lab.say(report=REPORT)
    lab.wait_until_ended()
    wait_until(lambda: lab.audits.is_idle(), bool, "idle")
    assert lab.audits.start("power", 1, None).state == "running"
    assert len(lab.commands) == 2


def test_an_audit_that_fails_says_why(lab: AuditLab) -> None:
    lab.audits.start("power", None, None)
    lab.say(error={"code": "not_found", "message": "job power has committed nothing yet"})
    state = lab.wait_until_ended()
    assert (state.state, state.message) == ("failed", "job power has committed nothing yet")


def test_an_audit_that_ends_without_a_word_has_failed(lab: AuditLab) -> None:
    lab.audits.start("power", None, None)
    lab.say()
    assert lab.wait_until_ended().message.startswith("the audit ended with code 0; its log is ")


def test_a_service_that_ends_ends_its_audit(lab: AuditLab) -> None:
    lab.audits.start("power", None, None)
    wait_until(lambda: lab.audits.state("power").total, bool, "under way")
    lab.audits.close()
    assert lab.audits.state("power").state == "failed"
    assert processes_with(f"{lab.directory}:.audit-power") == []


def test_there_is_nothing_to_show_before_the_first_audit(lab: AuditLab) -> None:
    with pytest.raises(NotFound, match="was not audited"):
        lab.audits.state("power")
    assert lab.api.ask("POST", "/v1/jobs/nobody/audit").status_code == 404
    assert lab.api.ask("POST", "/v1/jobs/power/audit", params={"after_ms": -1}).status_code == 422


@pytest.mark.parametrize(
    ("report", "code", "said"),
    [
        (REPORT, 0, ("40 same", "40 documents are equal to those computed from the log")),
        (
            {**REPORT, "outcome": "differences", "differences": 1, "sample": [MISSING]},
            3,
            ("missing", "abc", "1970-01-01 00:01:00Z", "the audit of job power found 1 differences"),
        ),
        (
            {
                **REPORT,
                "outcome": "differences",
                "differences": 1,
                "totals_differences": ["records: 1,000 by the log, 7 by the ledger"],
            },
            3,
            ("1,000 by the log, 7 by the ledger",),
        ),
        ({**REPORT, "outcome": "incomplete", "incomplete": "the log is short"}, 1, ("incomplete: the log is short",)),
    ],
    ids=["clean", "differences", "totals", "incomplete"],
)
@pytest.mark.parametrize("verb", [("audit",), ("job", "audit")], ids=" ".join)
def test_the_command_shows_the_report_and_fails_unless_it_is_clean(
    lab: AuditLab,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verb: tuple[str, ...],
    report: dict[str, Any],
    code: int,
    said: tuple[str, ...],
) -> None:
    lab.say(report=report)
    monkeypatch.setenv("COLUMNS", "200")
    with serving(lab.api.app) as url:
        monkeypatch.setattr(
            sys, "argv", ["strandline", *verb, "power", "--url", url, "--to", "1970-01-01T02:00:00+01:00"]
        )
        with pytest.raises(SystemExit) as ended:
            command_line.main()
    assert (ended.value.code or 0) == code
    captured = capsys.readouterr()
    assert [text for text in said if text not in captured.out + captured.err] == []
    is_progress = [line.startswith("audit of job power: ") for line in captured.err.splitlines()]
    assert is_progress.count(False) == (1 if code else 0), "progress, and a sentence when it is not clean"
    assert lab.commands == [("power", None, 3_600_000)]


@pytest.mark.parametrize(
    ("outcome", "code", "error"),
    [("clean", 0, None), ("differences", 3, "audit_differs"), ("incomplete", 1, "audit_incomplete")],
)
def test_with_json_the_report_and_the_error_are_one_object(
    lab: AuditLab,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    outcome: str,
    code: int,
    error: str | None,
) -> None:
    lab.say(report={**REPORT, "outcome": outcome, "incomplete": "the log is short", "differences": 1})
    with serving(lab.api.app) as url:
        monkeypatch.setattr(sys, "argv", ["strandline", "audit", "power", "--url", url, "--json"])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            command_line.main()
    assert (ended.value.code or 0) == code
    out = capsys.readouterr().out
    answer, _ = json.JSONDecoder().raw_decode(out, out.index("{\n"))  # between the server's log lines
    assert answer["outcome"] == outcome
    assert answer.get("error", {}).get("code") == error


def test_the_process_is_asked_for_what_was_asked() -> None:
    assert list(audit_command("power", None, None)[1:]) == [
        "-m",
        "strandline.processing.audit.process",
        "--job",
        "power",
    ]
    assert list(audit_command("power", 5, 7)[5:]) == ["--after-ms", "5", "--up-to-ms", "7"]


def test_the_last_audit_of_each_job_is_listed_without_its_report(lab: AuditLab) -> None:
    assert lab.api.ask("GET", "/v1/audits").json() == {"audits": []}
    lab.api.ask("POST", "/v1/jobs/power/audit", params={"up_to_ms": 60_000})

    def listed() -> dict[str, Any]:
        (one,) = lab.api.ask("GET", "/v1/audits").json()["audits"]
        return dict(one)

    running = wait_until(listed, lambda one: bool(one["total"]), "under way")
    assert (running["state"], running["done"], running["total"], running["outcome"]) == ("running", 3, 8, None)
    lab.say(report=REPORT)
    done = wait_until(listed, lambda one: one["state"] != "running", "done")
    assert (done["outcome"], done["differences"], done["seconds"]) == (
        REPORT["outcome"],
        REPORT["differences"],
        REPORT["seconds"],
    )
    assert done["requested_up_to_ms"] == 60_000 and "report" not in done
