"""The doctor, and a stack that uses servers outside it, from the command line to real servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from strandline.ledger.ledger import Ledger
from strandline.services.processes.pids import PidFile
from tests.support.gateways import Mosquitto
from tests.support.messages import RegistryServer
from tests.support.ports import free_port, free_port_offset
from tests.support.servers import Stack
from tests.support.waiting import stretched

STRANDLINE = str(Path(sys.executable).parent / "strandline")
OWN = {"control", "gateway-http", "gateway-mqtt", "gateway-mqtt-listener", "gateway-udp", "gateway-tcp", "gateway-poll"}


def strandline(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {f"STRANDLINE_{name.upper()}": value for name, value in settings.items()}
    return subprocess.run(
        [STRANDLINE, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=stretched(180)
    )


def not_ok(ran: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Without what depends on this machine: room on its disks, open files, ports."""
    found = json.loads(ran.stdout)["findings"]
    return [
        one for one in found if one["state"] != "ok" and one["subject"] != "machine" and "watermark" not in str(one)
    ]


@pytest.mark.long
@pytest.mark.guarantee(
    "G345",
    "The doctor finds each server that doesn't respond, each refused right, a ledger of another release, and a "
    "machine without Java or disk space. Each finding has its remedy and no secret. The doctor ends by a deadline, "
    "with 1 only if something is wrong, leaves no object, and changes no row of the ledger.",
    promise="failures-are-reported-with-their-remedy",
)
@pytest.mark.timeout(300)
def test_a_deployment_in_which_all_is_well_and_each_server_that_is_gone(
    kafka: str,
    elasticsearch: str,
    mosquitto: Mosquitto,
    schema_registry: RegistryServer,
    postgresql_url: str,
    tmp_path: Path,
) -> None:
    ledger = f"sqlite:///{tmp_path}/ledger.sqlite"
    Ledger.migrate(ledger)
    settings = {
        "data_dir": str(tmp_path),
        "kafka_bootstrap": kafka,
        "elasticsearch_url": elasticsearch,
        "ledger_url": ledger,
        "mqtt_url": mosquitto.url,
        "schema_registry_url": schema_registry.url,
        "sql_sink_url": postgresql_url,
    }
    fine = strandline("doctor", "--json", **settings)
    assert not_ok(fine) == [], fine.stdout
    subjects = {one["subject"] for one in json.loads(fine.stdout)["findings"]}
    assert subjects == {"Kafka", "Elasticsearch", "ledger", "MQTT broker", "schema registry", "SQL sink", "machine"}
    topics = AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=30).topics
    assert not [topic for topic in topics if topic.startswith("strandline-doctor")]
    indices = httpx.get(f"{elasticsearch}/_cat/indices/strandline-doctor*?format=json", trust_env=False).json()
    assert indices == []

    away = f"127.0.0.1:{free_port()}"
    gone = settings | {
        "kafka_bootstrap": away,
        "elasticsearch_url": f"http://{away}",
        "ledger_url": f"postgresql+psycopg://me:planted@{away}/ledger",
        "mqtt_url": f"mqtt://{away}",
        "schema_registry_url": f"http://{away}",
        "sql_sink_url": f"postgresql+psycopg://me:planted@{away}/results",
    }
    sick = strandline("doctor", "--json", **gone)
    assert sick.returncode == 1
    assert sorted(one["subject"] for one in not_ok(sick)) == sorted(subjects - {"machine"}), "one finding for each"
    assert all(one["state"] == "wrong" and away in one["message"] and one["remedy"] for one in not_ok(sick))
    assert "planted" not in sick.stdout + sick.stderr


@pytest.mark.guarantee("G769")
@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_topic_whose_settings_became_unsafe_is_a_finding(kafka: str, elasticsearch: str, tmp_path: Path) -> None:
    """The stream was registered while its topic was safe. Another stream stays safe."""
    url, name = f"sqlite:///{tmp_path}/ledger.sqlite", f"unsafe-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": kafka})
    ledger = Ledger.open(url)
    for topic in (name, f"safe-{name}"):
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(stretched(30))
        ledger.put_stream(topic, {"stream": topic})
    ledger.close()
    settings = {
        "data_dir": str(tmp_path),
        "kafka_bootstrap": kafka,
        "elasticsearch_url": elasticsearch,
        "ledger_url": url,
    }
    assert not_ok(strandline("doctor", "--json", **settings)) == []
    unclean = ConfigEntry("unclean.leader.election.enable", "true", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[unclean])
    admin.incremental_alter_configs([resource])[resource].result(stretched(30))
    found = not_ok(strandline("doctor", "--json", **settings))
    assert [(one["subject"], one["state"]) for one in found] == [("Kafka", "warning")], found
    assert found[0]["message"].startswith(f"topic {name} has unclean.leader.election.enable=true")
    assert found[0]["remedy"] == f"set unclean.leader.election.enable=false on topic {name}"


@pytest.mark.guarantee("G346")
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_stack_uses_servers_that_are_there_and_leaves_them_alone(
    servers: Stack, kafka: str, elasticsearch: str, mosquitto: Mosquitto, tmp_path: Path
) -> None:
    directory, offset, mqtt = tmp_path / "stack", str(free_port_offset()), mosquitto.url
    yours = ["--kafka", kafka, "--elasticsearch", elasticsearch, "--mqtt", mqtt]
    place = ["--data-dir", str(directory)]
    up = ["up", "--detach", *place, "--port-offset", offset]

    refused = strandline(*up, "--elasticsearch", f"http://127.0.0.1:{free_port()}")
    assert refused.returncode == 1 and refused.stderr.startswith("Elasticsearch: "), refused.stderr
    assert "Nothing was started" in refused.stderr and PidFile(directory).all() == {}

    try:
        ran = strandline(*up, *yours, standbys="0")
        assert ran.returncode == 0, ran.stderr
        for address in (kafka, elasticsearch, mqtt):
            assert f"{address} (yours)" in ran.stdout
        assert set(PidFile(directory).alive()) == OWN | {"watcher"}
        again = strandline(*up, standbys="0")
        assert again.returncode == 0 and "nothing had to be repaired" in again.stdout, "it remembers its servers"
        other = strandline(*up, "--kafka", "embedded")
        assert f"it runs with your kafka at {kafka}, but its own kafka is requested" in other.stderr, other.stderr
        looked = strandline("doctor", "--json", *place)
        assert not_ok(looked) == [], looked.stdout
    finally:
        stopped = strandline("down", *place)
    assert stopped.returncode == 0, stopped.stderr
    assert PidFile(directory).all() == {}
    assert {"kafka", "elasticsearch"} <= set(PidFile(servers.data_dir).alive()) and mosquitto.is_listening()
    for name in ("kafka", "elasticsearch", "ledger.sqlite"):
        assert (directory / name).exists() == (name == "ledger.sqlite")
