"""Slices of a job that are no longer read and may be removed from the ledger. Reads the ledger only."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.ledger.states import CheckpointRow
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.result_streams import lagging_readers
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.slices.rewind import whole_plan_of_job

if TYPE_CHECKING:  # the ledger's SQL takes half a second to import
    from strandline.ledger.roles import LedgerReader

_DAY_MS = 24 * 3_600_000


@dataclass(frozen=True)
class SlicesKept:
    """Retention of slices that neither a rewind nor a reader of a stream of results needs."""

    days_min: int
    """Minimum age in days of a slice that is removed."""
    days_max: int
    """Maximum age in days. From `days_min` on, a slice is removed once Kafka no longer holds its records."""


def floor_of_use(
    ledger: LedgerReader, job: str, log_starts: Callable[[str], Mapping[int, int]], kept: SlicesKept, now_ms: int
) -> int:
    """Return the last slice of a job that is no longer needed, 0 if there is none: slices up to it may be removed.

    Four uses need the slices above it:

    1. A rewind, for the version that planned the last slice and for the current version. Their age doesn't matter.
    2. Jobs that read a stream of this job's results: it is cut at this job's checkpoints. Only while Kafka holds the results.
    3. Audits and backfills, which read the records that the log still holds, up to an age of `days_max`.
    4. People, up to an age of `days_min`.

    `log_starts` returns the first offset that Kafka still holds in each partition of a topic. Raises NotFound, LogUnavailable.
    """
    last, planned = ledger.last_checkpoint(job), ledger.last_slice(job)
    if last is None or planned is None:
        return 0
    pipelines = [load_pipeline(ledger, job, version) for version in {ledger.job(job).version, planned.version}]
    rewound = min(whole_plan_of_job(ledger, pipeline).slice_first for pipeline in pipelines)
    inputs = {stream for pipeline in pipelines for stream in pipeline.streams}
    read = ledger.first_slice_from(job, last.slice, {stream: dict(log_starts(stream)) for stream in inputs})
    emitted = _first_emission(ledger, last, pipelines, log_starts)

    def first_younger(days: int) -> int:  # a clock that was set back only moves the cut, and never past the rewind
        since_ms = now_ms - days * _DAY_MS
        return _first_slice(ledger, last, lambda row: row.committed_ms >= since_ms)

    audited = max(read, first_younger(kept.days_max))
    return min(rewound, emitted, audited, first_younger(kept.days_min), last.slice) - 1


def _first_emission(
    ledger: LedgerReader,
    last: CheckpointRow,
    pipelines: list[CheckedPipeline],
    log_starts: Callable[[str], Mapping[int, int]],
) -> int:
    """Return the first slice whose emission to a stream is still in Kafka. Without such streams, the slice after the last."""
    streams = {stream for pipeline in pipelines for stage in pipeline.all_stages for stream in stage.streams}
    former = lagging_readers(ledger, last.job).keys() - streams  # to which an older version emitted
    starts = {stream: log_starts(stream) for stream in streams | former}
    for stream in former:
        if all(end <= starts[stream].get(partition, 0) for partition, end in last.result_offsets[stream].items()):
            del starts[stream]  # no result is left to read
    if not starts:
        return last.slice + 1

    def is_held(row: CheckpointRow) -> bool:
        return all(
            row.result_offsets.get(stream, {}).get(partition, 0) >= offset
            for stream, partitions in starts.items()
            for partition, offset in partitions.items()
        )

    return _first_slice(ledger, last, is_held)


def _first_slice(ledger: LedgerReader, last: CheckpointRow, is_so: Callable[[CheckpointRow], bool]) -> int:
    """Return the first slice for which `is_so` is true; the slice after the last if there is none. It must be true for all later
    slices, too."""
    first = max(1, ledger.floor(last.job))
    numbers = range(first, last.slice + 1)
    return first + bisect_left(numbers, True, key=lambda number: is_so(ledger.checkpoint(last.job, number)))
