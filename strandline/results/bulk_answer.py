"""Reads a bulk answer: sorts each item alone, by its status and error type; by the text of a reason only where one type is said
of documents and of the store alike.

Only what speaks of the document itself refuses it. Any other answer speaks of the store, however it numbers it: such an answer
never makes a dead letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from strandline.core.errors import IndexUnavailable, PermanentError
from strandline.results.document import Document
from strandline.results.names import write_alias


class ItemOutcome(Enum):
    CREATED = "created"
    """Or, of one with a version, put in the place of a lower one."""
    EXISTS = "exists"
    """The id is taken, by as high a version at least; compare the two documents."""
    RETRY = "retry"
    """The store could not accept it now; the document may be right."""
    NO_INDEX = "no index"
    """The index is not there, or its write alias is not."""
    REFUSED = "refused"
    """The store will never accept this document."""
    STOPPED = "stopped"
    """The store takes no documents there the way it is set up, and waiting does not change that."""


@dataclass(frozen=True, slots=True)
class BulkItem:
    document: Document
    outcome: ItemOutcome
    status: int
    type: str = ""
    reason: str = ""


_PASSING_STATUSES = frozenset({408, 429})
"""A full queue, a disk above its flood stage: with all that is 500 or more, what may pass by itself."""
_DOCUMENT_TYPES = frozenset(
    {
        "document_parsing_exception",  # a value that the field's type does not take, an immense term, broken JSON
        "mapper_parsing_exception",  # the same, by servers before 8.8
        "strict_dynamic_mapping_exception",  # a field that the mapping does not name
    }
)
_IMMENSE_TERM = "Document contains at least one immense term"
"""How a reason of `illegal_argument_exception` begins that speaks of the document; others of that type say that a pipeline is
missing."""


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
        result = item["create" if document.version is None else "index"]
        status = int(result["status"])
        identity, index = result["_id"], result["_index"]
    except (TypeError, KeyError, ValueError) as error:
        raise IndexUnavailable(f"a bulk answer has an item that is not readable: {item!r:.200}") from error
    # What does not come as far as the index tells of the alias that it was sent to.
    is_written = status == 201 or (status == 200 and document.version is not None)
    places = (document.index,) if is_written else (document.index, write_alias(document.index))
    if identity != document.id or index not in places:
        raise PermanentError(
            f"document {document.id} was sent to index {document.index} but the answer tells of {identity} in {index}; "
            f"remove the alias, data stream or ingest pipeline that leads it elsewhere"
        )
    cause = result.get("error") or {}
    error_type, reason = str(cause.get("type", "")), _reason(cause)
    outcome = ItemOutcome.CREATED if is_written else _outcome(status, error_type, reason)
    return BulkItem(document, outcome, status, error_type, reason)


def _outcome(status: int, error_type: str, reason: str) -> ItemOutcome:
    if status == 409:
        return ItemOutcome.EXISTS
    if status >= 500 or status in _PASSING_STATUSES:
        return ItemOutcome.RETRY
    if error_type == "index_not_found_exception":
        return ItemOutcome.NO_INDEX
    speaks_of_it = error_type == "illegal_argument_exception" and reason.startswith(_IMMENSE_TERM)
    return ItemOutcome.REFUSED if error_type in _DOCUMENT_TYPES or speaks_of_it else ItemOutcome.STOPPED


def _reason(error: dict[str, Any]) -> str:
    """Return the reason with its causes: the outer one names the field, the inner one what is wrong with it."""
    reasons: list[str] = []
    cause: Any = error
    while isinstance(cause, dict) and len(reasons) < 5:
        reasons.append(str(cause.get("reason", "")))
        cause = cause.get("caused_by")
    return ": ".join(reason for reason in reasons if reason)
