"""Recorded slices that a trace reads again, in the form in which a rewind reads them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from strandline.core.errors import NotFound, TooExpensive
from strandline.ledger.states import SliceRow, offset_count
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.slices.rewind import RewindPlan, plan_rewind
from strandline.processing.source.decoding import decoding_of
from strandline.processing.source.recorded_slices import TASK_ROWS, cut_tasks, recorded_rows
from strandline.processing.source.source_config import Piece
from strandline.processing.source.stream_formats import StreamFormats

if TYPE_CHECKING:  # the ledger's SQL takes half a second to import
    from strandline.ledger.roles import LedgerReader

RECORDS_MAX = 1_000_000
"""Maximum number of records that one trace reads."""


@dataclass
class Replayed:
    """Reads recorded slices of a job, and counts their records. Raises TooExpensive for too many."""

    ledger: LedgerReader
    job: str
    records: int = 0
    remedy: str = "To compare all results with the log, run strandline job audit {job}"
    """What to do instead if there are too many records."""

    def pieces(self, pipeline: CheckedPipeline, first: int, last: int) -> list[list[Piece]]:
        """Return the pieces of these slices. Raises NotFound if the ledger no longer contains one."""
        if first > last:
            return []
        floor = self.ledger.floor(self.job)
        if first <= floor:
            raise NotFound(
                f"job {self.job}: slices up to {floor} were removed from the ledger because they are old, and slice {first} is "
                "needed. Choose a newer record or result"
            )
        rows = list(recorded_rows(self.ledger, self.job, first, last))
        self.records += offset_count(rows[0].offsets_first, rows[-1].offsets)
        if self.records > RECORDS_MAX:
            raise TooExpensive(
                f"job {self.job}: slices {first} to {last} contain {self.records:,} records, and a trace reads at most "
                f"{RECORDS_MAX:,}. {self.remedy.format(job=self.job)}"
            )
        return [task.pieces for task in cut_tasks(rows, first, TASK_ROWS, self._formats(pipeline))]

    def prefix(
        self, pipeline: CheckedPipeline, row: SliceRow, stream: str, partition: int, end: int
    ) -> list[list[Piece]]:
        """Return the piece of one partition in this slice, up to before the offset `end`."""
        first = row.offsets_first.get(stream, {}).get(partition, 0)
        if end <= first:
            return []
        (piece,) = [
            one
            for task in cut_tasks([row], row.number, 1 << 60, self._formats(pipeline))
            for one in task.pieces
            if (one.offsets.stream, one.offsets.partition) == (stream, partition)
        ]
        if end < piece.offsets.offset_next:
            piece = replace(piece, offsets=replace(piece.offsets, offset_next=end, checksum=None))
        self.records += end - first
        return [[piece]]

    def _formats(self, pipeline: CheckedPipeline) -> StreamFormats:
        return StreamFormats(self.ledger, decoding_of(pipeline, "").formats, pipeline.lookups)


def plan_after(ledger: LedgerReader, pipeline: CheckedPipeline, slice_committed: int) -> RewindPlan:
    """Return the plan of a run that starts when this slice is the last committed one. 0 for before the first slice."""
    before = ledger.checkpoint(pipeline.job, slice_committed) if slice_committed else None
    return plan_rewind(
        before,
        lambda event_ms: ledger.first_slice_reaching(pipeline.job, event_ms),
        pipeline.kept,
        ledger.floor(pipeline.job),
    )


def slice_with(ledger: LedgerReader, job: str, stream: str, partition: int, offset: int) -> SliceRow | None:
    """Return the slice that contains the offset. None if the job has not read it yet. Raises NotFound if the job doesn't read
    it, or if the ledger no longer contains the slice."""
    last = ledger.last_slice(job)
    if last is None or offset >= last.offsets.get(stream, {}).get(partition, 0):
        return None
    floor = ledger.floor(job)

    def end_of(number: int) -> int:
        return _slice(ledger, job, number).offsets.get(stream, {}).get(partition, 0)

    numbers: Sequence[int] = range(floor + 1, last.number + 1)
    row = _slice(ledger, job, numbers[bisect_right(numbers, offset, key=end_of)])
    if offset < row.offsets_first.get(stream, {}).get(partition, 0):
        why = (
            f"slices up to {floor} were removed from the ledger because they are old"
            if floor
            else f"the job began at a later offset of partition {partition}"
        )
        raise NotFound(
            f"job {job}: no slice contains stream {stream}, partition {partition}, offset {offset}: {why}. Choose a later "
            "offset"
        )
    return row


def _slice(ledger: LedgerReader, job: str, number: int) -> SliceRow:
    found = ledger.slices(job, number, number)
    if not found:
        raise NotFound(f"slice {number} of job {job} has just been removed; try again")
    return found[0]
