"""Each item of a bulk answer is read alone, by status and error type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import IndexUnavailable, PermanentError
from strandline.results.bulk_answer import ItemOutcome, read_bulk_answer
from strandline.results.document import Document
from strandline.results.remedies import stopped_by_item

ONE = Document("id-1", "emit-2024.05", b"{}")
TWO = Document("id-2", "emit-2024.05", b"{}")


def item(document: Document, status: int, error_type: str = "", **more: Any) -> dict[str, Any]:
    result = {"_index": document.index, "_id": document.id, "status": status, **more}
    if error_type:
        result["error"] = {"type": error_type, "reason": "why"}
    return {"create": result}


RECORDED: dict[str, Any] = json.loads((Path(__file__).parents[1] / "support" / "bulk_items.json").read_text())
"""What Elasticsearch 8.19.21 answered to one document each, under names that say what was done."""
OF_THE_DOCUMENT = frozenset(
    {
        "immense",
        "unknown_field",
        "wrong_type",
        "long_out_of_range",
        "double_fraction_in_long",
        "object_for_value",
        "value_for_object",
        "bad_date",
        "bad_json",
        "deep",
        "duplicate_key",
        "bad_utf8",
        "total_fields",
    }
)
OUTCOMES = dict.fromkeys(OF_THE_DOCUMENT, ItemOutcome.REFUSED) | {
    "created": ItemOutcome.CREATED,
    "exists": ItemOutcome.EXISTS,
    "require_alias_missing": ItemOutcome.NO_INDEX,
    "no_auto_create": ItemOutcome.NO_INDEX,
    "block_read_only_allow_delete": ItemOutcome.RETRY,
    "unavailable_shards": ItemOutcome.RETRY,
    "invalid_index_name": ItemOutcome.STOPPED,
    "default_pipeline_missing": ItemOutcome.STOPPED,
    "block_write": ItemOutcome.STOPPED,
    "block_read_only": ItemOutcome.STOPPED,
    "closed_by_alias": ItemOutcome.STOPPED,
    "too_many_shards": ItemOutcome.STOPPED,
    "alias_without_write_index": ItemOutcome.STOPPED,
}


@pytest.mark.guarantee(
    "G104",
    "No result becomes a dead letter because of the state of the store: a closed, read-only, or missing index, a "
    "missing ingest pipeline or right, a full cluster or disk. Results wait, or the job fails with the remedy, and "
    "afterwards each result is there.",
    promise="a-failing-store-costs-no-result",
)
@pytest.mark.parametrize("name", RECORDED)
def test_what_the_server_answered(name: str) -> None:
    answer = RECORDED[name]
    document = Document(answer["_id"], answer["_index"].removesuffix(".write"), b"{}")
    (found,) = read_bulk_answer({"items": [{"create": answer}]}, [document])
    assert found.outcome is OUTCOMES[name]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("closed_by_alias", "open it: POST /p-1/_open"),
        ("block_write", "lift the block: PUT /p-1/_settings"),
        ("block_read_only", "lift the block: PUT /p-1/_settings"),
        ("default_pipeline_missing", "create the ingest pipeline, or remove it from the index: PUT /p-1/_settings"),
        ("too_many_shards", "raise that setting"),
        ("invalid_index_name", "emit under another name"),
        ("alias_without_write_index", "fix the cause that the answer names"),
    ],
)
def test_what_stops_an_emission_names_the_remedy(name: str, remedy: str) -> None:
    answer = RECORDED[name]
    document = Document(answer["_id"], answer["_index"].removesuffix(".write"), b"{}")
    (found,) = read_bulk_answer({"items": [{"create": answer}]}, [document])
    sentence = str(stopped_by_item(found, "p"))
    assert remedy in sentence
    assert answer["error"]["type"] in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("status", "error_type", "reason", "outcome"),
    [
        (429, "es_rejected_execution_exception", "", ItemOutcome.RETRY),
        (500, "exception", "", ItemOutcome.RETRY),
        (503, "cluster_block_exception", "", ItemOutcome.RETRY),
        (403, "security_exception", "", ItemOutcome.STOPPED),
        (400, "mapper_parsing_exception", "", ItemOutcome.REFUSED),
        (
            400,
            "illegal_argument_exception",
            'Document contains at least one immense term in field="k"',
            ItemOutcome.REFUSED,
        ),
        (400, "illegal_argument_exception", "anything else", ItemOutcome.STOPPED),
        (413, "something_new", "", ItemOutcome.STOPPED),
        (200, "", "", ItemOutcome.STOPPED),
    ],
)
def test_outcomes(status: int, error_type: str, reason: str, outcome: ItemOutcome) -> None:
    answer = item(ONE, status, error_type)
    if error_type:
        answer["create"]["error"]["reason"] = reason
    (found,) = read_bulk_answer({"items": [answer]}, [ONE])
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
    with pytest.raises(PermanentError, match="redirects it"):
        read_bulk_answer({"items": [item(ONE, 201, **more)]}, [ONE])
