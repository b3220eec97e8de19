"""Each item of a bulk answer is read alone, by status and error type."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.core.errors import IndexUnavailable, PermanentError
from strandline.results.bulk_answer import ItemOutcome, read_bulk_answer
from strandline.results.document import Document

ONE = Document("id-1", "emit-2024.05", b"{}")
TWO = Document("id-2", "emit-2024.05", b"{}")


def item(document: Document, status: int, error_type: str = "", **more: Any) -> dict[str, Any]:
    result = {"_index": document.index, "_id": document.id, "status": status, **more}
    if error_type:
        result["error"] = {"type": error_type, "reason": "why"}
    return {"create": result}


@pytest.mark.parametrize(
    ("status", "error_type", "outcome"),
    [
        (201, "", ItemOutcome.CREATED),
        (409, "version_conflict_engine_exception", ItemOutcome.EXISTS),
        (429, "es_rejected_execution_exception", ItemOutcome.RETRY),
        (429, "cluster_block_exception", ItemOutcome.RETRY),
        (500, "exception", ItemOutcome.RETRY),
        (503, "unavailable_shards_exception", ItemOutcome.RETRY),
        (403, "cluster_block_exception", ItemOutcome.RETRY),
        (403, "security_exception", ItemOutcome.RETRY),
        (404, "index_not_found_exception", ItemOutcome.RETRY),
        (400, "index_closed_exception", ItemOutcome.RETRY),
        (400, "validation_exception", ItemOutcome.RETRY),
        (400, "document_parsing_exception", ItemOutcome.REFUSED),
        (400, "strict_dynamic_mapping_exception", ItemOutcome.REFUSED),
        (400, "illegal_argument_exception", ItemOutcome.REFUSED),
        (413, "something_new", ItemOutcome.REFUSED),
        (200, "", ItemOutcome.REFUSED),
    ],
)
def test_outcomes(status: int, error_type: str, outcome: ItemOutcome) -> None:
    (found,) = read_bulk_answer({"items": [item(ONE, status, error_type)]}, [ONE])
    assert (found.document, found.outcome, found.status, found.type) == (ONE, outcome, status, error_type)


def test_items_are_judged_one_by_one_in_the_order_sent() -> None:
    answer = {"items": [item(ONE, 400, "document_parsing_exception"), item(TWO, 201)]}
    assert [found.outcome for found in read_bulk_answer(answer, [ONE, TWO])] == [
        ItemOutcome.REFUSED,
        ItemOutcome.CREATED,
    ]


def test_the_reason_tells_the_causes_too() -> None:
    answer = {"items": [item(ONE, 400)]}
    answer["items"][0]["create"]["error"] = {
        "type": "document_parsing_exception",
        "reason": "failed to parse field [n]",
        "caused_by": {"type": "illegal_argument_exception", "reason": "For input string: q"},
    }
    assert read_bulk_answer(answer, [ONE])[0].reason == "failed to parse field [n]: For input string: q"


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        {"items": "none"},
        {"items": []},
        {"items": [item(ONE, 201), item(TWO, 201)]},
        {"items": [{"index": {"status": 201}}]},
        {"items": [{"create": {"status": 201}}]},
        {"items": [None]},
    ],
)
def test_an_answer_that_does_not_account_for_every_document_settles_nothing(answer: Any) -> None:
    with pytest.raises(IndexUnavailable):
        read_bulk_answer(answer, [ONE])


@pytest.mark.parametrize("more", [{"_id": "id-2"}, {"_index": ".fs-emit"}])
def test_a_document_that_went_elsewhere_stops_the_write(more: dict[str, Any]) -> None:
    with pytest.raises(PermanentError, match="elsewhere"):
        read_bulk_answer({"items": [item(ONE, 201, **more)]}, [ONE])
