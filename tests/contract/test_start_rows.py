"""The ledger of a start answers from rows that were read for many runs together. Its answers are those of the ledger itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from strandline.core.errors import Fenced, NotFound
from strandline.ledger.ledger import Ledger
from strandline.ledger.progress import RunRequest
from strandline.ledger.start_rows import StartLedger, start_ledgers
from strandline.processing.pipelines.stored import inputs_of_row
from strandline.processing.run.shared_starts import SharedStarts
from tests.support.ledgers import a_checkpoint, a_slice

JOBS = ["new", "few", "many", "planned", "old", "quiet"]
DOCUMENT = {"pipeline": "power", "input": {"stream": "turbines"}}


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    """Jobs with different histories."""
    opened = Ledger.open(ledger_url)
    opened.put_stream("turbines", {"stream": "turbines", "schema": {"x": "double"}})
    opened.put_stream("turbines", {"stream": "turbines", "schema": {"x": "double", "y": "double?"}})
    for job in JOBS:
        opened.submit_job(job, "", DOCUMENT | {"pipeline": job})
        opened.begin_run(job, pid=1)
    commit(opened, {"few": 5, "many": 60, "planned": 3, "old": 50, "quiet": 55})
    opened.plan_slice(a_slice(4, job="planned"))
    opened.raise_floor("old", 1, 45, 100)
    opened.add_result_index("few", "few-2026.11")
    opened.record_input("few", "turbines", {"stream": "turbines"})
    opened.submit_job("few", "", DOCUMENT | {"pipeline": "few", "steps": []})
    yield opened
    opened.close()


def commit(ledger: Ledger, last: dict[str, int]) -> None:
    """Commit slices of each job, up to this number. The first ones have results in an index."""
    for number in range(1, max(last.values()) + 1):
        there = [job for job in last if number <= last[job]]
        ledger.plan_slices([a_slice(number, job=job) for job in there])
        ledger.commit_checkpoints([
            a_checkpoint(number, job=job, stored={f"index {job}": number} if _emits(job, number) else {})
            for job in there
        ])  # fmt: skip


def _emits(job: str, number: int) -> bool:
    return bool(number % 2) and (job != "quiet" or number < 10)


QUESTIONS: list[Callable[[Any, str], object]] = [
    lambda ledger, job: ledger.job(job),
    lambda ledger, job: ledger.job_version(job),
    lambda ledger, job: ledger.job_version(job, 1),
    lambda ledger, job: ledger.runs(job),
    lambda ledger, job: ledger.runs(job, 1),
    lambda ledger, job: ledger.floor(job),
    lambda ledger, job: ledger.last_slice(job),
    lambda ledger, job: ledger.last_checkpoint(job),
    *(
        lambda ledger, job, first=first, last=last: ledger.slices(job, first, last)
        for first, last in [(1, 1), (1, 100), (3, 5), (30, 45), (40, 50), (46, 60), (60, 60), (61, 70), (-14, 5)]
    ),
    *(
        lambda ledger, job, limit=limit, before=before: ledger.checkpoints(job, limit, before)
        for limit in (1, 3, 20, 100)
        for before in (None, 1, 3, 40, 46, 60)
    ),
    *(lambda ledger, job, limit=limit: ledger.emitting_checkpoints(job, limit) for limit in (1, 10, 20, 40, None)),
    *(lambda ledger, job, at_ms=at_ms: ledger.first_slice_reaching(job, at_ms) for at_ms in range(0, 70_000, 2_500)),
    lambda ledger, job: ledger.backfills(job),
    lambda ledger, job: ledger.result_indices(job),
    lambda ledger, job: ledger.stream("turbines"),
    lambda ledger, job: ledger.stream_version("turbines"),
    lambda ledger, job: ledger.current_versions(["turbines", "none"]),
    lambda ledger, job: ledger.stream_documents("turbines"),
    lambda ledger, job: ledger.owner_of_sink("stream", "turbines"),
    lambda ledger, job: ledger.last_result_offsets(),
    lambda ledger, job: ledger.progress_of([job]),
    lambda ledger, job: ledger.job("few"),
]


def test_the_rows_give_the_answers_of_the_ledger(ledger: Ledger) -> None:
    starts = start_ledgers(ledger, JOBS, inputs_of_row)  # type: ignore[arg-type]  # it has the methods of a run's ledger
    for job in JOBS:
        start = starts[job]
        assert isinstance(start, StartLedger)
        for ask in QUESTIONS:
            assert ask(start, job) == ask(ledger, job)


def test_the_rows_of_many_jobs_are_read_in_one_transaction(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    database = ledger._database
    reading = database.reading
    monkeypatch.setattr(database, "reading", lambda action: read.append(action) or reading(action))
    starts = start_ledgers(ledger, JOBS, inputs_of_row)  # type: ignore[arg-type]
    assert read == ["read the rows for the starts of 6 jobs"]
    start = starts["many"]
    assert isinstance(start, StartLedger)
    start.last_checkpoint("many"), start.slices("many", 50, 60), start.emitting_checkpoints("many", 20)
    start.first_slice_reaching("many", 58_000), start.stream("turbines"), start.floor("many")
    assert len(read) == 1, "a start asks the database for nothing of this"


@pytest.mark.parametrize("change", [
    lambda start: start.plan_slice(a_slice(6, job="few")),
    lambda start: start.forget_indices("few", ["few-2026.11"]),
    lambda start: start.forget(),
])  # fmt: skip
def test_a_write_that_changes_the_rows_drops_them(ledger: Ledger, change: Callable[[StartLedger], None]) -> None:
    start = start_ledgers(ledger, ["few"], inputs_of_row)["few"]  # type: ignore[arg-type]
    assert isinstance(start, StartLedger)
    change(start)
    assert start.last_slice("few") == ledger.last_slice("few")
    assert start.result_indices("few") == ledger.result_indices("few")


def test_a_backfill_that_another_process_requests_meanwhile_is_seen(ledger: Ledger) -> None:
    start = start_ledgers(ledger, ["few"], inputs_of_row)["few"]  # type: ignore[arg-type]
    assert isinstance(start, StartLedger)
    assert start.backfills("few") == []
    ledger.request_backfill("few", 1, (0, None), {}, 0, 0, {})
    assert [row.generation for row in start.backfills("few")] == [2]


def test_the_document_of_an_input_is_recorded_once(ledger: Ledger) -> None:
    for job in ("few", "many"):
        start = start_ledgers(ledger, [job], inputs_of_row)[job]  # type: ignore[arg-type]
        assert isinstance(start, StartLedger)
        start.record_input(job, "turbines", {"stream": "turbines", "format": "json"})
    assert ledger.input_document("few", "turbines") == {"stream": "turbines"}
    assert ledger.input_document("many", "turbines") == {"stream": "turbines", "format": "json"}


def test_runs_begin_together_and_each_is_fenced_alone(ledger: Ledger) -> None:
    shared = SharedStarts(ledger)  # type: ignore[arg-type]
    requests = [RunRequest("few", 2), RunRequest("gone", 2), RunRequest("many", 2), RunRequest("few", 3)]
    found = shared._begin(requests)
    assert isinstance(found[requests[1]], NotFound)
    first, second, other = found[requests[0]], found[requests[3]], found[requests[2]]
    assert not isinstance(first, Exception) and not isinstance(second, Exception) and not isinstance(other, Exception)
    assert (first.epoch, second.epoch, other.epoch) == (2, 3, 2)
    assert shared.ledger_of(other).last_checkpoint("many") == ledger.last_checkpoint("many")
    with pytest.raises(Fenced, match="Run 2 of job few no longer owns it"):
        shared.ledger_of(first)
