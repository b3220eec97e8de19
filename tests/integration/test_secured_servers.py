"""Servers that ask for TLS and a login: each client gets in, says what was refused, and a job runs on all of them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import paho.mqtt.client as paho
import psutil
import pytest

from strandline.core.errors import StrandlineError
from strandline.core.settings import Settings
from strandline.ingest.mqtt.bridge_settings import MqttBridgeSettings, client_options
from strandline.ingest.mqtt.client import MqttClient
from strandline.ledger.ledger import Ledger
from strandline.log.admin import KafkaAdmin
from strandline.log.index import LogIndex
from strandline.log.messages import LogReader
from strandline.log.range_reader import RangeReader
from strandline.log.reader import OffsetRange
from strandline.log.transactions import fence_producer
from strandline.results.elasticsearch_client import request
from strandline.services.certificates import make_dev_certificates
from strandline.services.client import ControlClient
from strandline.services.doctor.elasticsearch import check_elasticsearch
from strandline.services.doctor.finding import State
from strandline.services.processes.child_process import Program, start, stop
from strandline.services.processes.pids import PidFile
from strandline.services.trust import ClientTls
from tests.support.ports import free_ports
from tests.support.secured import Secured, secured_elasticsearch
from tests.support.waiting import stretched, wait_until

TOPIC = "secured-records"


def use(secured: Secured, monkeypatch: pytest.MonkeyPatch, **changed: str | None) -> Settings:
    """Have this process use the servers."""
    for name, value in (secured.environment | {f"STRANDLINE_{key}": value for key, value in changed.items()}).items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    return Settings.read()


@pytest.mark.long
@pytest.mark.guarantee(
    "G341",
    "Every client of Kafka, Elasticsearch, and the ledger connects with the TLS and the login of its own process. A "
    "job with two windows, fed by HTTPS and MQTT over TLS, runs on servers that require both, and its audit is clean.",
    promise="secrets-and-connections-are-protected",
)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_every_client_of_kafka_logs_in(secured, mechanism, monkeypatch):
    writes_and_reads(use(secured, monkeypatch, KAFKA_SASL_MECHANISM=mechanism), f"{TOPIC}-{mechanism.lower()}")


def writes_and_reads(settings: Settings, topic: str) -> None:
    """Each client of both libraries does its work."""
    bootstrap = settings.kafka_bootstrap
    admin = KafkaAdmin(bootstrap, timeout_s=20, changes_topics=True)
    assert admin.create(topic, 1, 1, {"message.timestamp.type": "LogAppendTime"})
    producer = fence_producer(bootstrap, f"slot-{topic}", topic)
    producer.begin_transaction()
    producer.produce(topic, b"one")
    producer.commit_transaction(20)
    asked = OffsetRange(topic, 0, 0, 1)
    with closing(LogReader(bootstrap, 20)) as reader:
        assert [message.value() for messages in reader.read(asked) for message in messages] == [b"one"]
    with closing(RangeReader(bootstrap, 20)) as columns:
        assert [value for chunk in columns.read([asked]) for value in chunk.values] == [b"one"]
    with LogIndex(bootstrap) as index:
        assert index.checksums(topic, {0: 0}).keys() == {0}


@pytest.mark.guarantee("G421")
@pytest.mark.long
def test_kafka_takes_a_certificate_or_a_token_instead_of_a_password(secured, monkeypatch):
    """Every client of both libraries, by a certificate alone and by tokens of a provider; and what a wrong one comes to."""
    made, no_password = secured.certificates, {"KAFKA_PASSWORD_FILE": None, "KAFKA_USERNAME": None}
    proofs: dict[str, dict[str, str | None]] = {
        "certificate": {
            "KAFKA_BOOTSTRAP": secured.kafka.certificate,
            "KAFKA_SECURITY_PROTOCOL": "SSL",
            "KAFKA_CERTIFICATE_FILE": str(made.client),
            "KAFKA_KEY_FILE": str(made.client_key),
        },
        "token": {
            "KAFKA_BOOTSTRAP": secured.kafka.token,
            "KAFKA_SASL_MECHANISM": "OAUTHBEARER",
            "KAFKA_OAUTH_TOKEN_URL": secured.kafka.provider.token_url,
            "KAFKA_OAUTH_CLIENT_ID": "strandline",
            "KAFKA_OAUTH_CLIENT_SECRET_FILE": secured.environment["STRANDLINE_KAFKA_PASSWORD_FILE"],
            "KAFKA_OAUTH_SCOPE": "kafka",
        },
    }
    wrong: dict[str, tuple[dict[str, str | None], str]] = {
        "certificate": ({"KAFKA_CERTIFICATE_FILE": None, "KAFKA_KEY_FILE": None}, "STRANDLINE_KAFKA_CERTIFICATE_FILE"),
        "token": (
            {"KAFKA_OAUTH_CLIENT_SECRET_FILE": None, "KAFKA_OAUTH_CLIENT_SECRET": "wrong-one"},
            "STRANDLINE_KAFKA_OAUTH_CLIENT_SECRET",
        ),
    }
    for name, proof in proofs.items():
        with monkeypatch.context() as environment:
            writes_and_reads(use(secured, environment, **no_password, **proof), f"{TOPIC}-{name}")
        changed, said = wrong[name]
        for ask in (in_kafka, in_the_range_reader):
            with monkeypatch.context() as environment:
                settings = use(secured, environment, **(no_password | proof | changed))
                with pytest.raises(StrandlineError, match=said) as refused:
                    ask(settings)
                assert "wrong-one" not in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.guarantee("G421")
@pytest.mark.long
def test_elasticsearch_takes_an_api_key_and_asks_for_a_certificate(tmp_path, monkeypatch):
    """A node requires a certificate of every client.

    With one, and an API key that has the rights of docs/security.md, a template, an index and documents are made.
    Without either, one sentence says what is missing.
    """
    if shutil.which("javac") is None:
        pytest.skip("without a Java compiler the embedded Elasticsearch can make no API keys; install a JDK")
    made = make_dev_certificates(tmp_path / "certs")
    with secured_elasticsearch(tmp_path, made, "made-for-the-test", asks_certificates=True) as url:
        values = {"URL": url, "CA_FILE": made.ca, "CERTIFICATE_FILE": made.client, "KEY_FILE": made.client_key}
        for name, value in values.items():
            monkeypatch.setenv(f"STRANDLINE_ELASTICSEARCH_{name}", str(value))
        with monkeypatch.context() as as_user:
            as_user.setenv("STRANDLINE_ELASTICSEARCH_USERNAME", "strandline")
            as_user.setenv("STRANDLINE_ELASTICSEARCH_PASSWORD", "made-for-the-test")
            key = request(url, "POST", "/_security/api_key", timeout_s=30, body={"name": "results", "expiration": "1d"})
        monkeypatch.setenv("STRANDLINE_ELASTICSEARCH_API_KEY", key["encoded"])
        request(url, "PUT", "/turbine-keyed", timeout_s=30)
        request(url, "POST", "/turbine-keyed/_doc/1?refresh=true&op_type=create", timeout_s=30, body={"n": 1})
        found = request(url, "GET", "/turbine-keyed/_search", timeout_s=30)
        assert [hit["_source"] for hit in found["hits"]["hits"]] == [{"n": 1}]
        findings = [one for one in check_elasticsearch(Settings.read()) if one.state is State.WRONG]
        assert findings == []
        with monkeypatch.context() as without:
            without.setenv("STRANDLINE_ELASTICSEARCH_API_KEY", "d3Jvbmc6d3Jvbmc=")
            with pytest.raises(StrandlineError, match=r"401.*STRANDLINE_ELASTICSEARCH_API_KEY"):
                request(url, "GET", "/_cluster/health", timeout_s=10)
        with monkeypatch.context() as without:
            without.delenv("STRANDLINE_ELASTICSEARCH_CERTIFICATE_FILE")
            without.delenv("STRANDLINE_ELASTICSEARCH_KEY_FILE")
            with pytest.raises(StrandlineError, match="STRANDLINE_ELASTICSEARCH_CERTIFICATE_FILE") as refused:
                request(url, "GET", "/_cluster/health", timeout_s=10)
            assert key["encoded"] not in str(refused.value) and "\n" not in str(refused.value)


def in_kafka(settings: Settings) -> None:
    KafkaAdmin(settings.kafka_bootstrap, timeout_s=4).check()


def in_the_range_reader(settings: Settings) -> None:
    with closing(RangeReader(settings.kafka_bootstrap, 4)) as reader:
        list(reader.read([OffsetRange("any", 0, 0, 1)]))


def in_the_index(settings: Settings) -> None:
    request(settings.elasticsearch_url, "GET", "/_cluster/health", timeout_s=10)


def in_the_ledger(settings: Settings) -> None:
    Ledger.migrate(settings.ledger_url)


def in_mqtt(settings: Settings) -> None:
    async def connect() -> None:
        (await MqttClient.open(client_options(MqttBridgeSettings.read()), lambda *_: None)).close()

    asyncio.run(connect())


@pytest.mark.guarantee(
    "G342",
    "A refused login or certificate gives one error that names the settings to check. Secrets are in no message, log, "
    "metric, status, or process argument.",
    promise="secrets-and-connections-are-protected",
)
@pytest.mark.parametrize(
    ("ask", "changed", "said"),
    [
        (in_kafka, {"KAFKA_PASSWORD_FILE": None, "KAFKA_PASSWORD": "wrong-one"}, "refused the login.*KAFKA_PASSWORD"),
        (in_kafka, {"KAFKA_CA_FILE": None}, "STRANDLINE_KAFKA_CA_FILE"),
        (
            in_the_range_reader,
            {"KAFKA_PASSWORD_FILE": None, "KAFKA_PASSWORD": "wrong-one"},
            "refused the login.*KAFKA_PASSWORD",
        ),
        (in_the_range_reader, {"KAFKA_CA_FILE": None}, "STRANDLINE_KAFKA_CA_FILE"),
        (
            in_the_index,
            {"ELASTICSEARCH_PASSWORD_FILE": None, "ELASTICSEARCH_PASSWORD": "wrong-one"},
            "401.*STRANDLINE_ELASTICSEARCH_USERNAME",
        ),
        (
            in_the_index,
            {
                "ELASTICSEARCH_USERNAME": None,
                "ELASTICSEARCH_PASSWORD_FILE": None,
                "ELASTICSEARCH_API_KEY": "d3Jvbmctb25lOndyb25nLW9uZQ==",
            },
            "401.*STRANDLINE_ELASTICSEARCH_API_KEY",
        ),
        (in_the_index, {"ELASTICSEARCH_CA_FILE": None}, "STRANDLINE_ELASTICSEARCH_CA_FILE"),
        (
            in_mqtt,
            {"MQTT_PASSWORD_FILE": None, "MQTT_PASSWORD": "wrong-one"},
            "refused the connection.*STRANDLINE_MQTT_PASSWORD",
        ),
        (in_mqtt, {"MQTT_CA_FILE": None}, "STRANDLINE_MQTT_CA_FILE"),
        (
            in_the_ledger,
            {"LEDGER_PASSWORD_FILE": None, "LEDGER_PASSWORD": "wrong-one"},
            "authentication failed.*STRANDLINE_LEDGER_PASSWORD",
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else "-".join(value) if isinstance(value, dict) else "",
)
def test_what_is_refused_is_said_in_one_sentence_that_names_the_setting(
    secured, ask: Callable[[Settings], None], changed, said, monkeypatch
):
    settings = use(secured, monkeypatch, **changed)
    with pytest.raises(StrandlineError, match=said) as refused:
        ask(settings)
    assert "wrong-one" not in str(refused.value) and "\n" not in str(refused.value)
    assert not any(secret.text in str(refused.value) for secret in secured.planted)


STREAM = """\
stream: turbine-records
partitions: 2
schema: {turbine: string, ts: {type: timestamp, unit: ms}, power: double}
key: turbine
retention: 7d
mqtt: {topics: ["farm/+"]}
"""
PIPELINE = """\
pipeline: turbine-load
input: {stream: turbine-records}
event_time: {field: ts, delay: 10s}
steps:
  - window: {name: per_minute, tumbling: 1m, by: [turbine], aggregate: {n: count(*), peak: max(power)}}
    emit: [{elasticsearch: turbine-minute}, {stream: turbine-minutes}]
  - window: {name: per_hour, tumbling: 1h, by: [turbine], aggregate: {n: sum(n), peak: max(peak)}}
    emit: [{elasticsearch: turbine-hour}]
dead_letters: {index: true}
"""
HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
MINUTES = 60


@contextmanager
def running(
    name: str, module: str, url: str, directory: Path, environment: Mapping[str, str], context: ssl.SSLContext
) -> Iterator[None]:
    """A process of Strandline, from when it answers until the end of the block."""

    def answers() -> bool:
        try:
            return httpx.get(f"{url}/healthz", verify=context, timeout=5, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    program = Program(
        name=name,
        arguments=[sys.executable, "-m", module],
        log=directory / "logs" / f"{name}.log",
        is_ready=answers,
        environment={**os.environ, **environment},
    )
    pids = PidFile(directory)
    child = start(program, pids, lambda: None)
    try:
        yield
    finally:
        stop(name, child.pid, pids, timeout_s=30)
        child.is_alive()  # reaps it


def publish(secured: Secured, records: list[dict[str, Any]]) -> None:
    """Publish to the broker with QoS 1, each record again until a client has subscribed to it."""
    reasons: dict[int, str] = {}
    host, port = secured.environment["STRANDLINE_MQTT_URL"].removeprefix("mqtts://").split(":")
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.username_pw_set("strandline", secured.mqtt.text)
    client.tls_set(str(secured.certificates.ca))
    client.connect(host, int(port))
    client.on_publish = lambda _client, _data, number, reason, _properties: reasons.update({number: str(reason)})
    client.loop_start()

    def reason_of(record: dict[str, Any]) -> str:
        sent = client.publish("farm/a", json.dumps(record), qos=1)
        sent.wait_for_publish(stretched(30))
        return wait_until(lambda: reasons.get(sent.mid, ""), bool, "acknowledged")

    for record in records:
        wait_until(lambda record=record: reason_of(record), lambda reason: "No matching" not in reason, "subscribed to")
    client.loop_stop()
    client.disconnect()


@pytest.mark.guarantee("G341")
@pytest.mark.guarantee("G342")
@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_job_runs_on_servers_that_all_ask_for_tls_and_a_login(secured, tmp_path, monkeypatch):
    """Two windows over records that are sent by HTTPS and by MQTT over TLS.

    The results are right in the index and in a stream, and an audit finds no difference. No secret is in a log, a
    status, a metric or the arguments of a process.
    """
    settings = use(secured, monkeypatch)
    made = secured.certificates
    control_port, http_port, health_port = free_ports(3)
    environment = secured.environment | {
        "STRANDLINE_DATA_DIR": str(tmp_path / "data"),
        "STRANDLINE_STANDBYS": "0",
        "STRANDLINE_CONTROL_PORT": str(control_port),
        "STRANDLINE_CONTROL_TLS_CERTIFICATE": str(made.server),
        "STRANDLINE_CONTROL_TLS_KEY": str(made.server_key),
        "STRANDLINE_HTTP_PORT": str(http_port),
        "STRANDLINE_HTTP_TLS_CERTIFICATE": str(made.server),
        "STRANDLINE_HTTP_TLS_KEY": str(made.server_key),
        "STRANDLINE_HTTP_TLS_CLIENT_CA": str(made.ca),
        "STRANDLINE_MQTT_HEALTH_PORT": str(health_port),
    }
    trust = ClientTls(made.ca, made.client, made.client_key)
    context = trust.context()
    Ledger.migrate(settings.ledger_url)
    with (
        running(
            "control",
            "strandline.services.control",
            f"https://127.0.0.1:{control_port}",
            tmp_path,
            environment,
            context,
        ),
        running(
            "http", "strandline.ingest.http.gateway", f"https://127.0.0.1:{http_port}", tmp_path, environment, context
        ),
        running(
            "mqtt", "strandline.ingest.mqtt.bridge", f"http://127.0.0.1:{health_port}", tmp_path, environment, context
        ),
        ControlClient(f"https://127.0.0.1:{control_port}", trust=trust) as control,
        httpx.Client(base_url=f"https://127.0.0.1:{http_port}", verify=context, timeout=60, trust_env=False) as ingest,
    ):
        control.apply(f"{STREAM}---\n{PIPELINE}".encode(), "secured.yaml")
        control.order("turbine-load", "start")
        records = [
            {"turbine": turbine, "ts": START_MS + minute * 60_000, "power": float(minute)}
            for minute in range(MINUTES)
            for turbine in ("a", "b")
        ]
        by_mqtt, by_http = records[:20], records[20:]
        publish(secured, by_mqtt)
        body = b"\n".join(json.dumps(record).encode() for record in [*by_http, {"turbine": "a"}])
        wait_until(
            lambda: (
                ingest.post(
                    "/v1/streams/turbine-records/records",
                    content=body,
                    headers={"content-type": "application/x-ndjson"},
                ).status_code
            ),
            lambda status: status == 200,
            "taken",
        )
        wait_until(
            lambda: control.job("turbine-load"),
            lambda job: job["lag_records"] == 0 and job["slice"] is not None,
            "read",
            150,
        )
        control.order("turbine-load", "drain")
        control.wait_for_job("turbine-load", lambda job: job["state"] == "drained", "drained", 120)
        audit_said = []
        control.start_audit("turbine-load")
        report = control.wait_for_audit("turbine-load", audit_said.append)
        shown = [control.job("turbine-load"), report, audit_said, control.dead_letters("turbine-load")]
        pages = [
            ingest.get("/metrics").text,
            httpx.get(f"https://127.0.0.1:{control_port}/metrics", verify=context).text,
        ]
        arguments = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]

    assert report["outcome"] == "clean", report
    found = request(settings.elasticsearch_url, "GET", "/turbine-hour/_search", timeout_s=30)
    hours = {hit["_source"]["turbine"]: hit["_source"]["n"] for hit in found["hits"]["hits"]}
    assert hours == {"a": MINUTES, "b": MINUTES}
    logs = [path.read_text(errors="replace") for path in (tmp_path).rglob("*.log*")]
    assert any("control service" in log for log in logs), "the logs are looked at"
    for secret in secured.planted:
        for text in (*logs, *pages, *arguments, json.dumps(shown)):
            assert secret.text not in text
