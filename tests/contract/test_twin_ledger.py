"""The simulation's ledger keeps the promises of the real one."""

from __future__ import annotations

import pytest

from tests.contract import test_ledger
from tests.support.twin_ledger import TwinLedger


@pytest.fixture
def ledger() -> TwinLedger:
    return TwinLedger()


@pytest.fixture
def running(ledger: TwinLedger) -> TwinLedger:
    ledger.submit_job("power", "pipeline: power", {"pipeline": "power"})
    ledger.begin_run("power", pid=4711)
    return ledger


class TestRuns(test_ledger.TestRuns):
    pass


class TestSlices(test_ledger.TestSlices):
    pass


class TestCheckpoints(test_ledger.TestCheckpoints):
    pass


class TestManyJobs(test_ledger.TestManyJobs):
    pass
