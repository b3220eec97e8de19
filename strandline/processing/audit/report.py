"""The scope of an audit, and its report. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from strandline.core.described import Described
from strandline.core.record_headers import REASON_DUPLICATE, REASON_RESULT
from strandline.ledger.states import SliceRow, Totals
from strandline.processing.audit.index_reader import EndRange
from strandline.processing.audit.plan import AuditPlan, VersionSpan, stores_of, stores_of_letters, whole_range
from strandline.processing.audit.reconciliation import (
    DEAD_LETTERS,
    DIFFERENCES,
    EVER_MS,
    RESULT_LETTERS,
    SAMPLE_MAX,
    ComparisonResult,
    Counts,
    DeadLetterScope,
    Finding,
    Kind,
    Reconciler,
    RecordScope,
    StoreScope,
)
from strandline.results.document import format_timestamp
from strandline.results.sinks.registry import sink_of_store

Outcome = Literal["clean", "differences", "incomplete"]


@dataclass(frozen=True)
class StoreReport(Described):
    """The comparison of one store.

    A store is an alias of the index, a stream of results (`stream:NAME`), files (`files:PATH`), or a table (`table:NAME`). The
    dead letters of a stage's results without a value (`letters:STAGE`) and those of records are stores too.
    """

    store: str
    stage: str
    """Empty for dead letters."""
    after_ms: int | None
    """The audited windows end after this time. Null if the audit starts with the first window."""
    up_to_ms: int | None
    """End of the last audited window."""
    counts: dict[str, int]
    """Number of ids for each outcome.

    - Without a difference: `same`; `refused` (the store refused the document, and a dead letter exists); `later` (slices after
      the last audited one); `outside` the range; `removed` by their owner.
    - Differences: `missing`, `extra`, `different`, `misplaced`, `duplicate`, and files that are `lost`.
    """


@dataclass(frozen=True)
class AuditReport(Described):
    """The report of an audit."""

    job: str
    outcome: Outcome
    """`incomplete`: nothing differs, but the log, the ledger, or files no longer contain everything that was requested."""
    incomplete: str
    requested_after_ms: int | None
    requested_up_to_ms: int | None
    slice_first: int
    slice_last: int
    computed: Totals
    """Totals of the audited slices, computed from the log."""
    ledger: Totals
    """Totals of the ledger. `results` only if every window was audited."""
    totals_differences: list[str]
    """Differences between the two totals, as sentences."""
    event_time_differences: list[str]
    """Slices whose event time, watermark, or close differs from the log, as sentences: the first 100."""
    stores: list[StoreReport]
    differences: int
    """Number of all differences: in all stores, in the totals, and in event times."""
    sample: list[Finding]
    """The first differences, at most 100."""
    seconds: float


def store_scopes(
    plan: AuditPlan, last: SliceRow, removed: Mapping[str, int] = MappingProxyType({})
) -> dict[str, StoreScope]:
    """Return the documents of each store to compare. `last`: a slice that was in the ledger after the stores were read.
    `removed`: store -> the time before which its owner has removed everything."""
    scopes: dict[str, StoreScope] = {}
    revised = {one.name for span in plan.spans for one in span.pipeline.stages if one.revise_ms}
    for span in plan.spans:
        if not span.is_backfill:
            for records in span.pipeline.record_stages:
                for store in stores_of(span.pipeline)[records.name]:
                    scopes[store] = RecordScope(
                        records.name,
                        plan.requested.after_ms,
                        plan.requested.up_to_ms,
                        plan.slice_committed,
                        last.number,
                        slice_first=plan.slice_first,
                        slice_last=plan.slice_last,
                        removed_before_ms=removed.get(store),
                    )
        for stage, stores in stores_of(span.pipeline).items():
            if stage not in span.windows:
                continue
            # The recomputation doesn't contain results that had no value before they were revised.
            is_revised = stage in revised
            for store in stores if is_revised else (RESULT_LETTERS + stage, *stores):
                known = scopes[store].generations if store in scopes else {}
                shown = stores if store.startswith(RESULT_LETTERS) else (store,)
                ranges = [plan.scope[stage]] if store.startswith(RESULT_LETTERS) else _ranges_in(plan, store)
                ends = whole_range(ranges)
                scopes[store] = StoreScope(
                    stage,
                    ends.after_ms,
                    ends.up_to_ms,
                    plan.slice_committed,
                    last.number,
                    {**known, **{name: plan.stores.get(name, ()) for name in shown}},
                    plan.generation,
                    is_revised,
                    plan.slice_whole if sink_of_store(store).keeps_other_results else 1,
                    removed.get(store),
                    tuple(ranges),
                )
    return scopes


def _ranges_in(plan: AuditPlan, store: str) -> list[EndRange]:
    """Return the windows of each stage that emits to the store. A stage can have another name in an earlier version."""
    return [
        plan.scope[stage]
        for span in plan.spans
        for stage, stores in stores_of(span.pipeline).items()
        if store in stores and stage in span.windows
    ]


def letter_scope(plan: AuditPlan, last: SliceRow) -> DeadLetterScope:
    """Return the dead letters to compare. `last`: see `store_scopes`."""
    is_to_the_end = plan.slice_last == plan.slice_committed
    return DeadLetterScope(
        plan.offsets_first,
        plan.offsets,
        last.offsets if is_to_the_end else None,
    )


def make_report(
    plan: AuditPlan,
    computed: Totals,
    event_times: Sequence[str],
    found: ComparisonResult,
    reconciler: Reconciler,
    seconds: float,
) -> AuditReport:
    """Build the report from the two totals, event times, the outcomes for each store's ids, and the first differences."""
    totals = plan.totals
    if not plan.is_whole:  # records before the first slice determine duplicates too
        totals, computed = _without_duplicates(totals), _without_duplicates(computed)
    rejected = {reason: count for reason, count in sorted(totals.rejected.items()) if count}
    # The totals of slices don't contain refusals of a backfill.
    refused = totals.refused if plan.is_whole and not any(plan.stores.values()) else None
    # The recomputation doesn't contain the number of revisions.
    revised = {scope.stage for scope in reconciler.stores.values() if scope.is_revised}
    results = {stage: count for stage, count in totals.results.items() if plan.is_whole and stage not in revised}
    # It doesn't contain refusals of a package's sink either, whose results aren't compared.
    has_others = any(not sink_of_store(store).is_compared for one in plan.spans for store in _all_stores(one))
    refused = None if refused is None or revised or has_others else refused
    ledger = Totals(totals.records, totals.accepted, rejected, results, refused)
    computed = replace(computed, refused=None if refused is None else _refused(reconciler, found.counts))
    totals_differences = _compare_totals(computed, ledger)
    stores = [
        report
        for name, one in sorted(reconciler.stores.items())
        if (report := _store_report(name, one, found.counts)).counts.keys() - {Kind.OUTSIDE}
        or not name.startswith(RESULT_LETTERS)
    ]
    stores.append(_store_report(DEAD_LETTERS, None, found.counts))
    differences = len(totals_differences) + len(event_times)
    differences += sum(count for (_, kind, _), count in found.counts.items() if kind in DIFFERENCES)
    incomplete = "; ".join([*([plan.incomplete] if plan.incomplete else []), *_removed(reconciler, found.counts)])
    outcome: Outcome = "differences" if differences else "incomplete" if incomplete else "clean"
    return AuditReport(
        job=plan.job,
        outcome=outcome,
        incomplete=incomplete,
        requested_after_ms=plan.requested.after_ms,
        requested_up_to_ms=plan.requested.up_to_ms,
        slice_first=plan.slice_first,
        slice_last=plan.slice_last,
        computed=computed,
        ledger=ledger,
        totals_differences=totals_differences,
        event_time_differences=list(event_times[:SAMPLE_MAX]),
        stores=stores,
        differences=differences,
        sample=found.sample,
        seconds=round(seconds, 3),
    )


def _without_duplicates(totals: Totals) -> Totals:
    """Return the totals with duplicates counted as accepted."""
    rejected = {reason: count for reason, count in totals.rejected.items() if reason != REASON_DUPLICATE}
    return replace(totals, accepted=totals.records - sum(rejected.values()), rejected=rejected)


def _compare_totals(computed: Totals, ledger: Totals) -> list[str]:
    """Return a sentence for each number that differs between the log and the ledger."""
    reasons = sorted(computed.rejected | ledger.rejected)
    found, counted = computed.refused or {}, ledger.refused or {}
    pairs = [
        ("records", computed.records, ledger.records),
        ("accepted", computed.accepted, ledger.accepted),
        *((f"rejected as {one}", computed.rejected.get(one, 0), ledger.rejected.get(one, 0)) for one in reasons),
        *((f"results of {stage}", computed.results.get(stage, 0), count) for stage, count in ledger.results.items()),
        *(
            (f"refused results of {stage}", found.get(stage, 0), counted.get(stage, 0))
            for stage in sorted(found | counted)
        ),
    ]
    return [f"{what}: {ours:,} by the log, {theirs:,} by the ledger" for what, ours, theirs in pairs if ours != theirs]


def _refused(reconciler: Reconciler, counts: Counts) -> dict[str, int]:
    """Return stage -> its results that a store refused, by their dead letters, once for each store."""
    found: Counter[str] = Counter()
    for (store, kind, label), count in counts.items():
        if kind == Kind.REFUSED and label == REASON_RESULT:
            found[reconciler.stores[store].stage] += count
    return dict(found)


def _all_stores(span: VersionSpan) -> set[str]:
    return {store for stores in stores_of_letters(span.pipeline).values() for store in stores}


def _removed(reconciler: Reconciler, counts: Counts) -> Iterator[str]:
    """Yield a sentence for each store from which its owner has removed results."""
    for store, scope in sorted(reconciler.stores.items()):
        count, before_ms = counts.get((store, Kind.REMOVED, ""), 0), scope.removed_before_ms
        if not count or before_ms is None:
            continue
        if before_ms >= EVER_MS:
            yield f"{store} does not exist, or the control service can't access it, so {count:,} results were not compared"
            continue
        when = format_timestamp(before_ms * 1000)
        yield (
            f"{store} has no files of days before {when}, so {count:,} results were not compared; to audit only later "
            f"results, add --from {when}"
        )


def _store_report(name: str, scope: StoreScope | None, counts: Counts) -> StoreReport:
    of_store: Counter[str] = Counter()
    for (store, kind, _), count in counts.items():
        if store == name:
            of_store[kind] += count
    return StoreReport(
        store=name,
        stage=scope.stage if scope and not name.startswith(RESULT_LETTERS) else "",
        after_ms=scope.after_ms if scope else None,
        up_to_ms=scope.up_to_ms if scope else None,
        counts={kind.value: of_store[kind] for kind in Kind if of_store[kind]},
    )
