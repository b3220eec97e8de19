"""Writes each result into Elasticsearch once, under an id that is derived from the data.

A result is created and never overwritten, except when late records revise it: then only by a higher version, which is
derived from the data, too.
"""

from __future__ import annotations

import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import stamina

from strandline.core.errors import Divergence, IndexUnavailable, InvalidSettings
from strandline.core.settings import Settings
from strandline.core.urls import without_credentials
from strandline.results.bulk import Bulk, cut_bulks
from strandline.results.bulk_answer import BulkItem, ItemOutcome, read_bulk_answer
from strandline.results.comparison import differences
from strandline.results.document import Document, DocumentColumns, DocumentShape
from strandline.results.elasticsearch_client import (
    NDJSON,
    RequestRefused,
    decode,
    is_of_settings,
    login_of,
    request,
    request_bytes,
)
from strandline.results.index_settings import INDEX_SETTINGS_DEFAULT, IndexSettings
from strandline.results.month_indices import CreatedIndices, MonthIndices
from strandline.results.remedies import stopped_by_item, stopped_by_request
from strandline.results.shared_bulk import ANSWER_FIELDS, PreparedWrite
from strandline.results.writer import Refused, WriteReport

_DIFFERENCES_SHOWN_MAX = 3
_SURE_MAX = 10_000
_SURE: OrderedDict[tuple[str, bytes, str, int], None] = OrderedDict()
"""(URL, index, job, epoch) of the indices that this process has checked in that run, in the order of their last use."""


@dataclass(frozen=True)
class ElasticsearchWriter:
    """A StoreWriter over Elasticsearch. Pickles; connects on the first write, once for each process.

    Between writes it has no state: results of an earlier attempt are found by their ids. The pickled form contains no
    user and no password. They come from STRANDLINE_ELASTICSEARCH_URL in the environment of the process that unpickles
    it, or InvalidSettings is raised.
    """

    url: str
    shape: DocumentShape
    index: IndexSettings = INDEX_SETTINGS_DEFAULT
    """Settings of the indices that it creates."""
    made: CreatedIndices | None = None
    """Names of the indices that the job has created. None if all indices exist, and the writer creates none."""
    documents_max: int = 2_000
    """Maximum number of documents in one bulk request."""
    bytes_max: int = 5_000_000
    """Maximum number of bytes in one bulk request, unless a single document is larger."""
    request_timeout_s: float = 30.0
    deadline_s: float = 120.0
    """Seconds for which the documents of one bulk are tried before the write raises IndexUnavailable."""
    wait_first_s: float = 0.1
    """Seconds before the first retry. The wait doubles with each later retry, with jitter."""
    wait_max_s: float = 5.0

    def __getstate__(self) -> dict[str, Any]:
        shown = without_credentials(self.url)
        settings = Settings.read()
        login = login_of(settings) if is_of_settings(self.url, settings) else ""
        return {**vars(self), "url": shown, "has_credentials": shown != self.url, "login": login}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state.pop("has_credentials"):
            state["url"] = _url_of_environment(state["url"])
        if login := state.pop("login"):
            _require_login(state["url"], login)
        vars(self).update(state)

    def write_batches(
        self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
    ) -> WriteReport:
        """Write the rows of a stage. See `ResultWriter.write_batches`."""
        report = WriteReport()
        for piece in self._cut_pieces(batches):
            documents, refused = self.shape.columns(piece, epoch, emission, slice_digest).sorted_out()
            report.refused += refused
            self._make_sure(documents, epoch)
            refused_before = len(report.refused)
            self.write(cut_bulks(documents, self.documents_max, self.bytes_max), report)
            self._add_stored(documents, report, refused_before)
        return report

    def prepared(
        self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
    ) -> list[PreparedWrite]:
        """Make the documents of rows, and send none of them. Call it for few rows: all documents are in memory."""
        found = []
        for piece in self._cut_pieces(batches):
            documents, refused = self.shape.columns(piece, epoch, emission, slice_digest).sorted_out()
            bulks = list(cut_bulks(documents, self.documents_max, self.bytes_max))
            unsure = [] if self.made is None else [one for one in _names_of(documents) if not self._is_sure(one, epoch)]
            check = partial(self._make_sure, documents, epoch)
            subject = f"run {epoch} of job {self.shape.job}: {', '.join(name.decode() for name in unsure)}"
            found.append(PreparedWrite(self.url, epoch, documents, refused, bulks, not unsure, check, subject))
        return found

    def write_prepared(self, writes: Sequence[PreparedWrite]) -> WriteReport:
        """Write the documents of `prepared` that no shared request created, as ResultWriter promises."""
        report = WriteReport()
        for one in writes:
            report.refused += one.refused
            refused_before = len(report.refused)
            left = []
            for number, bulk in enumerate(one.bulks):
                if one.is_created(number):
                    report.created += bulk.count
                else:
                    left.append(bulk)
            if left:
                self._make_sure(one.documents, one.epoch)
                self.write(left, report)
            self._add_stored(one.documents, report, refused_before)
        return report

    @staticmethod
    def _add_stored(documents: DocumentColumns, report: WriteReport, refused_before: int) -> None:
        rows = np.bincount(documents.index_codes, minlength=len(documents.index_names)).tolist()
        for name, count in zip(documents.index_names, rows, strict=True):
            report.add_stored(
                f"index {name}", count - sum(one.index == name for one in report.refused[refused_before:])
            )

    def prepare(self, next_end_ms: int | None) -> None:
        """Set up the indices of a run. See `StoreWriter.prepare`."""
        if (indices := self._indices) is not None:
            self._retried(partial(indices.make_sure, next_end_ms))

    def write(self, bulks: Iterable[Bulk], report: WriteReport) -> None:
        """Return when every document is durable in the index or refused. `report` then contains the numbers and the
        refusals.

        1. Send a bulk and read every item of its answer.
        2. If an id exists already (with at least this version), fetch its document and compare. If it is equal, the
           document is done; otherwise Divergence is raised.
        3. Until the deadline, resend the documents that the store could not accept.

        Raises IndexUnavailable and Divergence. Raises IndexMisconfigured, with a remedy, if an error concerns neither a
        document nor a temporary state. Documents that were written before stay, and are found by the next attempt.
        """
        for bulk in bulks:
            self._write_bulk(bulk, report)

    def _cut_pieces(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in pieces of bounded size, each of which is converted in one step.

        Small batches are joined.
        """
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            rows_max = max(1, min(self.documents_max, self.bytes_max * batch.num_rows // max(1, batch.nbytes)))
            for first in range(0, batch.num_rows, rows_max):
                part = batch.slice(first, rows_max)
                if waiting and (rows + part.num_rows > self.documents_max or size + part.nbytes > self.bytes_max):
                    yield pa.concat_batches(waiting)
                    waiting, rows, size = [], 0, 0
                waiting.append(part)
                rows += part.num_rows
                size += part.nbytes
        if waiting:
            yield pa.concat_batches(waiting)

    def _make_sure(self, documents: DocumentColumns, epoch: int) -> None:
        """Check the indices that this process has not checked in this run.

        The window's end selects the month, so there are few.
        """
        if (indices := self._indices) is None:
            return
        for name in _names_of(documents):
            if not self._is_sure(name, epoch):
                self._retried(partial(indices.make_sure_of, name.decode()))
                _SURE[self.url, name, self.shape.job, epoch] = None
                if len(_SURE) > _SURE_MAX:
                    _SURE.popitem(last=False)

    def _is_sure(self, name: bytes, epoch: int) -> bool:
        key = self.url, name, self.shape.job, epoch
        if key in _SURE:
            _SURE.move_to_end(key)
            return True
        return False

    @property
    def _indices(self) -> MonthIndices | None:
        """Not pickled: it contains the URL with its password."""
        return MonthIndices(self.url, self.shape, self.index, self.made) if self.made is not None else None

    def _retried(self, step: Callable[[], None]) -> None:
        for attempt in self._attempts():
            with attempt:
                step()

    def _attempts(self) -> Iterable[stamina.Attempt]:
        return stamina.retry_context(
            on=IndexUnavailable,
            attempts=None,
            timeout=self.deadline_s,
            wait_initial=self.wait_first_s,
            wait_max=self.wait_max_s,
            wait_jitter=self.wait_first_s,
        )

    def _write_bulk(self, bulk: Bulk, report: WriteReport) -> None:
        """Finish every document of the bulk. Two variables contain the unfinished ones, also if a step fails."""
        to_create: Bulk | None = bulk
        to_compare = list[Document]()
        deadline = time.monotonic() + self.deadline_s
        for attempt in self._attempts():
            with attempt:
                retry: list[BulkItem] = []
                again: list[Document] = []
                if to_create:
                    created, items = self._create(to_create, deadline)
                    retry = [item for item in items if item.outcome in (ItemOutcome.RETRY, ItemOutcome.NO_INDEX)]
                    again = [item.document for item in retry]
                    to_create = Bulk.of(again) if again else None
                    to_compare += [item.document for item in items if item.outcome is ItemOutcome.EXISTS]
                    report.created += created
                    report.refused += [_refuse(item) for item in items if item.outcome is ItemOutcome.REFUSED]
                    self._stop_at(items)
                if to_compare:
                    equal, gone, unread = self._compare(to_compare, deadline)
                    report.already += equal
                    again += gone
                    to_create = Bulk.of(again) if again else None
                    to_compare = unread
                if again or to_compare:
                    raise IndexUnavailable(self._describe_open(bulk.count, again + to_compare, retry))

    def _create(self, bulk: Bulk, deadline: float) -> tuple[int, list[BulkItem]]:
        """Send one bulk request. Return the number of created documents, and the items of the others.

        A request that is too large for the server, or for a proxy before it, is resent in halves.
        """
        timeout_s = self._timeout_s(deadline)
        # The server stops waiting for a shard before this client stops waiting for the server, so that it can send the
        # reason.
        parameters = {
            "filter_path": ANSWER_FIELDS,
            "timeout": f"{int(timeout_s * 500)}ms",
            "require_alias": "true",
        }
        try:
            answer = request_bytes(
                self.url,
                "POST",
                "/_bulk",
                timeout_s=timeout_s,
                parameters=parameters,
                body=bulk.body,
                content_type=NDJSON,
            )
        except RequestRefused as error:
            if error.status != 413:
                raise stopped_by_request(error, bulk.read()[0].index, self.shape.emit_name) from error
            documents = bulk.read()
            if len(documents) == 1:
                return 0, [BulkItem(documents[0], ItemOutcome.REFUSED, error.status, error.error_type, str(error))]
            middle = len(documents) // 2
            halves = [self._create(Bulk.of(half), deadline) for half in (documents[:middle], documents[middle:])]
            return sum(created for created, _ in halves), [item for _, items in halves for item in items]
        if answer == bulk.created:
            return bulk.count, []
        items = read_bulk_answer(decode(answer), bulk.read())
        others = [item for item in items if item.outcome is not ItemOutcome.CREATED]
        return len(items) - len(others), others

    def _compare(self, documents: list[Document], deadline: float) -> tuple[int, list[Document], list[Document]]:
        """Return the number of documents with the same result in the index, the deleted ones, and the unreadable ones.

        Reads by id, which sees a write immediately, not only after a refresh. Raises Divergence.
        """
        wanted = [{"_index": document.index, "_id": document.id} for document in documents]
        body = msgspec.json.encode({"docs": wanted})
        try:
            answer = request(self.url, "POST", "/_mget", timeout_s=self._timeout_s(deadline), body=body)
        except RequestRefused as error:
            raise stopped_by_request(error, documents[0].index, self.shape.emit_name) from error
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
            elif document.version is not None and held["_version"] > document.version:
                equal += 1  # too late: a later revision has replaced it
            elif different := differences(held["_source"], msgspec.json.decode(document.source)):
                diverging.append(_describe_divergence(document, held["_source"], different))
            else:
                equal += 1
        if diverging:
            raise Divergence(
                f"{len(diverging)} results differ from those in the index; nothing was overwritten. {diverging[0]}"
            )
        return equal, gone, unread

    def _stop_at(self, items: list[BulkItem]) -> None:
        """Raise IndexMisconfigured if the store refuses a document for a reason that concerns every document."""
        if (indices := self._indices) is not None:
            for index in {item.document.index for item in items if item.outcome is ItemOutcome.NO_INDEX}:
                indices.make_sure_of(index)
        stopped = next((item for item in items if item.outcome is ItemOutcome.STOPPED), None)
        if stopped is not None:
            raise stopped_by_item(stopped, self.shape.emit_name)

    def _timeout_s(self, deadline: float) -> float:
        return max(min(self.request_timeout_s, deadline - time.monotonic()), 1.0)

    def _describe_open(self, bulk_size: int, documents: list[Document], retry: list[BulkItem]) -> str:
        why = (
            f"{retry[0].status} {retry[0].type}: {retry[0].reason}" if retry else "that an id exists but is unreadable"
        )
        return (
            f"index {documents[0].index} has not accepted {len(documents)} of {bulk_size} documents within "
            f"{self.deadline_s:g} s; its last answer was {why}; check Elasticsearch's health, disk and index blocks"
        )


def _names_of(documents: DocumentColumns) -> list[bytes]:
    names: list[bytes] = documents.indices().unique().to_pylist()
    return names


def _url_of_environment(shown: str) -> str:
    """Return the URL with user and password. `shown` is the URL without them."""
    own = Settings().elasticsearch_url
    if without_credentials(own) != shown or own == shown:
        raise InvalidSettings(
            f"On {socket.gethostname()} STRANDLINE_ELASTICSEARCH_URL does not name {shown} with a user and a password. Set it "
            "in the environment of this process and, on a cluster, of the Spark worker on each machine."
        )
    return own


def _require_login(url: str, login: str) -> None:
    """Raise InvalidSettings unless this process has the same login for this server as the process that created the
    writer."""
    own = Settings.read()
    if not is_of_settings(url, own) or login_of(own) != login:
        raise InvalidSettings(
            f"On {socket.gethostname()} the settings STRANDLINE_ELASTICSEARCH_* do not log in at {without_credentials(url)} by "
            f"{login}, as the job's driver does. Set them in the environment of this process and, on a cluster, of the Spark "
            "worker on each machine."
        )


def _refuse(item: BulkItem) -> Refused:
    document = item.document
    return Refused(document.id, document.index, item.status, item.type, item.reason, document.source)


def _describe_divergence(document: Document, held: dict[str, Any], different: list[str]) -> str:
    origin = held.get("strandline")
    shown = "; ".join(different[:_DIFFERENCES_SHOWN_MAX])
    return (
        f"Document {document.id} of index {document.index}: {shown}. The document in the index was written by {origin}; "
        f"recompute the window from the log to see which is right"
    )
