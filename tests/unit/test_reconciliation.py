"""The comparison of an audit, id by id."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from strandline.processing.audit.reconciliation import (
    DEAD_LETTERS,
    DeadLetterScope,
    Finding,
    Kind,
    Reconciler,
    Row,
    Side,
    StoreScope,
)
from strandline.results.generations import Generation

SCOPE = StoreScope(stage="minute", after_ms=60_000, up_to_ms=600_000, slice_committed=7, slice_planned=8)
LETTERS = DeadLetterScope(first={"feed": {0: 10}}, next={"feed": {0: 100, 1: 50}}, later_next={"feed": {0: 120, 1: 50}})
JUDGE = Reconciler({"minutes": SCOPE}, LETTERS)
INDEX, OTHER = "minutes-2026.11", "minutes-2026.12"
RESULT = {"n": 60, "mean": 0.25, "cost": "1.20"}


def computed(end_ms: int = 120_000, index: str = INDEX, **changed: object) -> Row:
    return Row("minutes", "a", Side.COMPUTED, index, end_ms, None, json.dumps({**RESULT, **changed}).encode())


def held(end_ms: int | None = 120_000, index: str = INDEX, emission: int | None = 3, **changed: object) -> Row:
    return Row("minutes", "a", Side.STORED, index, end_ms, emission, json.dumps({**RESULT, **changed}).encode())


def letter(identity: str = "feed/0/20", reason: str = "late", side: Side = Side.STORED) -> Row:
    return Row(DEAD_LETTERS, identity, side, "", None, None, reason.encode())


STANDS_FOR_A = Row("minutes", "a", Side.LETTER, INDEX, 120_000, 3, b"result")
UNUSABLE = Row("minutes", "a", Side.UNUSABLE, "", 120_000, None, None)
NOT_A_DOCUMENT = computed()._replace(body=None, place="")


def compare(*rows: Row) -> Finding:
    (finding,) = JUDGE.findings(rows)
    return finding


@pytest.mark.guarantee("G60")
@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([computed(), held()], Kind.SAME),
        ([computed(mean=0.25 * (1 + 5e-10)), held()], Kind.SAME),
        ([computed(mean=0.25 * (1 + 2e-9)), held()], Kind.DIFFERENT),
        ([computed(n=61), held()], Kind.DIFFERENT),
        ([computed(n=60.0), held()], Kind.SAME),
        ([computed(cost="1.2"), held()], Kind.DIFFERENT),
        ([computed(), held(more=None)], Kind.DIFFERENT),
        ([computed()], Kind.MISSING),
        ([computed(), STANDS_FOR_A], Kind.REFUSED),
        ([NOT_A_DOCUMENT, STANDS_FOR_A], Kind.REFUSED),
        ([NOT_A_DOCUMENT], Kind.MISSING),
        ([NOT_A_DOCUMENT, held()], Kind.EXTRA),
        ([UNUSABLE], Kind.REFUSED),
        ([UNUSABLE, held()], Kind.EXTRA),
        ([computed(), held(index=OTHER)], Kind.MISPLACED),
        ([computed(), held(), held(index=OTHER)], Kind.DUPLICATE),
        ([held()], Kind.EXTRA),
        ([held(), held(index=OTHER)], Kind.DUPLICATE),
        ([STANDS_FOR_A], Kind.EXTRA),
        ([held(end_ms=None)], Kind.EXTRA),
        ([held(end_ms=60_000)], Kind.OUTSIDE),
        ([held(end_ms=600_000, emission=8)], Kind.EXTRA),
        ([held(end_ms=660_000, emission=8)], Kind.LATER),
        ([held(end_ms=660_000, emission=7)], Kind.EXTRA),
        ([held(end_ms=660_000, emission=9)], Kind.EXTRA),
        ([held(end_ms=660_000, emission=None)], Kind.EXTRA),
    ],
)
def test_a_document_is_compared_with_what_was_computed_for_its_id(rows: list[Row], kind: Kind) -> None:
    assert compare(*rows).kind is kind


def test_before_anything_is_closed_every_document_is_extra() -> None:
    nothing_closed = Reconciler({"minutes": replace(SCOPE, after_ms=None, up_to_ms=0)}, LETTERS)
    (finding,) = nothing_closed.findings([held()])
    assert finding.kind is Kind.EXTRA


@pytest.mark.guarantee("G60")
@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([letter(side=Side.COMPUTED), letter()], Kind.SAME),
        ([letter(side=Side.COMPUTED)], Kind.MISSING),
        ([letter()], Kind.EXTRA),
        ([letter(side=Side.COMPUTED), letter(reason="decode")], Kind.DIFFERENT),
        ([letter(side=Side.COMPUTED), letter(), letter()], Kind.DUPLICATE),
        ([letter("feed/0/9")], Kind.OUTSIDE),
        ([letter("feed/0/9/20")], Kind.OUTSIDE),
        ([letter("feed/0/100/0")], Kind.LATER),
        ([letter("feed/0/20/3/1")], Kind.EXTRA),
        ([letter("feed/0/100")], Kind.LATER),
        ([letter("feed/0/120")], Kind.EXTRA),
        ([letter("feed/1/50")], Kind.EXTRA),
        ([letter("feed/2/0")], Kind.EXTRA),
        ([letter("other/0/20")], Kind.EXTRA),
        ([letter("feed/0")], Kind.EXTRA),
        ([letter("feed/0/x")], Kind.EXTRA),
        ([letter("")], Kind.EXTRA),
    ],
)
def test_a_dead_letter_is_compared_with_the_record_that_it_names(rows: list[Row], kind: Kind) -> None:
    assert compare(*rows).kind is kind


def test_in_an_audit_of_an_earlier_range_later_dead_letters_are_not_compared() -> None:
    earlier = Reconciler({}, replace(LETTERS, later_next=None))
    (finding,) = earlier.findings([letter("feed/0/5000")])
    assert finding.kind is Kind.OUTSIDE


def test_differences_come_singly_and_all_else_as_numbers() -> None:
    rows = [row._replace(id=f"{number}") for number in range(5) for row in (computed(), held())]
    rows += [computed()._replace(id="z")]
    rows += [
        letter(f"feed/0/{20 + n}", "late" if n else "decode", s) for n in range(3) for s in (Side.COMPUTED, Side.STORED)
    ]
    findings = list(JUDGE.findings(rows))
    assert [(one.kind, one.store, one.label, one.count, one.id) for one in findings] == [
        (Kind.MISSING, "minutes", "", 1, "z"),
        (Kind.SAME, DEAD_LETTERS, "decode", 1, None),
        (Kind.SAME, DEAD_LETTERS, "late", 2, None),
        (Kind.SAME, "minutes", "", 5, None),
    ]


def test_an_id_that_stands_a_thousand_times_is_counted_and_not_kept() -> None:
    finding = compare(letter(side=Side.COMPUTED), *[letter()] * 1_000)
    assert (finding.kind, finding.detail) == (Kind.DUPLICATE, "has 1000 dead letters")


@pytest.mark.parametrize(
    ("end_ms", "rows", "kind"),
    [
        (240_000, [computed(240_000, "minutes.g2-2026.11"), "minutes.g2-2026.11"], Kind.REFUSED),
        (240_000, [computed(240_000, "minutes.g2-2026.11"), "minutes-2026.11"], Kind.MISSING),
        (240_000, ["minutes-2026.11"], Kind.OUTSIDE),
        (240_000, ["minutes.g2-2026.11"], Kind.EXTRA),
        (240_000, ["minutes.g3-2026.11"], Kind.OUTSIDE),
        (120_000, [computed(), "minutes-2026.11"], Kind.REFUSED),
        (120_000, [computed(), "minutes.g2-2026.11"], Kind.MISSING),
        (120_000, ["minutes.g2-2026.11"], Kind.OUTSIDE),
    ],
)
def test_a_dead_letter_stands_for_a_document_of_its_own_generation(
    end_ms: int, rows: list[Row | str], kind: Kind
) -> None:
    """Generation 2 replaced the windows from 180 to 300 s; generation 3 was never shown."""
    shown = Reconciler(
        {"minutes": replace(SCOPE, generations={"minutes": (Generation(2, 180_000, 300_000),)})}, LETTERS
    )
    letters = [STANDS_FOR_A._replace(place=one, end_ms=end_ms) if isinstance(one, str) else one for one in rows]
    (finding,) = shown.findings(letters)
    assert finding.kind is kind


OF_RESULTS = StoreScope("minute", 60_000, 600_000, 7, 8, {"minutes": (Generation(2, 180_000, 300_000),), "copies": ()})
NEEDED = Row("letters:minute", "minutes-2026.11/a", Side.COMPUTED, "", 120_000, None, b"expression")


def of_result(end_ms: int | None = 120_000, index: str = INDEX, emission: int = 3, side: Side = Side.STORED) -> Row:
    return Row("letters:minute", "minutes-2026.11/a", side, index, end_ms, emission, b"expression")


@pytest.mark.guarantee(
    "G143",
    "An audit requires the dead letter of each result without a value, and finds dead letters that no result explains.",
    promise="the-audit-finds-every-difference",
)
@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([NEEDED, of_result()], Kind.SAME),
        ([NEEDED], Kind.MISSING),
        ([NEEDED, of_result(), of_result()], Kind.DUPLICATE),
        ([NEEDED, of_result(side=Side.LETTER)], Kind.REFUSED),
        ([of_result(side=Side.LETTER)], Kind.OUTSIDE),
        ([of_result()], Kind.EXTRA),
        ([of_result(None)], Kind.EXTRA),
        ([of_result(60_000)], Kind.OUTSIDE),
        ([of_result(660_000, emission=8)], Kind.LATER),
        ([of_result(660_000, emission=9)], Kind.EXTRA),
        ([of_result(240_000)], Kind.OUTSIDE),
        ([of_result(240_000, "copies-2026.11")], Kind.EXTRA),
        ([of_result(240_000, "minutes.g2-2026.11")], Kind.EXTRA),
        ([of_result(120_000, "minutes.g2-2026.11")], Kind.OUTSIDE),
        ([of_result(240_000, "minute")], Kind.EXTRA),
    ],
)
def test_a_result_without_a_value_has_one_dead_letter_and_no_other_has_one(rows: list[Row], kind: Kind) -> None:
    (finding,) = Reconciler({"letters:minute": OF_RESULTS}, LETTERS).findings(rows)
    assert finding.kind is kind


def test_a_stage_that_is_not_audited_is_not_compared() -> None:
    (finding,) = Reconciler({}, LETTERS).findings([of_result(), of_result()])
    assert (finding.kind, finding.store) == (Kind.OUTSIDE, "letters:minute")
