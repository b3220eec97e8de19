"""The UDP gateway under 100,000 datagrams a second from one sender; every datagram that is not in the log is counted."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.ingest.gateway_pages import Page, wait_until
from benchmarks.ingest.http_feed import records_in_topic
from benchmarks.ingest.results import Goal, Measured
from benchmarks.process_tree import tree_cpu_s
from strandline.core.stream import StreamSpec
from strandline.ingest.topics import Topics
from strandline.ledger.ledger import Ledger
from strandline.services.embedded.stack import Stack
from strandline.services.pids import PidFile

RATE = 100_000
STREAM = "readings-by-udp"
_PORT = 8082
_WARM_UP_S = 3.0
_ROOT = Path(__file__).parents[2]
_GOAL = Goal(records_a_second=RATE * 0.998, lost_share=0.002)


def measure(stack: Stack, seconds: float, console: Console) -> list[Measured]:
    """Measure at one rate. Raises RuntimeError when sent differs from logged + counted as lost."""
    _register(stack)
    stack.start_udp_gateway()
    port, pages = _PORT + stack.addresses.port_offset, stack.ports.udp_gateway_pages
    wait_until(lambda: Page.read(pages).value("open", stream=STREAM) == 1, "the UDP port is open")
    ceiling = _ceiling(min(seconds, 3.0))
    _load(port, RATE / 10, _WARM_UP_S)
    _wait_until_quiet(pages)
    pids = PidFile(stack.data_dir).all()
    before, logged_before = Page.read(pages), records_in_topic(stack.addresses.kafka_bootstrap, STREAM)
    costs_before = [tree_cpu_s(pids[name]) for name in ("gateway-udp", "kafka")]
    load = _load(port, RATE, seconds)
    _wait_until_quiet(pages)
    gateway_cpu_s, kafka_cpu_s = (
        tree_cpu_s(pids[name]) - cost for name, cost in zip(("gateway-udp", "kafka"), costs_before, strict=True)
    )
    after, logged = Page.read(pages), records_in_topic(stack.addresses.kafka_bootstrap, STREAM) - logged_before
    lost = sum(
        int(after.value(name, stream=STREAM) - before.value(name, stream=STREAM))
        for name in ("dropped_total", "refused_total")
    )
    if load["sent"] - lost > logged:
        raise RuntimeError(f"UDP: {load['sent']} datagrams sent, {logged} records in the topic, {lost} counted as lost")
    measured = Measured(
        name=f"UDP, one sender, {RATE:,} datagrams/s",
        records_a_second=(load["sent"] - lost) / load["seconds"],
        cpu_s_per_million=gateway_cpu_s / logged * 1e6,
        kafka_cpu_s_per_million=kafka_cpu_s / logged * 1e6,
        latency_p50_s=None,
        latency_p99_s=None,
        load_ceiling=ceiling,
        goal=_GOAL,
        lost=lost,
        sent=load["sent"],
    )
    console.print(measured.sentence())
    return [measured]


def _register(stack: Stack) -> None:
    spec = StreamSpec.from_document({"stream": STREAM, "schema": {"device": "string"}, "udp": {"port": _PORT}})
    settings = stack.settings
    topics = Topics(settings.kafka_bootstrap, replication=1, record_bytes_max=settings.record_bytes_max)
    topics.ensure_stream_topic(spec)
    ledger = Ledger.open(stack.addresses.ledger_url)
    try:
        ledger.put_stream(spec.stream, spec.as_document())
    finally:
        ledger.close()


def _wait_until_quiet(pages: int) -> None:
    """Until nothing more arrives, nothing is in flight, and the spool is empty."""
    seen: list[float] = []

    def is_quiet() -> bool:
        page = Page.read(pages)
        seen.append(page.value("received_total", stream=STREAM))
        is_idle = not page.value("in_flight", stream=STREAM) and not page.value("spool_records")
        return is_idle and len(seen) > 5 and len(set(seen[-5:])) == 1

    wait_until(is_quiet, "the UDP gateway has nothing more to do")


def _ceiling(seconds: float) -> float:
    """Datagrams a second that the load sends to a socket that nobody reads."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        load = _load(one.getsockname()[1], 0.0, seconds)
        return float(load["sent"] / load["seconds"])


def _load(port: int, rate: float, seconds: float) -> dict[str, Any]:
    arguments = ["--port", str(port), "--rate", str(rate), "--seconds", str(seconds)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.ingest.udp_load", *arguments],
        cwd=_ROOT, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found
