"""The MQTT listener under load: as many sensors as a small fleet has, as fast as they can and at half of that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from benchmarks.ingest.http_feed import records_in_topic
from benchmarks.ingest.http_load import Load
from benchmarks.ingest.results import Goal, Measured
from benchmarks.ingest.work import KEYED_STREAM, STREAM, mqtt_topic
from strandline.services.embedded.machine import is_free
from strandline.services.embedded.stack import Stack
from strandline.services.pids import PidFile

CONNECTIONS = 200
_WARM_UP_S = 3.0
_ROOT = Path(__file__).parents[2]
_GOAL = Goal(records_a_second=10_000, latency_p99_s=0.100)
CASES = (
    (f"MQTT listener, QoS 1, {CONNECTIONS} sensors", STREAM),
    (f"MQTT listener, QoS 1, {CONNECTIONS} sensors, keyed", KEYED_STREAM),
)


def measure(stack: Stack, seconds: float, console: Console) -> list[Measured]:
    """Measure at full and at half load. Raises RuntimeError when a record that was acknowledged is not in the topic."""
    stack.start_mqtt_listener()
    pids = PidFile(stack.data_dir).all()
    ceiling = _ceiling(seconds / 2)
    found: list[Measured] = []
    for name, stream in CASES:
        load = ["--topic", mqtt_topic(stream), "--connections", str(CONNECTIONS)]
        load += ["--port", str(stack.ports.mqtt_listener), "--warm-up-s", str(_WARM_UP_S), "--seconds", str(seconds)]
        load += ["--gateway-pid", str(pids["gateway-mqtt-listener"]), "--kafka-pid", str(pids["kafka"])]
        before = records_in_topic(stack.addresses.kafka_bootstrap, stream)
        full = _run_load(load)
        half = _run_load([*load, "--rate", str(full.records / full.seconds / 2)])
        logged = records_in_topic(stack.addresses.kafka_bootstrap, stream) - before
        acknowledged = full.records_whole_run + half.records_whole_run
        if full.failed_requests or half.failed_requests or logged != acknowledged:
            raise RuntimeError(
                f"{name}: {acknowledged} records were acknowledged and {logged} are in the topic; "
                f"{full.failed_requests + half.failed_requests} messages failed"
            )
        found.append(Measured.of(name, full, half, ceiling, _GOAL))
        console.print(found[-1].sentence())
    return found


def _ceiling(seconds: float) -> float:
    """Records a second that the load reaches when an answer costs nothing."""
    port = next(port for port in range(23_100, 32_000) if is_free(port))
    responder = subprocess.Popen([sys.executable, "-m", "benchmarks.ingest.mqtt_responder", str(port)], cwd=_ROOT)
    try:
        deadline_s = time.monotonic() + 30
        while is_free(port):
            if responder.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError("the responder did not start")
            time.sleep(0.05)
        load = ["--topic", mqtt_topic(STREAM), "--connections", str(CONNECTIONS), "--port", str(port)]
        load += ["--warm-up-s", "1", "--seconds", str(seconds), "--gateway-pid", str(responder.pid)]
        reached = _run_load(load)
        return reached.records / reached.seconds
    finally:
        responder.kill()
        responder.wait()


def _run_load(arguments: list[str]) -> Load:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.ingest.mqtt_load", *arguments],
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
