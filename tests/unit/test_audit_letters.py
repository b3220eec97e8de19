"""The stores to which a dead letter of a result refers in an audit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strandline.processing.audit.reconciliation import DeadLetterScope, Kind, Reconciler, Row, Side, StoreScope
from strandline.processing.audit.stores import _rows_of_letter
from strandline.processing.emission.dead_letters import DeadLetter
from strandline.results.generations import Generation

STORES = {"tens": ("tens", "copies", "stream:tens"), "quiet": ()}
END_MS = 1_790_000_010_000


class Message:
    """A dead letter as Kafka gives it."""

    def __init__(self, letter: DeadLetter) -> None:
        self._letter = letter

    def key(self) -> bytes:
        return self._letter.identity.encode()

    def value(self) -> bytes | None:
        return self._letter.value

    def headers(self) -> list[tuple[str, bytes]]:
        return list(self._letter.headers)


def rows(stage: str, index: str, reason: str, step: str) -> list[Row]:
    document = {"@timestamp": "2026-09-21T14:13:30.000Z", "strandline": {"stage": stage, "emission": 7}}
    letter = DeadLetter.of_document(index, "a", json.dumps(document).encode(), reason, "because", step)
    message: Any = Message(letter)
    return list(_rows_of_letter(message, STORES))


@pytest.mark.parametrize(("stage", "index"), [("tens", "tens-2026.09"), ("tens", "tens"), ("quiet", "quiet")])
def test_one_of_an_expression_is_compared_with_the_results_of_its_stage(stage: str, index: str) -> None:
    """Also of a stage that emits nothing, and of a stream."""
    (row,) = rows(stage, index, "expression", "steps[2].where")
    assert row[:4] == (f"letters:{stage}", f"{index}/a", Side.STORED, index)
    assert (row.end_ms, row.emission) == (1_790_000_010_000, 7)


def test_one_of_a_refused_document_is_missing_from_its_store() -> None:
    found = rows("tens", "copies-2026.09", "result", "emit tens")
    assert [(row.store, row.id, row.side) for row in found] == [
        ("letters:tens", "copies-2026.09/a", Side.LETTER),
        ("copies", "a", Side.LETTER),
    ]


def test_one_of_a_stage_that_the_job_never_had_is_no_ones() -> None:
    assert rows("gone", "gone", "expression", "steps[2].where") == []
    assert [row.store for row in rows("gone", "gone", "result", "emit gone")] == ["(dead letters)"]


@pytest.mark.guarantee("G143")
def test_an_overflow_in_a_backfilled_stage_with_two_aliases_is_missing_from_neither() -> None:
    """The dead letter names the new generation's index of the first alias; no store gets the result, and none misses it."""
    shown = (Generation(2, 0, END_MS),)
    scopes = {
        store: StoreScope("tens", None, END_MS, 7, 8, {name: shown for name in names})
        for store, names in (("tens", ["tens"]), ("copies", ["copies"]), ("letters:tens", ["tens", "copies"]))
    }
    unusable = [Row(store, "a", Side.UNUSABLE, "", END_MS, None, None) for store in ("copies", "tens")]
    needed = Row("letters:tens", "tens.g2-2026.09/a", Side.COMPUTED, "", END_MS, None, b"expression")
    held = rows("tens", "tens.g2-2026.09", "expression", "tens.total")
    findings = Reconciler(scopes, DeadLetterScope({}, {"feed": {}}, None)).findings(
        sorted([*unusable, needed, *held], key=lambda row: (row.store, row.id, row.side))
    )
    assert {(one.store, one.kind) for one in findings} == {
        ("copies", Kind.REFUSED),
        ("tens", Kind.REFUSED),
        ("letters:tens", Kind.SAME),
    }
