"""One bulk request for the documents of several writes, of one or more jobs.

Each item of the response belongs to one write. A write whose documents are all created is done. Every other write is sent again
by its own writer, which compares the existing documents. Documents have ids that come from the data, so sending them again
changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from strandline.core.errors import IndexUnavailable
from strandline.results.bulk import Bulk, join_bulks
from strandline.results.bulk_answer import BulkItem, ItemOutcome, read_bulk_answer
from strandline.results.document import DocumentColumns
from strandline.results.elasticsearch_client import NDJSON, RequestRefused, decode, request_bytes
from strandline.results.writer import Refused

ANSWER_FIELDS = "items.*.status,items.*._id,items.*._index,items.*.error"
"""Fields of a response to `_bulk` that are read."""


@dataclass
class PreparedWrite:
    """Documents that a writer made and didn't send."""

    url: str
    epoch: int
    documents: DocumentColumns
    refused: list[Refused]
    """Rows that no document can hold."""
    bulks: list[Bulk]
    can_be_shared: bool
    """True if the documents can be sent before their writer sets anything up."""
    created: set[int] = field(default_factory=set)
    """Indices of the bulks whose documents were all created by a shared request."""
    failure: IndexUnavailable | None = None
    """Why the store doesn't accept the documents now. None if it isn't known."""

    def is_created(self, number: int) -> bool:
        """Return True if a shared request created all documents of the bulk with this index. Raises IndexUnavailable if the store
        doesn't accept them now."""
        if self.failure is not None:
            raise self.failure
        return number in self.created


def send_together(
    writes: Sequence[PreparedWrite], *, documents_max: int, bytes_max: int, timeout_s: float, is_tried_once: bool
) -> None:
    """Send the documents of all writes that can be shared, in requests of a limited size, and each request once.

    Records in `created` of each write which of its bulks are done. Its writer sends the other bulks afterwards.
    `is_tried_once`: True if the writers must not try again. Then also record in `failure` why the store doesn't accept
    documents now, and `is_created` raises it.
    """
    by_url: dict[str, list[tuple[PreparedWrite, int]]] = defaultdict(list)
    for write in writes:
        if write.can_be_shared:
            by_url[write.url] += [(write, number) for number, bulk in enumerate(write.bulks) if bulk.created]
    for url, parts in by_url.items():
        for group in _groups(parts, documents_max, bytes_max):
            _send(url, group, timeout_s, is_tried_once=is_tried_once)


def _groups(
    parts: Sequence[tuple[PreparedWrite, int]], documents_max: int, bytes_max: int
) -> Iterator[list[tuple[PreparedWrite, int]]]:
    group: list[tuple[PreparedWrite, int]] = []
    documents = size = 0
    for write, number in parts:
        bulk = write.bulks[number]
        if group and (documents + bulk.count > documents_max or size + len(bulk.body) > bytes_max):
            yield group
            group, documents, size = [], 0, 0
        group.append((write, number))
        documents += bulk.count
        size += len(bulk.body)
    if group:
        yield group


def _send(url: str, group: Sequence[tuple[PreparedWrite, int]], timeout_s: float, *, is_tried_once: bool) -> None:
    bulks = [write.bulks[number] for write, number in group]
    whole = join_bulks(bulks)
    try:
        answer = request_bytes(
            url,
            "POST",
            "/_bulk",
            timeout_s=timeout_s,
            parameters={
                "filter_path": ANSWER_FIELDS,
                "timeout": f"{int(timeout_s * 500)}ms",
                "require_alias": "true",
            },
            body=whole.body,
            content_type=NDJSON,
        )
        if answer == whole.created:
            for write, number in group:
                write.created.add(number)
            return
        items = read_bulk_answer(decode(answer), whole.read())
    except RequestRefused:
        return  # one of the writes may be the cause: each writer sends its documents alone
    except IndexUnavailable as error:
        if is_tried_once:
            for write, _ in group:
                write.failure = error
        return
    first = 0
    for (write, number), bulk in zip(group, bulks, strict=True):
        own = items[first : first + bulk.count]
        first += bulk.count
        if all(item.outcome is ItemOutcome.CREATED for item in own):
            write.created.add(number)
        elif is_tried_once and (waiting := [item for item in own if item.outcome is ItemOutcome.RETRY]):
            write.failure = _not_accepted(waiting)


def _not_accepted(waiting: Sequence[BulkItem]) -> IndexUnavailable:
    one = waiting[0]
    return IndexUnavailable(
        f"index {one.document.index} did not accept {len(waiting)} documents ({one.status} {one.type}: {one.reason}); the "
        "slice is sent again later. Check the health of Elasticsearch, its disks, and blocks of the index"
    )
