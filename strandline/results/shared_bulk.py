"""One bulk request for the documents of several writes, of one or more jobs.

Each item of the response belongs to one write. A write whose documents are all created is done. Every other write is sent again
by its own writer, which compares the existing documents. Documents have ids that come from the data, so sending them again
changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from strandline.core.errors import IndexUnavailable, StrandlineError
from strandline.results.bulk import Bulk, join_bulks
from strandline.results.bulk_answer import BulkItem, ItemOutcome, read_bulk_answer
from strandline.results.document import DocumentColumns
from strandline.results.elasticsearch_client import NDJSON, RequestRefused, decode, request_bytes
from strandline.results.writer import Refused

_CHECKS_MAX = 16
"""Maximum number of writes whose indices a process checks at the same time. Elasticsearch creates several indices at nearly the
cost of one, if they are requested together."""
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
    are_indices_checked: bool
    """True if the documents can be sent: their indices exist."""
    check_indices: Callable[[], None]
    """Creates missing indices. Raises the errors of `StoreWriter.prepare`."""
    subject: str
    """The writer and its run, and the indices: key of a check."""
    created: set[int] = field(default_factory=set)
    """Indices of the bulks whose documents were all created by a shared request."""
    failure: StrandlineError | None = None
    """Why the documents can't be written now. None if it isn't known."""

    def is_created(self, number: int) -> bool:
        """Return True if a shared request created all documents of the bulk with this index. Raises IndexUnavailable if the store
        doesn't accept them now."""
        if self.failure is not None:
            raise self.failure
        return number in self.created


_checks: dict[str, Future[None]] = {}
"""Subject of a write -> the check that still runs."""
_executor: ThreadPoolExecutor | None = None
"""Threads of this process for checks. Created at the first use, because a forked process doesn't inherit threads."""


def check_together(writes: Sequence[PreparedWrite], wait_s: float) -> None:
    """Check the indices of all writes at the same time, and create those that are missing. Wait for `wait_s` at most.

    Records a `failure` for each write whose check failed or isn't complete. An incomplete check continues. A later call for
    the same indices waits for it, so that one slow index never holds up other writes for longer.
    """
    global _executor
    unchecked = [one for one in writes if not one.are_indices_checked]
    if not unchecked:
        return
    _executor = _executor or ThreadPoolExecutor(_CHECKS_MAX, thread_name_prefix="indices")
    for write in unchecked:
        if write.subject not in _checks:
            _checks[write.subject] = _executor.submit(write.check_indices)
    checks = {write.subject: _checks[write.subject] for write in unchecked}
    wait(checks.values(), wait_s)
    for write in unchecked:
        check = checks[write.subject]
        if check.done():
            _checks.pop(write.subject, None)
            write.failure = _failure_of(check)
            write.are_indices_checked = write.failure is None
        else:
            write.failure = IndexUnavailable(
                f"indices of {write.subject} are still being created; the slice is sent again later. If this persists, check the "
                "health of Elasticsearch"
            )


def _failure_of(check: Future[None]) -> StrandlineError | None:
    error = check.exception()
    if error is None or isinstance(error, StrandlineError):
        return error
    raise error


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
        if write.are_indices_checked and write.failure is None:
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
