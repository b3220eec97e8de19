"""The control service as a process, over a real Kafka and Elasticsearch; its runners are the real ones where it says so."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from benchmarks.runners import runner_pid
from strandline.core.errors import NotFound
from strandline.ledger.ledger import Ledger
from strandline.services.client import ControlClient
from strandline.services.processes.pids import PidFile
from strandline.services.processes.process_tree import MARK_VARIABLE, tree_mark
from strandline.services.trust import certificates_for
from tests.support.waiting import stretched, wait_until

pytestmark = pytest.mark.timeout(600)

DOCUMENTS = """\
stream: {stream}
partitions: 2
key: device
schema:
  device: string
  ts: timestamp
  temp: double
---
pipeline: {job}
input: {{stream: {stream}}}
event_time: {{field: ts, delay: 1s}}
steps:
  - window: {{name: per_second, tumbling: 1s, by: [device], aggregate: {{n: count(*), peak: max(temp)}}}}
    emit: [{{elasticsearch: {job}-second}}]
"""


@dataclass
class Control:
    """A control service's data directory; services come and go on it."""

    directory: Path
    environment: dict[str, str]
    port: int
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> subprocess.Popen[str]:
        """Start a service; its output is collected."""
        process = subprocess.Popen(
            [sys.executable, "-m", "strandline.services.control"],
            env=os.environ | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    def start_and_wait(self) -> subprocess.Popen[str]:
        process = self.start()
        wait_until(self._is_healthy, bool, "healthy")
        return process

    def _is_healthy(self) -> bool:
        if self.processes[-1].poll() is not None:
            raise AssertionError(f"the control service ended: {self.processes[-1].communicate()[0]}")
        try:
            verify = certificates_for(self.url, None)
            return httpx.get(f"{self.url}/healthz", trust_env=False, verify=verify).status_code == 200
        except httpx.TransportError:
            return False

    def runner(self, job: str) -> int:
        """Return the process that runs the job: its own runner, or a pool."""
        with closing(Ledger.open(self.environment["STRANDLINE_LEDGER_URL"])) as ledger:
            pid = runner_pid(PidFile(self.directory).all(), ledger, job)
        assert pid is not None
        return pid

    def family(self) -> list[int]:
        """Return the runners, pools, and standbys, with the processes that they started."""
        wanted = f"{MARK_VARIABLE}={tree_mark(self.directory, '')}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if any(entry.startswith(wanted) for entry in path.read_bytes().split(b"\0")):
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found


@contextmanager
def a_directory(directory: Path, kafka: str, elasticsearch: str) -> Iterator[Control]:
    """A data directory of its own; what is started there is ended."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        "STRANDLINE_DATA_DIR": str(directory),
        "STRANDLINE_LEDGER_URL": f"sqlite:///{directory / 'ledger.sqlite'}",
        "STRANDLINE_KAFKA_BOOTSTRAP": kafka,
        "STRANDLINE_ELASTICSEARCH_URL": elasticsearch,
        "STRANDLINE_CONTROL_PORT": str(port),
        "STRANDLINE_STANDBYS": "0",
    }
    control = Control(directory, environment, port)
    with ExitStack() as closing:
        for_all = control.processes
        closing.callback(lambda: [_end(process) for process in for_all])
        yield control


@pytest.fixture
def control(tmp_path: Path, kafka: str, elasticsearch: str) -> Iterator[Control]:
    """One on which nothing runs yet."""
    with a_directory(tmp_path, kafka, elasticsearch) as control:
        yield control


@pytest.fixture(scope="module")
def running_control(tmp_path_factory: pytest.TempPathFactory, kafka: str, elasticsearch: str) -> Iterator[Control]:
    """One on which a service runs, for the tests that leave it alone."""
    with a_directory(tmp_path_factory.mktemp("control"), kafka, elasticsearch) as control:
        control.start_and_wait()
        yield control


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
    if process.stdout is not None:
        process.stdout.close()
    process.wait()


@pytest.fixture
def client(running_control: Control) -> Iterator[ControlClient]:
    with ControlClient(running_control.url) as client:
        yield client


def test_apply_makes_topics_template_and_job(client: ControlClient, elasticsearch: str, kafka: str) -> None:
    """The job's own runner is left to fail or run as it can: what is looked at is what applying made."""
    text = DOCUMENTS.format(stream="made", job="made-job").encode()
    assert [one["outcome"] for one in client.apply(text, "made.yaml")] == ["created", "created"]
    assert [one["outcome"] for one in client.apply(text, "made.yaml")] == ["unchanged", "unchanged"]
    stream = client.stream("made")
    assert [one["partition"] for one in stream["partitions"]] == [0, 1]
    assert (stream["retention_ms"], stream["records"]) == (7 * 86_400_000, 0)
    assert stream["topic_id"]
    template = httpx.get(f"{elasticsearch}/_index_template/strandline-made-job-second", trust_env=False).json()
    mapping = template["index_templates"][0]["index_template"]["template"]["mappings"]
    assert mapping["properties"]["peak"] == {"type": "double"}
    _produce(kafka, "made", [(b"{}", {})] * 7)
    assert client.job("made-job")["lag_records"] == 7
    client.order("made-job", "stop")


def test_dead_letters_come_from_their_stream(client: ControlClient, kafka: str) -> None:
    client.apply(DOCUMENTS.format(stream="letters", job="letters-job").encode(), "letters.yaml")
    client.order("letters-job", "stop")
    assert client.dead_letters("letters-job")["dead_letters"] == []
    headers = {"reason": "decode", "message": "not JSON", "step": "decode", "stream": "letters", "partition": "1"}
    _produce(kafka, "letters-job.dead-letter", [(b"\xff%d" % n, headers | {"offset": str(n)}) for n in range(5)])
    page = client.dead_letters("letters-job", after=0, limit=2)
    assert [(one["number"], one["offset"]) for one in page["dead_letters"]] == [(1, 1), (2, 2)]
    assert [one["number"] for one in client.get(page["next"])["dead_letters"]] == [3, 4]
    assert client.dead_letters("letters-job", after=4)["dead_letters"] == []
    whole = client.dead_letter("letters-job", 3)
    assert (whole["reason"], whole["value_base64"]) == ("decode", "/zM=")
    with pytest.raises(NotFound):
        client.dead_letter("letters-job", 5)


@pytest.mark.long
@pytest.mark.guarantee("G345")
def test_the_doctor_of_a_control_service_finds_its_servers_in_order(client: ControlClient, kafka: str) -> None:
    """The service answers other requests while the examination runs, and the doctor deletes its topic."""
    assert client.post("/v1/doctor")["is_running"]
    assert client.post("/v1/doctor")["is_running"], "the same one"
    client.get("/v1/jobs")
    found = wait_until(lambda: client.get("/v1/doctor"), lambda state: not state["is_running"], "examined", 90)
    subjects = {one["subject"] for one in found["findings"]}
    assert {"Kafka", "Elasticsearch", "ledger", "machine"} <= subjects
    unusual = [one for one in found["findings"] if one["state"] == "wrong" and one["subject"] != "machine"]
    assert [one for one in unusual if "watermark" not in str(one)] == []
    topics = AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=30).topics
    assert not [topic for topic in topics if topic.startswith("strandline-doctor")]


@pytest.mark.long
@pytest.mark.parametrize("jobs_per_pool", [1, 100])
def test_real_runner_outlives_nothing_that_it_should_not(control: Control, kafka: str, jobs_per_pool: int) -> None:
    """A job runs and the control service is killed. The next one ends the old runner and starts another.

    SIGTERM ends all, and the job continues with the next service. The process family includes the JVM.
    """
    control.environment["STRANDLINE_JOBS_PER_POOL"] = str(jobs_per_pool)
    with ControlClient(control.url) as client:
        first_control = control.start_and_wait()
        client.apply(DOCUMENTS.format(stream="kept", job="kept-job").encode(), "kept.yaml")
        client.wait_for_job("kept-job", _runs_as(1), "running", 240)
        family = wait_until(control.family, lambda pids: len(pids) > 1, "a runner and its JVM")
        assert control.runner("kept-job") in family

        first_control.send_signal(signal.SIGKILL)
        first_control.wait()
        second_control = control.start_and_wait()
        client.wait_for_job("kept-job", _runs_as(2), "running again", 240)
        assert not set(family) & set(control.family())

        second_control.send_signal(signal.SIGTERM)
        assert second_control.wait(stretched(40)) == 0
        assert control.family() == []
        ledger = Ledger.open(control.environment["STRANDLINE_LEDGER_URL"])
        job = ledger.job("kept-job")
        ledger.close()
        assert (job.desired.value, job.state.value) == ("running", "running")


def test_second_service_on_a_data_directory_is_refused(running_control: Control) -> None:
    first = running_control.processes[0]
    second = running_control.start()
    assert "another control service uses" in second.communicate(timeout=stretched(60))[0]
    assert second.returncode == 1
    assert first.poll() is None


def test_taken_port_is_one_sentence(control: Control) -> None:
    with socket.create_server(("127.0.0.1", control.port)):
        process = control.start()
        said = process.communicate(timeout=stretched(60))[0]
    assert process.returncode == 1
    assert f"port {control.port}" in said
    assert "Traceback" not in said


def test_kafka_away_is_503(control: Control) -> None:
    control.environment["STRANDLINE_KAFKA_BOOTSTRAP"] = "127.0.0.1:9"
    control.start_and_wait()
    ready = httpx.get(f"{control.url}/readyz", trust_env=False, timeout=30)
    assert ready.status_code == 200
    assert ready.json()["checks"]["log"] != "ok"


def _runs_as(epoch: int) -> Callable[[dict[str, Any]], bool]:
    return lambda job: job["state"] == "running" and job["epoch"] == epoch


def _produce(kafka: str, topic: str, records: list[tuple[bytes, dict[str, str]]]) -> None:
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True})
    for value, headers in records:
        producer.produce(topic, value, headers={name: text.encode() for name, text in headers.items()})
    assert producer.flush(30) == 0
