"""Plans a backfill: its windows, the slices to read, and the chunks to compute. Reads the ledger only.

A backfill recomputes windows of the past from the recorded slices with the present version of the pipeline. It ends
where the live job had emitted when it was requested, so the two never write the same window.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from strandline.core.errors import Conflict, LogTruncated
from strandline.ledger.states import BackfillRow, BackfillState, Offsets, StreamVersions, WindowRange
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline, aliases_of
from strandline.processing.pipelines.event_time import first_event, last_ends
from strandline.results.document import format_timestamp
from strandline.results.generations import Generation

if TYPE_CHECKING:  # the ledger's SQL takes half a second to import
    from strandline.ledger.roles import LedgerReader


class Load(Protocol):
    """Gives the pipeline of a version."""

    def __call__(self, version: int, streams: StreamVersions | None = None, /) -> CheckedPipeline:
        """`streams`: by which versions of its stream's document; None: as the newest run of this version."""


@dataclass(frozen=True)
class BackfillPlan:
    """What one backfill computes."""

    version: int
    windows: dict[str, WindowRange]
    """Stage -> the ends of its windows. Only stages that emit to the index."""
    slice_first: int
    """The first slice to read."""
    slice_committed: int
    """The last committed slice; later slices add no window."""
    records: int
    """How many records will be read."""


@dataclass(frozen=True)
class Chunk:
    """A part of a backfill that is computed and written in one go."""

    windows: dict[str, WindowRange]
    """Stage -> the ends of its windows; stages without any are left out."""
    events_from_ms: int
    """The earliest event time that a window of it can hold."""
    up_to_ms: int
    """All its windows end up to here."""
    slice_first: int
    slice_last: int


@dataclass(frozen=True)
class Backfilled:
    """A complete backfill, as readers of the aliases see it."""

    generation: int
    version: int
    pipeline: CheckedPipeline
    windows: Mapping[str, WindowRange]
    slice: int
    """The last committed one when it was asked for."""


def plan_backfill(
    ledger: LedgerReader,
    job: str,
    load: Load,
    log_starts: Callable[[str], Mapping[int, int]],
    from_ms: int,
    to_ms: int | None,
) -> BackfillPlan:
    """Plan a backfill of the windows that end after `from_ms`, up to `to_ms`, or up to what is emitted now.

    1. Take the job's present version. It must have committed a slice: before that, where it takes over is unknown.
    2. Choose each stage's windows: from a time at which windows of every version's size begin, so that no window is
       replaced in part, up to the last emitted one that can't be revised any more.
    3. Find the slices that hold their records. The log must still hold them.

    `log_starts` returns the first offset that Kafka still holds of each partition of a stream. Raises Conflict when there is
    nothing to compute; LogTruncated, with the time from which it could begin; NotFound.
    """
    version, last = ledger.job(job).version, ledger.last_checkpoint(job)
    if last is None or last.version != version:
        raise Conflict(
            f"version {version} of job {job} has committed nothing yet, so where its own results begin is not known; "
            "start the job, and ask again when it has"
        )
    pipeline = load(version)
    steps_ms = _steps(ledger, job, load, pipeline, last.slice)
    windows = {}
    for stage in pipeline.stages:
        if stage.name not in steps_ms:
            continue
        up_to_ms = last.emitted.get(stage.name, 0)
        if stage.revise_ms:  # what may still be revised is left to the job, so that the two never write the same window
            up_to_ms = min(up_to_ms, (last.closes_ms or 0) - stage.revise_ms)
        up_to_ms = up_to_ms if to_ms is None else min(up_to_ms, to_ms)
        step_ms = steps_ms[stage.name]
        window = WindowRange(stage.shape.last_start(from_ms // step_ms * step_ms), stage.shape.last_end(up_to_ms))
        if window.after_ms < window.up_to_ms:
            windows[stage.name] = window
    if not windows and pipeline.record_stages and not any(aliases_of(pipeline)[one.name] for one in pipeline.stages):
        raise Conflict(
            f"job {job} emits no windows to an index, and records that are emitted are not computed anew by a backfill; give "
            "the emission another name, and a new job reads the log from its start"
        )
    if not windows:
        raise Conflict(
            f"job {job} has emitted no window yet that ends after {_time(from_ms)}"
            + (f", up to {_time(to_ms)}" if to_ms is not None else "")
            + (", and that late records can't revise any more" if pipeline.spec.revise_ms else "")
            + "; there is nothing to compute anew"
        )
    log_starts_of = {stream: dict(log_starts(stream)) for stream in pipeline.streams}
    slice_first = require_records(ledger, job, load, pipeline, windows, last.slice, log_starts_of)
    slice_last = ledger.first_slice_final(job, max(one.up_to_ms for one in windows.values())) or last.slice
    records = ledger.totals(job, slice_last).records - ledger.totals(job, slice_first - 1).records
    return BackfillPlan(version, windows, slice_first, last.slice, max(0, records))


def require_records(
    ledger: LedgerReader,
    job: str,
    load: Load,
    pipeline: CheckedPipeline,
    windows: Mapping[str, WindowRange],
    slice_committed: int,
    log_starts: Offsets,
) -> int:
    """Return the first slice that holds a record of these windows.

    Raises LogTruncated, with the time from which a backfill could begin, when the log no longer holds all of them.
    """
    events_from_ms = _events_from(windows, pipeline)
    slice_first = ledger.first_slice_reaching(job, events_from_ms) or slice_committed
    slice_held = ledger.first_slice_from(job, slice_committed, log_starts)
    if slice_first < slice_held:
        # Every record before that slice has an event time of at most this.
        lost_up_to_ms = ledger.checkpoint(job, slice_held - 1).latest_event_ms or 0
        steps_ms = _steps(ledger, job, load, pipeline, slice_committed)
        ends_ms = zip(pipeline.stages, last_ends(pipeline.windows, lost_up_to_ms), strict=True)
        possible_ms = max(_up(end_ms, steps_ms[stage.name]) for stage, end_ms in ends_ms if stage.name in windows)
        raise LogTruncated(
            f"the log no longer holds all records of windows that begin at {_time(events_from_ms)}: retention has taken "
            f"slices before {slice_held} of job {job}, and these need slice {slice_first}. A backfill can begin --from "
            f"{_time(possible_ms)}"
        )
    return slice_first


def windows_left(row: BackfillRow) -> dict[str, WindowRange]:
    """Stage -> the windows that are not in the index yet, without stages that are done."""
    if row.done_ms is None:
        return dict(row.windows)
    return _clip(row, row.done_ms, max(one.up_to_ms for one in row.windows.values()))


def stores_of(row: BackfillRow, pipeline: CheckedPipeline) -> list[str]:
    """The aliases that the backfill writes to."""
    return sorted(
        {alias for stage, aliases in aliases_of(pipeline).items() if stage in row.windows for alias in aliases}
    )


def _steps(ledger: LedgerReader, job: str, load: Load, pipeline: CheckedPipeline, slice_last: int) -> dict[str, int]:
    """Stage -> how far apart the times are at which windows of every version begin that has written to its aliases."""
    grids_ms: dict[str, set[int]] = defaultdict(set)
    windows = {stage.name for stage in pipeline.stages}
    for _, version in ledger.version_changes(job, slice_last):
        past = load(version)
        aliases = aliases_of(past)
        for stage in past.stages:
            for alias in aliases[stage.name]:
                grids_ms[alias].add(stage.shape.grid_ms)
    return {
        stage: math.lcm(*(one_ms for alias in aliases for one_ms in grids_ms[alias]))
        for stage, aliases in aliases_of(pipeline).items()
        if aliases and stage in windows
    }


def next_chunk(ledger: LedgerReader, row: BackfillRow, pipeline: CheckedPipeline, records_max: int) -> Chunk | None:
    """The next chunk of a backfill; None when all is done. It holds about `records_max` records, but spans no less than the
    longest window: so where windows slide, a chunk reads at most as much again as the one before has read. It ends where
    windows of the stage begin whose windows begin furthest apart, so that few slices are read for two chunks.
    """
    after_ms = min(one.after_ms for one in row.windows.values()) if row.done_ms is None else row.done_ms
    end_ms = max(one.up_to_ms for one in row.windows.values())
    if after_ms >= end_ms:
        return None
    # In a cascade windows of every stage begin there. Branches need not agree on such times, and then more is read twice.
    step_ms = max(shape.grid_ms for shape in pipeline.windows)
    least_ms = _up(max(shape.reach_ms for shape in pipeline.windows), step_ms)
    first = _first_slice(ledger, row, _events_from(_clip(row, after_ms, end_ms), pipeline))
    # The slice that closes so much, however many records that takes.
    closing = ledger.first_slice_closing(row.job, after_ms // step_ms * step_ms + least_ms) or row.slice
    up_to_ms, last = end_ms, max(closing, _slice_with(ledger, row, first, records_max))
    if last < row.slice:
        closes_ms = ledger.checkpoint(row.job, last).closes_ms
        assert closes_ms is not None, "what a slice closes never falls"
        up_to_ms = min(end_ms, closes_ms // step_ms * step_ms)
    windows = _clip(row, after_ms, up_to_ms)
    events_from_ms = _events_from(windows, pipeline) if windows else up_to_ms
    slice_last = ledger.first_slice_final(row.job, up_to_ms) or row.slice
    return Chunk(windows, events_from_ms, up_to_ms, _first_slice(ledger, row, events_from_ms), slice_last)


def _clip(row: BackfillRow, after_ms: int, up_to_ms: int) -> dict[str, WindowRange]:
    clipped = {
        stage: WindowRange(max(one.after_ms, after_ms), min(one.up_to_ms, up_to_ms))
        for stage, one in row.windows.items()
    }
    return {stage: one for stage, one in clipped.items() if one.after_ms < one.up_to_ms}


def _events_from(windows: Mapping[str, WindowRange], pipeline: CheckedPipeline) -> int:
    """The earliest event time that one of these windows can hold."""
    return min(
        first_event(pipeline.windows[: at + 1], windows[stage.name].after_ms)
        for at, stage in enumerate(pipeline.stages)
        if stage.name in windows
    )


def _first_slice(ledger: LedgerReader, row: BackfillRow, event_ms: int) -> int:
    """Raises LogTruncated when the ledger no longer holds it: slices were removed between the plan and the request."""
    first = ledger.first_slice_reaching(row.job, event_ms) or row.slice
    if first <= ledger.floor(row.job):
        raise LogTruncated(
            f"the ledger no longer holds the slices that backfill {row.generation} of job {row.job} reads; request it again"
        )
    return first


def _slice_with(ledger: LedgerReader, row: BackfillRow, first: int, records_max: int) -> int:
    """The last slice, from `first` on and at most `row.slice`, up to which there are at most `records_max` records."""
    before = ledger.totals(row.job, first - 1).records
    following = range(first + 1, row.slice + 1)
    return first + bisect_right(following, records_max, key=lambda last: ledger.totals(row.job, last).records - before)


def records_done(ledger: LedgerReader, row: BackfillRow, pipeline: CheckedPipeline, chunk: Chunk) -> int:
    """How many of the backfill's records have been read once this chunk is done."""
    first = _first_slice(ledger, row, _events_from(row.windows, pipeline))
    read = ledger.totals(row.job, chunk.slice_last).records - ledger.totals(row.job, first - 1).records
    return max(0, min(row.records, read))


def complete_backfills(ledger: LedgerReader, job: str, load: Load, swapping: int | None = None) -> list[Backfilled]:
    """The complete backfills, the oldest first. `swapping`: the generation of the caller, which is about to swap the aliases.

    Raises Conflict while another backfill swaps the aliases: what they show is unknown then.
    """
    found = []
    own = ledger.job(job).generation
    for row in ledger.backfills(job):
        if row.generation <= own:
            continue  # of an earlier life of the job
        if row.state is BackfillState.SWAPPING and row.generation != swapping:
            raise Conflict(
                f"backfill {row.generation} of job {job} is just being shown in place of what was; ask again"
            )
        if row.state is BackfillState.COMPLETE:
            found.append(
                Backfilled(row.generation, row.version, load(row.version, row.stream_versions), row.windows, row.slice)
            )
    return found


def generations_by_store(backfills: Sequence[Backfilled]) -> dict[str, list[Generation]]:
    """Alias -> the backfilled generations that it shows, the oldest first."""
    stores: dict[str, list[Generation]] = defaultdict(list)
    for one in backfills:
        for stage, aliases in aliases_of(one.pipeline).items():
            for alias in aliases if stage in one.windows else ():
                stores[alias].append(Generation(one.generation, *one.windows[stage]))
    return dict(stores)


def _up(time_ms: int, step_ms: int) -> int:
    return -(-time_ms // step_ms) * step_ms


def _time(time_ms: int) -> str:
    return format_timestamp(time_ms * 1000)
