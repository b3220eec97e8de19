"""A ladder whose stack can't be stopped leaves nothing behind: neither processes nor a mounted disk."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.core.errors import StackError
from tests.support.chaos.job_stack import JobStack
from tests.support.faults.lab import Lab
from tests.support.waiting import stretched


def refuse() -> None:
    raise StackError("it does not end")


def noting(closed: list[str], name: str) -> SimpleNamespace:
    def note() -> None:
        closed.append(name)

    return SimpleNamespace(close=note, stop=note, shutdown=note)


def test_a_stack_that_can_not_be_stopped_is_killed_and_all_else_closed(capsys: pytest.CaptureFixture[str]) -> None:
    closed: list[str] = []
    server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    stack: Any = JobStack.__new__(JobStack)
    stack.loads, stack.histories, stack.job_set = [], {}, SimpleNamespace(jobs=[])
    stack._pid_files = [SimpleNamespace(alive=lambda: {"kafka": server.pid})]
    stack.stack = SimpleNamespace(stop=refuse, kafka_proxy=noting(closed, "kafka proxy"))
    stack._menders, stack.index_proxy = noting(closed, "menders"), noting(closed, "index proxy")
    stack.ledger_proxies, stack.postgresql = [noting(closed, "ledger proxy")], noting(closed, "postgresql")
    stack.small_disk = noting(closed, "disk")
    try:
        with pytest.raises(StackError):
            stack.close()
        assert server.wait(stretched(20)) == -9
    finally:
        server.kill()
    assert closed == ["menders", "index proxy", "kafka proxy", "ledger proxy", "postgresql", "disk"]
    assert f"killed what it had started: [{server.pid}]" in capsys.readouterr().err


def test_a_gateway_that_can_not_be_stopped_keeps_no_broker_alive() -> None:
    closed: list[str] = []
    lab: Any = Lab.__new__(Lab)
    lab.gateway, lab.cluster, lab.ledger = (
        SimpleNamespace(close=refuse),
        noting(closed, "kafka"),
        noting(closed, "ledger"),
    )
    lab.mqtt_broker, lab._has_own_cluster = noting(closed, "mqtt"), True
    with pytest.raises(StackError):
        lab.close()
    assert closed == ["kafka", "mqtt", "ledger"]
