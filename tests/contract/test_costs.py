"""Costs of jobs in the ledger, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline.ledger.ledger import Ledger
from strandline.ledger.lifecycle import Origin
from strandline.ledger.states import JobState, RunCost


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    opened = Ledger.open(ledger_url)
    for job in ("power", "wind"):
        opened.submit_job(job, "", {})
    yield opened
    opened.close()


def a_cost(job: str, epoch: int, cpu_us: int, records_bytes: int = 10, state_bytes: int = 5) -> RunCost:
    return RunCost(job, epoch, cpu_us, records_bytes, state_bytes, cpu_us // 2)


def noted(ledger: Ledger, job: str = "power") -> tuple[int, int, int, int]:
    found = ledger.costs_of([job])[job]
    return found.cpu_us, found.bytes, found.state_bytes, found.cpu_us_recent


def test_a_repeated_note_changes_nothing(ledger: Ledger) -> None:
    epoch = ledger.begin_run("power", 1).epoch
    for cpu_us in (100, 300, 300):
        ledger.note_costs([a_cost("power", epoch, cpu_us)])
    assert noted(ledger) == (300, 10, 5, 150)
    assert "wind" not in ledger.costs_of(["power", "wind"])


def test_the_costs_of_all_runs_of_a_job_are_added(ledger: Ledger) -> None:
    first = ledger.begin_run("power", 1).epoch
    ledger.note_costs([a_cost("power", first, 100)])
    second = ledger.begin_run("power", 2).epoch
    ledger.note_costs([a_cost("power", second, 40, 3, 7)])
    ledger.note_costs([a_cost("power", second, 60, 4, 8)])
    assert noted(ledger) == (160, 14, 8, 30)


def test_a_replaced_run_changes_no_cost(ledger: Ledger) -> None:
    old, wind = ledger.begin_run("power", 1).epoch, ledger.begin_run("wind", 1).epoch
    ledger.note_costs([a_cost("power", old, 100)])
    ledger.begin_run("power", 2)
    ledger.note_costs([a_cost("power", old, 900), a_cost("wind", wind, 7), a_cost("gone", 1, 7)])
    assert noted(ledger)[0] == 100 and noted(ledger, "wind")[0] == 7
    assert "gone" not in ledger.costs_of(["gone"])


def test_a_reset_begins_again_at_zero(ledger: Ledger) -> None:
    epoch = ledger.begin_run("power", 1).epoch
    ledger.note_costs([a_cost("power", epoch, 100)])
    for state in (JobState.STARTING, JobState.STOPPING, JobState.STOPPED):
        ledger.move_job("power", state)
    ledger.reset_job(ledger.end_runs("power", "reset"), Origin({}, {}))
    assert ledger.costs_of(["power"]) == {}
