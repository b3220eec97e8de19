"""Reads a bulk answer: classifies each item by its status and error type.

The text of a reason is used only for an error type that is used both for documents and for the store. An item is
refused only if its error concerns the document itself. Any other error concerns the store, and never causes a dead
letter.
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
    """Created, or replaced a lower version of the document."""
    EXISTS = "exists"
    """The id exists already, with at least this version. Compare the two documents."""
    RETRY = "retry"
    """The store could not accept it now; the document may be right."""
    NO_INDEX = "no index"
    """The index or its write alias doesn't exist."""
    REFUSED = "refused"
    """The store will never accept this document."""
    STOPPED = "stopped"
    """The store doesn't accept documents because of its configuration, so waiting doesn't help."""


@dataclass(frozen=True, slots=True)
class BulkItem:
    document: Document
    outcome: ItemOutcome
    status: int
    type: str = ""
    reason: str = ""


_PASSING_STATUSES = frozenset({408, 429})
"""Statuses that may pass without an operator, like all from 500: a full queue, or a disk above its flood stage."""
_DOCUMENT_TYPES = frozenset(
    {
        "document_parsing_exception",  # a value that doesn't fit the field's type, an immense term, broken JSON
        "mapper_parsing_exception",  # the same, by servers before 8.8
        "strict_dynamic_mapping_exception",  # a field that isn't in the mapping
    }
)
_IMMENSE_TERM = "Document contains at least one immense term"
"""Prefix of the reason of an `illegal_argument_exception` that concerns the document. Other errors of that type report
a missing pipeline."""


def read_bulk_answer(answer: Any, documents: Sequence[Document]) -> list[BulkItem]:
    """Return the outcome of each document that was sent, in their order.

    Raises IndexUnavailable if the answer has no item for a document: its outcome is unknown, so send it again. Raises
    PermanentError if a document was written to another index or id: then its id no longer prevents duplicates.
    """
    items = answer.get("items") if isinstance(answer, dict) else None
    if not isinstance(items, list) or len(items) != len(documents):
        count = len(items) if isinstance(items, list) else "no"
        raise IndexUnavailable(f"a bulk answer has {count} items for {len(documents)} documents; sending them again")
    return [_read_item(item, document) for item, document in zip(items, documents, strict=True)]


def _read_item(item: Any, document: Document) -> BulkItem:
    try:
        result = item["create" if document.version is None else "index"]
        status = int(result["status"])
        identity, index = result["_id"], result["_index"]
    except (TypeError, KeyError, ValueError) as error:
        raise IndexUnavailable(f"a bulk answer has an unreadable item; sending it again: {item!r:.200}") from error
    # An item that didn't reach the index contains the alias to which it was sent.
    is_written = status == 201 or (status == 200 and document.version is not None)
    places = (document.index,) if is_written else (document.index, write_alias(document.index))
    if identity != document.id or index not in places:
        raise PermanentError(
            f"document {document.id} was sent to index {document.index} but the answer reports {identity} in {index}; "
            f"remove the alias, data stream, or ingest pipeline that redirects it"
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
    """Return the reason with its causes: the outer cause names the field, the inner cause describes the error."""
    reasons: list[str] = []
    cause: Any = error
    while isinstance(cause, dict) and len(reasons) < 5:
        reasons.append(str(cause.get("reason", "")))
        cause = cause.get("caused_by")
    return ": ".join(reason for reason in reasons if reason)
