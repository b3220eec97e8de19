"""The cost of a rewind as the status shows it, and the warning before retention cuts it off."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import strandline
from strandline.ledger.ledger import Ledger
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.slices.rewind import RewindCost, plan_of_job, rewind_cost
from strandline.services.jobs.checked_ahead import CheckedAhead
from strandline.services.jobs.job_status import (
    StreamRanges,
    _checked_before,
    check_pipelines,
    job_statuses,
    rewind_view,
)
from tests.support.control import BOTH, Api
from tests.support.ledgers import a_checkpoint, a_slice
from tests.support.statements import counted_statements
from tests.support.waiting import wait_until

HOUR_MS = 3_600_000


def cost(needed_since_ms: int | None, records: int = 1_000) -> RewindCost:
    return RewindCost(records, 4.0, {}, needed_since_ms)


@pytest.mark.parametrize(("hours_ago", "says"), [(17, ""), (20, "in 4h"), (25, "a restart would fail")])
def test_the_status_warns_before_retention_reaches_what_a_rewind_needs(hours_ago: int, says: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    view = rewind_view(cost(now_ms - hours_ago * HOUR_MS + 60_000), 24 * HOUR_MS)
    assert says in view.warning
    assert bool(view.warning) == bool(says)
    assert view.retention_left_ms is not None


@pytest.mark.parametrize(("one", "retention_ms"), [(cost(None), HOUR_MS), (cost(0, 0), HOUR_MS), (cost(0), -1)])
def test_nothing_is_warned_of_where_nothing_can_be_lost(one: RewindCost, retention_ms: int) -> None:
    view = rewind_view(one, retention_ms)
    assert (view.warning, view.retention_left_ms) == ("", None)


def test_completed_is_written_in_one_place() -> None:
    """The state of an ended batch has its own word in the API. A second place with it could differ."""
    root = Path(strandline.__file__).parent
    shown_by = [
        *root.glob("services/jobs/**/*.py"),
        *root.glob("services/rest/**/*.py"),
        *root.glob("services/cli/**/*.py"),
        *root.glob("frontends/client/*.py"),
    ]
    assert [path.name for path in shown_by if '"completed"' in path.read_text()] == []


def add_jobs(ledger: Ledger, first: int, last: int) -> None:
    """Add jobs: some without a slice, some with several committed slices, some with a planned slice, some of other guarantees."""
    document = ledger.job_version("power").document
    for number in range(first, last + 1):
        name = f"job-{number}"
        guarantee = {"guarantee": "none"} if number % 3 == 0 else {}
        ledger.submit_job(name, "", document | {"pipeline": name} | guarantee)
        epoch = ledger.begin_run(name, 1).epoch
        for at in range(1, number % 5 + 1):
            ledger.plan_slice(a_slice(at, epoch, name))
            ledger.commit_checkpoint(a_checkpoint(at, epoch, name, emitted={}, closes_ms=100 * at))
        if number % 2:
            ledger.plan_slice(a_slice(number % 5 + 1, epoch, name))


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield Api(ledger)
    ledger.close()


def test_the_status_of_many_jobs_costs_as_many_queries_as_that_of_a_few(api: Api) -> None:
    assert api.outcomes(BOTH) == ["created", "created"]
    counts = []
    for first, last in ((1, 3), (4, 60)):
        add_jobs(api.ledger, first, last)
        with counted_statements() as statements:
            assert len(job_statuses(api.ledger, StreamRanges(api.log), api.ledger.jobs())) == last + 1
        counts.append(len(statements))
    assert counts[0] == counts[1] < 40


@pytest.mark.parametrize("read", ["first_slices_reaching", "replay_starts"])
def test_a_statement_about_rewinds_is_compiled_once_for_any_number_of_jobs(api: Api, read: str) -> None:
    """A text with a parameter for each job would be compiled at each call, which takes longer than the query."""
    with counted_statements() as statements:
        for count in (1, 50):
            getattr(api.ledger, read)({f"job-{number}": number for number in range(count)})
    first, second = (one for one in statements if "checkpoints" in one)
    assert first == second


def test_the_first_status_after_a_start_checks_no_pipeline(api: Api) -> None:
    assert api.outcomes(BOTH) == ["created", "created"]
    add_jobs(api.ledger, 1, 9)
    _checked_before.cache_clear()
    ahead = CheckedAhead(api.ledger)
    ahead.start()
    wait_until(lambda: _checked_before.cache_info().misses, lambda checked: checked == 10, "10 checked pipelines")
    ahead.close()
    job_statuses(api.ledger, StreamRanges(api.log), api.ledger.jobs())
    assert (_checked_before.cache_info().misses, _checked_before.cache_info().hits) == (10, 10)


def test_the_checks_after_a_start_leave_out_a_job_without_its_stream(api: Api) -> None:
    assert api.outcomes(BOTH) == ["created", "created"]
    add_jobs(api.ledger, 1, 2)
    document = api.ledger.job_version("power").document
    api.ledger.submit_job("alone", "", document | {"pipeline": "alone", "input": {"stream": "nowhere"}})
    _checked_before.cache_clear()
    assert len(list(check_pipelines(api.ledger, api.ledger.jobs()))) == 4
    assert _checked_before.cache_info().misses == 3


def test_the_cost_of_a_rewind_is_the_same_for_one_job_and_for_many(api: Api) -> None:
    assert api.outcomes(BOTH) == ["created", "created"]
    add_jobs(api.ledger, 1, 30)
    shown = set()
    for status in job_statuses(api.ledger, StreamRanges(api.log), api.ledger.jobs()):
        pipeline = load_pipeline(api.ledger, status.name, 1)
        alone = rewind_cost(api.ledger, plan_of_job(api.ledger, pipeline), status.name)
        has_slice = api.ledger.last_slice(status.name) is not None
        found = None if status.rewind is None else (status.rewind.records, status.rewind.seconds)
        assert found == ((alone.records, round(alone.seconds, 1)) if has_slice else None)
        shown.add(alone.records)
    assert len(shown) > 3
