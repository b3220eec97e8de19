"""The HTTP gateway under load: single records and hundreds of lines, at full load and at half of that rate."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition
from rich.console import Console

from benchmarks.ingest.load import ceiling, full_and_half, require_complete
from benchmarks.ingest.results import Goal, Measured
from benchmarks.ingest.work import KEYED_STREAM, STREAM, line_requests, single_requests
from strandline.services.embedded.stack import Stack
from strandline.services.processes.pids import PidFile

SINGLE_CONNECTIONS = 128
LINES_CONNECTIONS = 32
_SINGLE_GOAL = Goal(records_a_second=8_000, cpu_s_per_million=60, latency_p99_s=0.050)
_LINES_GOAL = Goal(records_a_second=150_000, cpu_s_per_million=5, latency_p99_s=0.050)
CASES = (
    ("HTTP, one record a request", "single", STREAM, SINGLE_CONNECTIONS, _SINGLE_GOAL),
    ("HTTP, 100 lines a request", "lines", STREAM, LINES_CONNECTIONS, _LINES_GOAL),
    ("HTTP, 100 lines a request, keyed", "lines", KEYED_STREAM, LINES_CONNECTIONS, _LINES_GOAL),
)
_LOAD, _RESPONDER = "benchmarks.ingest.http_load", "benchmarks.ingest.responder"


def measure(stack: Stack, seconds: float, console: Console) -> list[Measured]:
    """Measure each case at full and at half load. Raises RuntimeError if an acknowledged record is not in the topic."""
    stack.start_gateway("http")
    pids = PidFile(stack.data_dir).all()
    gateway = ["--port", str(stack.ports.gateways["http_port"])]
    gateway += ["--gateway-pid", str(pids["gateway-http"]), "--kafka-pid", str(pids["kafka"])]
    found: list[Measured] = []
    for name, form, stream, connections, goal in CASES:
        load = ["--stream", stream, "--form", form, "--connections", str(connections), "--seconds", str(seconds)]
        request_bytes = len((single_requests if form == "single" else line_requests)(stream)[0])
        reachable = ceiling(_RESPONDER, [str(request_bytes)], _LOAD, load)
        before = records_in_topic(stack.addresses.kafka_bootstrap, stream)
        full, half = full_and_half(_LOAD, [*load, *gateway])
        logged = records_in_topic(stack.addresses.kafka_bootstrap, stream) - before
        require_complete(name, (full, half), logged)
        found.append(Measured.of(name, full, half, reachable, goal))
        console.print(found[-1].summary())
    return found


def records_in_topic(kafka_bootstrap: str, topic: str) -> int:
    """Return the number of offsets in the topic; without transactions, one for each record."""
    consumer = Consumer({"bootstrap.servers": kafka_bootstrap, "group.id": "none", "log_level": 2})
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        return sum(consumer.get_watermark_offsets(TopicPartition(topic, p), 30)[1] for p in partitions)
    finally:
        consumer.close()
