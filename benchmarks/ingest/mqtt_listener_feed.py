"""The MQTT listener under load: the number of sensors of a small fleet, at full load and at half of that rate."""

from __future__ import annotations

from rich.console import Console

from benchmarks.ingest.http_feed import records_in_topic
from benchmarks.ingest.load import ceiling, full_and_half, require_complete
from benchmarks.ingest.results import Goal, Measured
from benchmarks.ingest.work import KEYED_STREAM, STREAM, mqtt_topic
from strandline.services.embedded.stack import Stack
from strandline.services.processes.pids import PidFile

CONNECTIONS = 200
_LOAD, _RESPONDER = "benchmarks.ingest.mqtt_load", "benchmarks.ingest.mqtt_responder"
_GOAL = Goal(records_a_second=10_000, latency_p99_s=0.100)
CASES = (
    (f"MQTT listener, QoS 1, {CONNECTIONS} sensors", STREAM),
    (f"MQTT listener, QoS 1, {CONNECTIONS} sensors, keyed", KEYED_STREAM),
)


def measure(stack: Stack, seconds: float, console: Console) -> list[Measured]:
    """Measure at full and at half load. Raises RuntimeError if an acknowledged record is not in the topic."""
    stack.start_gateway("mqtt-listener")
    pids = PidFile(stack.data_dir).all()
    gateway = ["--port", str(stack.ports.gateways["mqtt_listener_port"])]
    gateway += ["--gateway-pid", str(pids["gateway-mqtt-listener"]), "--kafka-pid", str(pids["kafka"])]
    found: list[Measured] = []
    for name, stream in CASES:
        load = ["--topic", mqtt_topic(stream), "--connections", str(CONNECTIONS), "--seconds", str(seconds)]
        reachable = ceiling(_RESPONDER, [], _LOAD, load)
        before = records_in_topic(stack.addresses.kafka_bootstrap, stream)
        full, half = full_and_half(_LOAD, [*load, *gateway])
        logged = records_in_topic(stack.addresses.kafka_bootstrap, stream) - before
        require_complete(name, (full, half), logged)
        found.append(Measured.of(name, full, half, reachable, _GOAL))
        console.print(found[-1].summary())
    return found
