"""The whole platform for the tests: servers, control service and gateway as child processes, and what a test asks of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from strandline.services.client import ControlClient
from strandline.services.embedded.stack import Stack
from tests.support.topic_reader import read_messages
from tests.support.waiting import wait_until

_STARTED: list[Platform] = []
"""The platform of this run, once a test has asked for it."""


class Platform:
    """A running stack from a user's side: documents in, records in, results out."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.control = ControlClient(stack.addresses.api_url)
        self.ingest = httpx.Client(base_url=stack.addresses.ingest_url, timeout=60, trust_env=False)
        self.index = httpx.Client(base_url=stack.addresses.elasticsearch_url, timeout=60, trust_env=False)

    def close(self) -> None:
        for client in (self.ingest, self.index):
            client.close()
        self.control.__exit__(None, None, None)

    def apply(self, text: str, source: str = "test.yaml") -> None:
        self.control.apply(text.encode(), source)

    def send(self, stream: str, lines: Iterable[bytes]) -> int:
        """Post NDJSON; return how many records were accepted. Fails unless the answer is 200."""
        response = self.ingest.post(
            f"/v1/streams/{stream}/records",
            content=b"\n".join(lines),
            headers={"content-type": "application/x-ndjson"},
        )
        assert response.status_code == 200, response.text
        return int(response.json()["accepted"])

    def wait_for(
        self, job: str, is_so: Callable[[dict[str, Any]], bool], what: str, timeout_s: float = 180
    ) -> dict[str, Any]:
        """Wait for a state of the job. Each committed slice is progress. A timeout prints the state and the log of the job."""
        seen: dict[str, Any] = {}

        def ask() -> dict[str, Any]:
            seen.update(self.control.job(job))
            assert is_so(seen) or seen["state"] != "failed", f"{job} failed: {seen['message']}\n{self.log_tail(job)}"
            return seen

        return wait_until(
            ask,
            is_so,
            f"{job} {what}",
            timeout_s,
            poll_s=0.1,
            describe=lambda: self.log_tail(job),
            progress=lambda: (seen["slice"], seen["state"]),
        )

    def wait_until_read(self, job: str) -> dict[str, Any]:
        """Wait until every record in the log is in a committed slice."""
        return self.wait_for(job, lambda state: state["lag_records"] == 0 and state["slice"] is not None, "caught up")

    def start(self, job: str) -> None:
        self.control.order(job, "start")
        self.wait_for(job, lambda state: state["state"] == "running", "running")

    def stop(self, job: str, *, drain: bool = False) -> dict[str, Any]:
        self.control.order(job, "drain" if drain else "stop")
        end = "drained" if drain else "stopped"
        return self.wait_for(job, lambda state: state["state"] == end, end)

    def stop_all(self) -> None:
        """Let all jobs come to rest; returns at once."""
        for job in self.control.get("/v1/jobs")["jobs"]:
            if job["desired"] == "running" and job["state"] not in ("failed", "completed"):
                self.control.order(job["name"], "stop")

    def audit(self, job: str, after_ms: int | None = None, up_to_ms: int | None = None) -> dict[str, Any]:
        """Audit the job; the report."""
        self.control.start_audit(job, after_ms, up_to_ms)
        return self.control.wait_for_audit(job, lambda _: None)

    def documents(self, alias: str) -> dict[str, dict[str, Any]]:
        """Return every document of the alias by its id. Fails if an id is in two indices or was ever overwritten."""
        refreshed = self.index.post(f"/{alias}/_refresh")
        if refreshed.status_code == 404:
            return {}
        page = self.index.post(
            f"/{alias}/_search", params={"scroll": "1m"}, json={"size": 5000, "version": True, "sort": ["_doc"]}
        ).json()
        found: dict[str, dict[str, Any]] = {}
        while page["hits"]["hits"]:
            for hit in page["hits"]["hits"]:
                assert hit["_id"] not in found, f"{hit['_id']} is in two indices of {alias}"
                assert hit["_version"] == 1, f"{hit['_id']} was written {hit['_version']} times"
                end = hit["_source"]["@timestamp"]
                assert hit["_index"] == f"{alias}-{end[:4]}.{end[5:7]}"
                found[hit["_id"]] = hit["_source"]
            page = self.index.post("/_search/scroll", json={"scroll": "1m", "scroll_id": page["_scroll_id"]}).json()
        return found

    def topic(self, name: str) -> list[tuple[bytes | None, dict[str, bytes]]]:
        """Every committed record of a topic: value and headers."""
        messages = read_messages(self.stack.addresses.kafka_bootstrap, name, isolation="read_committed")
        return [(message.value(), dict(message.headers() or [])) for message in messages]

    def log_tail(self, job: str) -> str:
        path = Path(self.stack.data_dir) / "logs" / f"runner-{job}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-40:]) if path.exists() else "(no log)"


@pytest.fixture(scope="session")
def platform(servers: Stack, kafka: str, elasticsearch: str, class_archive: None) -> Iterator[Platform]:
    """The running platform, shared by all tests of a run: each uses names of its own."""
    servers.migrate_ledger()
    servers.start_control()
    servers.start_gateway("http")
    platform = Platform(servers)
    _STARTED.append(platform)
    yield platform
    _STARTED.remove(platform)
    platform.close()


@pytest.fixture(autouse=True, scope="module")
def jobs_end_with_their_module() -> Iterator[None]:
    """Stop the jobs that the tests of a module left running: they would take time from all tests that follow."""
    yield
    for platform in _STARTED:
        platform.stop_all()
