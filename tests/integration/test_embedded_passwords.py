"""A stack that was open and then asks for passwords, and is open again: real servers, and a job from its file to its results."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from strandline.core.settings import Settings
from strandline.services.embedded.addresses import Ports, StackAddresses
from strandline.services.embedded.stack import Stack
from strandline.services.processes.pids import PidFile
from tests.support.planted import arguments_of_processes, files_below, leaks
from tests.support.ports import free_port_offset
from tests.support.waiting import stretched, wait_until

STRANDLINE = str(Path(sys.executable).parent / "strandline")
MINUTES = 3
DOCUMENTS = """\
stream: closed
schema: {turbine: string, ts: {type: timestamp, unit: ms}}
key: turbine
---
pipeline: closed-doors
input: {stream: closed}
event_time: {field: ts, delay: 1s}
steps:
- window: {name: per_minute, tumbling: 1m, by: [turbine], aggregate: {n: count(*)}}
  emit: [{elasticsearch: closed-minute}]
"""


class Closed:
    """One stack, from outside."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.offset = free_port_offset()
        self.addresses = StackAddresses.of(data_dir, self.offset)
        self.ports = Ports.moved(self.offset)
        self.pids = PidFile(data_dir)
        self.said: list[tuple[str, bytes]] = []
        self.clients = contextlib.ExitStack()

    def run(self, *arguments: str, is_fine: bool = True, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run a verb on it. The test searches all its output in the end."""
        moved = ["--port-offset", str(self.offset)] if arguments[0] == "up" else []
        command = [STRANDLINE, *arguments, "--data-dir", str(self.data_dir), *moved]
        environment = {**os.environ, "STRANDLINE_STANDBYS": "0", **settings}
        ran = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=stretched(240)
        )
        self.said.append((f"what {arguments} said", (ran.stdout + ran.stderr).encode()))
        assert not is_fine or ran.returncode == 0, ran.stderr + ran.stdout
        return ran

    def password(self, server: str) -> str:
        return (self.data_dir / "passwords" / server).read_text().strip()

    def kafka_login(self) -> dict[str, str]:
        login = {"sasl.username": "strandline", "sasl.password": self.password("kafka")}
        return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", **login}

    def kafka(self, **login: str) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.addresses.kafka_bootstrap, "log_level": 0, **login})

    @contextlib.contextmanager
    def open_servers(self) -> Iterator[None]:
        """Kafka and Elasticsearch alone, without passwords."""
        stack = Stack(Settings(), self.data_dir, self.offset, Console(quiet=True))
        try:
            stack.start_kafka()
            stack.start_elasticsearch()
            yield
        finally:
            stack.stop()

    def index(self, login: tuple[str, str] | None = None) -> httpx.Client:
        client = httpx.Client(base_url=self.addresses.elasticsearch_url, trust_env=False, auth=login, timeout=30)
        self.clients.callback(client.close)
        return client


@pytest.fixture
def closed() -> Iterator[Closed]:
    with tempfile.TemporaryDirectory(prefix="strandline-test-") as directory:
        stack = Closed(Path(directory))
        try:
            yield stack
        finally:
            stack.clients.close()
            if (stack.data_dir / "stack.json").exists():
                stack.run("down", is_fine=False)


@pytest.mark.guarantee("G495")
@pytest.mark.guarantee("G496")
@pytest.mark.guarantee("G497")
@pytest.mark.long
@pytest.mark.timeout(560)
def test_an_open_stack_is_closed_with_its_data_and_opened_again(closed: Closed, tmp_path: Path) -> None:
    """An open stack gets passwords with its data, and becomes open again.

    1. Open, as the servers are by default: any client that reaches the servers can write there.

    2. `up --passwords`: no client without a password is accepted, on any port of Kafka and Elasticsearch. The data is
       unchanged.

    3. A job reads, computes and is audited. A server that is killed restarts and asks for the password again. The
       doctor finds all well.

    4. The passwords are only in their files.

    5. `up` remembers; without passwords its servers are open again.
    """
    with closed.open_servers():
        admin = closed.kafka()
        admin.create_topics([NewTopic("before", 1, 1)])["before"].result(stretched(30))
        closed.index().put("/before/_doc/1?refresh=true", json={"is": "kept"}).raise_for_status()

    up = closed.run("up", "--detach", "--passwords")
    assert f"user strandline with the passwords in {closed.data_dir / 'passwords'} can log in to" in up.stdout
    require_closed(closed)
    login = closed.kafka_login()
    assert "before" in closed.kafka(**login).list_topics(timeout=30).topics
    own = closed.index(("strandline", closed.password("elasticsearch")))
    assert own.get("/before/_doc/1").json()["_source"] == {"is": "kept"}
    require_a_person_gets_in(closed)

    kill(closed, "kafka", "elasticsearch")
    require_closed(closed)
    run_a_job(closed, tmp_path)
    own.post("/closed-minute/_refresh").raise_for_status()
    hits = own.get("/closed-minute/_search").json()["hits"]["hits"]
    assert sorted(hit["_source"]["n"] for hit in hits) == [1] * MINUTES
    found = json.loads(closed.run("doctor", "--json").stdout)
    states = {(one["subject"], one["state"]) for one in found["findings"]}
    assert ("Kafka", "ok") in states and ("passwords", "ok") in states and not found["wrong"], found

    planted = {server: closed.password(server) for server in ("kafka", "elasticsearch")}
    meant = [*(closed.data_dir / "passwords").iterdir(), closed.data_dir / "kafka" / "server.properties"]
    numbers = closed.data_dir.rglob("*index")  # Kafka's own, ten megabytes each
    looked_at = files_below(closed.data_dir, [*meant, *numbers])
    assert (closed.data_dir / "logs" / "runner-closed-doors.log").stat().st_size, "a runner's log is looked through"
    assert leaks(planted, itertools.chain(closed.said, arguments_of_processes(), looked_at)) == []
    assert sorted(leaks(planted, [(path.name, path.read_bytes()) for path in meant])) != [], "the search finds them"

    again = closed.run("up", "--detach")
    assert "already ran; nothing had to be repaired" in again.stdout, "it remembers its passwords"
    opened = closed.run("up", "--detach", "--no-passwords", is_fine=False)
    assert "it runs with --passwords, but --no-passwords is requested" in opened.stderr
    closed.run("down")
    with closed.open_servers():
        admin = closed.kafka()
        assert {"before", "closed"} <= set(admin.list_topics(timeout=30).topics)
        assert closed.index().get("/before/_doc/1").json()["_source"] == {"is": "kept"}


def require_closed(closed: Closed) -> None:
    """Require that no client without the password is accepted on the ports of Kafka and Elasticsearch."""
    for login in ({}, closed.kafka_login() | {"sasl.password": "wrong"}):
        with pytest.raises(KafkaException):
            closed.kafka(**login).list_topics(timeout=5)
        refused: list[object] = []
        producer = Producer(
            {
                "bootstrap.servers": closed.addresses.kafka_bootstrap,
                "message.timeout.ms": 3000,
                "log_level": 0,
                **login,
            }
        )
        producer.produce("before", b"{}", on_delivery=lambda error, _, refused=refused: refused.append(error))
        producer.flush(20)
        assert len(refused) == 1 and refused[0] is not None
    controller = AdminClient({"bootstrap.servers": f"127.0.0.1:{closed.ports.kafka_controller}", "log_level": 0})
    with pytest.raises(KafkaException):
        controller.list_topics(timeout=5)
    for user in (None, ("strandline", "wrong"), ("elastic", "changeme")):
        with closed.index(user) as client:
            asked = [client.get("/before/_doc/1"), client.put("/x/_doc/1", json={}), client.delete("/before")]
            assert {answer.status_code for answer in asked} == {401}, user
    assert not answers_a_node(closed.ports.elasticsearch_transport)


def answers_a_node(port: int) -> bool:
    """Whether a node without a certificate of the stack's authority is answered anything."""
    stranger = ssl.create_default_context()
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as plain, stranger.wrap_socket(plain) as node:
            node.sendall(b"ES")
            return node.recv(1) != b""
    except (ssl.SSLError, ConnectionError):  # TLS 1.3 refuses the certificate with the first answer
        return False


def require_a_person_gets_in(closed: Closed) -> None:
    """Log in as docs/security.md describes."""
    directory = closed.data_dir / "passwords"
    curl = shutil.which("curl")
    if curl is not None:
        command = [
            curl,
            "-s",
            "--netrc-file",
            str(directory / "netrc"),
            f"{closed.addresses.elasticsearch_url}/before/_doc/1",
        ]
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=stretched(60))
        assert json.loads(answer.stdout)["_source"] == {"is": "kept"}
    script = f"set -a; . '{directory / 'strandline.env'}'; set +a; exec '{STRANDLINE}' doctor --json"
    environment = {**os.environ, "STRANDLINE_DATA_DIR": str(closed.data_dir / "another")}
    looked = subprocess.run(
        ["/bin/sh", "-c", script],
        env=environment,
        cwd=closed.data_dir,
        capture_output=True,
        text=True,
        check=False,
        timeout=stretched(120),
    )
    states = {(one["subject"], one["state"]) for one in json.loads(looked.stdout)["findings"]}
    assert {("Kafka", "wrong"), ("Elasticsearch", "wrong")}.isdisjoint(states), looked.stdout


def kill(closed: Closed, *names: str) -> None:
    """Kill these; the watcher starts them again, as they were."""
    before = closed.pids.alive()
    for name in names:
        os.kill(before[name], signal.SIGKILL)
    log = closed.data_dir / "logs" / "watcher.log"
    for name in names:
        wait_until(lambda name=name: f"{name} runs again" in log.read_text(), bool, f"{name} runs again", 120)


def run_a_job(closed: Closed, tmp_path: Path) -> None:
    """Records from a file through Kafka into Elasticsearch, and the audit of it."""
    documents, records = tmp_path / "documents.yaml", tmp_path / "records.ndjson"
    documents.write_text(DOCUMENTS)
    first_ms = 1_767_225_600_000
    lines = [json.dumps({"turbine": "a", "ts": first_ms + 60_000 * minute}) for minute in range(MINUTES)]
    records.write_text("\n".join(lines) + "\n")
    closed.run("apply", str(documents))
    closed.run("ingest", "closed", str(records))
    wait_until(
        lambda: json.loads(closed.run("job", "status", "closed-doors", "--json").stdout),
        lambda job: job["counts"]["records"] >= MINUTES,
        "read",
        180,
    )
    closed.run("job", "stop", "closed-doors", "--drain")
    closed.run("job", "audit", "closed-doors")
