"""The plan of an audit: the slices to read and the windows to compare. It is computed from the ledger before anything is read.

A window is recomputed with the version that emitted it, from every slice that can contain one of its records. So committed
slices are divided into *version spans*. A span can read slices before its own, where its first windows begin, but only the
records of its own slices count in its totals.

A complete backfill is one more span, with the version and the generation that the alias shows for its windows. It adds
nothing to the totals: its records count in the spans of their slices. Those spans still compute the replaced windows,
because the totals count them, but expect no documents for them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from strandline.core.errors import NotFound
from strandline.ledger.states import CheckpointRow, Offsets, Totals
from strandline.processing.audit.index_reader import EndRange
from strandline.processing.backfill.plan import Backfilled, Load, generations_by_store
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.event_time import WindowShape, first_event, last_ends
from strandline.results.document import format_timestamp
from strandline.results.generations import Generation, newer_than
from strandline.results.sinks.registry import sink_of, store_of

if TYPE_CHECKING:  # the ledger's SQL takes half a second to import
    from strandline.ledger.roles import LedgerReader

RECORDS = "(records)"
"""Key of emitted records in floors by stage. Its value is an event time above those of all slices that can't be audited."""
WindowsByStage = Mapping[str, EndRange]
"""Stage -> the ends of its windows. A range up to 0 is empty."""


@dataclass(frozen=True)
class VersionSpan:
    """Slices that one version committed, with the windows that they made final. Or the windows of a backfill."""

    version: int
    pipeline: CheckedPipeline
    slice_first: int
    """First slice to read: it can contain records of the first window."""
    slice_own: int
    """First slice whose records count in this span's totals."""
    slice_last: int
    windows: WindowsByStage
    generation: int = 1
    """Generation of its documents."""
    is_backfill: bool = False
    """True for a backfill, which counts no records."""
    replaced: Mapping[str, tuple[Generation, ...]] = field(default_factory=dict)
    """Alias -> the newer generations, which replace some of these windows."""
    records_after_ms: int | None = None
    """Emitted records with a later event time are compared. None if all are."""

    @property
    def events_from_ms(self) -> int:
        """Earliest event time that a window, or an emission of records, of the span can contain."""
        found = [
            _first_event(self.windows[stage.name].after_ms, self.pipeline.windows[: at + 1])
            for at, stage in enumerate(self.pipeline.stages)
            if stage.name in self.windows
        ]
        if self.pipeline.record_stages and not self.is_backfill:
            dedupe = self.pipeline.dedupe
            horizon_ms = 0 if dedupe is None else dedupe.within_ms
            found.append(0 if self.records_after_ms is None else max(0, self.records_after_ms - horizon_ms))
        return min(found, default=0)

    @property
    def events_before_ms(self) -> int:
        """Time at or before which every window of the span ends."""
        return max((ends.up_to_ms or 0 for ends in self.windows.values()), default=0)


@dataclass(frozen=True)
class AuditPlan:
    """The slices that one audit reads, and the windows that it compares."""

    job: str
    requested: EndRange
    spans: tuple[VersionSpan, ...]
    slice_first: int
    """First slice whose records count in the totals."""
    slice_last: int
    """Last slice whose records count in the totals."""
    slice_committed: int
    """Last committed slice when the audit began. 0 if there was none."""
    slice_whole: int = 1
    """Earlier slices aren't compared: some of their results no longer exist, or they belong to an earlier incarnation."""
    scope: WindowsByStage = field(default_factory=dict)
    """Windows to compare."""
    totals: Totals = field(default_factory=lambda: Totals(0, 0, {}, {}))
    """The ledger's totals of slices `slice_first` to `slice_last`."""
    is_whole: bool = True
    """True if every window is audited, so that the ledger's counts of results can be compared."""
    offsets_first: Offsets = field(default_factory=dict)
    """Offsets where the slices with compared dead letters begin: those of `slice_first`, or later if older dead letters were
    deleted."""
    offsets: Offsets = field(default_factory=dict)
    """Offsets where `slice_last` ends."""
    letters_from: Mapping[int, int] = field(default_factory=dict)
    """Partition -> offset from which dead letters are read."""
    stores: Mapping[str, tuple[Generation, ...]] = field(default_factory=dict)
    """Alias -> the backfilled generations that it shows."""
    generation: int = 1
    """Generation that the job itself writes."""
    incomplete: str = ""
    """What can no longer be audited, in sentences. Empty if everything can be audited."""

    def without_event_times_before(self, slice_held: int) -> AuditPlan:
        """Return the plan. If slices below `slice_held` were removed before their event times were compared, the plan says so."""
        if self.slice_first > self.slice_last or slice_held <= self.slice_first:
            return self
        why = (
            f"event times of slices before {slice_held} were not compared, because these slices were removed from the ledger "
            "during the audit"
        )
        return replace(self, incomplete="; ".join(part for part in (self.incomplete, why) if part))


def plan_audit(
    ledger: LedgerReader,
    job: str,
    load: Load,
    log_starts: Offsets,
    letter_starts: Mapping[int, int],
    requested: EndRange,
    result_starts: Offsets | None = None,
    backfills: Sequence[Backfilled] = (),
    generation: int = 1,
) -> AuditPlan:
    """Plan the audit of `job` up to its last checkpoint.

    1. Find the last slice: that of the last checkpoint, or the first one that closes all requested windows permanently.
    2. Divide the slices up to it into spans by version, and add the backfills. For each span, find its windows, and the
       slices that can contain their records.
    3. If the log, the ledger, the dead-letter stream, or a stream of results has lost its beginning, keep only the
       windows that lost nothing.

    - `load`: returns the pipeline of a version.
    - `log_starts`, `letter_starts`, `result_starts`: first offsets that are still in Kafka, of the input, the dead
      letters, and the streams of results.
    - `requested`: requested range of the ends of windows.
    - `backfills`: complete backfills, oldest first.
    - `generation`: generation that the job itself writes.

    Raises NotFound if the job has no checkpoint, LedgerUnavailable.
    """
    last = ledger.last_checkpoint(job)
    if last is None:
        raise NotFound(f"job {job} has committed nothing yet; audit it when it has results")
    slice_last = last.slice
    if requested.up_to_ms is not None:
        slice_last = min(slice_last, ledger.first_slice_final(job, requested.up_to_ms) or slice_last)
    versions = _versions(ledger, job, load, slice_last)
    slice_of_letters = _first_slice_with_letters(ledger, job, slice_last, letter_starts)
    slice_of_results = _first_slice_with_results(ledger, job, slice_last, result_starts or {})
    slice_whole = max(slice_of_letters, slice_of_results, ledger.floor(job) + 1)
    floors = dict(ledger.checkpoint(job, slice_whole - 1).emitted) if slice_whole > 1 else {}
    for name, end_ms in _ends_without_letters(ledger, job, backfills, letter_starts):
        floors[name] = max(floors.get(name, 0), end_ms)
    emits_records = any(one.pipeline.record_stages for one in versions)
    if emits_records and slice_whole > 1:
        floors[RECORDS] = (ledger.checkpoint(job, slice_whole - 1).latest_event_ms or 0) + 1
    stores = {store: tuple(shown) for store, shown in generations_by_store(backfills).items()}

    def spans_above(floors: Mapping[str, int]) -> list[VersionSpan]:
        again = [_span_of_backfill(ledger, job, one, requested, floors) for one in backfills]
        spans = (_span_of_versions(ledger, job, one, requested, floors) for one in versions)
        own = [replace(span, generation=generation) for span in spans if span is not None]
        return [_without_replaced(span, stores) for span in (*again, *own) if span is not None]

    spans = spans_above(floors)
    slice_held = ledger.first_slice_from(job, slice_last, log_starts)
    if any(span.slice_first < slice_held for span in spans):
        # No record before that slice has a later event time.
        lost_up_to_ms = ledger.checkpoint(job, slice_held - 1).latest_event_ms or 0
        if emits_records:
            horizons = [0, *(one.pipeline.dedupe.within_ms for one in versions if one.pipeline.dedupe is not None)]
            floors[RECORDS] = max(floors.get(RECORDS, 0), lost_up_to_ms + 1 + max(horizons))
        for pipeline in [one.pipeline for one in versions] + [one.pipeline for one in backfills]:
            # A window that ends after these times contains no record up to the lost event time.
            for stage, end_ms in zip(pipeline.stages, last_ends(pipeline.windows, lost_up_to_ms), strict=True):
                floors[stage.name] = max(floors.get(stage.name, 0), end_ms)
        spans = spans_above(floors)
    floor_ms = max(floors.values(), default=0)
    is_cut = bool(floors) and (requested.after_ms is None or requested.after_ms < floor_ms)
    plan = AuditPlan(
        job=job,
        requested=requested,
        spans=tuple(spans),
        slice_first=min((one.slice_own for one in spans if not one.is_backfill), default=slice_last + 1),
        slice_last=slice_last,
        slice_committed=last.slice,
        slice_whole=slice_whole,
        is_whole=requested == EndRange() and not is_cut,
        stores=stores,
        generation=generation,
        incomplete=_incomplete(floor_ms) if is_cut else "",
    )
    return _with_facts(ledger, plan, slice_of_letters, letter_starts) if spans else plan


def _incomplete(floor_ms: int) -> str:
    when = format_timestamp(floor_ms * 1000)
    return (
        f"windows before {when} can't all be audited: the log, the ledger, the dead-letter stream, or a stream of results "
        f"has lost its beginning. To audit only later windows, add --from {when}"
    )


def _with_facts(
    ledger: LedgerReader, plan: AuditPlan, slice_of_letters: int, letter_starts: Mapping[int, int]
) -> AuditPlan:
    """Return the plan with its totals, offsets, and windows from the ledger."""
    job, spans = plan.job, plan.spans
    names = dict.fromkeys(stage.name for span in spans for stage in span.pipeline.stages if stage.name in span.windows)
    before = ledger.totals(job, plan.slice_first - 1)
    slice_letters = max(plan.slice_first, min(slice_of_letters, plan.slice_last))
    offsets = ledger.slices(job, plan.slice_last, plan.slice_last)[0].offsets
    counted = ledger.slices(job, slice_letters, plan.slice_last)[:1]
    letters_from = ledger.checkpoint(job, slice_letters - 1).dead_letter_offsets if slice_letters > 1 else {}
    return replace(
        plan,
        scope={name: whole_range([span.windows[name] for span in spans if name in span.windows]) for name in names},
        totals=_subtract(ledger.totals(job, plan.slice_last), before),
        offsets_first=counted[0].offsets_first if counted else offsets,
        offsets=offsets,
        letters_from=letters_from | {at: max(start, letters_from.get(at, 0)) for at, start in letter_starts.items()},
    )


def _first_slice_with_letters(ledger: LedgerReader, job: str, slice_last: int, letter_starts: Mapping[int, int]) -> int:
    """Return the first slice, at most `slice_last` + 1, from which all dead letters are still in Kafka."""
    # No dead letter of these slices has a higher offset: deleted ones after it belong to a backfill, or to later slices.
    ends = ledger.checkpoint(job, slice_last).dead_letter_offsets
    starts = {partition: min(start, ends.get(partition, 0)) for partition, start in letter_starts.items()}
    if not any(starts.values()):
        return 1
    return _first_slice_where(
        ledger, job, slice_last, lambda before: _hold_all(starts, before.dead_letter_offsets if before else {})
    )


def _ends_without_letters(
    ledger: LedgerReader, job: str, backfills: Sequence[Backfilled], letter_starts: Mapping[int, int]
) -> Iterator[tuple[str, int]]:
    """Yield each stage of a backfill whose dead letters may no longer all be in Kafka, with the end of its last window.

    They were written after those that existed at the request of the backfill, whose offsets a checkpoint contains.
    `letter_starts`: partition -> first offset that is still in Kafka.
    """
    for one in backfills:
        is_cleared = one.slice < ledger.floor(job)  # then all windows up to the floor are left out
        if not is_cleared and not _hold_all(letter_starts, ledger.checkpoint(job, one.slice).dead_letter_offsets):
            yield from ((stage, up_to_ms) for stage, (_, up_to_ms) in one.windows.items())


def _hold_all(starts: Mapping[int, int], begin: Mapping[int, int]) -> bool:
    """Return True if streams that start at `starts` contain everything from `begin`."""
    return all(begin.get(partition, 0) >= offset for partition, offset in starts.items())


def _first_slice_with_results(ledger: LedgerReader, job: str, slice_last: int, starts: Offsets) -> int:
    """Return the first slice, at most `slice_last` + 1, from which all results in streams are still in Kafka."""
    if not any(offset for partitions in starts.values() for offset in partitions.values()):
        return 1

    def are_held(before: CheckpointRow | None) -> bool:
        begin = before.result_offsets if before else {}
        return all(
            begin.get(stream, {}).get(partition, 0) >= offset
            for stream, partitions in starts.items()
            for partition, offset in partitions.items()
        )

    return _first_slice_where(ledger, job, slice_last, are_held)


def _first_slice_where(
    ledger: LedgerReader, job: str, slice_last: int, is_so: Callable[[CheckpointRow | None], bool]
) -> int:
    """Return the first slice, at most `slice_last` + 1, for which `is_so` is true of the checkpoint before it (None before the
    first). If it is true for one slice, it must be true for all later slices."""

    def is_so_of(number: int) -> bool:  # the start of a slice's dead letters and results never decreases
        return is_so(ledger.checkpoint(job, number - 1) if number > 1 else None)

    first = ledger.floor(job) + 1
    return first + bisect_left(range(first, slice_last + 1), True, key=is_so_of)


@dataclass(frozen=True)
class _Versions:
    """Slices `first` to `last` of one version, or of several versions that compute the same."""

    version: int
    pipeline: CheckedPipeline
    first: int
    last: int


def _versions(ledger: LedgerReader, job: str, load: Load, slice_last: int) -> list[_Versions]:
    found: list[_Versions] = []
    changes = ledger.compiled_changes(job, slice_last)
    ends = [*(one.slice_first - 1 for one in changes[1:]), slice_last][: len(changes)]
    for (first, version, streams), end in zip(changes, ends, strict=True):
        pipeline = load(version, streams)
        if found and _meaning(found[-1].pipeline) == _meaning(pipeline):
            found[-1] = _Versions(version, pipeline, found[-1].first, end)
        else:
            found.append(_Versions(version, pipeline, first, end))
    return found


def _meaning(pipeline: CheckedPipeline) -> tuple[object, ...]:
    """Return everything that results and dead letters depend on, except the slices."""
    sinks = [(stage.name, stage.emits) for stage in pipeline.all_stages]
    return pipeline.identity, sinks, pipeline.spec.late


def _span_of_versions(
    ledger: LedgerReader, job: str, versions: _Versions, requested: EndRange, floors: Mapping[str, int]
) -> VersionSpan | None:
    """Return the span of these slices. None if it contains nothing to audit. `floors`: stage -> time after which windows must
    end."""
    before: dict[str, int | None] = {}
    if versions.first > 1:
        # A stage that is new in this version begins with the first window that wasn't closed.
        last = ledger.checkpoint(job, versions.first - 1)
        before = {stage.name: last.emitted.get(stage.name, last.closes_ms) for stage in versions.pipeline.stages}
    emitted = ledger.checkpoint(job, versions.last).emitted
    windows = {}
    for stage in versions.pipeline.stages:
        after_ms = [before.get(stage.name), requested.after_ms, floors.get(stage.name)]
        up_to_ms = [emitted.get(stage.name, 0), requested.up_to_ms]
        windows[stage.name] = EndRange(
            max((known for known in after_ms if known is not None), default=None),
            min(known for known in up_to_ms if known is not None),
        )
    span = VersionSpan(
        versions.version,
        versions.pipeline,
        versions.first,
        versions.first,
        versions.last,
        windows,
        records_after_ms=max(
            (known for known in (requested.after_ms, floors.get(RECORDS)) if known is not None), default=None
        ),
    )
    slice_reaching = ledger.first_slice_reaching(job, span.events_from_ms)
    if requested.after_ms is None and not floors:
        # Every slice counts in the totals, even if no window needs it.
        return replace(span, slice_first=min(slice_reaching or versions.first, versions.first))
    is_empty = not any(map(_holds_a_window, windows.values())) and not versions.pipeline.record_stages
    if slice_reaching is None or slice_reaching > versions.last or is_empty:
        return None
    return replace(span, slice_first=slice_reaching, slice_own=max(versions.first, slice_reaching))


def _span_of_backfill(
    ledger: LedgerReader, job: str, backfill: Backfilled, requested: EndRange, floors: Mapping[str, int]
) -> VersionSpan | None:
    """Return the span of a backfill's windows. None if none of them must be audited."""
    windows = {}
    for stage, (after_ms, up_to_ms) in backfill.windows.items():
        after = max(after_ms, requested.after_ms or 0, floors.get(stage, 0))
        up_to = up_to_ms if requested.up_to_ms is None else min(up_to_ms, requested.up_to_ms)
        if after < up_to:
            windows[stage] = EndRange(after, up_to)
    if not windows:
        return None
    found = VersionSpan(backfill.version, backfill.pipeline, 1, 1, 1, windows, backfill.generation, True)
    slice_first = ledger.first_slice_reaching(job, found.events_from_ms)
    slice_last = ledger.first_slice_final(job, found.events_before_ms)
    if slice_first is None or slice_last is None:
        return None
    return replace(found, slice_first=slice_first, slice_own=slice_last + 1, slice_last=slice_last)


def _without_replaced(span: VersionSpan, stores: Mapping[str, tuple[Generation, ...]]) -> VersionSpan:
    replaced = {store: newer_than(shown, span.generation) for store, shown in stores.items()}
    return replace(span, replaced={store: newer for store, newer in replaced.items() if newer})


def _holds_a_window(ends: EndRange) -> bool:
    return (ends.after_ms or 0) < (ends.up_to_ms or 0)


def _first_event(after_ms: int | None, windows: Sequence[WindowShape]) -> int:
    """Return a time before which no record is in a window of the last of these stages that ends after `after_ms`. None for any
    window; no record is from before 1970."""
    return 0 if after_ms is None else first_event(windows, after_ms)


def _subtract(totals: Totals, before: Totals) -> Totals:
    return Totals(
        totals.records - before.records,
        totals.accepted - before.accepted,
        {key: count for key in totals.rejected if (count := totals.rejected[key] - before.rejected.get(key, 0))},
        {key: totals.results[key] - before.results.get(key, 0) for key in totals.results},
        _refused_since(totals.refused or {}, before.refused or {}),
    )


def _refused_since(refused: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {key: count for key in refused if (count := refused[key] - before.get(key, 0))}


def whole_range(ranges: Sequence[EndRange]) -> EndRange:
    """Return the smallest range that contains all of these. It has no beginning if one of them has none."""
    after_ms = [one.after_ms for one in ranges if one.after_ms is not None]
    is_bounded = len(after_ms) == len(ranges)
    return EndRange(min(after_ms) if is_bounded else None, max(one.up_to_ms or 0 for one in ranges))


def streams_of(pipeline: CheckedPipeline) -> dict[str, tuple[str, ...]]:
    """Return stage -> the streams that it emits to."""
    return {stage.name: stage.streams for stage in pipeline.all_stages}


def stores_of(pipeline: CheckedPipeline) -> dict[str, tuple[str, ...]]:
    """Return stage -> the stores of its results, with the names of the reconciliation."""
    return {
        stage.name: tuple(store_of(emit) for emit in stage.emits if sink_of(emit).is_compared)
        for stage in pipeline.all_stages
    }


def stores_of_letters(pipeline: CheckedPipeline) -> dict[str, tuple[str, ...]]:
    """Return stage -> its stores, and the sinks whose results aren't compared but can be refused."""
    return {stage.name: tuple(store_of(emit) for emit in stage.emits) for stage in pipeline.all_stages}
