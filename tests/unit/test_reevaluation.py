"""The rejected records that later versions have accepted, by the slices that they read again.

Over a real ledger without a log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.core.documents import read_documents
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.processing.lineage import reevaluation
from strandline.processing.lineage.reevaluation import ReplayCandidate, find_reaccepted
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.slices import old_runs
from strandline.processing.slices.old_runs import runs_of_no_use
from strandline.processing.slices.rewind import RUN_BEGINS
from tests.support.ledgers import a_checkpoint, a_slice

STREAM = "stream: turbines\npartitions: 2\nschema: {power: double, rated: double}\n"
PIPELINE = """
pipeline: power
input: {stream: turbines}
event_time: {from: log}
steps:
  - derive: {load: %s}
  - window: {name: per_minute, tumbling: 1m, aggregate: {n: count(*)}}
    emit: [{elasticsearch: power}]
"""
DIVIDED, ADDED, LOGARITHM = "power / rated", "power + rated", "ln(power)"
SLICES = 30
RATED_0 = b'{"power":1,"rated":0}'
NOTHING = b'{"power":0,"rated":0}'


class Lab:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        (stream,) = read_documents(STREAM, "s")
        ledger.put_stream("turbines", StreamSpec.parse(stream).as_document())

    def submit(self, load: str) -> None:
        text = PIPELINE % load
        (document,) = read_documents(text, "p")
        self.ledger.submit_job("power", text, PipelineSpec.parse(document).as_document())

    def begin(self, slice_first: int, slice_committed: int) -> int:
        """Start a run of the current version, and record its rewind."""
        run = self.ledger.begin_run("power", 1)
        self.ledger.set_run_streams("power", run.epoch, {"turbines": 1})
        facts = {"slice_first": slice_first, "slice_committed": slice_committed}
        self.ledger.record_event(RUN_BEGINS, "", "power", run.epoch, facts)
        return run.epoch

    def cut(self, first: int, last: int, epoch: int) -> None:
        """Committed slices. Their records are never late, and nothing is closed."""
        for number in range(first, last + 1):
            version = self.ledger.job("power").version
            row = a_slice(number, epoch, watermark_ms=None, version=version, stream_versions={"turbines": 1})
            self.ledger.plan_slice(row)
            self.ledger.commit_checkpoint(a_checkpoint(number, epoch, version=version, closes_ms=None))

    def taken(self, *offsets: int, value: bytes = RATED_0) -> set[int]:
        """Return which of the offsets were accepted, in partition 1, with 20 records per slice."""
        job = self.ledger.job("power")
        pipeline = load_pipeline(self.ledger, "power", job.version, {"turbines": 1})
        places = [ReplayCandidate(1, offset, value, {}, 1_000) for offset in offsets]
        return {
            offsets[at]
            for at in find_reaccepted(
                self.ledger,
                "power",
                pipeline,
                pipeline.inputs[0].stream.stream,
                {pipeline.inputs[0].stream.stream: 1},
                places,
            )
        }


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    lab = Lab(ledger)
    lab.submit(DIVIDED)
    lab.cut(1, 9, lab.begin(1, 0))
    yield lab
    ledger.close()


@pytest.mark.guarantee(
    "G371",
    "A record that a later version of the pipeline has accepted, or will accept, isn't requeued from its dead letter: "
    "it counts once.",
    promise="a-requeued-record-counts-once",
)
def test_a_version_has_taken_what_it_read_again_and_can_use(lab: Lab) -> None:
    assert lab.taken(0, 50, 179) == set(), "only the version that rejected it has read it"
    lab.begin(3, 9)
    assert lab.taken(0, 50, 179) == set(), "nor has its second run taken it"
    lab.submit(ADDED)
    lab.cut(10, 12, lab.begin(5, 9))
    # Slices 5 to 9 are offsets 80 to 179 of the partition.
    assert lab.taken(0, 79, 80, 179, 180, 10_000) == {80, 179}


@pytest.mark.guarantee("G371")
def test_a_version_that_has_not_begun_will_read_what_its_rewind_needs(lab: Lab) -> None:
    lab.submit(ADDED)
    assert lab.taken(0, 179, 10_000) == {0, 179}, "nothing is closed, so it begins with the first slice"


def test_what_a_later_version_rejects_too_was_not_taken(lab: Lab) -> None:
    lab.submit(LOGARITHM)
    lab.begin(1, 9)
    assert lab.taken(100) == {100}
    assert lab.taken(100, value=NOTHING) == set()


def test_a_version_in_between_counts(lab: Lab) -> None:
    """The current one has read less: windows in which the one in between counted it are closed by now."""
    lab.submit(ADDED)
    lab.begin(2, 9)
    lab.submit(DIVIDED)
    lab.begin(8, 9)
    assert lab.taken(100) == {100}


def test_what_is_in_slices_that_were_removed_counts_as_taken_where_it_may_have_been(lab: Lab) -> None:
    lab.submit(ADDED)
    lab.begin(4, 9)
    lab.ledger.raise_floor("power", 2, 6, 100)
    assert lab.taken(10, value=NOTHING) == {10}
    assert lab.taken(119, 121) == {119, 121}
    lab.ledger.raise_floor("power", 2, 8, 100)
    assert lab.taken(10) == {10}


def test_slices_are_found_among_many(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reevaluation, "_BLOCK_SLICES", 4)
    monkeypatch.setattr(reevaluation, "_BLOCKS_KEPT", 2)
    lab.cut(10, SLICES, lab.begin(9, 9))
    lab.submit(ADDED)
    lab.begin(15, SLICES)
    found = lab.taken(*(20 * number for number in range(SLICES + 1)))
    assert found == {20 * number for number in range(14, SLICES)}


@pytest.mark.guarantee("G29")
def test_what_versions_took_is_known_when_old_runs_have_gone(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_runs, "RUNS_KEPT", 1)
    lab.submit(ADDED)
    for slice_first in (7, 5, 5, 6, 8):
        lab.begin(slice_first, 9)
    lab.submit(LOGARITHM)
    for _ in range(3):
        lab.begin(9, 9)
    before = lab.taken(0, 79, 80, 179, value=NOTHING), lab.taken(0, 79, 80, 179)
    assert lab.ledger.remove_runs("power", runs_of_no_use(lab.ledger, "power")) == 5
    assert [run.epoch for run in lab.ledger.runs("power")] == [1, 4, 6, 9]
    assert (lab.taken(0, 79, 80, 179, value=NOTHING), lab.taken(0, 79, 80, 179)) == before
    assert before[0] == {80, 179}
