"""The MQTT bridge with a Mosquitto: records per second that are in the log and acknowledged to the broker.

Latency is the gateway's metric: from reading a message to its PUBACK. Without Mosquitto on the machine, there is no row.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.ingest.gateway_pages import Page, is_answering, wait_until
from benchmarks.ingest.http_feed import records_in_topic
from benchmarks.ingest.load import WARM_UP_S, Load
from benchmarks.ingest.results import Goal, Measured
from benchmarks.ingest.work import STREAM, mqtt_topic
from benchmarks.process_tree import machine_cpu_s, tree_cpu_s
from strandline.services.embedded.addresses import settings_environment
from strandline.services.embedded.preflight import is_free
from strandline.services.embedded.stack import Stack
from strandline.services.processes.pids import PidFile

CONNECTIONS = 50
_ROOT = Path(__file__).parents[2]
_GOAL = Goal(records_a_second=15_000, latency_p99_s=0.100)
_MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def measure(stack: Stack, seconds: float, console: Console) -> list[Measured]:
    """Measure at full and at half load. Raises RuntimeError if a record that the broker accepted is not in the topic."""
    if _MOSQUITTO is None:
        console.print("MQTT from a broker is not measured: mosquitto is not installed")
        return []
    with _broker(stack.data_dir) as (broker, port):
        ceiling = _load(port, "nobody/reads/this", min(seconds, 5.0), os.getpid())
        with _gateway(stack, port) as gateway:
            kafka_pid, pages = PidFile(stack.data_dir).all()["kafka"], stack.ports.gateways["mqtt_health_port"]
            before = records_in_topic(stack.addresses.kafka_bootstrap, STREAM)
            full, sent_full = _run(port, pages, seconds, broker, gateway, kafka_pid, 0.0)
            half, sent_half = _run(port, pages, seconds, broker, gateway, kafka_pid, full["records_a_second"] / 2)
            logged = records_in_topic(stack.addresses.kafka_bootstrap, STREAM) - before
            redelivered = Page.read(pages).value("refused_total", stream=STREAM)
            if logged < sent_full + sent_half or (logged > sent_full + sent_half and not redelivered):
                raise RuntimeError(
                    f"MQTT: the broker accepted {sent_full + sent_half} messages, {logged} are in the topic"
                )
    measured = Measured(
        name=f"MQTT from a broker, QoS 1, {CONNECTIONS} sensors",
        records_a_second=full["records_a_second"],
        cpu_s_per_million=full["gateway_cpu_s_per_million"],
        kafka_cpu_s_per_million=full["kafka_cpu_s_per_million"],
        latency_p50_s=half["latency_p50_s"],
        latency_p99_s=half["latency_p99_s"],
        load_ceiling=ceiling.records / ceiling.seconds,
        other_cores=full["other_cores"],
        goal=_GOAL,
        sent=sent_full,
    )
    console.print(measured.summary())
    return [measured]


def _run(
    port: int, pages: int, seconds: float, broker: int, gateway: int, kafka: int, rate: float
) -> tuple[dict[str, float], int]:
    """Return the gateway's figures during the load, and the number of messages that the broker accepted."""
    confirmed_before = Page.read(pages).value("confirmed_total", stream=STREAM)
    load = _start_load(port, mqtt_topic(STREAM), seconds, gateway, rate)
    wait_until(
        lambda: Page.read(pages).value("confirmed_total", stream=STREAM) > confirmed_before,
        "the first message is in the log",
    )
    time.sleep(WARM_UP_S / 2)
    own = (gateway, kafka, load.pid, broker)
    first, first_s, costs = Page.read(pages), time.perf_counter(), [tree_cpu_s(pid) for pid in own]
    machine_s = machine_cpu_s()
    time.sleep(seconds)
    last, passed_s = Page.read(pages), time.perf_counter() - first_s
    spent = [tree_cpu_s(pid) - before for pid, before in zip(own, costs, strict=True)]
    other_s = max(0.0, machine_cpu_s() - machine_s - sum(spent))
    sent = _end_load(load).records_whole_run
    wait_until(
        lambda: Page.read(pages).value("confirmed_total", stream=STREAM) - confirmed_before >= sent,
        "every message is in the log",
    )
    records = last.value("confirmed_total", stream=STREAM) - first.value("confirmed_total", stream=STREAM)
    return {
        "records_a_second": records / passed_s,
        "gateway_cpu_s_per_million": spent[0] / records * 1e6,
        "kafka_cpu_s_per_million": spent[1] / records * 1e6,
        "other_cores": other_s / passed_s,
        "latency_p50_s": last.latency_s(first, STREAM, 0.50),
        "latency_p99_s": last.latency_s(first, STREAM, 0.99),
    }, sent


@contextmanager
def _broker(directory: Path) -> Iterator[tuple[int, int]]:
    port = next(port for port in range(23_100, 32_000) if is_free(port))
    configuration = directory / "mosquitto.conf"
    configuration.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\nset_tcp_nodelay true\n"
    )
    with (directory / "mosquitto.log").open("wb") as log:
        process = subprocess.Popen([str(_MOSQUITTO), "-c", str(configuration)], stdout=log, stderr=log)
    try:
        wait_until(lambda: not is_free(port), "mosquitto listens")
        yield process.pid, port
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _gateway(stack: Stack, port: int) -> Iterator[int]:
    pages = stack.ports.gateways["mqtt_health_port"]
    own = {"STRANDLINE_MQTT_URL": f"mqtt://127.0.0.1:{port}", "STRANDLINE_MQTT_HEALTH_PORT": str(pages)}
    with (stack.data_dir / "logs" / "gateway-mqtt.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "strandline.ingest.mqtt.bridge"],
            env=settings_environment(stack.settings) | own, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_until(lambda: is_answering(pages), "the MQTT bridge responds")
        wait_until(lambda: Page.read(pages).value("open", stream=STREAM) == 1, "the topics are subscribed")
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def _load(port: int, topic: str, seconds: float, gateway: int) -> Load:
    return _end_load(_start_load(port, topic, seconds, gateway, 0.0))


def _start_load(port: int, topic: str, seconds: float, gateway: int, rate: float) -> subprocess.Popen[str]:
    arguments: list[Any] = ["--port", port, "--topic", topic, "--connections", CONNECTIONS, "--rate", rate]
    arguments += ["--warm-up-s", WARM_UP_S, "--seconds", seconds, "--gateway-pid", gateway]
    command = [sys.executable, "-m", "benchmarks.ingest.mqtt_load", *map(str, arguments)]
    return subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)


def _end_load(load: subprocess.Popen[str]) -> Load:
    output, _ = load.communicate(timeout=300)
    if load.returncode != 0:
        raise RuntimeError(f"the load ended with {load.returncode}")
    return Load(**json.loads(output))
