"""The report of an audit: the outcome, and the account between log and ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.ledger.states import Totals
from strandline.processing.audit.index_reader import EndRange
from strandline.processing.audit.plan import AuditPlan
from strandline.processing.audit.reconciliation import DEAD_LETTERS, LetterScope, Reconciler, StoreScope
from strandline.processing.audit.report import AuditReport, letter_scope, make_report
from tests.support.ledgers import a_slice

PLAN = AuditPlan(
    job="power",
    asked=EndRange(),
    spans=(),
    slice_first=1,
    slice_last=9,
    slice_committed=9,
    totals=Totals(1_000, 980, {"late": 15, "decode": 5, "schema": 0}, {"minute": 40, "hour": 2}),
    offsets_first={"turbines": {0: 3}},
    offsets={"turbines": {0: 90, 1: 180}},
)
COMPUTED = Totals(1_000, 980, {"decode": 5, "late": 15}, {"minute": 40, "hour": 2})
JUDGE = Reconciler({"minutes": StoreScope("minute", None, 60_000, 9, 9)}, LetterScope("turbines", {}, {}, {}))
SAME = {("minutes", "same", ""): 40, (DEAD_LETTERS, "same", "late"): 15, (DEAD_LETTERS, "same", "decode"): 5}


def report(plan: AuditPlan = PLAN, computed: Totals = COMPUTED, **more: int) -> AuditReport:
    counts = SAME | {("minutes", kind, ""): count for kind, count in more.items()}
    return make_report(plan, computed, counts, [], JUDGE, 1.0)


def test_when_all_agrees_the_audit_is_clean() -> None:
    found = report(refused=1, later=3, outside=2)
    assert (found.outcome, found.differences, found.totals_differences) == ("clean", 0, [])
    assert found.stores[0].counts == {"same": 40, "refused": 1, "later": 3, "outside": 2}
    assert found.stores[1].counts == {"same": 20}


@pytest.mark.parametrize("kind", ["missing", "extra", "different", "misplaced", "duplicate"])
def test_each_kind_of_difference_counts(kind: str) -> None:
    found = report(**{kind: 2})
    assert (found.outcome, found.differences) == ("differences", 2)
    assert found.stores[0].counts[kind] == 2


@pytest.mark.parametrize(
    ("computed", "sentences"),
    [
        (replace(COMPUTED, records=999), ["records: 999 by the log, 1,000 by the ledger"]),
        (replace(COMPUTED, accepted=981), ["accepted: 981 by the log, 980 by the ledger"]),
        (replace(COMPUTED, rejected={"late": 15}), ["rejected as decode: 0 by the log, 5 by the ledger"]),
        (
            replace(COMPUTED, rejected={"late": 15, "decode": 5, "schema": 1}),
            ["rejected as schema: 1 by the log, 0 by the ledger"],
        ),
        (replace(COMPUTED, results={"hour": 2}), ["results of minute: 0 by the log, 40 by the ledger"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_an_account_that_does_not_close_is_a_difference(computed: Totals, sentences: list[str]) -> None:
    found = report(computed=computed)
    assert (found.outcome, found.totals_differences, found.differences) == ("differences", sentences, 1)


def test_of_a_range_the_ledgers_results_are_not_compared() -> None:
    found = report(replace(PLAN, is_whole=False), replace(COMPUTED, results={"minute": 7}))
    assert (found.outcome, found.ledger.results) == ("clean", {})


def test_what_can_not_be_audited_is_never_called_clean_and_hides_no_difference() -> None:
    short = replace(PLAN, is_whole=False, incomplete="the log is short")
    assert report(short).outcome == "incomplete"
    assert report(short, missing=1).outcome == "differences"


def test_dead_letters_of_slices_that_are_planned_since_are_no_difference() -> None:
    last = a_slice(10, offsets={"turbines": {0: 100, 1: 200}})
    assert letter_scope(PLAN, "turbines", last) == LetterScope("turbines", {0: 3}, {0: 90, 1: 180}, {0: 100, 1: 200})
    assert letter_scope(replace(PLAN, slice_last=5), "turbines", last).later_next is None
