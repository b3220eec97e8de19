"""Time from the HTTP response to a visible result: the whole platform under a steady feed.

A window of one second is *closable* when a record with an event time at or after its end plus the delay is in the log. Its
latency starts at the HTTP response to the first request with such a record. It ends when all documents of the window are
visible: to `_search`, with the index's default refresh interval of 1 s, and to a GET by id. There is one document for each
device. Elasticsearch also returns unrefreshed documents by id.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
from rich.console import Console

from strandline.results.document import document_id
from strandline.results.names import index_name
from strandline.services.client import ControlClient
from strandline.services.embedded.stack import Stack

JOB = "latency"
DEVICES = 20
RECORDS_A_SECOND = 2_000
REQUESTS_A_SECOND = 20
DELAY_MS = 200
"""Delay of the watermark. Requests run in parallel, so records reach the log slightly out of order."""
WINDOW_MS = 1_000
_POLL_S = 0.02
_DEADLINE_S = 120.0

DOCUMENTS = f"""\
stream: {JOB}
schema: {{device: string, ts: timestamp, temp: double}}
key: device
---
pipeline: {JOB}
input: {{stream: {JOB}}}
event_time: {{field: ts, delay: {DELAY_MS}ms}}
steps:
  - window: {{name: second, tumbling: 1s, by: [device], aggregate: {{n: count(*), mean: avg(temp)}}}}
    emit: [{{elasticsearch: {JOB}}}]
"""


@dataclass(frozen=True)
class Latency:
    """Seconds from the response to the result, with a value for each window."""

    searchable_s: list[float]
    readable_s: list[float]
    """Seconds until a GET by id returns all documents."""
    answer_s: list[float]
    """Duration of each HTTP request."""
    records: int
    late: int
    """Records behind the watermark, which are dead letters."""


@dataclass(frozen=True)
class Answer:
    """Response to one request."""

    latest_event_ms: int
    took_s: float
    at_s: float
    """Time on the monotonic clock."""


def measure_latency(stack: Stack, warm_up_s: int, seconds: int, console: Console) -> Latency:
    """Feed the platform for `warm_up_s` and then for `seconds`, of which every window counts.

    Raises RuntimeError if the results don't account for every record, or don't arrive.
    """
    stack.start_kafka()
    stack.start_elasticsearch()
    stack.migrate_ledger()
    stack.start_control()
    stack.start_gateway("http")
    control = ControlClient(stack.addresses.api_url)
    control.apply(DOCUMENTS.encode(), "latency.yaml")
    control.wait_for_job(JOB, lambda job: job["state"] == "running", "running", _DEADLINE_S)
    console.print(f"the platform runs; {RECORDS_A_SECOND:,} records/s for {warm_up_s} + {seconds} s")
    first_ms = (int(time.time() * 1000) // WINDOW_MS + 1) * WINDOW_MS
    counted_ms = first_ms + warm_up_s * 1000
    ends_ms = [counted_ms + (number + 1) * WINDOW_MS for number in range(seconds)]
    watch = _Watch(stack.addresses.elasticsearch_url, ends_ms)
    watch.start()
    # One second more than the windows need, so that the last one also becomes closable.
    answers = _feed(stack.addresses.ingest_url, first_ms, warm_up_s + seconds + 2)
    try:
        watch.wait(_DEADLINE_S)
    finally:
        watch.stop()
    control.order(JOB, "drain")
    job = control.wait_for_job(JOB, lambda job: job["state"] == "drained", "drained", _DEADLINE_S)
    sent = len(answers) * RECORDS_A_SECOND // REQUESTS_A_SECOND
    _require_all(stack.addresses.elasticsearch_url, job["counts"], sent)
    closable_s = [
        min(answer.at_s for answer in answers if answer.latest_event_ms >= end_ms + DELAY_MS) for end_ms in ends_ms
    ]
    return Latency(
        searchable_s=[watch.searchable_s[end] - at for end, at in zip(ends_ms, closable_s, strict=True)],
        readable_s=[watch.readable_s[end] - at for end, at in zip(ends_ms, closable_s, strict=True)],
        answer_s=[answer.took_s for answer in answers],
        records=sent,
        late=job["counts"]["rejected"].get("late", 0),
    )


def percentile(values: Iterable[float], percent: float) -> float:
    return float(np.percentile(list(values), percent))


def _feed(ingest_url: str, first_ms: int, seconds: int) -> list[Answer]:
    """Send each request at the end of the span of event time of its records. Several requests can run in parallel."""
    span_ms = 1000 // REQUESTS_A_SECOND
    requests = [_request(first_ms + number * span_ms, span_ms) for number in range(seconds * REQUESTS_A_SECOND)]
    with httpx.Client(base_url=ingest_url, timeout=30, trust_env=False) as client, ThreadPoolExecutor(8) as pool:

        def send(body: bytes, latest_ms: int) -> Answer:
            began_s = time.monotonic()
            answer = client.post(
                f"/v1/streams/{JOB}/records", content=body, headers={"content-type": "application/x-ndjson"}
            )
            if answer.status_code != 200:
                raise RuntimeError(f"the gateway responded with {answer.status_code}: {answer.text}")
            ended_s = time.monotonic()
            return Answer(latest_ms, ended_s - began_s, ended_s)

        sending: list[Future[Answer]] = []
        for number, (body, latest_ms) in enumerate(requests, start=1):
            time.sleep(max(0.0, (first_ms + number * span_ms) / 1000 - time.time()))  # pace of the feed
            sending.append(pool.submit(send, body, latest_ms))
        return [future.result() for future in sending]


def _request(from_ms: int, span_ms: int) -> tuple[bytes, int]:
    """Return the body with the records of a span of event time, and its latest event time."""
    count = RECORDS_A_SECOND // REQUESTS_A_SECOND
    times_ms = [from_ms + place * span_ms // count for place in range(count)]
    rows = [{"device": f"d{place % DEVICES:02d}", "ts": ms, "temp": place / 8} for place, ms in enumerate(times_ms)]
    return "\n".join(map(json.dumps, rows)).encode(), times_ms[-1]


class _Watch:
    """Polls the completeness of windows in two threads: one searches, one reads by id."""

    def __init__(self, index_url: str, ends_ms: list[int]) -> None:
        self._client = httpx.Client(base_url=index_url, timeout=30, trust_env=False)
        self._ends_ms = ends_ms
        self._ended = threading.Event()
        self._failure: Exception | None = None
        self.searchable_s: dict[int, float] = {}
        """Window end -> monotonic time at which all of its documents were found."""
        self.readable_s: dict[int, float] = {}
        looks = ((self._search, self.searchable_s), (self._read, self.readable_s))
        self._threads = [threading.Thread(target=self._look, args=look, daemon=True) for look in looks]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait until every window was found. Raises RuntimeError after `timeout_s`."""
        for thread in self._threads:
            thread.join(timeout_s)
        missing = [end for end in self._ends_ms if end not in self.searchable_s or end not in self.readable_s]
        if missing:
            raise RuntimeError(f"{len(missing)} windows have no complete results: {missing[:3]}; {self._failure}")

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._client.close()

    def _look(self, complete: Callable[[list[int]], list[int]], seen_s: dict[int, float]) -> None:
        try:
            while not self._ended.is_set() and len(seen_s) < len(self._ends_ms):
                for end_ms in complete([end for end in self._ends_ms if end not in seen_s][:10]):
                    seen_s[end_ms] = time.monotonic()
                self._ended.wait(_POLL_S)
        except Exception as error:  # noqa: BLE001 (the edge of a thread; `wait` reports it)
            self._failure = error

    def _search(self, ends_ms: list[int]) -> list[int]:
        window = {"range": {"@timestamp": {"gte": ends_ms[0], "lte": ends_ms[-1], "format": "epoch_millis"}}}
        ends = {"terms": {"field": "@timestamp", "size": len(ends_ms)}}
        answer = self._client.post(f"/{JOB}/_search", json={"size": 0, "query": window, "aggs": {"ends": ends}})
        if answer.status_code in (404, 503):
            return []  # the first result creates the index, and its shards start a moment later
        buckets: list[dict[str, Any]] = (
            answer.raise_for_status().json().get("aggregations", {}).get("ends", {}).get("buckets", [])
        )
        return [bucket["key"] for bucket in buckets if bucket["doc_count"] == DEVICES]

    def _read(self, ends_ms: list[int]) -> list[int]:
        wanted = [
            {
                "_index": index_name(JOB, end_ms),
                "_id": document_id(JOB, "second", end_ms - WINDOW_MS, end_ms, (f"d{device:02d}",)),
            }
            for end_ms in ends_ms[:3]
            for device in range(DEVICES)
        ]
        answer = self._client.post("/_mget", params={"_source": "false"}, json={"docs": wanted}).raise_for_status()
        found = [bool(document.get("found")) for document in answer.json()["docs"]]
        return [end for place, end in enumerate(ends_ms[:3]) if all(found[place * DEVICES : (place + 1) * DEVICES])]


def _require_all(index_url: str, counts: dict[str, Any], sent: int) -> None:
    """Raise RuntimeError unless each record is in one result or is counted as refused."""
    with httpx.Client(base_url=index_url, timeout=30, trust_env=False) as client:
        client.post(f"/{JOB}/_refresh").raise_for_status()
        question = {"size": 0, "aggs": {"records": {"sum": {"field": "n"}}}}
        in_results = (
            client.post(f"/{JOB}/_search", json=question).raise_for_status().json()["aggregations"]["records"]["value"]
        )
    refused = sum(counts["rejected"].values())
    if counts["records"] != sent or in_results + refused != sent:
        raise RuntimeError(
            f"{sent} records were accepted, {in_results:.0f} are in results and {refused} refused: {counts}"
        )
