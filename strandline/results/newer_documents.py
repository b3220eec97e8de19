"""Whether the index holds documents of a job that the ledger can't know: it was put back to an older copy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from strandline.results.elasticsearch_client import request
from strandline.results.generations import indices_of
from strandline.results.names import first_index, generation_of, index_stem

_TIMEOUT_S = 60.0
_PLACE_LENGTH_MAX = 3_000


def newer_document(
    url: str, alias: str, job: str, *, epoch: int, emission: int, after_ms: int, generation: int = 1
) -> dict[str, Any] | None:
    """The origin (`strandline`) of a document of the job that was written by a run after `epoch`, or is of an emission after
    `emission`; None if there is none.

    Looks only at what the job itself wrote (its own `generation`), and at windows that end after `after_ms`, so at the indices
    of few months. Raises IndexUnavailable, RequestRefused.
    """
    first = first_index(index_stem(alias, generation), after_ms)
    names = [index for index in indices_of(url, alias) if generation_of(alias, index) == generation and index >= first]
    newer = [
        {"range": {"strandline.epoch": {"gt": epoch}}},
        {"range": {"strandline.emission": {"gt": emission}}},
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
    # What was written and not refreshed yet is not found by a search.
    closed = {"ignore_unavailable": "true"}
    request(url, "POST", f"{place}/_refresh", timeout_s=_TIMEOUT_S, parameters=closed)
    whole = closed | {"allow_partial_search_results": "false"}
    answer = request(url, "POST", f"{place}/_search", timeout_s=_TIMEOUT_S, parameters=whole, body=query)
    return next(iter(answer["hits"]["hits"]), None)
