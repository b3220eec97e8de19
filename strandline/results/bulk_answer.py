"""Reads a bulk answer: sorts each item alone, by its status and error type, never by the text of a message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from strandline.core.errors import IndexUnavailable, PermanentError
from strandline.results.document import Document


class ItemOutcome(Enum):
    CREATED = "created"
    EXISTS = "exists"
    """The id is taken; compare the two documents."""
    RETRY = "retry"
    """The store could not accept it now; the document may be right."""
    REFUSED = "refused"
    """The store will never accept this document."""


@dataclass(frozen=True, slots=True)
class BulkItem:
    document: Document
    outcome: ItemOutcome
    status: int
    type: str = ""
    reason: str = ""


STORE_STATE_STATUSES = frozenset({401, 403, 404, 408, 429})
"""Not the document's fault, though some are 4xx: a lost right, a write block, a missing index, a full queue. An operator
can mend these, and then the store accepts the document; so don't write dead letters."""
STORE_STATE_TYPES = frozenset({"index_closed_exception", "validation_exception", "cluster_block_exception"})
"""The same, with status 400: a closed index, the cluster's limit of shards reached, a block."""


def read_bulk_answer(answer: Any, documents: Sequence[Document]) -> list[BulkItem]:
    """Return what became of each document that was sent, in their order.

    Raises IndexUnavailable when the answer leaves a document out (then nothing is known, so send again),
    PermanentError when a document was put elsewhere than asked: its id would no longer keep it from being there twice.
    """
    items = answer.get("items") if isinstance(answer, dict) else None
    if not isinstance(items, list) or len(items) != len(documents):
        count = len(items) if isinstance(items, list) else "no"
        raise IndexUnavailable(f"a bulk answer holds {count} items for {len(documents)} documents; sending them again")
    return [_read_item(item, document) for item, document in zip(items, documents, strict=True)]


def _read_item(item: Any, document: Document) -> BulkItem:
    try:
        result = item["create"]
        status = int(result["status"])
        identity, index = result["_id"], result["_index"]
    except (TypeError, KeyError, ValueError) as error:
        raise IndexUnavailable(f"a bulk answer has an item that is not readable: {item!r:.200}") from error
    if identity != document.id or index != document.index:
        raise PermanentError(
            f"document {document.id} was sent to index {document.index} but the answer tells of {identity} in {index}; "
            f"remove the alias, data stream or ingest pipeline that leads it elsewhere"
        )
    cause = result.get("error") or {}
    error_type, reason = str(cause.get("type", "")), _reason(cause)
    return BulkItem(document, _outcome(status, error_type), status, error_type, reason)


def _outcome(status: int, error_type: str) -> ItemOutcome:
    if status == 201:
        return ItemOutcome.CREATED
    if status == 409:
        return ItemOutcome.EXISTS
    if status >= 500 or status in STORE_STATE_STATUSES or error_type in STORE_STATE_TYPES:
        return ItemOutcome.RETRY
    return ItemOutcome.REFUSED


def _reason(error: dict[str, Any]) -> str:
    """Return the reason with its causes: the outer one names the field, the inner one what is wrong with it."""
    reasons: list[str] = []
    cause: Any = error
    while isinstance(cause, dict) and len(reasons) < 5:
        reasons.append(str(cause.get("reason", "")))
        cause = cause.get("caused_by")
    return ": ".join(reason for reason in reasons if reason)
