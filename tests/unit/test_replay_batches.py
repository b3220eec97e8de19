"""The batches of a rewind."""

from __future__ import annotations

from strandline.ledger.states import SliceRow
from strandline.processing.source import recorded_slices
from strandline.processing.source.recorded_slices import Replay
from tests.support.ledgers import a_slice


class CountingLedger:
    """Slices of 30 records; from number 8 on those of version 2. Counts how often each is read."""

    def __init__(self, count: int) -> None:
        self.rows = [a_slice(number, version=1 if number < 8 else 2) for number in range(1, count + 1)]
        self.reads = dict.fromkeys(range(1, count + 1), 0)

    def slices(self, job: str, first: int, last: int) -> list[SliceRow]:
        found = [row for row in self.rows if first <= row.number <= last]
        for row in found:
            self.reads[row.number] += 1
        return found


def batches(replay: Replay, first: int, committed: int) -> list[list[int]]:
    """Each asked for twice, as for its end and for its tasks."""
    found = []
    while first <= committed:
        batch = [row.number for row in replay.batch_from(first)]
        assert [row.number for row in replay.batch_from(first)] == batch
        found.append(batch)
        first = batch[-1] + 1
    return found


def test_each_slice_of_a_rewind_is_read_once(monkeypatch) -> None:
    monkeypatch.setattr(recorded_slices, "SLICES_A_LOOK", 7)
    ledger = CountingLedger(40)
    found = batches(Replay(ledger, "power", 39, 100), 3, 39)
    assert [number for batch in found for number in batch] == list(range(3, 40))
    assert {len(batch) for batch in found[2:-1]} == {3}, "90 of 100 records"
    assert {ledger.reads[number] for number in range(3, 40)} == {1}
    assert ledger.reads[40] == 0, "it is not committed"


def test_a_batch_holds_one_version_and_one_slice_at_least() -> None:
    assert batches(Replay(CountingLedger(9), "power", 9, 10_000), 1, 9) == [list(range(1, 8)), [8, 9]]
    assert batches(Replay(CountingLedger(3), "power", 3, 1), 1, 3) == [[1], [2], [3]]


def test_a_run_that_begins_elsewhere_reads_from_there() -> None:
    """A snapshot starts such a run."""
    replay = Replay(CountingLedger(20), "power", 20, 60)
    assert [row.number for row in replay.batch_from(9)] == [9, 10]
    assert [row.number for row in replay.batch_from(15)] == [15, 16]
