"""The audit's process: what it writes to stdout and its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import LogUnavailable
from strandline.core.settings import Settings
from strandline.ledger.states import Totals
from strandline.processing.audit import process
from strandline.processing.audit.index_reader import EndRange
from strandline.processing.audit.parts import Account, Part
from strandline.processing.audit.plan import AuditPlan
from strandline.processing.audit.report import AuditReport, Outcome
from strandline.processing.audit.stores import ROWS_SCHEMA
from strandline.processing.audit_queries.table import Table

NOTHING = Totals(0, 0, {}, {})
REPORT = AuditReport("power", "clean", "", None, None, 1, 9, NOTHING, NOTHING, [], [], [], 0, [], 1.5)


class PlannedAudit:
    """An audit with scripted findings."""

    answer: AuditReport | LogUnavailable

    def __init__(self, *_: Any) -> None: ...

    def run(self) -> AuditReport:
        if isinstance(self.answer, LogUnavailable):
            raise self.answer
        return self.answer


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch) -> type[PlannedAudit]:
    monkeypatch.setattr(process, "Audit", PlannedAudit)
    monkeypatch.setattr(process, "configure_logs", lambda **_: None)
    return PlannedAudit


@pytest.mark.parametrize(("outcome", "code"), [("clean", 0), ("differences", 3), ("incomplete", 1)])
def test_the_exit_code_tells_the_outcome(
    audit: type[PlannedAudit], capsys: pytest.CaptureFixture[str], outcome: Outcome, code: int
) -> None:
    audit.answer = replace(REPORT, outcome=outcome)
    assert process.main(["--job", "power"]) == code
    assert json.loads(capsys.readouterr().out)["report"]["outcome"] == outcome


def test_an_audit_that_failed_says_why_and_exits_with_1(
    audit: type[PlannedAudit], capsys: pytest.CaptureFixture[str]
) -> None:
    audit.answer = LogUnavailable("Kafka is away")
    assert process.main(["--job", "power"]) == 1
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["error"]["message"] == "Kafka is away"


def test_where_nothing_is_compared_no_dead_letter_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first dead letters can be gone, and an audit that reads them then ends with an error."""
    read: list[Part] = []

    def run(_step: str, parts: Sequence[Part]) -> Account:
        read.extend(parts)
        return Account()

    monkeypatch.setattr(process, "_run", run)
    settings = Settings(data_dir=tmp_path, ledger_url=f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    audit = process.Audit(settings, "power", EndRange())
    plan = AuditPlan("power", EndRange(), spans=(), slice_first=10, slice_last=9, slice_committed=9)
    assert audit._read_stores(plan, {}, {}, {0: 24}, Table(tmp_path / "compared", ROWS_SCHEMA)) == {}
    assert read == []


def test_what_a_function_prints_is_no_message() -> None:
    """The output is written to stderr, which is the audit's log."""
    program = (
        "import os; from strandline.processing.audit.progress import keep_stdout, write_message; keep_stdout(); "
        "print(250_000, flush=True); os.system('echo {}'); write_message('progress', {'done': 1})"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (said.stdout, said.stderr) == ('{"progress": {"done": 1}}\n', "250000\n{}\n")
