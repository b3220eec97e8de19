"""Distribution of a batch's part of the log over tasks."""

from __future__ import annotations

import pytest

from strandline.ledger.states import SliceRow
from strandline.processing.source.run_slices import spread_pieces
from tests.support.ledgers import a_slice


def slice_of(number: int, firsts: dict[int, int], ends: dict[int, int], watermark_ms: int) -> SliceRow:
    return a_slice(number, offsets_first={"s": firsts}, offsets={"s": ends}, watermark_ms=watermark_ms)


@pytest.mark.parametrize(("records", "tasks"), [(1, 1), (1_000, 1), (2_000, 2), (100_000, 4)])
def test_a_small_slice_takes_few_tasks_and_no_offset_is_lost(records: int, tasks: int) -> None:
    firsts, ends = {p: 7 for p in range(4)}, {p: 7 + records for p in range(4)}
    after = {p: 9 + records for p in range(4)}
    spread = spread_pieces([slice_of(1, firsts, ends, 10), slice_of(2, ends, after, 20)], 4)
    assert len(spread) == tasks
    pieces = [
        (one.offsets.partition, one.offsets.offset_first, one.offsets.offset_next, one.late_below_ms)
        for part in spread
        for one in part
    ]
    assert sorted(pieces) == sorted(
        [*((p, 7, 7 + records, 10) for p in range(4)), *((p, 7 + records, 9 + records, 20) for p in range(4))]
    )
    # Both slices' pieces of a partition are read by one task, in order.
    for part in spread:
        places = [(one.offsets.partition, one.offsets.offset_first) for one in part]
        assert len({p for p, _ in places}) * 2 == len(places)


def test_a_slice_without_records_takes_one_task() -> None:
    assert spread_pieces([slice_of(1, {0: 5}, {0: 5}, 10)], 4) == [[]]
