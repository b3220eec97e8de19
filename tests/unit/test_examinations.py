"""Examinations of the doctor that clients order: one at a time, in a process that ends, and without secrets in the findings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.services.jobs.examinations import Examinations, ExaminationView, examination_command
from strandline.services.processes.pids import PidFile
from tests.support.ports import free_port
from tests.support.waiting import stretched, wait_until

FINDING = {"subject": "Kafka", "state": "warning", "message": "1 replica", "remedy": "start more brokers"}
WRITE = f"print({json.dumps([FINDING])!r})"
HANG = "import time; time.sleep(600)"


@pytest.fixture
def started() -> Iterator[list[Examinations]]:
    made: list[Examinations] = []
    yield made
    for one in made:
        one.close()


def ended(examinations: Examinations) -> ExaminationView:
    return wait_until(examinations.state, lambda state: not state.is_running, "the examination has ended")


def test_an_examination_ends_with_its_findings(tmp_path: Path, started: list[Examinations]) -> None:
    examinations = Examinations(tmp_path, command=lambda: [sys.executable, "-c", WRITE])
    started.append(examinations)
    before = examinations.state()
    assert (before.is_running, before.started_ms, before.ended_ms, before.findings) == (False, None, None, [])
    first = examinations.start()
    assert (first.is_running, first.findings) == (True, [])
    found = ended(examinations)
    assert [vars(one) for one in found.findings] == [FINDING]
    assert found.started_ms is not None and found.ended_ms is not None and found.started_ms <= found.ended_ms
    assert PidFile(tmp_path).alive() == {}


def test_one_examination_runs_at_a_time_and_its_findings_are_kept_for_seconds(
    tmp_path: Path, started: list[Examinations]
) -> None:
    commands: list[str] = []

    def command() -> list[str]:
        commands.append(HANG if len(commands) == 1 else WRITE)
        return [sys.executable, "-c", commands[-1]]

    examinations = Examinations(tmp_path, command=command, kept_s=600)
    started.append(examinations)
    examinations.start()
    found = ended(examinations)
    assert examinations.start() == found, "kept"
    examinations._kept_s = 0
    second = examinations.start()
    assert second.is_running and second.findings == found.findings, "those of the one before"
    assert examinations.start() == second
    assert len(commands) == 2
    examinations.close()
    assert not examinations.state().is_running
    assert PidFile(tmp_path).alive() == {}


@pytest.mark.parametrize(
    ("program", "seconds_max"), [(HANG, 0.5), ("import sys; sys.exit('no settings')", 60), ("print('{')", 60)]
)
def test_an_examination_without_findings_is_a_finding(
    tmp_path: Path, started: list[Examinations], program: str, seconds_max: float
) -> None:
    examinations = Examinations(
        tmp_path, command=lambda: [sys.executable, "-c", program], seconds_max=seconds_max, kept_s=0
    )
    started.append(examinations)
    examinations.start()
    (finding,) = ended(examinations).findings
    assert (finding.subject, finding.state) == ("doctor", "wrong")
    assert str(tmp_path / "logs" / "doctor.log") in finding.remedy
    assert PidFile(tmp_path).alive() == {}


@pytest.mark.guarantee("G345")
def test_the_process_finds_each_server_that_is_gone_and_shows_no_secret(tmp_path: Path) -> None:
    away = f"127.0.0.1:{free_port()}"
    settings = {
        "DATA_DIR": str(tmp_path),
        "KAFKA_BOOTSTRAP": away,
        "KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "KAFKA_USERNAME": "me",
        "KAFKA_PASSWORD": "planted-1",
        "ELASTICSEARCH_URL": f"http://me:planted-2@{away}",
        "LEDGER_URL": f"postgresql+psycopg://me:planted-3@{away}/ledger",
        "SQL_SINK_URL": f"postgresql+psycopg://me:planted-4@{away}/results",
    }
    environment = os.environ | {f"STRANDLINE_{name}": value for name, value in settings.items()}
    ran = subprocess.run(
        examination_command(), env=environment, capture_output=True, text=True, check=True, timeout=stretched(90)
    )
    found = json.loads(ran.stdout)
    wrong = {one["subject"] for one in found if one["state"] == "wrong" and one["subject"] != "machine"}
    assert wrong == {"Kafka", "Elasticsearch", "ledger", "SQL sink"}
    assert all(one["remedy"] for one in found if one["state"] != "ok")
    assert "planted" not in ran.stdout + ran.stderr
