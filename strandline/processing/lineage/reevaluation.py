"""Records that one version of a job rejected and a later version accepted when it read them again.

A new version replays the slices of the open windows with its own expressions. It may accept a record in them that an earlier
version rejected: if this record were requeued, it would count twice. The checks by decoding and event time have the same result
in every replay, because the slice records the rules for them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.core.errors import NotFound
from strandline.core.record_headers import (
    REASON_DECODE,
    REASON_FUTURE_EVENT,
    REASON_LATE,
    REASON_SCHEMA,
    REASON_TIME_UNIT,
)
from strandline.ledger.states import SliceRow, StreamVersions
from strandline.processing.lineage.dry_run import ACCEPTED, DryRun, RecordContext
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.slices.rewind import RUN_BEGINS, plan_of_job
from strandline.processing.source.decoding import decoding_of
from strandline.processing.source.kept_lookups import LookupRef, with_recorded_tables
from strandline.processing.source.stream_formats import StreamFormats

if TYPE_CHECKING:  # the ledger's SQL takes half a second to import
    from strandline.ledger.roles import LedgerReader
    from strandline.processing.pipelines.checked_pipeline import CheckedPipeline

OF_THE_SLICE = frozenset((REASON_DECODE, REASON_SCHEMA, REASON_TIME_UNIT, REASON_FUTURE_EVENT, REASON_LATE))
"""The reasons that follow from the record and its slice, whichever version replays it."""
_BLOCK_SLICES = 256
_BLOCKS_KEPT = 64


@dataclass(frozen=True)
class ReplayCandidate:
    """A record that the job's own expressions rejected."""

    partition: int
    offset: int
    value: bytes | None
    headers: Mapping[str, bytes]
    log_time_ms: int


@dataclass(frozen=True)
class _Span:
    """Slices that a version of the pipeline replayed, or will replay when it begins."""

    version: int
    streams: StreamVersions
    first: int
    last: float


def find_reaccepted(
    ledger: LedgerReader,
    job: str,
    pipeline: CheckedPipeline,
    stream: str,
    stream_versions: StreamVersions,
    rejected: Sequence[ReplayCandidate],
) -> set[int]:
    """Return the indices in `rejected` of records that a later version accepted in a replay, or will accept in its first one.

    A record counts as accepted if at least one branch of the pipeline accepts it. It also counts if its slice was removed from
    the ledger and a version may have replayed it. `pipeline`: the job's current version, compiled with `stream_versions`.
    `stream`: the stream of the records. Raises NotFound if a slice was removed in the meantime, LedgerUnavailable.
    """
    spans = _spans(ledger, job, pipeline, stream_versions)
    if not rejected or not spans:
        return set()
    found = set[int]()
    slices = _Slices(ledger, job, stream, min(span.first for span in spans))
    rows = {at: slices.holding(one.partition, one.offset) for at, one in enumerate(rejected)}
    for span in spans:
        own = load_pipeline(ledger, job, span.version, span.streams)
        formats = StreamFormats(ledger, decoding_of(own, "").formats, own.lookups)
        by_format: dict[tuple[int, tuple[LookupRef, ...]], tuple[DryRun, list[int]]] = {}
        for at, row in rows.items():
            if at in found or row is None:
                continue
            if isinstance(row, int):  # below the floor
                if span.first <= row:
                    found.add(at)
            elif span.first <= row.number <= span.last:
                other, lookups = formats.of(row, stream), formats.lookups_of(row)
                if (id(other), lookups) not in by_format:
                    enriched = with_recorded_tables(ledger, own, lookups)
                    by_format[id(other), lookups] = DryRun(enriched, other=other, stream=stream), []
                by_format[id(other), lookups][1].append(at)
        for dry_run, places in by_format.values():
            outcomes = dry_run.at(
                [rejected[at].value for at in places],
                [rejected[at].headers for at in places],
                [_context(rejected[at], rows[at], stream) for at in places],
            )
            # What its slice rejects now only lacks headers that the log no longer holds: that was not why it was rejected.
            taken = OF_THE_SLICE | {ACCEPTED}
            found.update(at for at, one in zip(places, outcomes, strict=True) if one.outcome in taken or one.taken_by)
    return found


def _context(record: ReplayCandidate, row: SliceRow | int | None, stream: str) -> RecordContext:
    assert isinstance(row, SliceRow)
    return RecordContext(record.log_time_ms, row.late_below_ms, row.rule.of(stream).max_ahead_ms)


def _spans(ledger: LedgerReader, job: str, pipeline: CheckedPipeline, stream_versions: StreamVersions) -> list[_Span]:
    """Return the ranges of slices that runs replayed, one range for each pipeline version and versions of its streams' documents.
    If the current versions haven't run yet, the last range contains the slices that they will replay."""
    runs = {run.epoch: run for run in ledger.runs(job)}
    spans: dict[tuple[int, tuple[int | None, ...]], _Span] = {}
    for event in ledger.events_of_kind(job, RUN_BEGINS):
        run = runs.get(event.epoch or 0)
        if run is None:
            continue
        key = run.version, tuple(run.stream_versions.get(stream) for stream in stream_versions)
        first, last = int(event.facts["slice_first"]), int(event.facts["slice_committed"])
        known = spans.get(key, _Span(run.version, run.stream_versions, first, last))
        spans[key] = _Span(run.version, run.stream_versions, min(known.first, first), max(known.last, last))
    present = ledger.job(job).version, tuple(stream_versions.values())
    if present not in spans:
        plan = plan_of_job(ledger, pipeline)
        spans[present] = _Span(present[0], stream_versions, plan.slice_first, math.inf)
    return [span for span in spans.values() if span.first <= span.last]


class _Slices:
    """Finds the slice of a record. Reads slices from the ledger in blocks, because the records are often in adjacent slices."""

    def __init__(self, ledger: LedgerReader, job: str, stream: str, first: int) -> None:
        self._ledger, self._job, self._stream = ledger, job, stream
        self._floor = ledger.floor(job)
        self._numbers = range(max(first, self._floor, 1), ledger.slice_count(job) + 1)
        self._blocks: dict[int, Mapping[int, SliceRow]] = {}

    def holding(self, partition: int, offset: int) -> SliceRow | int | None:
        """Return the slice that contains the record. If that slice was removed from the ledger, return the floor. None if the
        record is in no slice from `first` on."""
        at = bisect_right(self._numbers, offset, key=lambda number: self._end(number, partition))
        if at == len(self._numbers):
            return None
        row = self._row(self._numbers[at])
        if row.number <= self._floor:
            return self._floor
        return row if offset >= row.offsets_first.get(self._stream, {}).get(partition, 0) else None

    def _end(self, number: int, partition: int) -> int:
        return self._row(number).offsets.get(self._stream, {}).get(partition, 0)

    def _row(self, number: int) -> SliceRow:
        block = number // _BLOCK_SLICES
        if block not in self._blocks:
            if len(self._blocks) >= _BLOCKS_KEPT:
                self._blocks.clear()
            first = block * _BLOCK_SLICES
            self._blocks[block] = _by_number(self._ledger.slices(self._job, first, first + _BLOCK_SLICES - 1))
        row = self._blocks[block].get(number)
        if row is None:
            raise NotFound(f"slice {number} of job {self._job} has just been removed; try again")
        return row


def _by_number(rows: Iterable[SliceRow]) -> Mapping[int, SliceRow]:
    return {row.number: row for row in rows}
