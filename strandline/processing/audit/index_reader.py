"""Reads documents from the index for the audit: a snapshot of each alias, in pages of bounded size."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from strandline.core.errors import IndexUnavailable
from strandline.core.urls import without_credentials
from strandline.results.comparison import result_of
from strandline.results.elasticsearch_client import RequestRefused, request

PAGE_DOCUMENTS = 2_000
_KEEP_ALIVE = "1h"
"""Time for which the index keeps an unused snapshot. A snapshot is unused while parts of the other aliases are read."""
_TIMEOUT_S = 60.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document in the index."""

    index: str
    id: str
    job: str | None
    """Job that wrote it. None if the document names none."""
    end_ms: int | None
    """End of its window. None if the document has no readable one."""
    emission: int | None
    """Slice that made it final. None if the document has no number."""
    body: bytes
    """Result as JSON, without the run that wrote it."""


@dataclass(frozen=True)
class EndRange:
    """Window ends after `after_ms`, up to and including `up_to_ms`. None means no bound."""

    after_ms: int | None = None
    up_to_ms: int | None = None

    def holds(self, end_ms: int | None) -> bool:
        """Return True if `query` would find this end. A document without a window end is only in the range without bounds."""
        if end_ms is None:
            return self == EndRange()
        return (self.after_ms is None or end_ms > self.after_ms) and (self.up_to_ms is None or end_ms <= self.up_to_ms)

    def query(self) -> dict[str, Any]:
        bounds = {"gt": self.after_ms, "lte": self.up_to_ms}
        known = {name: value for name, value in bounds.items() if value is not None}
        return {"range": {"@timestamp": {**known, "format": "epoch_millis"}}} if known else {"match_all": {}}


def open_snapshot(url: str, alias: str) -> str:
    """Return the id of a snapshot of everything that was written under the alias before this call.

    An alias without documents is empty. Raises IndexUnavailable, RequestRefused.
    """
    absent = {"ignore_unavailable": "true", "allow_no_indices": "true"}
    request(url, "POST", f"/{alias}/_refresh", timeout_s=_TIMEOUT_S, parameters=absent)
    opened = request(
        url, "POST", f"/{alias}/_pit", timeout_s=_TIMEOUT_S, parameters={**absent, "keep_alive": _KEEP_ALIVE}
    )
    return str(opened["id"])


def close_snapshot(url: str, snapshot: str) -> None:
    """Close a snapshot. An expired snapshot is no error."""
    try:
        request(url, "DELETE", "/_pit", timeout_s=_TIMEOUT_S, body={"id": snapshot})
    except RequestRefused as error:
        if error.status != 404:
            raise


def count_documents(url: str, snapshot: str, ends: EndRange) -> int:
    """Return the number of documents of the snapshot whose window ends in the range."""
    body = {"size": 0, "track_total_hits": True, "query": ends.query(), "pit": _pit(snapshot)}
    answer = request(url, "POST", "/_search", timeout_s=_TIMEOUT_S, body=body)
    return int(answer["hits"]["total"]["value"])


def read_documents(
    url: str, snapshot: str, ends: EndRange, part: int, parts: int, shown: dict[str, Any] | None = None
) -> Iterator[Sequence[StoredDocument]]:
    """Yield part `part` of `parts` of the snapshot's documents, page by page.

    `shown`: query for the documents that an alias shows, for a snapshot of an index. None to read all documents.

    Raises IndexUnavailable if the index didn't respond for all of its shards, RequestRefused if the snapshot has expired.
    """
    query = ends.query() if shown is None else {"bool": {"filter": [ends.query(), shown]}}
    body: dict[str, Any] = {"size": PAGE_DOCUMENTS, "query": query, "sort": ["_shard_doc"]}
    body |= {"track_total_hits": False, "pit": _pit(snapshot)}
    if parts > 1:
        body["slice"] = {"id": part, "max": parts}
    while True:
        answer = request(url, "POST", "/_search", timeout_s=_TIMEOUT_S, body=body)
        if answer.get("timed_out") or answer["_shards"]["failed"]:
            raise IndexUnavailable(
                f"the index at {without_credentials(url)} responded for only some of its shards; check its health, and "
                "audit again"
            )
        hits = answer["hits"]["hits"]
        if not hits:
            return
        yield [_stored(hit) for hit in hits]
        body["search_after"] = hits[-1]["sort"]
        body["pit"] = _pit(str(answer["pit_id"]))


def _pit(snapshot: str) -> dict[str, str]:
    return {"id": snapshot, "keep_alive": _KEEP_ALIVE}


def _stored(hit: dict[str, Any]) -> StoredDocument:
    source = hit["_source"]
    end_ms, emission = window_end_and_emission(source)
    return StoredDocument(hit["_index"], hit["_id"], job_of(source), end_ms, emission, encode_result(source))


def window_end_and_emission(source: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return the end of a document's window in ms, and its emission. Each is None if it can't be read."""
    try:
        end_ms = (datetime.fromisoformat(source["@timestamp"]) - _EPOCH) // timedelta(milliseconds=1)
    except (KeyError, TypeError, ValueError):
        end_ms = None
    origin = source.get("strandline")
    emission = origin.get("emission") if isinstance(origin, dict) else None
    return end_ms, emission if isinstance(emission, int) else None


def job_of(source: dict[str, Any]) -> str | None:
    """Return the job that a document names. None if it can't be read."""
    origin = source.get("strandline")
    job = origin.get("job") if isinstance(origin, dict) else None
    return job if isinstance(job, str) else None


def stage_of(source: dict[str, Any]) -> str:
    """Return the stage that a document names. Empty if it can't be read."""
    origin = source.get("strandline")
    return str(origin.get("stage", "")) if isinstance(origin, dict) else ""


def encode_result(source: dict[str, Any]) -> bytes:
    """Return the result of a document as JSON. Equal bytes are equal results."""
    result = result_of(source)
    try:
        return msgspec.json.encode(result)
    except (OverflowError, UnicodeError):  # an integer beyond 64 bits, or half a surrogate pair: not written by a job
        return json.dumps(result).encode("ascii")
