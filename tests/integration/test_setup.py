"""The set-up of a deployment as a process: what is missing is one sentence, and it may run again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.ledger.ledger import Ledger
from tests.support.ports import free_port
from tests.support.waiting import stretched


def set_up(**settings: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {f"STRANDLINE_{name.upper()}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "strandline.services.setup"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=stretched(120))


@pytest.mark.long
def test_the_ledger_is_ready_and_a_second_run_changes_nothing(kafka: str, elasticsearch: str, ledger_url: str) -> None:
    for _ in range(2):
        ran = set_up(kafka_bootstrap=kafka, elasticsearch_url=elasticsearch, ledger_url=ledger_url)
        assert ran.returncode == 0, ran.stderr
    ledger = Ledger.open(ledger_url)
    assert list(ledger.streams()) == []
    ledger.close()


@pytest.mark.parametrize("missing", [pytest.param("kafka", marks=pytest.mark.long), "elasticsearch"])
def test_what_does_not_answer_is_said(missing: str, kafka: str, elasticsearch: str, tmp_path: Path) -> None:
    addresses = {"kafka_bootstrap": kafka, "elasticsearch_url": elasticsearch}
    away = f"127.0.0.1:{free_port()}"
    addresses |= {"kafka_bootstrap": away} if missing == "kafka" else {"elasticsearch_url": f"http://{away}"}
    ran = set_up(ledger_url=f"sqlite:///{tmp_path}/ledger.sqlite", **addresses)
    assert ran.returncode == 1
    said = ran.stderr.splitlines()[-1]
    assert said.startswith("strandline: ") and away in said, ran.stderr
    assert "Traceback" not in ran.stderr
