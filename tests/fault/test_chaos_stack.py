"""Servers that the ladder's harness restarts stay up."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.chaos.dump import query
from tests.support.chaos.job_stack import JobStack
from tests.support.postgresql import find_programs


@pytest.mark.skipif(
    find_programs() is None, reason="POSTGRESQL IS NOT INSTALLED: its kill in the ladder was NOT tested"
)
def test_a_postgresql_that_was_killed_stays_up_when_it_was_started_again(tmp_path: Path) -> None:
    """PostgreSQL ends with the thread that started it, so that thread must stay."""
    stack = JobStack(tmp_path, 1, ledger="postgresql", kinds=["postgresql"])
    with closing(stack):
        stack.stack.kafka_proxy.start()
        assert stack.postgresql is not None
        (pid,) = stack.postgresql.pids()
        os.kill(pid, signal.SIGKILL)
        stack.mend_all(["postgresql"])
        began_s = time.monotonic()
        while time.monotonic() - began_s < 1.0:  # sleeps: it would take milliseconds to go down
            assert query(stack.ledger_url, "SELECT 1 AS one") == [{"one": 1}]
