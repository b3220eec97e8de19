"""Recorded slices, cut into pieces of a bounded size: how audits and backfills read the log again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.core.errors import NotFound
from strandline.ledger.states import SliceRow, offset_count
from strandline.log.reader import OffsetRange
from strandline.processing.formats.record_rows import RecordFormat
from strandline.processing.source.source_config import Piece
from strandline.processing.source.stream_formats import StreamFormats

if TYPE_CHECKING:  # the ledger's SQL takes half a second to import
    from strandline.ledger.roles import LedgerReader

TASK_ROWS = 250_000
"""Records that one task reads at most."""
SLICES_A_LOOK = 1_000
"""Slices that are read from the ledger at once."""


@dataclass(frozen=True)
class LogTask:
    """Part of the log that one task reads."""

    pieces: list[Piece]
    own: bool
    """True if its records count in the totals. False if they are only read for their windows."""


class Replay:
    """The committed slices of a rewind, in batches of a bounded size. Each slice is read once from the ledger."""

    def __init__(
        self,
        ledger: LedgerReader,
        job: str,
        slice_committed: int,
        rows_max: int,
        restores_from: int | None = None,
        *,
        merges_restored: bool = True,
    ) -> None:
        """`restores_from`, `merges_restored`: see RewindPlan. No batch contains slices before and from `restores_from`."""
        self._restores_from = restores_from
        self._merges_restored = merges_restored
        self._ledger = ledger
        self._job = job
        self._slice_committed = slice_committed
        self.rows_max = rows_max
        self._batch: list[SliceRow] = []
        self._ahead: list[SliceRow] = []
        """Read, and behind the batch; the next one last."""

    def batch_from(self, slice_first: int) -> list[SliceRow]:
        """Return the slices of the batch that begins with this slice: at most about `rows_max` records, at least one slice.

        All slices of a batch are of one job version, because counts of another version can be compared only in part. Call it for
        each batch in turn; the call for the last batch may be repeated.
        """
        if not self._batch or self._batch[0].number != slice_first:
            if self._ahead and self._ahead[-1].number != slice_first:
                self._ahead = []
            self._batch = list(self._take(slice_first))
        return self._batch

    def _take(self, slice_first: int) -> Iterator[SliceRow]:
        rows, version = 0, None
        for number in range(slice_first, self._slice_committed + 1):
            if not self._ahead:
                last = min(number + SLICES_A_LOOK - 1, self._slice_committed)
                self._ahead = self._ledger.slices(self._job, number, last)[::-1]
            if number > slice_first and self._is_cut(number):
                return
            row = self._ahead[-1]
            rows += offset_count(row.offsets_first, row.offsets)
            if version is not None and (rows > self.rows_max or row.version != version):
                return
            version = row.version
            yield self._ahead.pop()

    def _is_cut(self, number: int) -> bool:
        """Return True if a batch must begin with this slice."""
        first = self._restores_from
        return first is not None and (number == first or (number > first and not self._merges_restored))


def recorded_tasks(
    ledger: LedgerReader,
    job: str,
    slice_first: int,
    slice_own: int,
    slice_last: int,
    own_formats: Mapping[str, RecordFormat] | None = None,
    lookups: Iterable[tuple[str, int]] = (),
) -> list[LogTask]:
    """Return tasks that read these slices of a job. Records of slices before `slice_own` are read, but don't count in totals.

    `own_formats`: stream -> format of the reader's pipeline. `lookups`: as for `SliceLookups`. Raises LedgerUnavailable; NotFound
    if a slice was removed."""
    formats = None if own_formats is None else StreamFormats(ledger, own_formats, lookups)
    return cut_tasks(recorded_rows(ledger, job, slice_first, slice_last), slice_own, TASK_ROWS, formats)


def recorded_rows(ledger: LedgerReader, job: str, slice_first: int, slice_last: int) -> Iterator[SliceRow]:
    """Yield the slices in order. Raises LedgerUnavailable; NotFound if a slice was removed from the ledger."""
    for first in range(slice_first, slice_last + 1, SLICES_A_LOOK):
        last = min(first + SLICES_A_LOOK - 1, slice_last)
        found = ledger.slices(job, first, last)
        if len(found) <= last - first:
            raise NotFound(f"Some of slices {first} to {last} of job {job} have just been removed; try again.")
        yield from found


def cut_tasks(
    slices: Iterable[SliceRow], slice_own: int, rows_max: int, formats: StreamFormats | None = None
) -> list[LogTask]:
    """Divide slices, in order, into tasks of one partition and at most `rows_max` offsets each. Slices before `slice_own` are
    in separate tasks. Each offset is in exactly one task, with the watermark and the format of its slice. If the format has
    sessions, so that records depend on earlier ones, a task contains complete slices."""
    tasks: list[LogTask] = []
    is_whole = formats is not None and formats.keeps_sessions
    open_tasks: dict[tuple[str, int, bool], tuple[LogTask, int]] = {}
    for row in slices:
        own = row.number >= slice_own
        for stream, ends in row.offsets.items():
            for partition, offset_next in sorted(ends.items()):
                first = row.offsets_first.get(stream, {}).get(partition, 0)
                while first < offset_next:
                    task, room = open_tasks.get((stream, partition, own), (None, 0))
                    if task is None or room <= 0:
                        task, room = LogTask([], own), rows_max
                        tasks.append(task)
                    upto = offset_next if is_whole else min(offset_next, first + room)
                    task.pieces.append(Piece.of_slice(row, OffsetRange(stream, partition, first, upto), formats))
                    open_tasks[stream, partition, own] = (task, room - (upto - first))
                    first = upto
    return tasks
