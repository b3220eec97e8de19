"""Search for documents of a job that the ledger can't know, because the ledger is older than they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from strandline.results.elasticsearch_client import request
from strandline.results.generations import indices_of
from strandline.results.names import first_index, generation_of, index_stem

_TIMEOUT_S = 60.0
_PLACE_LENGTH_MAX = 3_000


def newer_document(
    url: str,
    alias: str,
    job: str,
    *,
    epoch: int,
    emission: int,
    after_ms: int,
    generation: int = 1,
    digests: Mapping[int, str] = MappingProxyType({}),
) -> dict[str, Any] | None:
    """Return the origin (`strandline`) of a document of the job that the ledger doesn't contain; None if there is none.

    Such a document was written by a run after `epoch`, or by an emission after `emission`, or by an emission in `digests` (slice
    -> its digest) from a slice with another digest: a slice that was lost and planned again under the same number.

    Searches only what the job itself wrote (its own `generation`), and only windows that end after `after_ms`, which are in the
    indices of few months. Raises IndexUnavailable, RequestRefused.
    """
    first = first_index(index_stem(alias, generation), after_ms)
    names = [index for index in indices_of(url, alias) if generation_of(alias, index) == generation and index >= first]
    newer: list[dict[str, Any]] = [
        {"range": {"strandline.epoch": {"gt": epoch}}},
        {"range": {"strandline.emission": {"gt": emission}}},
        *(_planned_otherwise(*one) for one in sorted(digests.items())),
    ]
    query = {
        "size": 1,
        "terminate_after": 1,
        "_source": ["strandline"],
        "query": {
            "bool": {
                "filter": [
                    {"term": {"strandline.job": job}},
                    {"range": {"@timestamp": {"gt": after_ms, "format": "epoch_millis"}}},
                    {"bool": {"should": newer, "minimum_should_match": 1}},
                ]
            }
        },
    }
    hits = (_first_hit(url, place, query) for place in _places(names))
    return next((dict(hit["_source"]["strandline"]) for hit in hits if hit), None)


def _planned_otherwise(emission: int, digest: str) -> dict[str, Any]:
    """The query for results of a slice of this number with another digest."""
    found = [{"term": {"strandline.emission": emission}}, {"exists": {"field": "strandline.slice_digest"}}]
    return {"bool": {"filter": found, "must_not": [{"term": {"strandline.slice_digest": digest}}]}}


def _places(names: Iterable[str]) -> list[str]:
    """The indices as paths of few requests: Elasticsearch reads no first line of more than 4 kB."""
    places: list[str] = []
    for name in names:
        if places and len(places[-1]) + len(name) < _PLACE_LENGTH_MAX:
            places[-1] += f",{name}"
        else:
            places.append(f"/{name}")
    return places


def _first_hit(url: str, place: str, query: dict[str, Any]) -> dict[str, Any] | None:
    # A search doesn't find documents that were written since the last refresh.
    closed = {"ignore_unavailable": "true"}
    request(url, "POST", f"{place}/_refresh", timeout_s=_TIMEOUT_S, parameters=closed)
    whole = closed | {"allow_partial_search_results": "false"}
    answer = request(url, "POST", f"{place}/_search", timeout_s=_TIMEOUT_S, parameters=whole, body=query)
    return next(iter(answer["hits"]["hits"]), None)
