"""Collects the data of the view from the fleet, the API, and Elasticsearch."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from strandline.core.errors import TransientError
from strandline.example.sender import FleetSender, Sent
from strandline.services.client import ControlClient, JsonObject

RATE_OVER_S = 5.0
NO_COUNTS: JsonObject = {"records": 0, "accepted": 0, "rejected": {}, "results": {}}


@dataclass(frozen=True)
class Facts:
    """State of the example at one moment."""

    running_s: float
    """Seconds since the fleet began."""
    sent: Sent
    per_second: float
    """Reports per second in the last seconds that were acknowledged, or sent by UDP."""
    job: JsonObject | None
    """Response of `GET /v1/jobs/NAME`. None if there was none."""
    counts: JsonObject
    """Counts of the job since this run of the example began."""
    documents: dict[str, list[JsonObject]] = field(default_factory=dict)
    """Alias -> its newest documents."""
    trouble: str = ""
    """Reason why some of the facts are missing."""

    @property
    def dead_letters(self) -> Counter[str]:
        """Reason -> number of dead letters."""
        return Counter(self.counts["rejected"])


class Watch:
    """Collects the state of the example for the view: records, job, and results. If a service doesn't respond,
    `Facts.trouble` names it, and no error is raised.
    """

    def __init__(
        self,
        control: ControlClient,
        results: ResultsReader,
        sender: FleetSender,
        job: JsonObject,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._control = control
        self._results = results
        self._sender = sender
        self._name: str = job["name"]
        self._counts_before: JsonObject = job["counts"]
        self._clock_s = clock_s
        self._began_s = clock_s()
        self._sent: deque[tuple[float, int]] = deque([(self._began_s, 0)])

    def look(self) -> Facts:
        """Return the state of the example now. Raises PermanentError if the gateway has refused the fleet's reports
        permanently.
        """
        sent = self._sender.sent()
        job, documents, trouble = None, {}, ""
        try:
            job = self._control.job(self._name)
            documents = self._results.newest()
        except TransientError as error:
            trouble = str(error)
        return Facts(
            running_s=self._clock_s() - self._began_s,
            sent=sent,
            per_second=self._rate(sent.by_protocol.total()),
            job=job,
            counts=counts_since(self._counts_before, job["counts"]) if job else NO_COUNTS,
            documents=documents,
            trouble=trouble,
        )

    def _rate(self, sent: int) -> float:
        now_s = self._clock_s()
        self._sent.append((now_s, sent))
        while now_s - self._sent[0][0] > RATE_OVER_S and len(self._sent) > 2:
            self._sent.popleft()
        then_s, before = self._sent[0]
        return (sent - before) / (now_s - then_s) if now_s > then_s else 0.0


class ResultsReader:
    """Reads the newest result documents of each alias."""

    def __init__(
        self,
        url: str,
        limits: dict[str, int],
        login: tuple[str, str] | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`login`: user and password."""
        self._http = httpx.Client(base_url=url, timeout=10.0, trust_env=False, transport=transport, auth=login)
        self._limits = limits

    def newest(self) -> dict[str, list[JsonObject]]:
        """Return alias -> documents, the newest first. Raises TransientError if Elasticsearch does not respond."""
        return {alias: self._search(alias, limit) for alias, limit in self._limits.items()}

    def close(self) -> None:
        self._http.close()

    def _search(self, alias: str, limit: int) -> list[JsonObject]:
        # Before the first result, the index and the alias don't exist.
        query: dict[str, str | int] = {"size": limit, "sort": "@timestamp:desc", "ignore_unavailable": "true"}
        try:
            answer = self._http.get(f"/{alias}/_search", params=query)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            raise TransientError(f"Elasticsearch does not respond ({error}); see its log") from error
        hits: list[dict[str, Any]] = answer.json()["hits"]["hits"]
        return [hit["_source"] for hit in hits]


def counts_since(before: JsonObject, now: JsonObject) -> JsonObject:
    """Return the job's counts minus those of an earlier moment."""
    return {
        name: now[name] - before[name]
        if isinstance(now[name], int)
        else {key: count - before[name].get(key, 0) for key, count in now[name].items()}
        for name in now
    }
