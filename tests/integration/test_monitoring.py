"""A real Prometheus asks real processes, and runs every query of the alerts and of the dashboard."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.gateways import GatewayProcess, Mosquitto
from tests.support.platform import Platform
from tests.support.ports import free_port
from tests.support.waiting import stretched, wait_until

PROMETHEUS = shutil.which("prometheus")
MONITORING = Path(__file__).parents[2] / "docker" / "monitoring"
DOCUMENTS = """
stream: watched
partitions: 1
schema: {device: string, ts: {type: timestamp, unit: ms}, load: double}
---
lookup: watched-devices
schema: {device: string, load: double}
key: device
source: {stream: watched}
---
pipeline: watched
input: {stream: watched}
event_time: {field: ts, delay: 1s, max_ahead: null, idle_timeout: null}
steps:
  - window: {name: seconds, tumbling: 1s, by: [device], aggregate: {n: count(*)}}
    emit: [{elasticsearch: watched-seconds}]
---
notice: watched
when: [job_failed]
to: [{webhook: {url: "http://127.0.0.1:1/"}}]
"""
BASE_MS = 1_793_491_200_000
NEVER_WITHOUT_TROUBLE = {"strandline_ingest_refused_total", "strandline_ingest_dropped_total"}
"""Counters by reason: there is none before there is one."""
pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed: its queries were NOT run")


def queries() -> dict[str, str]:
    """Return every query of the alerts and the dashboard, by purpose. Rates use a time for which the test can wait."""
    rules = [
        rule for group in yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"] for rule in group["rules"]
    ]
    panels = json.loads((MONITORING / "grafana" / "strandline.json").read_text())["panels"]
    found = {rule["alert"]: rule["expr"] for rule in rules}
    found |= {f"{panel['title']} {target['refId']}": target["expr"] for panel in panels for target in panel["targets"]}
    return {name: re.sub(r"\[(5m|\$__rate_interval)\]", "[6s]", expr) for name, expr in found.items()}


@contextlib.contextmanager
def gateways(kafka: str, directory: Path, broker: Mosquitto) -> Iterator[list[int]]:
    """A gateway of each protocol but HTTP; yields the ports of their pages."""
    started: list[GatewayProcess] = []
    settings: dict[str, dict[str, object]] = {
        "udp": {},
        "tcp": {},
        "mqtt": {"mqtt_url": broker.url},
        "mqtt_listener": {"mqtt_listener_port": free_port()},
    }
    try:
        for protocol, more in settings.items():
            (directory / protocol).mkdir()
            started.append(GatewayProcess(protocol, kafka, directory / protocol, **more))
        yield [one.health_port for one in started]
    finally:
        for one in started:
            one.close()


@contextlib.contextmanager
def prometheus(directory: Path, targets: dict[str, list[str]]) -> Iterator[httpx.Client]:
    """A Prometheus that asks these addresses every second, with the alerts as they are."""
    configuration = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    configuration["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    configuration["rule_files"] = [str(MONITORING / "alerts.yml")]
    for one in configuration["scrape_configs"]:
        one["static_configs"] = [{"targets": targets[one["job_name"]]}]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    port = free_port()
    command = [
        str(PROMETHEUS),
        f"--config.file={directory}/prometheus.yml",
        f"--storage.tsdb.path={directory}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
            yield client
    finally:
        process.terminate()
        process.wait(stretched(60))


def ask(client: httpx.Client, path: str, **query: str) -> Any:
    try:
        answer = client.get(path, params=query).json()
    except (httpx.TransportError, json.JSONDecodeError):
        return None  # it has not started yet
    assert answer["status"] == "success", answer
    return answer["data"]


@pytest.mark.guarantee("G197")
@pytest.mark.long
def test_every_query_finds_what_the_processes_expose(
    platform: Platform, kafka: str, tmp_path: Path, mosquitto: Mosquitto
) -> None:
    platform.apply(DOCUMENTS)
    lines = [b'{"device": "a", "ts": %d, "load": 1.0}' % (BASE_MS + n * 100) for n in range(100)]
    platform.send("watched", [*lines, b"not json"])
    platform.wait_until_read("watched")
    times = (BASE_MS + 20_000, BASE_MS - 100_000)
    platform.send("watched", [b'{"device": "a", "ts": %d, "load": 1.0}' % at for at in times])
    platform.wait_until_read("watched")  # the second slice has a watermark
    addresses = platform.stack.addresses
    with gateways(kafka, tmp_path, mosquitto) as pages:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM):  # so that the kernel counts datagrams
            targets = {
                "control": [addresses.api_url.removeprefix("http://")],
                "gateway": [addresses.ingest_url.removeprefix("http://"), *(f"127.0.0.1:{port}" for port in pages)],
            }
            with prometheus(tmp_path, targets) as client:

                def up() -> int:
                    found = ask(client, "/api/v1/query", query="sum(count_over_time(up[1m]) > 3 and up == 1)")
                    return len(found["result"]) and round(float(found["result"][0]["value"][1])) if found else 0

                wait_until(
                    up, lambda count: count >= 4 * len(targets["gateway"]), "scraped four times: all processes", 60
                )
                known = set(ask(client, "/api/v1/label/__name__/values"))
                for name, query in queries().items():
                    ask(client, "/api/v1/query", query=query)
                    named = set(re.findall(r"\bstrandline_\w+|\bup\b", query))
                    assert named
                    assert named - known <= NEVER_WITHOUT_TROUBLE, f"{name}: {query}"
                    for metric in named & known:
                        labels = set().union(*(one for one in ask(client, "/api/v1/series", **{"match[]": metric})))
                        used = set(re.findall(r"(\w+)\s*(?:=~?|!=)\s*\"", query)) | {
                            label.strip() for by in re.findall(r"\bby \(([^)]*)\)", query) for label in by.split(",")
                        }
                        assert used <= labels | {"reason", "le", "stream"}, f"{name}: {metric} has {sorted(labels)}"
                rejected = ask(
                    client, "/api/v1/query", query='strandline_job_rejected_records_total{exported_job="watched"}'
                )
                assert {one["metric"]["reason"]: one["value"][1] for one in rejected["result"]} == {
                    "decode": "1",
                    "late": "1",
                }
                firing = [
                    one["labels"]["alertname"]
                    for one in ask(client, "/api/v1/alerts")["alerts"]
                    if one["state"] == "firing"
                ]
                assert "StrandlineServiceDown" not in firing
