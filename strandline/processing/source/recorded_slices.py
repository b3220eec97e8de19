"""Recorded slices, cut into pieces of a bounded size: how audits and backfills read the log again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.ledger.states import SliceRow
from strandline.log.reader import OffsetRange
from strandline.processing.source.decoding import Piece

if TYPE_CHECKING:  # the ledger's SQL takes half a second to import
    from strandline.ledger.ledger import Ledger

TASK_ROWS = 250_000
"""Records that one task reads at most."""
_SLICES_A_LOOK = 1_000


@dataclass(frozen=True)
class LogTask:
    """What one task reads of the log."""

    pieces: list[Piece]
    own: bool
    """Whether its records count in the totals, or are only read for their windows."""


def recorded_tasks(ledger: Ledger, job: str, slice_first: int, slice_own: int, slice_last: int) -> list[LogTask]:
    """The tasks for these slices of a job; those before `slice_own` are not its own. Raises LedgerUnavailable."""
    slices = (
        row
        for first in range(slice_first, slice_last + 1, _SLICES_A_LOOK)
        for row in ledger.slices(job, first, min(first + _SLICES_A_LOOK - 1, slice_last))
    )
    return cut_tasks(slices, slice_own, TASK_ROWS)


def cut_tasks(slices: Iterable[SliceRow], slice_own: int, rows_max: int) -> list[LogTask]:
    """Cut slices, in order, into tasks of one partition and at most `rows_max` offsets each; slices before `slice_own` get tasks
    of their own. Each offset belongs to exactly one task, and keeps the watermark of its slice."""
    tasks: list[LogTask] = []
    open_tasks: dict[tuple[str, int, bool], tuple[LogTask, int]] = {}
    for row in slices:
        own = row.number >= slice_own
        for stream, ends in row.offsets.items():
            for partition, offset_next in sorted(ends.items()):
                first = row.offsets_first.get(stream, {}).get(partition, 0)
                while first < offset_next:
                    task, room = open_tasks.get((stream, partition, own), (None, 0))
                    if task is None or room == 0:
                        task, room = LogTask([], own), rows_max
                        tasks.append(task)
                    upto = min(offset_next, first + room)
                    task.pieces.append(Piece.of_slice(row, OffsetRange(stream, partition, first, upto)))
                    open_tasks[stream, partition, own] = (task, room - (upto - first))
                    first = upto
    return tasks
