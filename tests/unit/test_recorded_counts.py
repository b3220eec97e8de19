"""A process that reads recorded slices again compares with the checkpoints before anything is emitted.

Real ledger; no Spark, no Kafka.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pandas as pd
import pytest

from strandline.core.errors import PermanentError, ReplayMismatch
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.processing.backfill.emission import ChunkTask
from strandline.processing.emission.commit import SliceCommitter
from strandline.processing.emission.keyed_task import BucketOutcome
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.slices.rewind import RewindPlan
from strandline.processing.slices.spark_offset import offset_of_slice
from strandline.processing.source.data_source import SliceStreamReader
from strandline.processing.source.recorded_counts import RecordedCounts, recorded_counts
from strandline.processing.source.slice_rows import SourceFacts
from strandline.processing.source.source_task import SourceTask
from tests.support.control import BOTH, Api
from tests.support.ledgers import a_checkpoint, a_slice
from tests.unit.test_keyed_task import Engine, chunk_of, record, work_of

JOB = "power"
SLICES = 4
"""The last of them by version 2."""
REJECTED = {"late": 1, "decode": 1, "expression": 1}
THREE = {reason: 3 * count for reason, count in REJECTED.items()}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Yield a ledger.

    Each slice has 30 records: 27 accepted, one late, one broken, one without a value for an expression.
    """
    opened = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    assert Api(opened).outcomes(BOTH) == ["created", "created"]
    for number in range(1, SLICES + 1):
        if number == SLICES:
            opened.submit_job(JOB, "", opened.job_version(JOB).document | {"on_error": "crash"})
        version = opened.job(JOB).version
        row = opened.begin_run(JOB, 1)
        opened.plan_slice(a_slice(number, row.epoch, version=version, checksums={"turbines": {0: 1, 1: 2}}))
        opened.commit_checkpoint(a_checkpoint(number, row.epoch, version=version, accepted=27, rejected=REJECTED))
    yield opened
    opened.close()


class Batches:
    """Spark's execution of the query and its outcomes, as `foreachBatch` sees them."""

    def __init__(self, ledger: Ledger, plan: RewindPlan, version: int, index: Any = None) -> None:
        row = replace(ledger.begin_run(JOB, 1), version=version, stream_versions={"turbines": 1})
        run = JobRun(Settings(), ledger, index, row, load_pipeline(ledger, JOB, version))
        self._last = 0
        offsets = SimpleNamespace(values=lambda: SimpleNamespace(head=lambda: SimpleNamespace(json=self._offset)))
        self._commit = SliceCommitter(run, plan, lambda: SimpleNamespace(availableOffsets=lambda: offsets), list)

    def _offset(self) -> str:
        return json.dumps(offset_of_slice(self._last))

    def run(self, last: int, facts: SourceFacts) -> None:
        """A batch up to slice `last`: two buckets report on it, and two tasks."""
        self._last = last
        other = SourceFacts(records=1, latest_ms={"s": {0: 5}}, logged_ms={"s": {0: 5}})
        facts.records -= 1
        self.commit(last, [BucketOutcome(facts=[facts, other]), BucketOutcome()])

    def commit(self, last: int, found: list[BucketOutcome]) -> None:
        """A batch up to slice `last`, of which buckets tell this."""
        self._last = last
        rows = [{"outcome": msgspec.json.encode(one)} for one in found]
        self._commit(SimpleNamespace(collect=lambda: rows), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("plan", [RewindPlan(1, 0), RewindPlan(SLICES + 1, SLICES)], ids=["new", "nothing to replay"])
def test_a_first_batch_without_slices_ends_no_run(ledger: Ledger, plan: RewindPlan) -> None:
    """Spark begins a query with a batch, whatever there is to read: at the start of a job whose stream is empty, too."""
    before = ledger.last_checkpoint(JOB)
    Batches(ledger, plan, 2).run(plan.slice_committed, SourceFacts(0))
    assert ledger.last_checkpoint(JOB) == before


@pytest.mark.guarantee(
    "G140",
    "Recorded slices that are read again must contain as many records, and as many rejected for each reason, as their "
    "checkpoints counted. Otherwise the run or the backfill ends before it emits anything that follows from them, and "
    "the job fails with the cause.",
    promise="a-damaged-log-or-ledger-stops-the-job",
)
@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (SourceFacts(89, THREE), "90 records then, 89 now"),
        (SourceFacts(91, THREE), "90 records then, 91 now"),
        (
            SourceFacts(90, THREE | {"late": 2, "decode": 4}),
            "3 records rejected as decode then, 4 now; 3 .* late then, 2",
        ),
        (SourceFacts(90, THREE | {"schema": 1}), "0 records rejected as schema then, 1 now"),
        (SourceFacts(90, {"late": 3, "decode": 3}), "3 records rejected as expression then, 0 now"),
    ],
)
def test_a_replay_that_reads_something_else_ends_the_run(ledger: Ledger, facts: SourceFacts, found: str) -> None:
    before = ledger.last_checkpoint(JOB)
    batches = Batches(ledger, RewindPlan(1, SLICES), 1)
    with pytest.raises(ReplayMismatch, match=f"slices 1 to 3 of job power have changed since their commit: .*{found}"):
        batches.run(3, facts)
    assert ledger.last_checkpoint(JOB) == before


def test_a_replay_that_reads_the_same_goes_on_to_the_next_batch(ledger: Ledger) -> None:
    batches = Batches(ledger, RewindPlan(1, SLICES), 2)
    batches.run(1, SourceFacts(30, REJECTED))
    batches.run(3, SourceFacts(60, {reason: 2 * count for reason, count in REJECTED.items()}))
    batches.run(4, SourceFacts(30, REJECTED))


@pytest.mark.guarantee("G473")
def test_a_replay_does_not_compare_duplicates(ledger: Ledger) -> None:
    """Records before the first slice of the replay affect them too. They are counted when they are committed."""
    row = ledger.begin_run(JOB, 1)
    ledger.plan_slice(a_slice(5, row.epoch, version=2, checksums={"turbines": {0: 1, 1: 2}}))
    batches = Batches(ledger, RewindPlan(5, 4), 2)
    found = [BucketOutcome(facts=[SourceFacts(30, dict(REJECTED))], duplicates=2), BucketOutcome(duplicates=3)]
    batches.commit(5, found)
    last = ledger.last_checkpoint(JOB)
    assert last is not None
    assert (last.rejected, last.accepted) == (REJECTED | {"duplicate": 5}, 22)
    assert ledger.totals(JOB, 5).rejected["duplicate"] == 5
    Batches(ledger, RewindPlan(5, 5), 2).run(5, SourceFacts(30, dict(REJECTED)))
    with pytest.raises(ReplayMismatch, match="1 records rejected as late then, 2 now"):
        Batches(ledger, RewindPlan(5, 5), 2).run(5, SourceFacts(30, REJECTED | {"late": 2}))


@pytest.mark.guarantee(
    "G607",
    "Results that a store refused are counted by stage in the checkpoint of their slice and in the totals of the job. "
    "An audit compares these counts with their dead letters.",
    promise="each-sink-contains-each-result-once",
)
def test_results_that_a_store_refused_are_counted_in_the_checkpoint(ledger: Ledger) -> None:
    row = ledger.begin_run(JOB, 1)
    ledger.plan_slice(a_slice(5, row.epoch, version=2))
    found = [
        BucketOutcome(facts=[SourceFacts(30, dict(REJECTED))], results={"per_minute": 9}, refused={"per_minute": 2}),
        BucketOutcome(results={"per_minute": 3}, refused={"per_minute": 1}),
        BucketOutcome(results={"per_minute": 4}),
    ]
    Batches(ledger, RewindPlan(5, 4), 2).commit(5, found)
    last = ledger.last_checkpoint(JOB)
    assert last is not None
    assert (last.results["per_minute"], last.refused) == (16, {"per_minute": 3})
    assert ledger.totals(JOB).refused == {"per_minute": 3}


@pytest.mark.guarantee("G671")
def test_a_checkpoint_says_where_the_slices_own_dead_letters_end(ledger: Ledger) -> None:
    """Kafka confirms their commit before the partition knows of it: then the end that may be read is not theirs yet."""
    row = ledger.begin_run(JOB, 1)
    ledger.plan_slice(a_slice(5, row.epoch, version=2))
    lagging = SimpleNamespace(ends=lambda topic: {0: 8}, settled_ends=lambda topic: {0: 12})
    found = [BucketOutcome(facts=[SourceFacts(30, dict(REJECTED))], letters=3)]
    Batches(ledger, RewindPlan(5, 4), 2, lagging).commit(5, found)
    last = ledger.last_checkpoint(JOB)
    assert last is not None and last.dead_letter_offsets == {0: 12}


def test_a_run_from_a_snapshot_compares_what_it_reads_after_it(ledger: Ledger) -> None:
    batches = Batches(ledger, RewindPlan(3, SLICES, reaches_back_to_ms=None), 1)
    with pytest.raises(ReplayMismatch, match="slices 3 to 3 of job power"):
        batches.run(3, SourceFacts(29, REJECTED))


@pytest.mark.guarantee("G140")
def test_only_what_an_expression_has_no_value_for_may_differ_in_another_version(ledger: Ledger) -> None:
    Batches(ledger, RewindPlan(1, SLICES), 2).run(3, SourceFacts(90, THREE | {"expression": 7}))
    with pytest.raises(ReplayMismatch, match="3 records rejected as late then, 2 now"):
        Batches(ledger, RewindPlan(1, SLICES), 2).run(3, SourceFacts(90, THREE | {"late": 2}))
    with pytest.raises(ReplayMismatch, match="1 records rejected as expression then, 7 now"):
        Batches(ledger, RewindPlan(4, SLICES), 2).run(4, SourceFacts(30, REJECTED | {"expression": 7}))


def test_a_batch_of_a_replay_holds_slices_of_one_version(ledger: Ledger) -> None:
    """So that all counts of a version's own slices are compared."""
    url = f"sqlite:///{ledger._database.address.removeprefix('sqlite:///')}"
    config: Any = SimpleNamespace(
        plan=RewindPlan(1, SLICES), planner=SimpleNamespace(job=JOB), replay_rows_max=10_000, ledger_url=url
    )
    reader = SliceStreamReader(config)
    try:
        assert reader.latestOffset(offset_of_slice(0)) == offset_of_slice(3)
        assert reader.latestOffset(offset_of_slice(3)) == offset_of_slice(4)
    finally:
        reader.stop()


def test_trying_again_cannot_help() -> None:
    assert issubclass(ReplayMismatch, PermanentError)


@pytest.mark.guarantee("G140")
@pytest.mark.parametrize("buckets", [1, 3])
def test_a_backfill_that_reads_something_else_emits_nothing(buckets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In no bucket, also where the records of the bucket are all there."""
    engine = Engine(buckets, monkeypatch)
    good = [record(1_000 * number, device=f"d{number}") for number in range(5)]
    chunks = [chunk_of(0, 0, [*good, b"broken"]), chunk_of(1, 0, [record(900), record(800)], watermark_ms=850)]
    rows = SourceTask(engine.source).rows(chunks, is_new=False, work=None)
    frame = pd.DataFrame(rows, columns=["bucket", "kind", "partition", "sequence", "blob"])

    def results(records: int, rejected: dict[str, int]) -> Iterator[int]:
        """Yield the results of each bucket that has rows."""
        recorded = RecordedCounts("power", 5, 7, records, rejected, True)
        task = ChunkTask(engine.keyed, work_of(7, None, 10_000), recorded)
        for key in engine.source.bucket_keys:
            (blob,) = task((key,), frame[frame["bucket"] == key])["outcome"].tolist()
            yield sum(msgspec.json.decode(blob, type=BucketOutcome).results.values())

    for records, rejected in ((7, {"decode": 1, "late": 1}), (8, {"decode": 2}), (8, {"decode": 1})):
        of_buckets = results(records, rejected)
        with pytest.raises(ReplayMismatch, match="slices 5 to 7 of job power have changed since their commit"):
            next(of_buckets)
    assert engine.digest() == {"tens": [], "minute": []}
    assert engine.letters.written == []
    assert sum(results(8, {"decode": 1, "late": 1})) == 5


def test_counts_are_those_of_the_slices_asked_for(ledger: Ledger) -> None:
    counts = recorded_counts(ledger, JOB, range(2, 4), {1}, 1, {"turbines": 1})
    assert counts == RecordedCounts(JOB, 2, 3, 60, {reason: 2 for reason in REJECTED}, True)
