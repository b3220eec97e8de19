"""Content of the results store: the newest result that a search finds, and all results at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx

from benchmarks.recovery.feed import Feed

POLL_S = 0.1
SETTLED_S = 1.0
"""Seconds after a kill before which no new run can produce a result."""
FRESH_MS = 10_000
"""Maximum age of a window behind the newest record for results that are as fresh as before the kill: delay, slice, search."""


class ResultsIndex:
    """Results of one alias, or of one index."""

    def __init__(self, url: str, alias: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=60, trust_env=False)
        self._alias = alias

    def close(self) -> None:
        self._http.close()

    def newest_ms(self) -> int:
        """Return the end of the newest window that a search finds, after a refresh; 0 if there is none."""
        if self._http.post(f"/{self._alias}/_refresh").status_code == 404:
            return 0
        body = {"size": 0, "aggs": {"newest": {"max": {"field": "@timestamp"}}}}
        found = self._http.post(f"/{self._alias}/_search", json=body).json()
        return int(found["aggregations"]["newest"]["value"] or 0)

    def settled_ms(self) -> int:
        """Return `newest_ms` when it has been the same for SETTLED_S. By then, the last requests of a killed program have
        arrived."""
        newest_ms, since_s = self.newest_ms(), time.monotonic()
        while time.monotonic() - since_s < SETTLED_S:
            time.sleep(POLL_S)
            if (now_ms := self.newest_ms()) != newest_ms:
                newest_ms, since_s = now_ms, time.monotonic()
        return newest_ms

    def wait_for_newer(self, than_ms: int, timeout_s: float) -> float:
        """Wait for a result of a later window. Return the monotonic time at which it was found. Raises RuntimeError."""
        deadline = time.monotonic() + timeout_s
        while self.newest_ms() <= than_ms:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no result of {self._alias} after {than_ms} within {timeout_s:g} s")
            time.sleep(POLL_S)
        return time.monotonic()

    def wait_until_fresh(self, feed: Feed, timeout_s: float) -> float:
        """Wait until results follow the feed closely. Return the monotonic time. Raises RuntimeError."""
        deadline = time.monotonic() + timeout_s
        while self.newest_ms() < feed.sent().latest_ms - FRESH_MS:
            if time.monotonic() > deadline:
                behind_s = (feed.sent().latest_ms - self.newest_ms()) / 1_000
                raise RuntimeError(f"results of {self._alias} are {behind_s:.0f} s behind and don't catch up")
            time.sleep(POLL_S)
        return time.monotonic()

    def documents(self) -> Iterator[tuple[int, int, int]]:
        """Yield (window end, device, n) of every document."""
        self._http.post(f"/{self._alias}/_refresh").raise_for_status()
        fields = [{"field": "@timestamp", "format": "epoch_millis"}, {"field": "device"}, {"field": "n"}]
        body = {"size": 10_000, "_source": False, "docvalue_fields": fields, "sort": ["_doc"]}
        page = self._http.post(f"/{self._alias}/_search", params={"scroll": "1m"}, json=body).json()
        while page["hits"]["hits"]:
            for hit in page["hits"]["hits"]:
                found = hit["fields"]
                yield int(found["@timestamp"][0]), int(found["device"][0][-4:]), int(found["n"][0])
            page = self._http.post("/_search/scroll", json={"scroll": "1m", "scroll_id": page["_scroll_id"]}).json()
