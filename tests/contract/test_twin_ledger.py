"""The simulation's ledger keeps the promises of the real one."""

from __future__ import annotations

import inspect

import pytest

from strandline.ledger.roles import OrderLedger, PlannerLedger, RunLedger
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


def test_the_twin_has_only_methods_of_the_planner_of_a_run_and_of_orders() -> None:
    """The parameters of its methods are those of the real methods."""
    roles = (PlannerLedger, RunLedger, OrderLedger)
    for name, twin in vars(TwinLedger).items():
        if inspect.isfunction(twin) and not name.startswith("_"):
            real = next((found for role in roles if (found := getattr(role, name, None)) is not None), None)
            assert real is not None, name
            lacking = inspect.signature(twin).parameters.keys() - inspect.signature(real).parameters.keys()
            assert lacking == set(), name
