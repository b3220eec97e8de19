"""The embedded stack from outside, as a user has it: `strandline up` and `strandline down`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from strandline.ledger.ledger import Ledger
from strandline.services.embedded.addresses import Ports, StackAddresses
from strandline.services.embedded.stack import _speaks_mqtt
from strandline.services.processes.pids import PidFile
from tests.support.ports import free_port_offset
from tests.support.waiting import stretched, wait_until

STRANDLINE = str(Path(sys.executable).parent / "strandline")
GATEWAYS = {"gateway-http", "gateway-mqtt", "gateway-mqtt-listener", "gateway-udp", "gateway-tcp", "gateway-poll"}
PARTS = {"kafka", "elasticsearch", "mqtt", "control"} | GATEWAYS
PROCESSES = PARTS | {"watcher"}


class OutsideStack:
    """One data directory and offset, and the command line to them."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.offset = free_port_offset()
        self.addresses = StackAddresses.of(data_dir, self.offset)
        self.pids = PidFile(data_dir)

    def up_command(self, *more: str) -> list[str]:
        return [STRANDLINE, "up", "--data-dir", str(self.data_dir), "--port-offset", str(self.offset), *more]

    def up(self, *more: str, timeout_s: float = 280) -> subprocess.CompletedProcess[str]:
        command = self.up_command("--detach", *more)
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)

    def password(self, server: str) -> str:
        return (self.data_dir / "passwords" / server).read_text().strip()

    def kafka(self, **more: str) -> dict[str, str]:
        """Return the settings with which a client of Kafka connects and logs in."""
        login = {"sasl.username": "strandline", "sasl.password": self.password("kafka")}
        login |= {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        return {"bootstrap.servers": self.addresses.kafka_bootstrap, **login, **more}

    def index(self) -> httpx.Client:
        """A client of Elasticsearch that logs in."""
        login = ("strandline", self.password("elasticsearch"))
        return httpx.Client(base_url=self.addresses.elasticsearch_url, auth=login, timeout=30, trust_env=False)

    def down(self) -> subprocess.CompletedProcess[str]:
        command = [STRANDLINE, "down", "--data-dir", str(self.data_dir)]
        return subprocess.run(command, capture_output=True, text=True, timeout=stretched(120), check=False)


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[OutsideStack]:
    """Without a standby, which would join the processes some time after `up`."""
    monkeypatch.setenv("STRANDLINE_STANDBYS", "0")
    monkeypatch.delenv("STRANDLINE_EMBEDDED_PASSWORDS", raising=False)
    with tempfile.TemporaryDirectory(prefix="strandline-test-") as directory:
        stack = OutsideStack(Path(directory))
        try:
            yield stack
        finally:
            if (stack.data_dir / "stack.json").exists():
                stack.down()


def kill(stack: OutsideStack, *names: str) -> None:
    """Kill these in this order, and wait until they are dead or have been started again."""
    pids = stack.pids.alive()
    for name in names:
        os.kill(pids[name], signal.SIGKILL)
    wait_until(
        lambda: all(stack.pids.alive().get(name) != pids[name] for name in names), bool, f"dead: {', '.join(names)}", 30
    )


def write_everywhere(stack: OutsideStack) -> None:
    """One fact in each of the three places that must outlive a crash, each confirmed."""
    admin = AdminClient(stack.kafka())
    admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result()
    refusals: list[object] = []
    producer = Producer(stack.kafka(**{"enable.idempotence": "true"}))
    producer.produce("kept", b"still here", on_delivery=lambda error, _: refusals.append(error))
    assert producer.flush(30) == 0 and refusals == [None]
    with stack.index() as index:
        index.put("/kept", json={"settings": {"number_of_replicas": 0}}).raise_for_status()
        index.put("/kept/_create/1", json={"is": "still here"}).raise_for_status()
    ledger = Ledger.open(stack.addresses.ledger_url)
    ledger.put_stream("kept", {"stream": "kept"})
    ledger.close()


def require_everything(stack: OutsideStack) -> None:
    consumer = Consumer(stack.kafka(**{"group.id": "test"}))
    consumer.assign([TopicPartition("kept", 0, 0)])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None and message.value() == b"still here"
    with stack.index() as index:
        assert index.get("/kept/_doc/1").json()["_source"] == {"is": "still here"}
    ledger = Ledger.open(stack.addresses.ledger_url)
    assert ledger.stream("kept").document == {"stream": "kept"}
    ledger.close()


@pytest.mark.long
@pytest.mark.guarantee(
    "G14",
    "After `kill -9` of every process, the embedded stack starts again with its data.",
    promise="a-stack-keeps-its-data",
)
@pytest.mark.guarantee("G794")
@pytest.mark.timeout(600)
def test_stack_finds_its_data_after_everything_was_killed(outside: OutsideStack) -> None:
    first = outside.up()
    assert first.returncode == 0, first.stderr
    assert set(outside.pids.alive()) == PROCESSES
    require_loopback_only(outside.offset)
    require_a_login(outside, first.stdout)
    write_everywhere(outside)

    kill(outside, "watcher", *PARTS)
    wait_until(lambda: outside.pids.alive() == {}, bool, "all are dead", 30)

    second = outside.up()
    assert second.returncode == 0, second.stderr
    require_everything(outside)
    require_stopped(outside)
    assert outside.down().returncode == 0, "nothing to stop is no error"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_dies_is_started_again_by_the_watcher_or_by_up(outside: OutsideStack) -> None:
    first = outside.up()
    assert first.returncode == 0, first.stderr
    running = outside.pids.alive()
    assert json.loads((outside.data_dir / "pids.json").read_text()) == running
    for name in PROCESSES:
        assert (outside.data_dir / "logs" / f"{name}.log").exists()
    for url in (outside.addresses.api_url, outside.addresses.ingest_url):
        assert httpx.get(f"{url}/healthz", trust_env=False).status_code == 200

    again = outside.up()
    assert again.returncode == 0, again.stderr
    assert f"the stack in {outside.data_dir} already ran; nothing had to be repaired" in again.stdout
    assert outside.pids.alive() == running

    kill(outside, "gateway-http", "mqtt")
    log = outside.data_dir / "logs" / "watcher.log"
    for name in ("gateway-http", "mqtt"):
        wait_until(lambda name=name: f"{name} runs again" in log.read_text(), bool, f"{name} is started again", 60)
        assert f"{name} crashed; it is restarted in 1 s" in log.read_text()
    assert set(outside.pids.alive()) == PROCESSES
    assert httpx.get(f"{outside.addresses.ingest_url}/healthz", trust_env=False).status_code == 200

    kill(outside, "watcher", "gateway-http", "control")
    before = outside.pids.alive()
    moved = outside.up("--port-offset", str(outside.offset + 1))
    assert (
        moved.returncode == 1
        and f"it runs with --port-offset {outside.offset}, but {outside.offset + 1} is" in moved.stderr
    )
    mended = outside.up()
    assert mended.returncode == 0, mended.stderr
    assert "starting what is missing: control, gateway-http, watcher" in mended.stdout
    assert "already ran; repaired: control, gateway-http, watcher" in mended.stdout
    assert f"API {outside.addresses.api_url} " in mended.stdout
    after = outside.pids.alive()
    assert set(after) == PROCESSES and after | before == after, "what ran still runs, under its number"
    require_stopped(outside)


def require_stopped(stack: OutsideStack) -> None:
    """Require that it runs without the command that started it, stops by its directory alone, and leaves no process."""
    running = stack.pids.alive()
    assert set(running) == PROCESSES
    stopped = stack.down()
    assert stopped.returncode == 0, stopped.stderr
    assert stack.pids.all() == {}
    for pid in running.values():
        assert not Path(f"/proc/{pid}").exists() or ") Z " in Path(f"/proc/{pid}/stat").read_text()


def require_a_login(stack: OutsideStack, printed: str) -> None:
    """The servers of a new stack refuse who has no password, under any host name; the printed command for curl logs in."""
    address = stack.addresses.elasticsearch_url
    for host in (f"127.0.0.1:{9200 + stack.offset}", "rebound.example"):
        answer = httpx.get(f"{address}/_cat/indices", headers={"Host": host}, timeout=30, trust_env=False)
        assert answer.status_code == 401, host
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": stack.addresses.kafka_bootstrap, "log_level": 0}).list_topics(timeout=3)
    assert not _speaks_mqtt(stack.offset + 1883, None), "the broker refuses a client without a login"
    assert _speaks_mqtt(stack.offset + 1883, stack.password("mqtt"))
    (command,) = re.findall(r"^to query Elasticsearch: (curl .*)$", printed, re.MULTILINE)
    netrc = subprocess.run(
        [STRANDLINE, "netrc", "--data-dir", str(stack.data_dir)],
        capture_output=True,
        text=True,
        check=True,
        timeout=stretched(60),
    ).stdout.strip()
    assert netrc == str(stack.data_dir / "passwords" / "netrc") and netrc in command
    if shutil.which("curl"):
        done = subprocess.run(["bash", "-c", f"{command} -sS --fail"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert not [one for one in ("kafka", "elasticsearch", "mqtt") if stack.password(one) in printed]


def require_loopback_only(offset: int) -> None:
    """No port of the stack answers on an address of this machine that others can reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; the kernel only chooses our own address
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address = probe.getsockname()[0]
    for port in Ports.moved(offset).all().values():
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, port), timeout=5)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_stack_in_the_foreground_tells_what_died_and_ends_when_it_is_stopped_from_elsewhere(
    outside: OutsideStack,
) -> None:
    with (outside.data_dir / "up.out").open("wb") as output:
        up = subprocess.Popen(outside.up_command(), stdout=output, stderr=subprocess.STDOUT)
    told = outside.data_dir / "up.out"
    wait_until(lambda: "Ctrl-C" in told.read_text() or up.poll() is not None, bool, "the stack is up")
    assert up.poll() is None, told.read_text()
    kill(outside, "watcher")
    wait_until(lambda: "watcher" in outside.pids.alive(), bool, "the watcher is started again", 60)
    kill(outside, "mqtt")
    wait_until(lambda: "mqtt runs again" in told.read_text(), bool, "mqtt is started again", 60)
    assert "mqtt crashed; it is restarted in 1 s" in told.read_text()
    assert set(outside.pids.alive()) == PROCESSES
    assert outside.down().returncode == 0
    assert up.wait(timeout=stretched(60)) == 0
    assert "the stack was stopped by another command" in told.read_text()
    watcher_log = (outside.data_dir / "logs" / "watcher.log").read_text()
    assert watcher_log.count("restarts crashed parts") == 2, "not started again by `up` after `down` had stopped it"
    assert outside.pids.all() == {}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGINT, id="ctrl-c"), pytest.param(signal.SIGTERM, id="term", marks=pytest.mark.long)],
)
def test_giving_up_while_it_starts_leaves_nothing(outside: OutsideStack, number: signal.Signals) -> None:
    # A shell that puts its commands into the background has them ignore Ctrl-C, and that is handed down.
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    command = outside.up_command()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=heeds) as up:
        try:
            wait_until(
                lambda: {"kafka", "elasticsearch"} <= set(outside.pids.alive()), bool, "both servers are starting"
            )
            started = outside.pids.alive()
            up.send_signal(number)
            assert up.wait(timeout=stretched(120)) != 0
        finally:
            up.kill()
    assert outside.pids.all() == {}
    wait_until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in started.values()), bool, "no process is left", 10
    )


def test_taken_port_is_one_sentence_before_anything_starts(outside: OutsideStack) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", Ports.moved(outside.offset).elasticsearch))
        other.listen()
        answer = outside.up(timeout_s=60)
    assert answer.returncode == 1
    assert f"port {9200 + outside.offset} on 127.0.0.1 for Elasticsearch is used" in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1
    assert outside.pids.all() == {} and not (outside.data_dir / "stack.json").exists()


def test_a_setting_that_up_cannot_honour_is_one_sentence(
    outside: OutsideStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDLINE_UDP_HOST", "0.0.0.0")
    answer = outside.up(timeout_s=60)
    assert answer.returncode == 1
    assert answer.stderr.startswith("STRANDLINE_UDP_HOST is set, but") and len(answer.stderr.splitlines()) == 1


def test_down_where_no_stack_was_is_told(outside: OutsideStack) -> None:
    answer = outside.down()
    assert answer.returncode == 1
    assert "no stack was ever started" in answer.stderr
