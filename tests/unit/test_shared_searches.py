"""Requests of several threads to Elasticsearch that are sent together."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from strandline.core.errors import IndexUnavailable
from strandline.results import shared_searches
from strandline.results.elasticsearch_client import RequestRefused
from strandline.results.generations import indices_of
from strandline.results.shared_searches import search_refreshed
from tests.support.waiting import stretched, wait_until

JOBS = [f"job{number}" for number in range(20)]


class HeldStore:
    """Double of Elasticsearch whose first request waits until `release`. Each index contains its own name."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.paths: list[str] = []
        self.refuses_groups = False
        self.missing: dict[str, int] = {}
        """Index -> status of a search in it."""
        self._released = threading.Event()

    def request(self, url: str, method: str, path: str, body: bytes = b"", **_: Any) -> Any:
        self.paths.append(path)
        if len(self.paths) == 1:
            self._released.wait(stretched(60))
        if path.endswith("/_alias"):
            patterns = path.removeprefix("/").removesuffix("/_alias").split(",")
            stores = [one.removesuffix("-*") for one in patterns if ".g" not in one]
            return {f"{store}-2026.10": {"aliases": {store: {}}} for store in stores}
        if path.endswith("/_refresh"):
            if self.refuses_groups and "," in path:
                raise RequestRefused("no right for one of these indices", 403, "security_exception")
            return None
        return {"responses": [self._answer(json.loads(line)["index"]) for line in body.splitlines()[::2]]}

    def _answer(self, indices: list[str]) -> dict[str, Any]:
        if (status := self.missing.get(indices[0])) is not None:
            return {"error": {"type": "index_not_found_exception", "reason": "none"}, "status": status}
        return {"found": indices}

    def release_when(self, gathered: Callable[[], int], count: int) -> None:
        wait_until(gathered, lambda waiting: waiting == count, f"{count} waiting questions")
        self._released.set()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> HeldStore:
    held = HeldStore(f"http://{request.node.name}")
    monkeypatch.setattr(shared_searches, "request", held.request)
    return held


def answers(store: HeldStore) -> dict[str, Any]:
    """Search the index of each job in its own thread. The first request waits until all other threads ask."""
    with ThreadPoolExecutor(len(JOBS)) as threads:
        asked = {job: threads.submit(search_refreshed, store.url, [job], {"job": job}) for job in JOBS}
        gathered = shared_searches._searches(store.url, os.getpid())
        store.release_when(lambda: len(gathered._waiting), len(JOBS) - 1)
        return {job: one.exception() or one.result() for job, one in asked.items()}


def test_searches_of_many_threads_are_sent_together(store: HeldStore) -> None:
    assert answers(store) == {job: {"found": [job]} for job in JOBS}
    assert len(store.paths) == 4, "the first search, and all others: a refresh and a search each"


def test_an_index_that_one_search_lacks_is_the_error_of_this_search(store: HeldStore) -> None:
    store.missing = {JOBS[3]: 404, JOBS[4]: 503}
    found = answers(store)
    refused, unavailable = found.pop(JOBS[3]), found.pop(JOBS[4])
    assert isinstance(refused, RequestRefused) and refused.error_type == "index_not_found_exception"
    assert isinstance(unavailable, IndexUnavailable)
    assert found == {job: {"found": [job]} for job in JOBS if job in found}


def test_a_refused_group_is_sent_one_by_one(store: HeldStore) -> None:
    store.refuses_groups = True
    assert answers(store) == {job: {"found": [job]} for job in JOBS}


def test_lists_of_indices_are_read_together(store: HeldStore) -> None:
    with ThreadPoolExecutor(len(JOBS)) as threads:
        asked = {job: threads.submit(indices_of, store.url, job) for job in JOBS}
        gathered = shared_searches._aliases(store.url, os.getpid())
        store.release_when(lambda: len(gathered._waiting), len(JOBS) - 1)
        assert {job: one.result() for job, one in asked.items()} == {job: {f"{job}-2026.10": {job}} for job in JOBS}
    assert len(store.paths) == 2
