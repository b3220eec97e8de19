"""What an audit compares, and its report. Pure."""

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
    Counts,
    Finding,
    Found,
    Kind,
    LetterScope,
    Reconciler,
    RecordScope,
    StoreScope,
)
from strandline.results.document import format_timestamp
from strandline.results.sinks.registry import sink_of_store

Outcome = Literal["clean", "differences", "incomplete"]


@dataclass(frozen=True)
class StoreReport(Described):
    """One alias of the index, one stream of results (`stream:NAME`), files (`files:PATH`), a table (`table:NAME`), the dead
    letters of a stage's results for which an expression has no value (`letters:STAGE`, where there are any), or those of
    records."""

    store: str
    stage: str
    """Empty for dead letters."""
    after_ms: int | None
    """The windows audited end after it; null: from the first on."""
    up_to_ms: int | None
    """The last one ends at it."""
    counts: dict[str, int]
    """`same`, `refused` (the store took no such document, and a dead letter says so), `later` (of slices after the last
    audited one), `outside` the range, `removed` by their owner; and the differences: `missing`, `extra`, `different`,
    `misplaced`, `duplicate`, and files that are `lost`."""


@dataclass(frozen=True)
class AuditReport(Described):
    """What an audit found."""

    job: str
    outcome: Outcome
    """`incomplete`: nothing differs, but the log, the ledger or files no longer hold all that was asked for."""
    incomplete: str
    asked_after_ms: int | None
    asked_up_to_ms: int | None
    slice_first: int
    slice_last: int
    computed: Totals
    """What the log says of the audited slices."""
    ledger: Totals
    """What the ledger says; `results` only when every window was audited."""
    totals_differences: list[str]
    """Where the two totals differ, as sentences."""
    event_time_differences: list[str]
    """Where event time, watermark or close of a slice is not what the log gives, as sentences: the first 100."""
    stores: list[StoreReport]
    differences: int
    """Of all kinds, in all stores, in the totals and in event times."""
    sample: list[Finding]
    """The first differences, up to 100."""
    seconds: float


def store_scopes(
    plan: AuditPlan, last: SliceRow, removed: Mapping[str, int] = MappingProxyType({})
) -> dict[str, StoreScope]:
    """Which documents of each store are compared. `last` is a slice that was in the ledger after the stores were looked at.
    `removed`: store -> the time before which its owner has removed everything."""
    scopes: dict[str, StoreScope] = {}
    revised = {one.name for span in plan.spans for one in span.pipeline.stages if one.revise_ms}
    for span in plan.spans:
        if not span.is_backfill:
            for records in span.pipeline.record_stages:
                for store in stores_of(span.pipeline)[records.name]:
                    scopes[store] = RecordScope(
                        records.name,
                        plan.asked.after_ms,
                        plan.asked.up_to_ms,
                        plan.slice_committed,
                        last.number,
                        slice_first=plan.slice_first,
                        slice_last=plan.slice_last,
                        removed_before_ms=removed.get(store),
                    )
        for stage, stores in stores_of(span.pipeline).items():
            if stage not in span.windows:
                continue
            # Which results had no value before they were revised is in no recomputation.
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
    """The windows of each stage that emits to the store: one may have had another name in an earlier version."""
    return [
        plan.scope[stage]
        for span in plan.spans
        for stage, stores in stores_of(span.pipeline).items()
        if store in stores and stage in span.windows
    ]


def letter_scope(plan: AuditPlan, last: SliceRow) -> LetterScope:
    """Which dead letters are compared. `last` as for `store_scopes`."""
    is_to_the_end = plan.slice_last == plan.slice_committed
    return LetterScope(
        plan.offsets_first,
        plan.offsets,
        last.offsets if is_to_the_end else None,
    )


def make_report(
    plan: AuditPlan,
    computed: Totals,
    event_times: Sequence[str],
    found: Found,
    reconciler: Reconciler,
    seconds: float,
) -> AuditReport:
    """Put together what was found: the two totals, event times, what became of each store's ids, and the first differences."""
    totals = plan.totals
    if not plan.is_whole:  # what came before the first slice decides which records are repeats, too
        totals, computed = _without_duplicates(totals), _without_duplicates(computed)
    rejected = {reason: count for reason, count in sorted(totals.rejected.items()) if count}
    # A backfill's refusals are in no slice's totals.
    refused = totals.refused if plan.is_whole and not any(plan.stores.values()) else None
    # How often results were revised is in no recomputation.
    revised = {scope.stage for scope in reconciler.stores.values() if scope.is_revised}
    results = {stage: count for stage, count in totals.results.items() if plan.is_whole and stage not in revised}
    # Nor is what a sink of a package refused, whose results are not compared.
    has_others = any(not sink_of_store(store).is_compared for one in plan.spans for store in _all_stores(one))
    refused = None if refused is None or revised or has_others else refused
    ledger = Totals(totals.records, totals.accepted, rejected, results, refused)
    computed = replace(computed, refused=None if refused is None else _refused(reconciler, found.counts))
    totals_differences = _compare_totals(computed, ledger)
    stores = [
        told
        for name, one in sorted(reconciler.stores.items())
        if (told := _store_report(name, one, found.counts)).counts.keys() - {Kind.OUTSIDE}
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
        asked_after_ms=plan.asked.after_ms,
        asked_up_to_ms=plan.asked.up_to_ms,
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
    """With records that came again among those that were accepted."""
    rejected = {reason: count for reason, count in totals.rejected.items() if reason != REASON_DUPLICATE}
    return replace(totals, accepted=totals.records - sum(rejected.values()), rejected=rejected)


def _compare_totals(computed: Totals, ledger: Totals) -> list[str]:
    """A sentence for each number in which the log and the ledger differ."""
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
    """Stage -> its results with a dead letter that says that a store refused them, once for each store."""
    found: Counter[str] = Counter()
    for (store, kind, label), count in counts.items():
        if kind == Kind.REFUSED and label == REASON_RESULT:
            found[reconciler.stores[store].stage] += count
    return dict(found)


def _all_stores(span: VersionSpan) -> set[str]:
    return {store for stores in stores_of_letters(span.pipeline).values() for store in stores}


def _removed(reconciler: Reconciler, counts: Counts) -> Iterator[str]:
    """A sentence for each store from which its owner has removed results."""
    for store, scope in sorted(reconciler.stores.items()):
        count, before_ms = counts.get((store, Kind.REMOVED, ""), 0), scope.removed_before_ms
        if not count or before_ms is None:
            continue
        if before_ms >= EVER_MS:
            yield f"{store} is not there, or not for the control service, so {count:,} results were not compared"
            continue
        when = format_timestamp(before_ms * 1000)
        yield (
            f"{store} has no file of a day before {when} any more, so {count:,} results were not compared; ask for the rest "
            f"alone with --from {when}"
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
