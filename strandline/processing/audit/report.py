"""What an audit compares, and its report. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from strandline.core.described import Described
from strandline.ledger.states import SliceRow, Totals
from strandline.processing.audit.plan import AuditPlan, stores_of
from strandline.processing.audit.reconciliation import (
    DEAD_LETTERS,
    DIFFERENCES,
    Finding,
    Kind,
    LetterScope,
    Reconciler,
    StoreScope,
)

Counts = Mapping[tuple[str, str, str], int]
"""(store, kind, label) -> how many."""
Outcome = Literal["clean", "differences", "incomplete"]


@dataclass(frozen=True)
class StoreReport(Described):
    """One alias of the index, one stream of results (`stream:NAME`), or the dead-letter stream."""

    store: str
    stage: str
    """Empty for the dead-letter stream."""
    after_ms: int | None
    """The windows audited end after it; null: from the first on."""
    up_to_ms: int | None
    """The last one ends at it."""
    counts: dict[str, int]
    """`same`, `refused` (the store took no such document, and a dead letter says so), `later` (of slices after the last
    audited one), `outside` the range; and the differences: `missing`, `extra`, `different`, `misplaced`, `duplicate`."""


@dataclass(frozen=True)
class AuditReport(Described):
    """What an audit found."""

    job: str
    outcome: Outcome
    """`incomplete`: nothing differs, but the log no longer holds all that was asked for."""
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
    stores: list[StoreReport]
    differences: int
    """Of all kinds, in all stores, and in the totals."""
    sample: list[Finding]
    """The first differences, up to 100."""
    seconds: float


def store_scopes(plan: AuditPlan, last: SliceRow) -> dict[str, StoreScope]:
    """Which documents of each store are compared. `last` is a slice that was in the ledger after the stores were looked at."""
    scopes = {}
    for span in plan.spans:
        for stage, stores in stores_of(span.pipeline).items():
            if stage not in span.windows:
                continue
            ends = plan.scope[stage]
            for store in stores:
                scopes[store] = StoreScope(
                    stage,
                    ends.after_ms,
                    ends.up_to_ms,
                    plan.slice_committed,
                    last.number,
                    plan.stores.get(store, ()),
                )
    return scopes


def letter_scope(plan: AuditPlan, stream: str, last: SliceRow) -> LetterScope:
    """Which dead letters are compared. `last` as for `store_scopes`."""
    is_to_the_end = plan.slice_last == plan.slice_committed
    return LetterScope(
        stream,
        plan.offsets_first.get(stream, {}),
        plan.offsets.get(stream, {}),
        last.offsets.get(stream, {}) if is_to_the_end else None,
    )


def make_report(
    plan: AuditPlan,
    computed: Totals,
    counts: Counts,
    sample: list[Finding],
    reconciler: Reconciler,
    seconds: float,
) -> AuditReport:
    """Put together what was found: the two totals, what became of each store's ids, and the first differences."""
    totals = plan.totals
    rejected = {reason: count for reason, count in sorted(totals.rejected.items()) if count}
    ledger = Totals(totals.records, totals.accepted, rejected, totals.results if plan.is_whole else {})
    totals_differences = _compare_totals(computed, ledger)
    stores = [_store_report(name, one, counts) for name, one in sorted(reconciler.stores.items())]
    stores.append(_store_report(DEAD_LETTERS, None, counts))
    differences = len(totals_differences) + sum(count for (_, kind, _), count in counts.items() if kind in DIFFERENCES)
    outcome: Outcome = "differences" if differences else "incomplete" if plan.incomplete else "clean"
    return AuditReport(
        job=plan.job,
        outcome=outcome,
        incomplete=plan.incomplete,
        asked_after_ms=plan.asked.after_ms,
        asked_up_to_ms=plan.asked.up_to_ms,
        slice_first=plan.slice_first,
        slice_last=plan.slice_last,
        computed=computed,
        ledger=ledger,
        totals_differences=totals_differences,
        stores=stores,
        differences=differences,
        sample=sample,
        seconds=round(seconds, 3),
    )


def _compare_totals(computed: Totals, ledger: Totals) -> list[str]:
    """A sentence for each number in which the log and the ledger differ."""
    reasons = sorted(computed.rejected | ledger.rejected)
    pairs = [
        ("records", computed.records, ledger.records),
        ("accepted", computed.accepted, ledger.accepted),
        *((f"rejected as {one}", computed.rejected.get(one, 0), ledger.rejected.get(one, 0)) for one in reasons),
        *((f"results of {stage}", computed.results.get(stage, 0), count) for stage, count in ledger.results.items()),
    ]
    return [f"{what}: {ours:,} by the log, {theirs:,} by the ledger" for what, ours, theirs in pairs if ours != theirs]


def _store_report(name: str, scope: StoreScope | None, counts: Counts) -> StoreReport:
    of_store: Counter[str] = Counter()
    for (store, kind, _), count in counts.items():
        if store == name:
            of_store[kind] += count
    return StoreReport(
        store=name,
        stage=scope.stage if scope else "",
        after_ms=scope.after_ms if scope else None,
        up_to_ms=scope.up_to_ms if scope else None,
        counts={kind.value: of_store[kind] for kind in Kind if of_store[kind]},
    )
