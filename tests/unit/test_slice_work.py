"""The work of the keyed tasks in a batch, which the source takes from the checkpoint before it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.ledger.states import CheckpointRow, SliceRow
from strandline.processing.slices.rewind import RewindPlan
from strandline.processing.slices.spark_offset import offset_of_slice
from strandline.processing.source import data_source
from strandline.processing.source.data_source import SliceStreamReader, SourceInputPartition
from strandline.processing.source.run_slices import SourceConfig
from strandline.processing.source.slice_rows import SliceWork, decode_work
from tests.support.ledgers import a_checkpoint, a_slice


@dataclass
class KeptLedger:
    """The slices up to `committed` have checkpoints: slice n closed at 1000 n."""

    committed: int
    looks: list[int] = field(default_factory=list)
    """The slices whose checkpoints were read."""

    def slices(self, job: str, first: int, last: int) -> list[SliceRow]:
        return [a_slice(number) for number in range(first, last + 1)]

    def stream_documents(self, name: str) -> dict[int, dict[str, Any]]:
        return {1: {"stream": name, "schema": {"n": "long"}}}

    def checkpoint(self, job: str, slice: int) -> CheckpointRow:
        assert 1 <= slice <= self.committed
        self.looks.append(slice)
        more: dict[str, Any] = {"dead_letter_offsets": {0: slice}, "result_offsets": {"tens": {0: 10 * slice}}}
        return a_checkpoint(slice, closes_ms=1000 * slice, **more)


def work_of(ledger: KeptLedger, plan: RewindPlan, first: int, last: int, monkeypatch: pytest.MonkeyPatch) -> SliceWork:
    monkeypatch.setattr(data_source, "open_ledger", lambda _url: ledger)
    task = cast(Any, SimpleNamespace(decoding=SimpleNamespace(formats={"turbines": None}, lookups=())))
    planner = cast(Any, SimpleNamespace(job="power"))
    reader = SliceStreamReader(SourceConfig(task, planner, plan, 1_000, 0, 2, "sqlite://"))
    tasks = reader.partitions(offset_of_slice(first - 1), offset_of_slice(last))
    works = [task.work for task in tasks if isinstance(task, SourceInputPartition) and task.work is not None]
    assert len(works) == 1, "one task hands it on"
    return decode_work(works[0])


def test_a_new_slice_goes_on_where_the_one_before_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source reads one checkpoint, because many slices can be planned per second."""
    ledger = KeptLedger(committed=4)
    work = work_of(ledger, RewindPlan(1, 3), 5, 5, monkeypatch)
    assert (work.number, work.emits, work.from_ms, work.to_ms) == (5, True, 4000, None)
    assert work.new_slice == a_slice(5)
    assert (work.dead_letter_offsets, work.result_offsets) == ({0: 4}, {"tens": {0: 40}})
    assert ledger.looks == [4]


def test_the_first_slice_of_a_job_has_nothing_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    work = work_of(KeptLedger(committed=0), RewindPlan(1, 0), 1, 1, monkeypatch)
    assert (work.emits, work.from_ms, work.dead_letter_offsets, work.result_offsets) == (True, None, {}, {})


@pytest.mark.parametrize("back_to_ms", [None, 2500])
def test_a_replay_begins_empty_after_a_rewind_and_goes_on_after_a_snapshot(
    back_to_ms: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = RewindPlan(3, 6, reaches_back_to_ms=back_to_ms)
    first = work_of(KeptLedger(committed=6), plan, 3, 4, monkeypatch)
    assert (first.number, first.emits, first.to_ms, first.new_slice) == (4, False, 4000, None)
    assert first.from_ms == (2000 if back_to_ms is None else None)
    second = work_of(KeptLedger(committed=6), plan, 5, 6, monkeypatch)
    assert (second.from_ms, second.to_ms) == (4000, 6000)


def test_a_rewind_that_replays_nothing_still_knows_where_the_streams_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = RewindPlan(7, 6, reaches_back_to_ms=6500)
    work = work_of(KeptLedger(committed=6), plan, 7, 7, monkeypatch)
    assert (work.emits, work.from_ms) == (True, None)
    assert (work.dead_letter_offsets, work.result_offsets) == ({0: 6}, {"tens": {0: 60}})
