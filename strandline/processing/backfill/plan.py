"""Plans a backfill: its windows, the slices to read, and the chunks to compute. Reads the ledger only.

A backfill recomputes past windows from the recorded slices with the current version of the pipeline. It ends
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
    """Returns the pipeline of a version."""

    def __call__(self, version: int, streams: StreamVersions | None = None, /) -> CheckedPipeline:
        """`streams`: versions of its streams' documents. None for those of the newest run of this version."""


@dataclass(frozen=True)
class BackfillPlan:
    """The work of one backfill."""

    version: int
    windows: dict[str, WindowRange]
    """Stage -> the ends of its windows. Only stages that emit to the index."""
    slice_first: int
    """First slice to read."""
    slice_committed: int
    """The last committed slice; later slices add no window."""
    records: int
    """Number of records to read."""


@dataclass(frozen=True)
class Chunk:
    """A part of a backfill that is computed and written in one step."""

    windows: dict[str, WindowRange]
    """Stage -> the ends of its windows. Stages without windows are left out."""
    events_from_ms: int
    """Earliest event time that one of its windows can contain."""
    up_to_ms: int
    """Time up to which all its windows end."""
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
    """Last committed slice when the backfill was requested."""


def plan_backfill(
    ledger: LedgerReader,
    job: str,
    load: Load,
    log_starts: Callable[[str], Mapping[int, int]],
    from_ms: int,
    to_ms: int | None,
) -> BackfillPlan:
    """Plan a backfill of the windows that end after `from_ms`, up to `to_ms`, or up to the last emitted window.

    1. Use the job's current version. It must have committed a slice: before that, its first own result is unknown.
    2. Choose the windows of each stage. They begin at a time at which windows of every version's size begin, so that no window is
       replaced in part. They end at the last emitted window that can't be revised any more.
    3. Find the slices that contain their records. The log must still contain them.

    `log_starts`: returns the first offset of each partition of a stream that is still in Kafka. Raises Conflict if there is
    nothing to compute; LogTruncated, with the earliest possible start; NotFound.
    """
    version, last = ledger.job(job).version, ledger.last_checkpoint(job)
    if last is None or last.version != version:
        raise Conflict(
            f"version {version} of job {job} has committed nothing yet, so the start of its own results is unknown; "
            "start the job, and request the backfill after its first committed slice"
        )
    pipeline = load(version)
    steps_ms = _steps(ledger, job, load, pipeline, last.slice)
    windows = {}
    for stage in pipeline.stages:
        if stage.name not in steps_ms:
            continue
        up_to_ms = last.emitted.get(stage.name, 0)
        if (
            stage.revise_ms
        ):  # windows that can still be revised are left to the job, so that the two never write the same window
            up_to_ms = min(up_to_ms, (last.closes_ms or 0) - stage.revise_ms)
        up_to_ms = up_to_ms if to_ms is None else min(up_to_ms, to_ms)
        step_ms = steps_ms[stage.name]
        window = WindowRange(stage.shape.last_start(from_ms // step_ms * step_ms), stage.shape.last_end(up_to_ms))
        if window.after_ms < window.up_to_ms:
            windows[stage.name] = window
    if not windows and pipeline.record_stages and not any(aliases_of(pipeline)[one.name] for one in pipeline.stages):
        raise Conflict(
            f"job {job} emits no windows to an index, and a backfill doesn't recompute records; apply the "
            "pipeline under another name, with other names for its emissions. The new job reads the log from its start"
        )
    if not windows:
        raise Conflict(
            f"job {job} has emitted no window that ends after {_time(from_ms)}"
            + (f" and at or before {_time(to_ms)}" if to_ms is not None else "")
            + (", except windows that late records can still revise" if pipeline.spec.revise_ms else "")
            + "; there is nothing to recompute. Pass an earlier --from, or wait until the job has emitted more windows"
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
    """Return the first slice that contains a record of these windows.

    Raises LogTruncated, with the earliest possible start of a backfill, if the log no longer contains all of them.
    """
    events_from_ms = _events_from(windows, pipeline)
    slice_first = ledger.first_slice_reaching(job, events_from_ms) or slice_committed
    slice_held = ledger.first_slice_from(job, slice_committed, log_starts)
    if slice_first < slice_held:
        # No record before that slice has a later event time.
        lost_up_to_ms = ledger.checkpoint(job, slice_held - 1).latest_event_ms or 0
        steps_ms = _steps(ledger, job, load, pipeline, slice_committed)
        ends_ms = zip(pipeline.stages, last_ends(pipeline.windows, lost_up_to_ms), strict=True)
        possible_ms = max(_up(end_ms, steps_ms[stage.name]) for stage, end_ms in ends_ms if stage.name in windows)
        raise LogTruncated(
            f"the log no longer contains all records of windows that begin at {_time(events_from_ms)}: retention removed "
            f"slices before {slice_held} of job {job}, but these windows need slice {slice_first}. A backfill can begin --from "
            f"{_time(possible_ms)}"
        )
    return slice_first


def windows_left(row: BackfillRow) -> dict[str, WindowRange]:
    """Return stage -> the windows that are not in the index yet, without finished stages."""
    if row.done_ms is None:
        return dict(row.windows)
    return _clip(row, row.done_ms, max(one.up_to_ms for one in row.windows.values()))


def stores_of(row: BackfillRow, pipeline: CheckedPipeline) -> list[str]:
    """Return the aliases that the backfill writes to."""
    return sorted(
        {alias for stage, aliases in aliases_of(pipeline).items() if stage in row.windows for alias in aliases}
    )


def _steps(ledger: LedgerReader, job: str, load: Load, pipeline: CheckedPipeline, slice_last: int) -> dict[str, int]:
    """Return stage -> least common multiple, in ms, of the distances between windows, over all versions that wrote to its
    aliases.

    At multiples of it, windows of all these versions begin. `load`: loads a version. `slice_last`: last slice of these
    versions."""
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
    """Return the next chunk of a backfill. None if all chunks are done.

    A chunk contains about `records_max` records, but is at least as long as the longest window. So with sliding windows, a chunk
    reads no record that an earlier chunk than the last one has read. It ends at a multiple of the longest distance between
    windows of a stage. Windows of most stages begin there, so few slices are read for two chunks.
    """
    after_ms = min(one.after_ms for one in row.windows.values()) if row.done_ms is None else row.done_ms
    end_ms = max(one.up_to_ms for one in row.windows.values())
    if after_ms >= end_ms:
        return None
    # In a cascade, windows of every stage begin there. Branches can have other times, and then more is read twice.
    step_ms = max(shape.grid_ms for shape in pipeline.windows)
    least_ms = _up(max(shape.reach_ms for shape in pipeline.windows), step_ms)
    first = _first_slice(ledger, row, _events_from(_clip(row, after_ms, end_ms), pipeline))
    # The slice that closes at least this time, regardless of its number of records.
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
    """Return the earliest event time that one of these windows can contain."""
    return min(
        first_event(pipeline.windows[: at + 1], windows[stage.name].after_ms)
        for at, stage in enumerate(pipeline.stages)
        if stage.name in windows
    )


def _first_slice(ledger: LedgerReader, row: BackfillRow, event_ms: int) -> int:
    """Return the first slice that can contain a record with an event time of `event_ms` or later. Raises LogTruncated if the
    slice was removed from the ledger after the backfill was planned."""
    first = ledger.first_slice_reaching(row.job, event_ms) or row.slice
    if first <= ledger.floor(row.job):
        raise LogTruncated(
            f"slices that backfill {row.generation} of job {row.job} reads were removed from the ledger; request the "
            "backfill again with a later --from"
        )
    return first


def _slice_with(ledger: LedgerReader, row: BackfillRow, first: int, records_max: int) -> int:
    """Return the last slice, at most `row.slice`, up to which the slices from `first` have at most `records_max` records. Return
    `first` if that slice alone has more."""
    before = ledger.totals(row.job, first - 1).records
    following = range(first + 1, row.slice + 1)
    return first + bisect_right(following, records_max, key=lambda last: ledger.totals(row.job, last).records - before)


def records_done(ledger: LedgerReader, row: BackfillRow, pipeline: CheckedPipeline, chunk: Chunk) -> int:
    """Return the number of the backfill's records that have been read after this chunk. A record of two chunks counts once."""
    first = _first_slice(ledger, row, _events_from(row.windows, pipeline))
    read = ledger.totals(row.job, chunk.slice_last).records - ledger.totals(row.job, first - 1).records
    return max(0, min(row.records, read))


def complete_backfills(ledger: LedgerReader, job: str, load: Load, swapping: int | None = None) -> list[Backfilled]:
    """Return the complete backfills, oldest first. `swapping`: generation of the caller, which is about to swap the aliases.

    Raises Conflict while another backfill swaps the aliases: what they show is unknown then.
    """
    found = []
    own = ledger.job(job).generation
    for row in ledger.backfills(job):
        if row.generation <= own:
            continue  # belongs to an earlier incarnation of the job
        if row.state is BackfillState.SWAPPING and row.generation != swapping:
            raise Conflict(f"backfill {row.generation} of job {job} is changing the aliases now; try again")
        if row.state is BackfillState.COMPLETE:
            found.append(
                Backfilled(row.generation, row.version, load(row.version, row.stream_versions), row.windows, row.slice)
            )
    return found


def generations_by_store(backfills: Sequence[Backfilled]) -> dict[str, list[Generation]]:
    """Return alias -> the backfilled generations that it shows, oldest first."""
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
