"""Search for documents of a job that are newer than the ledger, and counts of its documents.

With the counts, a start notices that an index is older than the ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from strandline.results.elasticsearch_client import RequestRefused
from strandline.results.generations import indices_of
from strandline.results.names import first_index, generation_of, index_stem
from strandline.results.shared_searches import search_refreshed


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
    """Return the origin (`strandline`) of a document of the job that the ledger doesn't contain. None if there is none.

    Such a document was written in one of three ways:

    - by a run after `epoch`
    - by the emission of a slice after number `emission`
    - by the emission of a slice in `digests` (slice number -> digest in the ledger), if that slice had another digest.
      It was lost, and planned again under the same number

    Searches only documents that the job itself wrote (its own `generation`), and only windows that end after
    `after_ms`, which are in few indices. Raises IndexUnavailable, RequestRefused.
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
    hit = _first_hit(url, names, query)
    return None if hit is None else dict(hit["_source"]["strandline"])


def unknown_generation(url: str, alias: str, job: str, known: Collection[int], own: int) -> int | None:
    """Return a generation with documents of the job that the ledger doesn't contain: of a reset, or of a backfill. None
    if there is none.

    Args: known: Generations of the backfills in the ledger. own: Generation of the job; lower ones are of earlier
    incarnations.

    Raises IndexUnavailable, RequestRefused.
    """
    numbers = {index: generation_of(alias, index) or 0 for index in indices_of(url, alias)}
    unknown = [index for index, number in numbers.items() if number > own and number not in known]
    query = {"size": 1, "terminate_after": 1, "_source": False, "query": {"term": {"strandline.job": job}}}
    hit = _first_hit(url, unknown, query)
    return None if hit is None else numbers[hit["_index"]]


def _planned_otherwise(emission: int, digest: str) -> dict[str, Any]:
    """Return the query for results of a slice with this number and another digest."""
    found = [{"term": {"strandline.emission": emission}}, {"exists": {"field": "strandline.slice_digest"}}]
    return {"bool": {"filter": found, "must_not": [{"term": {"strandline.slice_digest": digest}}]}}


def _first_hit(url: str, indices: Sequence[str], query: dict[str, Any]) -> dict[str, Any] | None:
    if not indices:
        return None
    answer = search_refreshed(url, indices, query, may_lack_indices=True)
    return next(iter(answer["hits"]["hits"]), None)


_EMISSIONS_A_PAGE = 10_000
_NO_SUCH_INDEX = frozenset({"index_not_found_exception", "index_closed_exception"})


def count_emission_range(url: str, index: str, job: str, first: int, last: int | None) -> int | None:
    """Return the number of the job's documents in this index from emission `first` to `last`. None if the index doesn't
    exist, or is closed.

    Refreshes the index first. `last`: None for no upper limit. Raises IndexUnavailable, RequestRefused.
    """
    body = {"size": 0, "track_total_hits": True, "query": _of_emissions(job, first, last)}
    answer = _search_refreshed(url, index, body)
    return None if answer is None else int(answer["hits"]["total"]["value"])


def count_emissions(url: str, index: str, job: str, first: int) -> dict[int, int] | None:
    """Return emission -> number of the job's documents in this index, from emission `first` on.

    None if the index doesn't exist, or is closed. Refreshes the index first. Raises IndexUnavailable, RequestRefused.
    """
    found: dict[int, int] = {}
    emissions = {"size": _EMISSIONS_A_PAGE, "sources": [{"emission": {"terms": {"field": "strandline.emission"}}}]}
    body: dict[str, Any] = {"size": 0, "track_total_hits": False, "query": _of_emissions(job, first, None)}
    while True:
        answer = _search_refreshed(url, index, body | {"aggs": {"emissions": {"composite": emissions}}})
        if answer is None:
            return None
        page = answer["aggregations"]["emissions"]
        found |= {one["key"]["emission"]: one["doc_count"] for one in page["buckets"]}
        if "after_key" not in page:
            return found
        emissions["after"] = page["after_key"]


def _of_emissions(job: str, first: int, last: int | None) -> dict[str, Any]:
    limits = {"gte": first} | ({} if last is None else {"lte": last})
    return {"bool": {"filter": [{"term": {"strandline.job": job}}, {"range": {"strandline.emission": limits}}]}}


def _search_refreshed(url: str, index: str, body: dict[str, Any]) -> Any:
    """Return the answer to a search that finds all documents. None if the index doesn't exist, or is closed."""
    try:
        return search_refreshed(url, [index], body)
    except RequestRefused as error:
        if error.error_type not in _NO_SUCH_INDEX:
            raise
        return None
