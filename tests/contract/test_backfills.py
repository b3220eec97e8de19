"""Contract of the ledger for backfills, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest
import sqlalchemy as sa

from strandline.core.errors import Conflict, Fenced, NotFound
from strandline.ledger.backfills import SAMPLE_MAX
from strandline.ledger.database import Database
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import BACKFILL_MOVES, OPEN_BACKFILLS, BackfillRow, BackfillState, WindowRange
from tests.support.ledgers import a_checkpoint, a_slice

WINDOWS = {"per_minute": WindowRange(0, 120_000), "per_hour": WindowRange(0, 0)}


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    """A ledger with the job `power`, which has committed one slice."""
    opened = Ledger.open(ledger_url)
    opened.submit_job("power", "pipeline: power", {"pipeline": "power"})
    opened.begin_run("power", pid=4711)
    opened.plan_slice(a_slice(1))
    opened.commit_checkpoint(a_checkpoint(1))
    yield opened
    opened.close()


def ask(ledger: Ledger, from_ms: int = 0, to_ms: int | None = None) -> BackfillRow:
    return ledger.request_backfill("power", 1, (from_ms, to_ms), WINDOWS, 1, 30, {"turbines": 1})


def note(ledger: Ledger, epoch: int, done_ms: int, **more: list[str]) -> BackfillRow:
    counts = {"per_minute": 5}
    return ledger.record_backfill(
        "power",
        2,
        epoch,
        done_ms=done_ms,
        records_done=10,
        results=counts,
        refused={"per_minute": 1},
        sample=more.get("sample", ["why"]),
    )


def test_a_backfill_is_kept_and_its_generations_count_from_two(ledger: Ledger) -> None:
    row = ask(ledger, 5, 7)
    assert (row.generation, row.state, row.epoch, row.done_ms) == (2, BackfillState.REQUESTED, 0, None)
    assert (row.from_ms, row.to_ms, row.windows, row.records) == (5, 7, WINDOWS, 30)
    assert ledger.backfill("power", 2) == row
    assert ledger.open_backfills() == [row]
    ledger.move_backfill("power", 2, BackfillState.CANCELLED, "enough")
    assert ask(ledger).generation == 3
    assert [one.generation for one in ledger.backfills("power")] == [2, 3]
    assert [one.generation for one in ledger.open_backfills()] == [3]


def test_the_newest_backfills_of_all_jobs_are_listed(ledger: Ledger) -> None:
    ledger.submit_job("wind", "pipeline: wind", {"pipeline": "wind"})
    times = iter(range(1_000, 2_000))
    ledger._clock_ms = lambda: next(times)
    ask(ledger)
    ledger.move_backfill("power", 2, BackfillState.CANCELLED)
    ledger.request_backfill("wind", 1, (0, None), WINDOWS, 1, 0, {})
    newest = ask(ledger)
    shown = [(one.job, one.generation) for one in ledger.newest_backfills(10)]
    assert shown == [("power", 3), ("wind", 2), ("power", 2)]
    assert ledger.newest_backfills(1) == [newest]


def test_a_job_has_one_open_backfill_and_the_same_again_is_the_same(ledger: Ledger) -> None:
    row = ask(ledger)
    assert ask(ledger) == row
    with pytest.raises(Conflict, match="backfill 2 of job power is requested"):
        ask(ledger, 1)


def test_the_schema_itself_refuses_a_second_open_one(ledger: Ledger, ledger_url: str) -> None:
    ask(ledger)
    database = Database(ledger_url)
    copied = (
        "job, 9, version, from_ms, to_ms, windows, slice, 'running', epoch, done_ms, records, records_done, results"
    )
    rest = "refused, sample, message, requested_ms, updated_ms, ended_ms, stream_versions"
    with pytest.raises(Conflict), database.writing("add another") as connection:
        connection.execute(sa.text(f"INSERT INTO backfills SELECT {copied}, {rest} FROM backfills"))
    database.close()


@pytest.mark.guarantee(
    "G97",
    "A job has at most one open backfill. A superseded attempt changes nothing, and a backfill that may have been "
    "shown can't be cancelled.",
    promise="upgrades-backfills-and-resets-mix-no-results",
)
def test_of_those_who_ask_at_once_one_is_heard(ledger: Ledger) -> None:
    def one(number: int) -> bool:
        try:
            return ask(ledger, number).from_ms == number
        except Conflict:
            return False

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(one, range(16))) == 1
    assert len(ledger.backfills("power")) == 1


def test_an_attempt_adds_up_what_it_has_done(ledger: Ledger) -> None:
    ask(ledger)
    row = ledger.begin_backfill("power", 2)
    assert (row.state, row.epoch) == (BackfillState.RUNNING, 1)
    note(ledger, 1, 60_000)
    row = note(ledger, 1, 120_000)
    assert (row.done_ms, row.records_done, row.results, row.refused) == (
        120_000,
        10,
        {"per_minute": 10},
        {"per_minute": 2},
    )
    assert row.sample == ["why", "why"]
    assert note(ledger, 1, 120_000) == row, "a note whose answer was lost may be repeated"
    many = note(ledger, 1, 180_000, sample=["x"] * 2 * SAMPLE_MAX)
    assert len(many.sample) == SAMPLE_MAX


@pytest.mark.guarantee("G97")
def test_a_new_attempt_fences_the_one_before(ledger: Ledger) -> None:
    ask(ledger)
    ledger.begin_backfill("power", 2)
    note(ledger, 1, 60_000)
    ledger.move_backfill("power", 2, BackfillState.RUNNING, "Spark is gone", epoch=1)
    row = ledger.begin_backfill("power", 2)
    assert (row.epoch, row.done_ms, row.message) == (2, 60_000, ""), "it goes on where the other one was"
    with pytest.raises(Fenced, match="attempt 2 has begun"):
        note(ledger, 1, 120_000)
    with pytest.raises(Fenced):
        ledger.move_backfill("power", 2, BackfillState.SWAPPING, epoch=1)
    assert ledger.backfill("power", 2).done_ms == 60_000


def test_what_was_cancelled_is_not_gone_on_with(ledger: Ledger) -> None:
    ask(ledger)
    ledger.begin_backfill("power", 2)
    row = ledger.move_backfill("power", 2, BackfillState.CANCELLED, "enough")
    assert (row.message, row.ended_ms is not None) == ("enough", True)
    with pytest.raises(Conflict, match="is cancelled"):
        note(ledger, 1, 60_000)
    with pytest.raises(Conflict, match="is cancelled"):
        ledger.begin_backfill("power", 2)
    assert ledger.move_backfill("power", 2, BackfillState.CANCELLED, "again") == row


def test_at_its_swap_it_goes_on_there(ledger: Ledger) -> None:
    ask(ledger)
    ledger.begin_backfill("power", 2)
    ledger.move_backfill("power", 2, BackfillState.SWAPPING, epoch=1)
    row = ledger.begin_backfill("power", 2)
    assert (row.state, row.epoch) == (BackfillState.SWAPPING, 2)
    ledger.move_backfill("power", 2, BackfillState.COMPLETE, epoch=2)
    assert ledger.open_backfills() == []


@pytest.mark.guarantee("G97")
@pytest.mark.parametrize(("state", "to"), list(product(BackfillState, BackfillState)), ids=str)
def test_only_the_moves_of_the_table_are_made(ledger: Ledger, state: BackfillState, to: BackfillState) -> None:
    ask(ledger)
    ways = {
        BackfillState.REQUESTED: [],
        BackfillState.COMPLETE: [BackfillState.SWAPPING, BackfillState.COMPLETE],
    }
    if state is not BackfillState.REQUESTED:
        ledger.begin_backfill("power", 2)
    for step in ways.get(state, [] if state is BackfillState.RUNNING else [state]):
        ledger.move_backfill("power", 2, step)
    before = ledger.backfill("power", 2)
    assert before.state is state
    if to is state or to in BACKFILL_MOVES[state]:
        after = ledger.move_backfill("power", 2, to, "said")
        assert (after.state, after.ended_ms is None) == (to, to in OPEN_BACKFILLS)
    else:
        with pytest.raises(Conflict):
            ledger.move_backfill("power", 2, to)
        assert ledger.backfill("power", 2) == before


def test_what_is_not_there_is_not_found(ledger: Ledger) -> None:
    with pytest.raises(NotFound):
        ledger.backfill("power", 2)
    with pytest.raises(NotFound):
        ledger.begin_backfill("power", 2)
    with pytest.raises(NotFound):
        ledger.request_backfill("nobody", 1, (0, None), WINDOWS, 1, 0, {})
