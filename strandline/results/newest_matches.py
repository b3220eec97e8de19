"""Search for the keys whose newest result meets a condition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strandline.results.elasticsearch_client import RequestRefused, request

_TIMEOUT_S = 10.0
MATCHES_MAX = 1_000
"""Maximum number of keys that are returned."""
_HITS_MAX = 10_000
"""Maximum number of results that are compared. Elasticsearch returns no more in one response."""
_Document = dict[str, Any]


@dataclass(frozen=True)
class MatchQuery:
    """Query for results of an alias."""

    alias: str
    keys: tuple[str, ...]
    """Key fields. The results of each combination of their values are compared."""
    fields: tuple[str, ...]
    """Other fields to return."""
    matches: _Document
    """Condition, as a query of Elasticsearch."""
    time: str
    """Time field by which the newest result of a key is found."""
    within_ms: int
    """How far back from the newest result of the alias results are compared."""


def newest_matches(url: str, query: MatchQuery) -> list[_Document]:
    """Return the newest result of each key, if it meets the condition. An alias without an index has no results.

    Raises IndexUnavailable and RequestRefused.
    """
    try:
        newest_ms = _search(url, query, {"match_all": {}}, 0, maximum=True)["aggregations"]["newest"]["value"]
    except RequestRefused as error:
        if error.error_type == "index_not_found_exception":
            return []  # no window has closed yet
        raise
    if newest_ms is None:
        return []
    in_time = {"range": {query.time: {"gt": int(newest_ms) - query.within_ms, "format": "epoch_millis"}}}
    matching = _newest(_hits(_search(url, query, {"bool": {"filter": [in_time, query.matches]}}, _HITS_MAX)), query)
    if not matching:
        return []
    other = {"bool": {"filter": [in_time, *_of_keys(matching, query)], "must_not": [query.matches]}}
    others = _newest(_hits(_search(url, query, other, _HITS_MAX)), query)
    found = [
        document
        for key, (at_ms, document) in matching.items()
        if key not in others or at_ms >= others[key][0]  # a revised result replaces the older one under the same id
    ]
    return sorted(found, key=lambda one: [str(one.get(key)) for key in query.keys])[:MATCHES_MAX]


def _of_keys(matching: dict[tuple[Any, ...], tuple[int, _Document]], query: MatchQuery) -> list[_Document]:
    """Return filters for the results of these keys. They can match more keys, which are ignored."""
    filters = []
    for at, name in enumerate(query.keys):
        values = {key[at] for key in matching}
        if None not in values and len(values) <= _HITS_MAX:
            filters.append({"terms": {name: sorted(values, key=str)}})
    return filters


def _newest(hits: Sequence[_Document], query: MatchQuery) -> dict[tuple[Any, ...], tuple[int, _Document]]:
    """Key -> time and document of its newest result."""
    found: dict[tuple[Any, ...], tuple[int, _Document]] = {}
    for hit in hits:  # the newest first
        document = hit["_source"]
        key = tuple(document.get(name) for name in query.keys)
        found.setdefault(key, (int(hit["sort"][0]), document))
    return found


def _hits(answer: Any) -> Sequence[_Document]:
    hits: Sequence[_Document] = answer["hits"]["hits"]
    return hits


def _search(url: str, query: MatchQuery, wanted: _Document, size: int, *, maximum: bool = False) -> Any:
    body: _Document = {"size": size, "query": wanted, "track_total_hits": False}
    if maximum:
        body["aggs"] = {"newest": {"max": {"field": query.time}}}
    else:
        body["_source"] = ["window", *query.keys, *query.fields]
        body["sort"] = [{query.time: {"order": "desc"}}]
    return request(url, "POST", f"/{query.alias}/_search", timeout_s=_TIMEOUT_S, body=body)
