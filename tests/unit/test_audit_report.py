"""The report of an audit: the outcome, and the account between log and ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from strandline.core.streams.stream import StreamSpec
from strandline.ledger.states import Totals
from strandline.processing.audit.index_reader import EndRange
from strandline.processing.audit.plan import AuditPlan, VersionSpan
from strandline.processing.audit.reconciliation import (
    DEAD_LETTERS,
    ComparisonResult,
    DeadLetterScope,
    Kind,
    Reconciler,
    Row,
    Side,
    StoreScope,
)
from strandline.processing.audit.report import AuditReport, letter_scope, make_report, store_scopes
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.results.generations import Generation
from tests.support.ledgers import a_slice

STREAM = StreamSpec.from_document({"stream": "turbines", "schema": {"ts": "timestamp"}})
PLAN = AuditPlan(
    job="power",
    requested=EndRange(),
    spans=(),
    slice_first=1,
    slice_last=9,
    slice_committed=9,
    totals=Totals(1_000, 980, {"late": 15, "decode": 5, "schema": 0}, {"minute": 40, "hour": 2}),
    offsets_first={"turbines": {0: 3}},
    offsets={"turbines": {0: 90, 1: 180}},
)
COMPUTED = Totals(1_000, 980, {"decode": 5, "late": 15}, {"minute": 40, "hour": 2})
JUDGE = Reconciler({"minutes": StoreScope("minute", None, 60_000, 9, 9)}, DeadLetterScope({}, {"turbines": {}}, {}))
SAME = {("minutes", "same", ""): 40, (DEAD_LETTERS, "same", "late"): 15, (DEAD_LETTERS, "same", "decode"): 5}


def report(
    plan: AuditPlan = PLAN, computed: Totals = COMPUTED, event_times: Sequence[str] = (), **more: int
) -> AuditReport:
    counts = SAME | {("minutes", kind, ""): count for kind, count in more.items()}
    return make_report(plan, computed, event_times, ComparisonResult(counts, []), JUDGE, 1.0)


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


def test_event_times_that_differ_count_and_the_first_hundred_are_told() -> None:
    found = report(event_times=[f"slice {number}" for number in range(150)])
    assert (found.outcome, found.differences) == ("differences", 150)
    assert found.event_time_differences == [f"slice {number}" for number in range(100)]


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


@pytest.mark.guarantee("G607")
@pytest.mark.parametrize(
    ("letters", "counted", "sentences"),
    [
        (3, {"minute": 3}, []),
        (3, None, []),
        (2, {"minute": 3}, ["refused results of minute: 2 by the log, 3 by the ledger"]),
        (1, {}, ["refused results of minute: 1 by the log, 0 by the ledger"]),
    ],
)
def test_refused_results_are_counted_by_their_dead_letters(
    letters: int, counted: dict[str, int] | None, sentences: list[str]
) -> None:
    """A dead letter for a document that was taken and deleted would stand for it otherwise."""
    plan = replace(PLAN, totals=replace(PLAN.totals, refused=counted))
    counts = SAME | {("minutes", "refused", "result"): letters, ("minutes", "refused", "expression"): 7}
    assert make_report(plan, COMPUTED, [], ComparisonResult(counts, []), JUDGE, 1.0).totals_differences == sentences
    again = replace(plan, stores={"minutes": (Generation(2, 0, 60_000),)})
    assert make_report(again, COMPUTED, [], ComparisonResult(counts, []), JUDGE, 1.0).totals_differences == []


def test_of_a_range_the_ledgers_results_are_not_compared() -> None:
    found = report(replace(PLAN, is_whole=False), replace(COMPUTED, results={"minute": 7}))
    assert (found.outcome, found.ledger.results) == ("clean", {})


def test_what_can_not_be_audited_is_never_called_clean_and_hides_no_difference() -> None:
    short = replace(PLAN, is_whole=False, incomplete="the log is short")
    assert report(short).outcome == "incomplete"
    assert report(short, missing=1).outcome == "differences"


def test_dead_letters_of_slices_that_are_planned_since_are_no_difference() -> None:
    last = a_slice(10, offsets={"turbines": {0: 100, 1: 200}})
    assert letter_scope(PLAN, last) == DeadLetterScope(
        *({"turbines": one} for one in ({0: 3}, {0: 90, 1: 180}, {0: 100, 1: 200}))
    )
    assert letter_scope(replace(PLAN, slice_last=5), last).later_next is None


def a_span(stage: str, windows: EndRange) -> VersionSpan:
    """Return the span of a version whose one stage has this name, and emits to `minutes`."""
    document: dict[str, object] = {
        "pipeline": "power",
        "input": {"stream": "turbines"},
        "event_time": {"field": "ts", "delay": "0s", "max_ahead": None, "idle_timeout": None},
        "steps": [
            {
                "window": {"name": stage, "tumbling": "1m", "aggregate": {"n": "count(*)"}},
                "emit": [{"elasticsearch": "minutes"}],
            }
        ],
    }
    return VersionSpan(1, check(PipelineSpec.from_document(document), STREAM), 1, 1, 9, {stage: windows})


@pytest.mark.parametrize(("after_ms", "kind"), [(None, Kind.EXTRA), (60_000, Kind.OUTSIDE)])
def test_a_store_is_compared_from_the_first_stage_that_emitted_to_it(after_ms: int | None, kind: Kind) -> None:
    """A window was renamed: what is under the alias from before is of the same store."""
    ends = {"per_minute": EndRange(after_ms, 180_000), "minutes": EndRange(180_000, 300_000)}
    plan = replace(PLAN, spans=tuple(a_span(*one) for one in ends.items()), scope=ends)
    scopes = store_scopes(plan, a_slice(9))
    assert (scopes["minutes"].after_ms, scopes["minutes"].up_to_ms) == (after_ms, 300_000)
    planted = Row("minutes", "by-hand", Side.STORED, "minutes-1970.01", 60_000, 3, b"{}")
    assert scopes["minutes"].kind_of_unexpected(planted) is kind
    assert (scopes["letters:minutes"].after_ms, scopes["letters:per_minute"].up_to_ms) == (180_000, 180_000)


@pytest.mark.parametrize(("end_ms", "kind"), [(180_000, Kind.EXTRA), (200_000, Kind.OUTSIDE), (240_001, Kind.EXTRA)])
def test_what_lies_between_the_windows_that_are_computed_is_not_compared(end_ms: int, kind: Kind) -> None:
    """Between two names of a window there may be some that nothing computes: the audit begins behind them."""
    ends = {"per_minute": EndRange(None, 180_000), "minutes": EndRange(240_000, 300_000)}
    plan = replace(PLAN, spans=tuple(a_span(*one) for one in ends.items()), scope=ends)
    row = Row("minutes", "by-hand", Side.STORED, "minutes-1970.01", end_ms, 3, b"{}")
    assert store_scopes(plan, a_slice(9))["minutes"].kind_of_unexpected(row) is kind


@pytest.mark.parametrize(("kind", "is_shown"), [("same", True), ("missing", True), ("outside", False)])
def test_dead_letters_of_a_stages_results_are_no_documents_and_shown_where_there_are_some(
    kind: str, is_shown: bool
) -> None:
    """Dead letters of refused documents are counted with their store."""
    scopes = {name: StoreScope("minute", None, 60_000, 9, 9) for name in ("minutes", "letters:minute")}
    found = make_report(
        PLAN,
        COMPUTED,
        [],
        ComparisonResult(SAME | {("letters:minute", kind, ""): 3}, []),
        replace(JUDGE, stores=scopes),
        1.0,
    )
    shown = [(one.store, one.stage, one.counts) for one in found.stores if one.store.startswith("letters:")]
    assert shown == ([("letters:minute", "", {kind: 3})] if is_shown else [])
