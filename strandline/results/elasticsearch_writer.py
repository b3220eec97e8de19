"""Writes results into Elasticsearch, each once: created under an id that comes from the data, and never overwritten."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import stamina

from strandline.core.errors import Divergence, IndexUnavailable
from strandline.results.bulk_answer import BulkItem, ItemOutcome, read_bulk_answer
from strandline.results.comparison import differences
from strandline.results.document import Document, DocumentShape
from strandline.results.elasticsearch_client import NDJSON, RequestRefused, request
from strandline.results.writer import Refused, WriteReport

_ANSWER_FIELDS = "items.*.status,items.*._id,items.*._index,items.*.error"
_DIFFERENCES_SHOWN_MAX = 3


@dataclass(frozen=True)
class ElasticsearchWriter:
    """A ResultWriter over Elasticsearch. Pickles; connects on the first write, once for each process.

    Between writes it holds no state: whatever an attempt left behind, the next one finds by its ids.
    """

    url: str
    shape: DocumentShape
    documents_max: int = 2_000
    """Documents in one bulk request."""
    bytes_max: int = 5_000_000
    """Bytes in one bulk request, unless a single document is larger."""
    request_timeout_s: float = 30.0
    deadline_s: float = 120.0
    """How long one bulk's documents are tried before the write gives up with IndexUnavailable."""
    wait_first_s: float = 0.1
    """Before the first retry; doubles with each further one, with jitter."""
    wait_max_s: float = 5.0

    def write_batches(self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int) -> WriteReport:
        """Write the rows of a stage as ResultWriter promises."""
        return self.write(row for batch in batches for row in self.shape.documents(batch, epoch, emission))

    def write(self, rows: Iterable[Document | Refused]) -> WriteReport:
        """Return when every document is durable in the index or refused; rows refused before are passed on.

        1. Cut the documents into bulks, by count and by bytes.
        2. Send a bulk; read every item of its answer.
        3. Where the id is taken, fetch what is there and compare: equal is done, different is an alarm.
        4. Send again what the store could not take now, and only that, until the deadline.

        Raises IndexUnavailable, Divergence, or PermanentError when the store refuses whole requests.
        """
        report = WriteReport()
        for bulk in self._cut_bulks(rows, report):
            self._write_bulk(bulk, report)
        return report

    def _cut_bulks(self, rows: Iterable[Document | Refused], report: WriteReport) -> Iterator[list[Document]]:
        bulk: list[Document] = []
        bulk_bytes = 0
        for row in rows:
            if isinstance(row, Refused):
                report.refused.append(row)
                continue
            if bulk and (len(bulk) == self.documents_max or bulk_bytes + len(row.source) > self.bytes_max):
                yield bulk
                bulk, bulk_bytes = [], 0
            bulk.append(row)
            bulk_bytes += len(row.source)
        if bulk:
            yield bulk

    def _write_bulk(self, bulk: list[Document], report: WriteReport) -> None:
        """Bring every document of the bulk to an end. Two lists hold what is still open, also when a step fails."""
        to_create, to_compare = bulk, list[Document]()
        deadline = time.monotonic() + self.deadline_s
        for attempt in stamina.retry_context(
            on=IndexUnavailable,
            attempts=None,
            timeout=self.deadline_s,
            wait_initial=self.wait_first_s,
            wait_max=self.wait_max_s,
            wait_jitter=self.wait_first_s,
        ):
            with attempt:
                retry: list[BulkItem] = []
                if to_create:
                    items = self._create(to_create, deadline)
                    retry = [item for item in items if item.outcome is ItemOutcome.RETRY]
                    to_create = [item.document for item in retry]
                    to_compare += [item.document for item in items if item.outcome is ItemOutcome.EXISTS]
                    report.created += sum(item.outcome is ItemOutcome.CREATED for item in items)
                    report.refused += [_refuse(item) for item in items if item.outcome is ItemOutcome.REFUSED]
                if to_compare:
                    equal, gone, unread = self._compare(to_compare, deadline)
                    report.already += equal
                    to_create += gone
                    to_compare = unread
                if to_create or to_compare:
                    raise IndexUnavailable(self._describe_open(len(bulk), to_create + to_compare, retry))

    def _create(self, documents: list[Document], deadline: float) -> list[BulkItem]:
        """Send one bulk request. One too large for the server, or for a proxy before it, goes again in halves."""
        lines = []
        for document in documents:
            lines.append(f'{{"create":{{"_index":"{document.index}","_id":"{document.id}"}}}}'.encode())
            lines.append(document.source)
        timeout_s = self._timeout_s(deadline)
        # The server gives up waiting for a shard before we give up waiting for the server, so that it can say why.
        parameters = {"filter_path": _ANSWER_FIELDS, "timeout": f"{int(timeout_s * 500)}ms"}
        body = b"\n".join(lines) + b"\n"
        try:
            answer = request(
                self.url,
                "POST",
                "/_bulk",
                timeout_s=timeout_s,
                parameters=parameters,
                body=body,
                content_type=NDJSON,
            )
        except RequestRefused as error:
            if error.status != 413:
                raise
            if len(documents) == 1:
                return [BulkItem(documents[0], ItemOutcome.REFUSED, error.status, error.error_type, str(error))]
            middle = len(documents) // 2
            return self._create(documents[:middle], deadline) + self._create(documents[middle:], deadline)
        return read_bulk_answer(answer, documents)

    def _compare(self, documents: list[Document], deadline: float) -> tuple[int, list[Document], list[Document]]:
        """Return how many are in the index with the same result, which are gone from it, and which could not be read.

        Reads by id, which sees a write at once, not only after a refresh. Raises Divergence.
        """
        wanted = [{"_index": document.index, "_id": document.id} for document in documents]
        answer = request(
            self.url, "POST", "/_mget", timeout_s=self._timeout_s(deadline), body=msgspec.json.encode({"docs": wanted})
        )
        found = answer.get("docs", []) if isinstance(answer, dict) else []
        if len(found) != len(documents):
            raise IndexUnavailable(
                f"a read by id holds {len(found)} answers for {len(documents)} documents; repeating it"
            )
        equal, gone, unread, diverging = 0, list[Document](), list[Document](), list[str]()
        for document, held in zip(documents, found, strict=True):
            if "error" in held:
                unread.append(document)
            elif not held.get("found"):
                gone.append(document)
            elif different := differences(held["_source"], msgspec.json.decode(document.source)):
                diverging.append(_describe_divergence(document, held["_source"], different))
            else:
                equal += 1
        if diverging:
            raise Divergence(
                f"{len(diverging)} results differ from what the index holds; nothing was overwritten. {diverging[0]}"
            )
        return equal, gone, unread

    def _timeout_s(self, deadline: float) -> float:
        return max(min(self.request_timeout_s, deadline - time.monotonic()), 1.0)

    def _describe_open(self, bulk_size: int, documents: list[Document], retry: list[BulkItem]) -> str:
        why = f"{retry[0].status} {retry[0].type}: {retry[0].reason}" if retry else "that an id is taken but unreadable"
        return (
            f"index {documents[0].index} has not taken {len(documents)} of {bulk_size} documents within "
            f"{self.deadline_s:g} s; its last answer was {why}; check Elasticsearch's health, disk and index blocks"
        )


def _refuse(item: BulkItem) -> Refused:
    document = item.document
    return Refused(document.id, document.index, item.status, item.type, item.reason, document.source)


def _describe_divergence(document: Document, held: dict[str, Any], different: list[str]) -> str:
    origin = held.get("strandline")
    shown = "; ".join(different[:_DIFFERENCES_SHOWN_MAX])
    return (
        f"Document {document.id} of index {document.index}: {shown}. The one in the index was written by {origin}; "
        f"recompute the window from the log to see which is right"
    )
