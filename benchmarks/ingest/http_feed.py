"""The HTTP gateway under load: single records and lines of a hundred, as fast as it can and at half of that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from rich.console import Console

from benchmarks.ingest.http_load import Load
from benchmarks.ingest.results import Goal, Measured
from benchmarks.ingest.work import KEYED_STREAM, STREAM, line_requests, single_requests
from strandline.services.embedded.machine import is_free
from strandline.services.embedded.stack import Stack
from strandline.services.pids import PidFile

SINGLE_CONNECTIONS = 128
LINES_CONNECTIONS = 32
_WARM_UP_S = 3.0
_ROOT = Path(__file__).parents[2]
_SINGLE_GOAL = Goal(records_a_second=8_000, cpu_s_per_million=60, latency_p99_s=0.050)
_LINES_GOAL = Goal(records_a_second=150_000, cpu_s_per_million=5, latency_p99_s=0.050)
CASES = (
    ("HTTP, one record a request", "single", STREAM, SINGLE_CONNECTIONS, _SINGLE_GOAL),
    ("HTTP, 100 lines a request", "lines", STREAM, LINES_CONNECTIONS, _LINES_GOAL),
    ("HTTP, 100 lines a request, keyed", "lines", KEYED_STREAM, LINES_CONNECTIONS, _LINES_GOAL),
)


def measure(stack: Stack, seconds: float, console: Console) -> list[Measured]:
    """Measure each case at full and at half load. Raises RuntimeError when a record that was answered is not in the topic."""
    stack.start_http_gateway()
    pids = PidFile(stack.data_dir).all()
    found: list[Measured] = []
    for name, form, stream, connections, goal in CASES:
        ceiling = _ceiling(form, connections, seconds / 2)
        load = ["--stream", stream, "--form", form, "--connections", str(connections)]
        load += ["--port", str(stack.ports.http), "--warm-up-s", str(_WARM_UP_S), "--seconds", str(seconds)]
        load += ["--gateway-pid", str(pids["gateway-http"]), "--kafka-pid", str(pids["kafka"])]
        before = records_in_topic(stack.addresses.kafka_bootstrap, stream)
        full = _run_load(load)
        half = _run_load([*load, "--rate", str(full.records / full.seconds / 2)])
        logged = records_in_topic(stack.addresses.kafka_bootstrap, stream) - before
        answered = full.records_whole_run + half.records_whole_run
        if full.failed_requests or half.failed_requests or logged != answered:
            raise RuntimeError(
                f"{name}: {answered} records were accepted and {logged} are in the topic; "
                f"{full.failed_requests + half.failed_requests} requests failed: "
                f"{(full.first_failure or half.first_failure)[-300:]}"
            )
        found.append(Measured.of(name, full, half, ceiling, goal))
        console.print(found[-1].sentence())
    return found


def records_in_topic(kafka_bootstrap: str, topic: str) -> int:
    """How many offsets the topic has given out; without transactions, one for each record."""
    consumer = Consumer({"bootstrap.servers": kafka_bootstrap, "group.id": "none", "log_level": 2})
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        return sum(consumer.get_watermark_offsets(TopicPartition(topic, p), 30)[1] for p in partitions)
    finally:
        consumer.close()


def _ceiling(form: str, connections: int, seconds: float) -> float:
    """Records a second that the load reaches when an answer costs nothing."""
    port = next(port for port in range(23_100, 32_000) if is_free(port))
    request_bytes = len((single_requests if form == "single" else line_requests)(STREAM)[0])
    arguments = [sys.executable, "-m", "benchmarks.ingest.responder", str(port), str(request_bytes)]
    responder = subprocess.Popen(arguments, cwd=_ROOT)
    try:
        deadline_s = time.monotonic() + 30
        while is_free(port):
            if responder.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError("the responder did not start")
            time.sleep(0.05)
        load = ["--stream", STREAM, "--form", form, "--connections", str(connections), "--port", str(port)]
        load += ["--warm-up-s", "1", "--seconds", str(seconds), "--gateway-pid", str(responder.pid)]
        reached = _run_load(load)
        return reached.records / reached.seconds
    finally:
        responder.kill()
        responder.wait()


def _run_load(arguments: list[str]) -> Load:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.ingest.http_load", *arguments],
        cwd=_ROOT,
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the load ended with {done.returncode}: {done.stderr[-2000:]}")
    return Load(**json.loads(done.stdout))
