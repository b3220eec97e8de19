"""A stack with the gateway of a package: `tests/plugins/acme_gateway` is defined outside of Strandline."""

from __future__ import annotations

import os
import signal
import socket
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from strandline.core.settings import Settings
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.log.topics import Topics
from strandline.services.doctor.examination import server_checks
from strandline.services.doctor.finding import State, examine
from strandline.services.embedded.shutdown import stop_part
from strandline.services.embedded.stack import Stack
from strandline.services.processes.pids import PidFile
from tests.support.plugins import forget_toys, install_toys
from tests.support.ports import free_port, free_port_offset
from tests.support.topic_reader import read_messages
from tests.support.waiting import stretched, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]
DEADLINE_S = 60


@pytest.fixture
def stack(kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """A stack over the broker of the tests, of which only gateways are started."""
    install_toys(monkeypatch, "acme_gateway")
    monkeypatch.setenv("STRANDLINE_STREAMS_REFRESH_S", "0.2")
    stack = Stack(Settings(), tmp_path, free_port_offset(), Console(quiet=True), {"kafka": kafka})
    stack.migrate_ledger()
    yield stack
    stack.cancel()
    stack.stop()
    forget_toys(monkeypatch)


def send(port: int, lines: list[bytes]) -> bytes:
    with socket.create_connection(("127.0.0.1", port), stretched(DEADLINE_S)) as sender:
        sender.sendall(b"".join(line + b"\n" for line in lines))
        sender.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: sender.recv(65_536), b""))


def metrics(stack: Stack) -> dict[tuple[str, str], float]:
    """(name, stream) -> value, of the protocol `acme`."""
    url = f"http://127.0.0.1:{stack.ports.gateways['acme_health_port']}/metrics"
    families = text_string_to_metric_families(httpx.get(url, trust_env=False).text)
    samples = [sample for family in families for sample in family.samples]
    return {(s.name, s.labels.get("stream", "")): s.value for s in samples if s.labels.get("protocol") == "acme"}


@pytest.mark.guarantee("G880")
def test_a_stack_starts_the_gateway_of_a_package_again_after_a_kill(stack: Stack, kafka: str) -> None:
    name, port = f"stream-{uuid.uuid4().hex[:12]}", free_port()
    document = {"gateways": {"acme": {"port": port - stack.addresses.port_offset}}, "metadata": {"host": "sender"}}
    spec = StreamSpec.from_document({"stream": name, "schema": {"n": "long", "host": "string"}, **document})
    Topics(kafka, replication=1, record_bytes_max=1_000_000).ensure_stream_topic(spec)
    with closing(Ledger.open(stack.addresses.ledger_url)) as ledger:
        ledger.put_stream(name, spec.as_document())
    is_open = ("strandline_ingest_open", name)

    stack.parts["gateway-acme"]()
    wait_until(lambda: metrics(stack).get(is_open) == 1)
    assert send(port, [b'{"n":1}', b'{"n":2}']).splitlines()[-1] == b"ok 2"
    assert metrics(stack)["strandline_ingest_confirmed_total", name] == 2

    os.kill(stack.running["gateway-acme"], signal.SIGKILL)
    wait_until(lambda: "gateway-acme" not in stack.running)
    stack.parts["gateway-acme"]()
    wait_until(lambda: metrics(stack).get(is_open) == 1)
    assert send(port, [b'{"n":3}']) == b"ok 1\n"
    records = list(read_messages(kafka, name, isolation="read_committed", within_s=DEADLINE_S))
    assert sorted(record.value() for record in records) == [b'{"n":1}', b'{"n":2}', b'{"n":3}']
    assert {dict(record.headers())["strandline-source"] for record in records} == {b"acme:127.0.0.1"}
    assert [one.name for one in (stack.data_dir / "ingest").iterdir() if one.name.startswith("acme-")]

    checks = server_checks(stack.settings, stack.addresses.servers())
    (found,) = examine({"acme": checks["gateway-acme"]}, 30.0, stack.settings)
    assert (found.subject, found.state) == ("ACME", State.OK)
    stop_part("gateway-acme", PidFile(stack.data_dir), stack._progress)
    assert "gateway-acme" not in stack.running
