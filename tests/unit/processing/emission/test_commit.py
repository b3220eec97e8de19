"""The commit of slices: the order of stores and checkpoint, replays that differ, restores, and fenced runs. Real ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from strandline.core.errors import Fenced, ReplayMismatch, SinkUnavailable
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.processing.emission.commit import SliceCommitter
from strandline.processing.emission.keyed_task import BucketOutcome
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.slices.rewind import RewindPlan
from strandline.processing.slices.spark_offset import offset_of_slice
from strandline.processing.source.slice_rows import SourceFacts
from tests.support.control import BOTH, Api
from tests.support.ledgers import a_checkpoint, a_slice

JOB = "power"
REJECTED = {"late": 1, "decode": 1}
"""Rejected records of each slice, as `a_checkpoint` has them."""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    assert Api(opened).outcomes(BOTH) == ["created", "created"]
    yield opened
    opened.close()


class Store:
    """A store whose rows become visible with `commit`. It notes which slice the ledger had committed at that time."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.commits: list[tuple[int, list[str], int]] = []
        """(slice, parts, last slice with a checkpoint)."""
        self.is_away = False

    def commit(self, number: int, epoch: int, parts: Sequence[str], digest: str) -> None:
        if self.is_away:
            raise SinkUnavailable("the table does not answer")
        last = self._ledger.last_checkpoint(JOB)
        self.commits.append((number, list(parts), last.slice if last else 0))


class Lab:
    """A run of a job whose earlier run has committed two slices."""

    def __init__(self, ledger: Ledger, plan: RewindPlan) -> None:
        self.ledger = ledger
        before = ledger.begin_run(JOB, 1).epoch
        for number in (1, 2):
            ledger.plan_slice(a_slice(number, before))
            ledger.commit_checkpoint(a_checkpoint(number, before, rejected=REJECTED))
        self.row = ledger.begin_run(JOB, 1)
        ledger.set_run_streams(JOB, self.row.epoch, {"turbines": 1})
        self.store = Store(ledger)
        self.first_commits: list[int] = []
        self.sweeps: list[int | None] = []
        index = SimpleNamespace(settled_ends=lambda topic: {0: 7})
        run = JobRun(Settings(), ledger, index, ledger.runs(JOB)[-1], load_pipeline(ledger, JOB, 1))  # type: ignore[arg-type]
        self.last = 0
        head = SimpleNamespace(json=lambda: json.dumps(offset_of_slice(self.last)))
        offsets = SimpleNamespace(values=lambda: SimpleNamespace(head=lambda: head))
        self.committer = SliceCommitter(
            run,
            plan,
            lambda: SimpleNamespace(availableOffsets=lambda: offsets),
            lambda: self.first_commits.append(self.row.epoch),
            {"table": self.store},  # type: ignore[dict-item]
            SimpleNamespace(closed=self.sweeps.append),  # type: ignore[arg-type]
        )

    def plan_slice(self, number: int) -> None:
        self.ledger.plan_slice(a_slice(number, self.row.epoch))

    def batch(self, last: int, *outcomes: BucketOutcome) -> None:
        """Let Spark call the committer with a batch up to slice `last`."""
        self.last = last
        rows = [{"outcome": msgspec.json.encode(one)} for one in outcomes]
        self.committer(SimpleNamespace(collect=lambda: rows), 0)  # type: ignore[arg-type]

    @property
    def committed(self) -> int:
        last = self.ledger.last_checkpoint(JOB)
        return last.slice if last else 0

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [dict(one.facts) for one in self.ledger.events(JOB) if one.kind == kind]


def facts(slices: int = 1, missing: int = 0) -> SourceFacts:
    rejected = {reason: slices * count for reason, count in REJECTED.items()}
    return SourceFacts(records=30 * slices - missing, rejected=rejected)


NEW = RewindPlan(slice_first=3, slice_committed=2)


def test_stores_are_notified_once_before_the_checkpoint(ledger: Ledger) -> None:
    lab = Lab(ledger, NEW)
    lab.plan_slice(3)
    lab.batch(3, BucketOutcome(facts=[facts()], parts={"table": ["a"]}), BucketOutcome(parts={"table": ["b"]}))
    assert lab.store.commits == [(3, ["a", "b"], 2)]
    assert lab.committed == 3 and lab.first_commits == [lab.row.epoch]
    assert len(lab.sweeps) == 1


def test_a_store_that_refuses_its_commit_leaves_the_slice_without_a_checkpoint(ledger: Ledger) -> None:
    """Spark passes on only the text of the error, so the committer keeps the error."""
    lab = Lab(ledger, NEW)
    lab.plan_slice(3)
    lab.store.is_away = True
    with pytest.raises(SinkUnavailable) as caught:
        lab.batch(3, BucketOutcome(facts=[facts()], parts={"table": ["a"]}))
    assert lab.committer.error is caught.value
    assert lab.committed == 2 and not lab.committer.has_committed
    assert not lab.first_commits and not lab.sweeps


def test_a_fenced_run_commits_nothing_even_after_its_store_has_committed(ledger: Ledger) -> None:
    lab = Lab(ledger, NEW)
    lab.plan_slice(3)
    newer = ledger.begin_run(JOB, 2)
    with pytest.raises(Fenced):
        lab.batch(3, BucketOutcome(facts=[facts()], parts={"table": ["a"]}))
    assert lab.committed == 2 and isinstance(lab.committer.error, Fenced)
    assert not lab.first_commits and not lab.sweeps
    assert ledger.job(JOB).epoch == newer.epoch


def test_a_replay_that_finds_other_records_ends_the_run_before_anything_is_committed(ledger: Ledger) -> None:
    lab = Lab(ledger, RewindPlan(slice_first=1, slice_committed=2))
    lab.batch(1, BucketOutcome(facts=[facts()]))
    with pytest.raises(ReplayMismatch, match="30 records then, 29 now"):
        lab.batch(2, BucketOutcome(facts=[facts(missing=1)]))
    with pytest.raises(ReplayMismatch):
        lab.batch(2, BucketOutcome(facts=[facts(missing=1)]))
    assert lab.committed == 2 and not lab.store.commits and not lab.committer.has_committed


def test_a_replay_notifies_no_store(ledger: Ledger) -> None:
    lab = Lab(ledger, RewindPlan(slice_first=1, slice_committed=2))
    lab.batch(2, BucketOutcome(facts=[facts(2)], parts={"table": ["a"]}))
    assert not lab.store.commits and lab.committed == 2 and not lab.first_commits


def test_a_restore_ends_after_its_last_slice(ledger: Ledger) -> None:
    lab = Lab(ledger, RewindPlan(slice_first=1, slice_committed=2, restores_from=1, merges_restored=False))
    ledger.order_restore(JOB)
    lab.batch(1, BucketOutcome(facts=[facts()], parts={"table": ["a"]}))
    assert ledger.job(JOB).restores and not lab.events("results_restored")
    lab.batch(2, BucketOutcome(facts=[facts()], parts={"table": ["b"]}))
    assert [one[:2] for one in lab.store.commits] == [(1, ["a"]), (2, ["b"])]
    assert not ledger.job(JOB).restores
    assert lab.events("results_restored") == [{"slice_first": 1, "slice_last": 2}]


def test_a_fenced_run_does_not_end_the_restore_of_the_newer_run(ledger: Ledger) -> None:
    lab = Lab(ledger, RewindPlan(slice_first=1, slice_committed=2, restores_from=2))
    ledger.order_restore(JOB)
    lab.batch(1, BucketOutcome(facts=[facts()]))
    ledger.begin_run(JOB, 2)
    with pytest.raises(Fenced):
        lab.batch(2, BucketOutcome(facts=[facts()], parts={"table": ["b"]}))
    assert ledger.job(JOB).restores and not lab.events("results_restored")


def test_a_restored_slice_with_other_records_reaches_no_store(ledger: Ledger) -> None:
    lab = Lab(ledger, RewindPlan(slice_first=1, slice_committed=2, restores_from=1))
    ledger.order_restore(JOB)
    with pytest.raises(ReplayMismatch):
        lab.batch(1, BucketOutcome(facts=[facts(missing=1)], parts={"table": ["a"]}))
    assert not lab.store.commits and ledger.job(JOB).restores


def test_dropped_updates_are_reported_each_time_that_their_number_has_doubled(ledger: Ledger) -> None:
    lab = Lab(ledger, NEW)
    for number, dropped in ((3, 0), (4, 2), (5, 1), (6, 1), (7, 1)):
        lab.plan_slice(number)
        lab.batch(number, BucketOutcome(facts=[facts()], updates_dropped=dropped, why_dropped="the index is full"))
    assert sorted(one["dropped"] for one in lab.events("updates_dropped")) == [2, 4]
