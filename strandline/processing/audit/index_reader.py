"""Reads documents back from the index for the audit: a snapshot of each alias, in pages of a bounded size."""

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
"""How long the index keeps an unused snapshot: one waits while a part of each other alias is read."""
_TIMEOUT_S = 60.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document as it stands in the index."""

    index: str
    id: str
    job: str | None
    """The job that wrote it; None where the document names none."""
    end_ms: int | None
    """The window's end; None where the document has none that can be read."""
    emission: int | None
    """The slice that made it final; None where the document has no number."""
    body: bytes
    """Its result as JSON, without the run that wrote it."""


@dataclass(frozen=True)
class EndRange:
    """Window ends after `after_ms`, up to and including `up_to_ms`; None is without a bound."""

    after_ms: int | None = None
    up_to_ms: int | None = None

    def holds(self, end_ms: int | None) -> bool:
        """Whether `query` would find it. A document without a window end is only in the range without bounds."""
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
    """Close a snapshot. It is no error if it has expired."""
    try:
        request(url, "DELETE", "/_pit", timeout_s=_TIMEOUT_S, body={"id": snapshot})
    except RequestRefused as error:
        if error.status != 404:
            raise


def count_documents(url: str, snapshot: str, ends: EndRange) -> int:
    """How many documents of the snapshot have a window end in the range."""
    body = {"size": 0, "track_total_hits": True, "query": ends.query(), "pit": _pit(snapshot)}
    answer = request(url, "POST", "/_search", timeout_s=_TIMEOUT_S, body=body)
    return int(answer["hits"]["total"]["value"])


def read_documents(
    url: str, snapshot: str, ends: EndRange, part: int, parts: int, shown: dict[str, Any] | None = None
) -> Iterator[Sequence[StoredDocument]]:
    """Yield part `part` of `parts` of the snapshot's documents, page by page. `shown`: the query for what an alias shows, where
    the snapshot is of an index and not of the alias; None: all of it.

    Raises IndexUnavailable when the index did not answer for all of its shards, RequestRefused when the snapshot has
    expired.
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
                f"the index at {without_credentials(url)} answered for a part of its shards only; see to its health and "
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
    """Return what a document says of its window's end (ms) and its emission, each None where that can't be read."""
    try:
        end_ms = (datetime.fromisoformat(source["@timestamp"]) - _EPOCH) // timedelta(milliseconds=1)
    except (KeyError, TypeError, ValueError):
        end_ms = None
    origin = source.get("strandline")
    emission = origin.get("emission") if isinstance(origin, dict) else None
    return end_ms, emission if isinstance(emission, int) else None


def job_of(source: dict[str, Any]) -> str | None:
    """Return the job that a document says it is of; None where that can't be read."""
    origin = source.get("strandline")
    job = origin.get("job") if isinstance(origin, dict) else None
    return job if isinstance(job, str) else None


def stage_of(source: dict[str, Any]) -> str:
    """Return the stage that a document says it is of; empty where that can't be read."""
    origin = source.get("strandline")
    return str(origin.get("stage", "")) if isinstance(origin, dict) else ""


def encode_result(source: dict[str, Any]) -> bytes:
    """Return a document's result as JSON; equal bytes are equal results."""
    result = result_of(source)
    try:
        return msgspec.json.encode(result)
    except (OverflowError, UnicodeError):  # a whole number beyond 64 bits, half a surrogate pair: not written by us
        return json.dumps(result).encode("ascii")
