"""Fencing with a real ledger: who may write, and whose producers a new run fences. No Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from strandline.core.errors import Fenced, InvalidSettings, LogUnavailable
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import BackfillState, WindowRange
from strandline.processing.emission import fencing
from strandline.processing.emission.fencing import (
    fence_older_runs,
    require_current_attempt,
    require_current_epoch,
)
from strandline.processing.source import opened_ledger
from tests.support.control import BOTH, Api
from tests.support.ledgers import a_checkpoint, a_slice

JOB = "power"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    yield f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    for kept in opened_ledger._kept.values():
        kept.close()
    opened_ledger._kept.clear()


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    opened = Ledger.open(url)
    assert Api(opened).outcomes(BOTH) == ["created", "created"]
    yield opened
    opened.close()


def test_a_run_may_write_until_a_newer_run_begins(ledger: Ledger, url: str) -> None:
    """The worker keeps its ledger open, and still sees the new run at the next write."""
    epoch = ledger.begin_run(JOB, 1).epoch
    require_current_epoch(url, JOB, epoch)
    newer = ledger.begin_run(JOB, 2).epoch
    with pytest.raises(Fenced, match=f"Run {epoch} of job {JOB} no longer owns it, run {newer} does"):
        require_current_epoch(url, JOB, epoch)
    require_current_epoch(url, JOB, newer)


def test_a_worker_without_its_ledger_may_not_write_and_opens_it_again(ledger: Ledger, url: str, tmp_path: Path) -> None:
    epoch = ledger.begin_run(JOB, 1).epoch
    file, moved = tmp_path / "ledger.sqlite", tmp_path / "moved.sqlite"
    file.rename(moved)
    with pytest.raises(InvalidSettings, match="There is no ledger"):
        require_current_epoch(url, JOB, epoch)
    assert url not in opened_ledger._kept
    moved.rename(file)
    require_current_epoch(url, JOB, epoch)


def a_backfill(ledger: Ledger) -> int:
    windows = {"per_minute": WindowRange(60_000, 120_000)}
    return ledger.request_backfill(JOB, 1, (0, None), windows, 1, 30, {"turbines": 1}).generation


def test_an_attempt_of_a_backfill_may_write_until_a_newer_attempt_begins(ledger: Ledger, url: str) -> None:
    generation = a_backfill(ledger)
    first = ledger.begin_backfill(JOB, generation).epoch
    require_current_attempt(url, JOB, generation, first)
    second = ledger.begin_backfill(JOB, generation).epoch
    with pytest.raises(Fenced, match=f"its newest attempt is {second}"):
        require_current_attempt(url, JOB, generation, first)
    require_current_attempt(url, JOB, generation, second)


def test_an_attempt_of_a_cancelled_backfill_may_not_write(ledger: Ledger, url: str) -> None:
    generation = a_backfill(ledger)
    epoch = ledger.begin_backfill(JOB, generation).epoch
    ledger.move_backfill(JOB, generation, BackfillState.CANCELLED, "no longer needed")
    with pytest.raises(Fenced, match="the backfill is cancelled"):
        require_current_attempt(url, JOB, generation, epoch)


class Kafka:
    """Fences producers, or doesn't respond."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fenced: list[tuple[str, str]] = []
        self.is_away = False
        monkeypatch.setattr(fencing, "fence_producers", self.fence)

    def fence(self, bootstrap: str, slots: Sequence[tuple[str, str]]) -> None:
        if self.is_away:
            raise LogUnavailable(f"Kafka at {bootstrap} does not answer")
        self.fenced += slots


def test_a_new_run_fences_each_producer_since_the_run_that_committed_last(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs before that were fenced by it."""
    kafka = Kafka(monkeypatch)
    for slots in (9, 2, 3):
        epoch = ledger.begin_run(JOB, 1).epoch
        ledger.set_run_slots(JOB, epoch, slots)
        if slots == 2:
            ledger.plan_slice(a_slice(1, epoch))
            ledger.commit_checkpoint(a_checkpoint(1, epoch))
    newest = ledger.begin_run(JOB, 1)
    number = fence_older_runs(ledger, "nowhere", newest)
    assert number == len(kafka.fenced) == len(set(kafka.fenced)) > 0
    tasks = {int(found) for slot, _ in kafka.fenced for found in slot.split("-") if found.isdecimal()}
    assert tasks == {0, 1, 2}, kafka.fenced


def test_a_run_that_can_not_fence_older_runs_does_not_begin(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = Kafka(monkeypatch)
    kafka.is_away = True
    ledger.begin_run(JOB, 1)
    with pytest.raises(LogUnavailable):
        fence_older_runs(ledger, "nowhere", ledger.begin_run(JOB, 1))
