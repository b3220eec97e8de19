"""A store that is older than the ledger is noticed at the start of a run, and the run that restores its results is planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import Conflict, LedgerBehind, ResultsMissing
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import BackfillState, WindowRange
from strandline.processing.run import missing_results, newer_results, preparation
from strandline.processing.run.missing_results import plan_restore, require_results
from strandline.processing.run.preparation import prepare_run
from strandline.processing.slices.rewind import plan_of_job
from strandline.processing.source.recorded_slices import Replay
from strandline.results import generations, shared_searches
from strandline.results.generations import Generation, filter_of, swap_aliases
from strandline.results.sinks.contract import batch_of
from strandline.results.sinks.registry import form_of
from tests.support.ledgers import a_checkpoint, a_slice
from tests.support.sinks import OWN_STORES, emit_to, write_and_commit
from tests.unit.test_generations import Index
from tests.unit.test_newer_results import Lab, emit_by

INDEX = "index watts-2026.01"


class Store:
    """An index: emission -> number of documents. None: the index doesn't exist."""

    def __init__(self) -> None:
        self.emissions: dict[str, dict[int, int] | None] = {}

    def count_emissions(self, url: str, index: str, job: str, first: int) -> dict[int, int] | None:
        found = self.emissions.get(f"index {index}")
        return None if found is None else {number: count for number, count in found.items() if number >= first}

    def count_emission_range(self, url: str, index: str, job: str, first: int, last: int | None) -> int | None:
        found = self.count_emissions(url, index, job, first)
        return None if found is None else sum(n for number, n in found.items() if last is None or number <= last)


class StoredLab(Lab):
    """A job with six committed slices, of which slices 1, 2, 4 and 6 emitted results to an index; its fourth run begins."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        for number in (3, 4, 5, 6):
            if number > 3:
                ledger.plan_slice(a_slice(number, 3))
            stored = {INDEX: number} if number in (4, 6) else {}
            ledger.commit_checkpoint(a_checkpoint(number, 3, stored=stored, result_offsets={"minutes": {0: 7}}))
        self.run = replace(self.run, row=ledger.begin_run("power", 1))
        self.store = Store()
        self.store.emissions[INDEX] = {4: 4, 6: 6}

    def missing(self) -> str:
        with pytest.raises(ResultsMissing) as caught:
            require_results(self.run, "http://index")
        return str(caught.value)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoredLab]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    lab = StoredLab(ledger)
    for name in ("count_emissions", "count_emission_range"):
        monkeypatch.setattr(missing_results, name, getattr(lab.store, name))
    yield lab
    ledger.close()


def test_a_start_with_all_results_of_the_last_slices_goes_on(lab: StoredLab) -> None:
    """Results that a restore wrote under the number of a later slice count, and an interrupted slice hides nothing."""
    require_results(lab.run, "http://index")
    lab.store.emissions[INDEX] = {6: 10, 7: 99}
    require_results(lab.run, "http://index")
    lab.store.emissions[INDEX] = {4: 4, 6: 5, 7: 99}
    assert "1 of 10 results" in lab.missing()


@pytest.mark.guarantee(
    "G764",
    "If an index, a table, or the files lack results of the last slices that emitted any, a start writes nothing, and "
    "its error names the command that restores them.",
    promise="a-damaged-log-or-ledger-stops-the-job",
)
def test_an_index_that_lacks_results_of_the_last_slices_is_refused_with_the_command(lab: StoredLab) -> None:
    lab.store.emissions[INDEX] = {4: 4}
    assert "job power: 6 of 10 results of slices 4 to 6 are missing in index watts-2026.01" in lab.missing()
    assert "run strandline job backfill power --missing, which restores" in lab.missing()


def start(lab: StoredLab, monkeypatch: pytest.MonkeyPatch, index: Index) -> None:
    """Start a run, over doubles of Kafka and of the index."""
    last = lab.run.ledger.last_slice("power")
    assert last is not None
    lab.index.ends_of |= {stream: dict(ends) for stream, ends in last.offsets.items()}
    monkeypatch.setattr(preparation, "fence_older_runs", lambda *_: None)
    monkeypatch.setattr(newer_results, "last_records", lab.last_records)
    monkeypatch.setattr(newer_results, "newer_document", lab.newer_document)
    monkeypatch.setattr(newer_results, "unknown_generation", lab.unknown_generation)
    monkeypatch.setattr(generations, "request", index.request)
    monkeypatch.setattr(shared_searches, "request", index.request)
    prepare_run(lab.run, "http://index", plan_of_job(lab.run.ledger, lab.run.pipeline), None)


@pytest.mark.guarantee("G764")
def test_a_run_begins_only_with_all_results(lab: StoredLab, monkeypatch: pytest.MonkeyPatch) -> None:
    start(lab, monkeypatch, Index("watts-2026.01"))
    lab.store.emissions[INDEX] = {4: 4}
    with pytest.raises(ResultsMissing, match="6 of 10 results"):
        start(lab, monkeypatch, Index("watts-2026.01"))


def replaced_by(ledger: Ledger, to: BackfillState) -> Generation:
    """A backfill of the windows of the first two minutes, in this state."""
    windows = {"per_minute": WindowRange(0, 120_000)}
    row = ledger.request_backfill("power", 1, (0, None), windows, 2, 10, {"turbines": 1})
    ledger.begin_backfill("power", row.generation)
    ledger.move_backfill("power", row.generation, BackfillState.SWAPPING)
    if to is not BackfillState.SWAPPING:
        ledger.move_backfill("power", row.generation, to)
    return Generation(row.generation, 0, 120_000)


def test_a_start_sets_the_aliases_again_as_the_ledger_has_them(lab: StoredLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index was restored from a copy of the time before a backfill was complete."""
    second = replaced_by(lab.run.ledger, BackfillState.COMPLETE)
    index = Index("watts-2026.01", "watts.g2-2026.01")
    index.aliases["watts-2026.01"] = {"watts": None}
    start(lab, monkeypatch, index)
    assert index.shown("watts") == {"watts-2026.01": filter_of([second], 1), "watts.g2-2026.01": None}


@pytest.mark.guarantee("G766")
@pytest.mark.parametrize("is_known", [True, False], ids=["a backfill sets them", "the ledger is older"])
def test_a_start_does_not_take_back_a_generation_that_the_aliases_show(
    lab: StoredLab, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """A backfill may have set the aliases, and not have noted it yet. The ledger may also be from before a backfill."""
    shown = [replaced_by(lab.run.ledger, BackfillState.COMPLETE), Generation(3, 0, 120_000)]
    if is_known:
        assert replaced_by(lab.run.ledger, BackfillState.SWAPPING) == shown[1]
    index = Index("watts-2026.01", "watts.g2-2026.01", "watts.g3-2026.01")
    monkeypatch.setattr(generations, "request", index.request)
    monkeypatch.setattr(shared_searches, "request", index.request)
    swap_aliases("http://index", {"watts": shown})
    before = index.aliases
    if is_known:
        start(lab, monkeypatch, index)
    else:
        with pytest.raises(LedgerBehind, match="alias watts shows generation 3 already"):
            start(lab, monkeypatch, index)
    assert index.aliases == before


def test_an_index_that_was_deleted_is_not_compared(lab: StoredLab) -> None:
    """By hand, or by a lifecycle policy. If results may still go to it, the set-up of the writers refuses the start."""
    lab.store.emissions[INDEX] = None
    require_results(lab.run, "http://index")


def test_results_that_a_backfill_replaced_are_not_compared(lab: StoredLab) -> None:
    lab.store.emissions[INDEX] = {}
    ledger = lab.run.ledger
    row = ledger.request_backfill(
        "power", 1, (0, None), {"per_minute": WindowRange(0, 360_000)}, 6, 10, {"turbines": 1}
    )
    ledger.begin_backfill("power", row.generation)
    assert "10 of 10" in lab.missing()
    ledger.move_backfill("power", row.generation, BackfillState.SWAPPING)
    ledger.move_backfill("power", row.generation, BackfillState.COMPLETE)
    require_results(lab.run, "http://index")


def _unlink_manifest(settings: Settings, directory: Path) -> None:
    next((directory / "results").rglob("000000000008.json")).unlink()


def _delete_rows(settings: Settings, directory: Path) -> None:
    from strandline.results.sinks.sql.writer import engine_of, sql_url

    with engine_of(sql_url(settings)).begin() as connection:
        connection.exec_driver_sql("DELETE FROM minutes WHERE strandline_emission = 8")


REMOVE_EMISSION_8: dict[str, Callable[[Settings, Path], None]] = {"files": _unlink_manifest, "sql": _delete_rows}
"""Sink -> what removes the results of emission 8 from it."""


@pytest.mark.guarantee("G764")
@pytest.mark.parametrize("kind", OWN_STORES)
def test_a_sink_that_lacks_results_is_refused(lab: StoredLab, tmp_path: Path, kind: str) -> None:
    settings = Settings(sql_sink_url=f"sqlite:///{tmp_path / 'results.sqlite'}")
    writer: Any = emit_by(lab, settings, emit_to(kind, tmp_path))
    writer.prepare(None)
    stored = {}
    for number in (7, 8):
        stored = write_and_commit(writer, [batch_of(writer.shape, [number])], 4, number).stored
        lab.run.ledger.plan_slice(a_slice(number, 4))
        offsets = {"minutes": {0: 7}}
        lab.run.ledger.commit_checkpoint(a_checkpoint(number, 4, stored=stored, result_offsets=offsets))
        require_results(lab.run, "http://index")
    REMOVE_EMISSION_8[kind](settings, tmp_path)
    (store,) = stored
    assert f"1 of 2 results of slices 7 to 8 are missing in {store}" in lab.missing()
    lab.run.ledger.order_restore("power")
    plan = plan_restore(lab.run, "http://index")
    assert plan is not None and (plan.restores_from, plan.slice_committed) == (8, 8)
    assert plan.merges_restored is form_of(kind).merges_slices


@pytest.mark.guarantee(
    "G765",
    "`strandline job backfill NAME --missing` restores exactly the missing results, under the same ids, and writes "
    "nothing twice. Then the job continues.",
    promise="a-damaged-log-or-ledger-stops-the-job",
)
def test_a_restore_emits_the_slices_from_the_first_missing_result_on(lab: StoredLab) -> None:
    assert plan_restore(lab.run, "http://index") is None, "it wasn't ordered"
    lab.run.ledger.order_restore("power")
    lab.store.emissions[INDEX] = {4: 3}
    plan = plan_restore(lab.run, "http://index")
    assert plan is not None and (plan.restores_from, plan.slice_committed, plan.slice_replayed) == (4, 6, 3)
    assert plan.slice_first <= 4 and plan.emitted == {"per_minute": 0}
    assert [number for number in range(1, 9) if plan.restores(number)] == [4, 5, 6]
    assert lab.run.ledger.job("power").restores, "until the run has restored them"


def test_a_restore_without_a_missing_result_is_done(lab: StoredLab) -> None:
    lab.run.ledger.order_restore("power")
    assert plan_restore(lab.run, "http://index") is None
    assert not lab.run.ledger.job("power").restores


def test_results_of_another_version_are_not_restored(lab: StoredLab) -> None:
    lab.store.emissions[INDEX] = {}
    lab.run.ledger.order_restore("power")
    lab.run = replace(lab.run, row=replace(lab.run.row, version=2))
    with pytest.raises(Conflict, match=r"version 1 emitted some of them.*strandline job backfill power --from TIME"):
        plan_restore(lab.run, "http://index")


@pytest.mark.guarantee("G765")
def test_no_batch_of_a_replay_contains_slices_before_and_after_the_first_restored_one(lab: StoredLab) -> None:
    def batches(**changed: Any) -> list[list[int]]:
        replay, found, first = Replay(lab.run.ledger, "power", 6, 10_000, **changed), [], 1
        while first <= 6:
            found.append([row.number for row in replay.batch_from(first)])
            first = found[-1][-1] + 1
        return found

    assert batches() == [[1, 2, 3, 4, 5, 6]]
    assert batches(restores_from=4) == [[1, 2, 3], [4, 5, 6]]
    assert batches(restores_from=4, merges_restored=False) == [[1, 2, 3], [4], [5], [6]]
