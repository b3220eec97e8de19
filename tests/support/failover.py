"""Several control services over one ledger, a job that runs, and a feed: what tests of failover break and look at."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import Producer

from benchmarks.runners import runner_pid
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import CheckpointRow, JobState
from strandline.services.client import ControlClient
from strandline.services.processes.process_tree import MARK_VARIABLE, tree_mark
from strandline.services.trust import certificates_for
from tests.support.waiting import stretched, wait_until

DEVICES = 3
SEND_EVERY_S = 0.1
_DOCUMENTS = """\
stream: {job}-feed
partitions: 2
key: device
schema:
  device: string
  ts: timestamp
  temp: double
---
pipeline: {job}
input: {{stream: {job}-feed}}
event_time: {{field: ts, delay: 2s, idle_timeout: null}}
steps:
  - window: {{name: per_second, tumbling: 1s, by: [device], aggregate: {{n: count(*), peak: max(temp)}}}}
    emit: [{{elasticsearch: {job}-second}}]
"""


@dataclass
class Service:
    """One control service and its data directory."""

    directory: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def name(self) -> str:
        return (self.directory / "control.lock").read_text().strip()

    def log(self) -> str:
        return (self.directory / "control.log").read_text(errors="replace")

    def pids(self) -> dict[str, int]:
        """Return its recorded processes: runners, pools, and standbys."""
        try:
            found: dict[str, int] = json.loads((self.directory / "pids.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    def family(self, of: str = "") -> list[int]:
        """All processes of its runners and standbys, but not the service itself; with `of`, those of that one."""
        wanted = f"{MARK_VARIABLE}={tree_mark(self.directory, of)}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if any(entry.startswith(wanted) for entry in path.read_bytes().split(b"\0")):
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    def signal_all(self, number: signal.Signals) -> None:
        """Send the signal to the service and to all that it started."""
        for pid in [self.process.pid, *self.family()]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """End it and all that it started, whatever state they are in."""
        if self.process.poll() is None:
            self.signal_all(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        for pid in self.family():
            os.kill(pid, signal.SIGKILL)


@dataclass
class Failover:
    """Services, ledger, feed and results of one job."""

    directory: Path
    ledger_url: str
    kafka: str
    elasticsearch: str
    job: str
    environment: dict[str, str] = field(default_factory=dict)
    services: list[Service] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger.open(self.ledger_url)
        self._sent: Counter[tuple[str, int]] = Counter()
        self._is_over = threading.Event()
        self._feed = threading.Thread(target=self._send_on, daemon=True)

    def start_service(self, **environment: str) -> Service:
        """Start one more control service, with a data directory of its own, and wait until it answers."""
        directory = self.directory / f"service-{len(self.services) + 1}"
        directory.mkdir()
        service = self._start(directory, environment)
        self.services.append(service)
        return service

    def start_again(self, service: Service) -> None:
        """Restart a service that has ended, in its old directory."""
        again = self._start(service.directory, {})
        service.process, service.port = again.process, again.port

    def _start(self, directory: Path, environment: dict[str, str]) -> Service:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        values = {
            "STRANDLINE_DATA_DIR": str(directory),
            "STRANDLINE_LEDGER_URL": self.ledger_url,
            "STRANDLINE_KAFKA_BOOTSTRAP": self.kafka,
            "STRANDLINE_ELASTICSEARCH_URL": self.elasticsearch,
            "STRANDLINE_CONTROL_PORT": str(port),
            "STRANDLINE_STANDBYS": "0",
        }
        with (directory / "control.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "strandline.services.control"],
                env=os.environ | values | self.environment | environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        service = Service(directory, port, process)
        wait_until(lambda: _answers(service), bool, "answering", 120)
        return service

    def begin(self) -> None:
        """Apply the job at the first service, start the feed, and wait until results flow."""
        with ControlClient(self.services[0].url) as client:
            client.apply(_DOCUMENTS.format(job=self.job).encode(), "failover.yaml")
        self._feed.start()
        self.wait_for_results(epoch=1)

    def leader(self) -> Service | None:
        lease = self.ledger.leases().get(self.job)
        return next((one for one in self.services if lease and lease.is_held and one.name == lease.holder), None)

    def wait_for_leader(self, service: Service, timeout_s: float = 60) -> None:
        wait_until(self.leader, lambda leader: leader is service, f"led by {service.name}", timeout_s)

    def wait_for_results(self, epoch: int, timeout_s: float = 300) -> CheckpointRow:
        """Wait for a checkpoint of that run, or a later one, with results in it."""

        def newest() -> CheckpointRow | None:
            if self.ledger.job(self.job).state is JobState.FAILED:
                raise AssertionError(f"failed: {self.ledger.job(self.job).message}\n{self.logs()}")
            return next((row for row in self.ledger.checkpoints(self.job, 5) if any(row.results.values())), None)

        try:
            found = wait_until(newest, lambda row: row is not None and row.epoch >= epoch, "results", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None
        assert found is not None
        return found

    def runner(self, service: Service) -> int:
        """Return the process of this service that runs the job: its own runner, or a pool."""
        pid = wait_until(
            lambda: runner_pid(service.pids(), self.ledger, self.job), lambda one: one is not None, "a runner"
        )
        assert pid is not None
        return pid

    def java_of(self, pid: int) -> int:
        """The JVM of the runner with that pid."""
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return next(int(child) for child in children if "java" in Path(f"/proc/{child}/comm").read_text())

    def end_feed(self) -> None:
        """Stop sending; the last records move event time past the windows of all others."""
        self._is_over.set()
        self._feed.join()

    def check(self, timeout_s: float = 180) -> int:
        """Hold the results against what was sent, up to the last window that was emitted; returns how many there are."""
        self.end_feed()
        with ControlClient(self.leader_url()) as client:
            wait_until(lambda: client.job(self.job)["lag_records"], lambda lag: lag == 0, "read", timeout_s)
        checkpoint = self.ledger.last_checkpoint(self.job)
        assert checkpoint is not None
        assert checkpoint.rejected == {}, "nothing that was sent is late or broken"
        emitted_ms = checkpoint.emitted["per_second"]
        expected = {key: n for key, n in self._sent.items() if key[1] + 1000 <= emitted_ms}
        found: dict[tuple[str, int], int] = {}
        for document in self._documents():
            source = document["_source"]
            key = (source["device"], int(_ms(source["window"]["start"])))
            assert key not in found, f"{key} is there twice"
            assert document["_version"] == 1
            found[key] = source["n"]
        assert found == expected, _difference(found, expected)
        return len(found)

    def leader_url(self) -> str:
        return wait_until(self.leader, bool, "led").url  # type: ignore[union-attr]

    def history(self) -> tuple[list[int], list[int]]:
        """The epochs of all slices and of all checkpoints, in order."""
        count = self.ledger.slice_count(self.job)
        slices = [row.epoch for row in self.ledger.slices(self.job, 1, count)]
        committed = [row.epoch for row in self.ledger.checkpoints(self.job, count + 1)][::-1]
        return slices, committed

    def logs(self) -> str:
        paths = [
            path for one in self.services for path in (one.directory / "control.log", *one.directory.glob("logs/*"))
        ]
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-3000:]}" for path in paths)

    def _documents(self) -> Iterator[dict[str, Any]]:
        alias = f"{self.job}-second"
        with httpx.Client(base_url=self.elasticsearch, timeout=60, trust_env=False) as index:
            index.post(f"/{alias}/_refresh").raise_for_status()
            body = {"size": 5000, "version": True, "sort": ["_doc"]}
            page = index.post(f"/{alias}/_search", params={"scroll": "1m"}, json=body).json()
            while page["hits"]["hits"]:
                yield from page["hits"]["hits"]
                page = index.post("/_search/scroll", json={"scroll": "1m", "scroll_id": page["_scroll_id"]}).json()

    def _send_on(self) -> None:
        producer = Producer({"bootstrap.servers": self.kafka, "linger.ms": 0, "enable.idempotence": True})
        while not self._is_over.wait(stretched(SEND_EVERY_S)):
            now_ms = time.time_ns() // 1_000_000
            for number in range(DEVICES):
                device = f"device-{number}"
                value = json.dumps({"device": device, "ts": now_ms, "temp": now_ms % 97 / 10})
                producer.produce(f"{self.job}-feed", value.encode(), key=device.encode())
                self._sent[device, now_ms - now_ms % 1000] += 1
            producer.poll(0)
        assert producer.flush(30) == 0


@contextmanager
def failover(
    directory: Path, ledger_url: str, kafka: str, elasticsearch: str, job: str, **environment: str
) -> Iterator[Failover]:
    """A job and its feed, without a control service yet; `environment` is for all that are started."""
    made = Failover(directory, ledger_url, kafka, elasticsearch, job, environment)
    try:
        yield made
    finally:
        if made._feed.is_alive():
            made.end_feed()
        for service in made.services:
            service.end()
        made.ledger.close()


def _answers(service: Service) -> bool:
    if service.process.poll() is not None:
        raise AssertionError(f"the control service ended: {service.log()}")
    try:
        verify = certificates_for(service.url, None)
        return httpx.get(f"{service.url}/healthz", trust_env=False, timeout=2, verify=verify).status_code == 200
    except httpx.TransportError:
        return False


def _ms(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp() * 1000


def _difference(found: dict[Any, int], expected: dict[Any, int]) -> str:
    missing = sorted(expected.keys() - found.keys())[:5]
    extra = sorted(found.keys() - expected.keys())[:5]
    other = [(key, found[key], expected[key]) for key in expected.keys() & found.keys() if found[key] != expected[key]]
    return f"missing {missing}, extra {extra}, different {sorted(other)[:5]}"
