"""The audit's process: what it writes to stdout and its exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from strandline.core.errors import LogUnavailable
from strandline.ledger.states import Totals
from strandline.processing.audit import process
from strandline.processing.audit.report import AuditReport, Outcome

NOTHING = Totals(0, 0, {}, {})
REPORT = AuditReport("power", "clean", "", None, None, 1, 9, NOTHING, NOTHING, [], [], [], 0, [], 1.5)


class PlannedAudit:
    """Finds what it was told to find."""

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
