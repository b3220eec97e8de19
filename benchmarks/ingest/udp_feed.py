"""The UDP gateway under load: 100,000 datagrams per second. Each is in the topic or counted as lost."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from rich.console import Console

from benchmarks.ingest.gateway_pages import Page, wait_until
from benchmarks.ingest.load import run_module
from benchmarks.ingest.results import Goal, Measured
from benchmarks.ingest.udp_load import Sent
from benchmarks.ingest.work import DATAGRAM_STREAM, UDP_PORT
from benchmarks.process_tree import machine_cpu_s, tree_cpu_s
from strandline.services.embedded.stack import Stack
from strandline.services.processes.pids import PidFile

RATE = 100_000
_GOAL = Goal(records_a_second=RATE * 0.998, lost_share=0.002)
_WARM_UP_S = 2.0
_SETTLE_S = 60.0


def measure(stack: Stack, seconds: float, console: Console) -> list[Measured]:
    """Send at RATE for `seconds`. Raises RuntimeError if a datagram is neither in the topic nor counted as lost."""
    stack.start_gateway("udp")
    metrics = _Metrics(stack.ports.gateways["udp_health_port"])
    _wait(lambda: metrics.value("open") == 1, "the UDP port to open")
    pids = PidFile(stack.data_dir).all()
    port = UDP_PORT + stack.addresses.port_offset
    before = metrics.accounted()
    warm = _send(port, RATE / 10, _WARM_UP_S)
    _wait(lambda: metrics.accounted() - before >= warm.datagrams, "the warm-up to settle")
    _wait(lambda: metrics.spooled_now() == 0, "the spool to drain")
    accounted, lost = metrics.accounted(), metrics.lost()
    logged = _count_records(stack.addresses.kafka_bootstrap)
    gateway_before_s, kafka_before_s = tree_cpu_s(pids["gateway-udp"]), tree_cpu_s(pids["kafka"])
    machine_before_s, began_s = machine_cpu_s(), time.monotonic()
    sent = _send(port, RATE, seconds)
    _wait(lambda: metrics.accounted() - accounted >= sent.datagrams, "the datagrams to settle")
    machine_s, took_s = machine_cpu_s() - machine_before_s, time.monotonic() - began_s
    gateway_s = tree_cpu_s(pids["gateway-udp"]) - gateway_before_s
    kafka_s = tree_cpu_s(pids["kafka"]) - kafka_before_s
    _wait(lambda: metrics.spooled_now() == 0, "the spool to drain")
    logged = _count_records(stack.addresses.kafka_bootstrap) - logged
    lost = metrics.lost() - lost
    if logged + lost != sent.datagrams:
        raise RuntimeError(
            f"UDP: of {sent.datagrams} datagrams {logged} are in the topic and {lost} counted as lost: {metrics.all()}"
        )
    found = Measured(
        name=f"UDP, {RATE:,} datagrams/s",
        records_a_second=logged / sent.seconds,
        cpu_s_per_million=gateway_s / logged * 1e6,
        kafka_cpu_s_per_million=kafka_s / logged * 1e6,
        latency_p50_s=None,
        latency_p99_s=None,
        load_ceiling=_ceiling(seconds / 4),
        other_cores=max(0.0, machine_s - gateway_s - kafka_s - sent.cpu_s) / took_s,
        goal=_GOAL,
        lost=lost,
        sent=sent.datagrams,
    )
    console.print(found.summary())
    return [found]


class _Metrics:
    """Present metrics of the gateway for the stream."""

    def __init__(self, port: int) -> None:
        self._port = port

    def value(self, name: str) -> int:
        return int(Page.read(self._port).value(name, stream=DATAGRAM_STREAM))

    def all(self) -> dict[str, float]:
        """Return all counts of the stream except its latencies, for people."""
        return {
            " ".join([name, labels.get("reason", "")]).strip(): value
            for name, labels, value in Page.read(self._port).samples
            if labels.get("stream") == DATAGRAM_STREAM and not name.startswith("strandline_ingest_ack_latency")
        }

    def accounted(self) -> int:
        """Return the number of datagrams with a known outcome."""
        return self.value("confirmed_total") + self.value("spooled_total") + self.lost()

    def spooled_now(self) -> int:
        """Return the number of records on the gateway's disk."""
        return int(Page.read(self._port).value("spool_records"))

    def lost(self) -> int:
        return self.value("dropped_total") + self.value("refused_total")


def _wait(is_so: Callable[[], bool], what: str) -> None:
    wait_until(is_so, what, _SETTLE_S)


def _count_records(kafka_bootstrap: str) -> int:
    """Read the topic and count the records. Its offsets count more, because spoolable records are written in transactions,
    whose ends take offsets, too."""
    consumer = Consumer(
        {"bootstrap.servers": kafka_bootstrap, "group.id": "none", "enable.partition.eof": True, "log_level": 2}
    )
    try:
        partitions = consumer.list_topics(DATAGRAM_STREAM, timeout=30).topics[DATAGRAM_STREAM].partitions
        consumer.assign([TopicPartition(DATAGRAM_STREAM, partition, OFFSET_BEGINNING) for partition in partitions])
        records, ended = 0, set[int | None]()
        deadline_s = time.monotonic() + _SETTLE_S
        while len(ended) < len(partitions):
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"can't read {DATAGRAM_STREAM} within {_SETTLE_S:g} s")
            for message in consumer.consume(10_000, 1.0):
                error = message.error()
                if error is None:
                    records += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise RuntimeError(f"can't read {DATAGRAM_STREAM}: {error.str()}")
        return records
    finally:
        consumer.close()


def _ceiling(seconds: float) -> float:
    """Return the datagrams per second that the load sends to a socket without a reader."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unread:
        unread.bind(("127.0.0.1", 0))
        sent = _send(unread.getsockname()[1], 0, seconds)
    return sent.datagrams / sent.seconds


def _send(port: int, rate: float, seconds: float) -> Sent:
    arguments = ["--port", str(port), "--rate", str(rate), "--seconds", str(seconds)]
    return Sent(**json.loads(run_module("benchmarks.ingest.udp_load", arguments)))
