"""Searches that find all documents, and the lists of indices. Requests of several threads are sent together.

After a kill of a pool, its runs start at about the same time, and each looks for its own documents in its own indices. The
requests of these runs become one refresh, one search, and one list.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import msgspec

from strandline.core.errors import StrandlineError
from strandline.core.gathered import Gathered
from strandline.results.elasticsearch_client import NDJSON, RequestRefused, error_of, request

_TIMEOUT_S = 60.0
_PATH_LENGTH_MAX = 3_000
_TOGETHER_MAX = 50
"""Maximum number of searches in a request."""


@dataclass(frozen=True, eq=False)
class _Search:
    indices: Sequence[str]
    body: dict[str, Any]
    may_lack_indices: bool


def search_refreshed(url: str, indices: Sequence[str], body: dict[str, Any], *, may_lack_indices: bool = False) -> Any:
    """Return the answer to a search that finds all documents of these indices, also those since the last refresh.

    `may_lack_indices`: True to search only the indices that exist and are open. Raises RequestRefused, also for such an index
    otherwise; IndexUnavailable.
    """
    return _searches(url, os.getpid()).answer(_Search(indices, body, may_lack_indices))


def aliases_of(url: str, patterns: str) -> dict[str, Any]:
    """Return index -> its aliases, for all indices that match one of these patterns (`a-*,b-*`), and perhaps for others. Raises
    IndexUnavailable, RequestRefused."""
    return _aliases(url, os.getpid()).answer(patterns)


def paths_of(names: Iterable[str]) -> list[str]:
    """Return the names as the paths of few requests: Elasticsearch accepts no request line of more than 4 kB."""
    paths: list[str] = []
    for name in names:
        if paths and len(paths[-1]) + len(name) < _PATH_LENGTH_MAX:
            paths[-1] += f",{name}"
        else:
            paths.append(f"/{name}")
    return paths


@lru_cache(maxsize=16)
def _searches(url: str, pid: int) -> Gathered[_Search, Any]:
    return Gathered(partial(_search_together, url), _TOGETHER_MAX)


@lru_cache(maxsize=16)
def _aliases(url: str, pid: int) -> Gathered[str, dict[str, Any]]:
    return Gathered(partial(_list_together, url), _TOGETHER_MAX)


def _search_together(url: str, searches: Sequence[_Search]) -> Mapping[_Search, Any]:
    """Refresh the indices of all searches, and then send the searches. If Elasticsearch refuses that, each is sent alone."""
    try:
        for path in paths_of(dict.fromkeys(index for one in searches for index in one.indices)):
            request(url, "POST", f"{path}/_refresh", timeout_s=_TIMEOUT_S, parameters={"ignore_unavailable": "true"})
        lines = [msgspec.json.encode(line) for one in searches for line in (_header(one), one.body)]
        answer = request(
            url, "POST", "/_msearch", timeout_s=_TIMEOUT_S, body=b"\n".join([*lines, b""]), content_type=NDJSON
        )
    except RequestRefused as refusal:
        if len(searches) == 1:
            return {searches[0]: refusal}
        return {one: _search_alone(url, one) for one in searches}
    return dict(zip(searches, map(_answer_or_error, answer["responses"]), strict=True))


def _search_alone(url: str, search: _Search) -> Any:
    try:
        return _search_together(url, [search])[search]
    except StrandlineError as error:
        return error


def _header(search: _Search) -> dict[str, Any]:
    return {
        "index": list(search.indices),
        "ignore_unavailable": search.may_lack_indices,
        "allow_partial_search_results": False,
    }


def _answer_or_error(answer: dict[str, Any]) -> Any:
    return error_of("search", answer["status"], answer) if "error" in answer else answer


def _list_together(url: str, patterns: Sequence[str]) -> Mapping[str, dict[str, Any]]:
    parameters = {"expand_wildcards": "all", "ignore_unavailable": "true"}
    held: dict[str, Any] = {}
    for path in paths_of(patterns):
        held |= request(url, "GET", f"{path}/_alias", timeout_s=_TIMEOUT_S, parameters=parameters)
    return dict.fromkeys(patterns, held)
