"""A real Telegraf sends through its outputs for InfluxDB 2 and for MQTT, with nothing of ours in between."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from strandline.core.streams.stream import StreamSpec
from strandline.processing.formats.record_rows import RowReader, record_format
from tests.support.gateways import GatewayProcess
from tests.support.ports import free_port
from tests.support.waiting import stretched, wait_until

TELEGRAF = shutil.which("telegraf")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(TELEGRAF is None, reason="no telegraf on the PATH; docs/testing.md says how to get one"),
]
LINES = 500
WEATHER = {
    "format": "influx",
    "schema": {
        "measurement": "string",
        "site": "string",
        "celsius": "double",
        "n": "long",
        "time": {"type": "timestamp", "unit": "ns"},
    },
}
AGENT = '[agent]\n  omit_hostname = true\n  metric_batch_size = 100\n  precision = "1ns"\n'


def run_telegraf(directory: Path, output: str) -> None:
    """Have Telegraf read LINES lines once, and send them."""
    lines = directory / "weather.lp"
    at_ns = 1_764_000_000_000_000_000
    lines.write_text("".join(f"weather,site=lundy celsius={n}.5,n={n}i {at_ns + n}\n" for n in range(LINES)))
    config = directory / "telegraf.conf"
    source = f'[[inputs.file]]\n  files = ["{lines}"]\n  data_format = "influx"\n'
    config.write_text(AGENT + source + output)
    assert TELEGRAF is not None
    done = subprocess.run(
        [TELEGRAF, "--config", config, "--once"], capture_output=True, text=True, timeout=stretched(60), check=False
    )
    assert done.returncode == 0, done.stderr
    assert " E! " not in done.stderr


def rows_of(values: list[bytes]) -> list[dict[str, object]]:
    reader = RowReader(record_format(StreamSpec.from_document({"stream": "s", **WEATHER})))
    return [json.loads(text) for part in reader.parts(values, [None] * len(values)) for text in part.texts]


def check(gateway: GatewayProcess, stream: str) -> None:
    wait_until(lambda: gateway.counts(stream)["confirmed"] >= LINES, describe=gateway.log_file.read_text)
    rows = rows_of([record.value for record in gateway.read(stream)])
    assert sorted(row["n"] for row in rows) == list(range(LINES))
    assert {row["site"] for row in rows} == {"lundy"}
    assert all(row["time"] == 1_764_000_000_000_000_000 + row["n"] and row["celsius"] == row["n"] + 0.5 for row in rows)


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_lines_for_influxdb_are_in_the_log(kafka: str, tmp_path: Path, encoding: str) -> None:
    gateway = GatewayProcess("http", kafka, tmp_path)
    try:
        stream = gateway.register(is_open=False, **WEATHER)
        output = (
            f'[[outputs.influxdb_v2]]\n  urls = ["http://127.0.0.1:{gateway.health_port}"]\n'
            f'  token = "any"\n  organization = "any"\n'
            f'  bucket = "{stream}"\n  content_encoding = "{encoding}"\n'
        )
        run_telegraf(tmp_path, output)
        check(gateway, stream)
    finally:
        gateway.close()


def test_lines_by_mqtt_are_in_the_log(kafka: str, tmp_path: Path) -> None:
    port = free_port()
    gateway = GatewayProcess("mqtt_listener", kafka, tmp_path, mqtt_listener_port=port)
    try:
        stream = gateway.register(is_open=False, **WEATHER, mqtt={"topics": ["telegraf/+"]})
        output = (
            f'[[outputs.mqtt]]\n  servers = ["tcp://127.0.0.1:{port}"]\n  topic = "telegraf/{{{{ .PluginName }}}}"\n'
            f'  qos = 1\n  protocol = "3.1.1"\n  data_format = "influx"\n'
        )
        run_telegraf(tmp_path, output)
        check(gateway, stream)
    finally:
        gateway.close()
