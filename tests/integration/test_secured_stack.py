"""`doctor` and `up` on servers that all ask for TLS and a login, with a secret planted in every setting that may hold one."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import paho.mqtt.client as paho
import pytest
from confluent_kafka import Consumer, TopicPartition
from cryptography.hazmat.primitives import serialization

from strandline.access.rights import REST_OPERATIONS
from strandline.access.signing import sign
from strandline.access.tokens import digest_of, read_token
from strandline.core.settings import secret_names
from strandline.ingest.registry import own_gateways
from strandline.log.kafka_connection import consumer_settings, librdkafka
from strandline.services.embedded.addresses import Ports
from strandline.services.processes.pids import PidFile
from tests.integration.test_secured_servers import publish, use
from tests.support.messages import RegistryServer
from tests.support.planted import arguments_of_processes, files_below, leaks, new_secret, tables_of
from tests.support.ports import free_port, free_port_offset
from tests.support.secured import Secured
from tests.support.settings_classes import all_settings
from tests.support.tokens import secret_of
from tests.support.waiting import stretched, wait_until

STRANDLINE = str(Path(sys.executable).parent / "strandline")
STREAM = """\
stream: planted-records
schema: {{n: "long?", ts: {{type: timestamp, required: false}}}}
mqtt: {{topics: ["farm/+"]}}
udp: {{port: {udp}, hmac: {{}}}}
tcp: {{port: {tcp}, ack: true}}
poll:
  - {{url: "{url}/fine", every: 200ms, headers: {{Authorization: {{secret: VALUE}}, X-Api-Key: {{secret: FILE}}}}}}
  - {{url: "{url}/broken", every: 200ms, headers: {{Authorization: {{secret: VALUE}}}}}}
  - {{url: "{url}/missing", every: 200ms, headers: {{Authorization: {{secret: MISSING}}}}}}
---
stream: planted-lines
schema: {{m: "double?", ts: {{type: timestamp, required: false}}}}
format: influx
---
pipeline: turbine-planted
input: {{stream: planted-records}}
event_time: {{field: ts, else: log, delay: 1s}}
steps:
  - window: {{name: per_minute, tumbling: 1m, aggregate: {{n: count(*)}}}}
    emit: [{{elasticsearch: turbine-planted}}]
"""
MALFORMED = {
    "KAFKA_PROPERTIES": '{"client.rack": "%s"',
    "POLL_SECRETS": "%s",
    "LEDGER_URL": "postgresql+psycopg//me:%s@127.0.0.1/x",
    "ELASTICSEARCH_URL": "https://me:%s@127.0.0.1:none",
    "SQL_SINK_URL": "postgresql+psycopg//me:%s@127.0.0.1/x",
    "MQTT_URL": "mqtts://me:%s@127.0.0.1:none",
    "ELASTICSEARCH_API_KEY": "%s \x7f",
    "KAFKA_PASSWORD": "%s \x7f",
}


class Device:
    """A device that is polled: it remembers the headers of each request."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        device = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                device.asked.append({name.lower(): value for name, value in self.headers.items()})
                self.send_response(200 if self.path == "/fine" else 500)
                body = b'{"n": 1}'
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def wrong_findings(ran: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    found = json.loads(ran.stdout)["findings"]
    return [one for one in found if one["state"] == "wrong" and one["subject"] != "machine"]


def messages_of(bootstrap: str, topics: list[str]) -> Iterator[tuple[str, bytes]]:
    """Keys, values and headers of all records of the topics."""
    consumer = Consumer(librdkafka(bootstrap, {**consumer_settings("planted"), "enable.partition.eof": True}))
    for topic in topics:
        numbers = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
        left = len(numbers)
        while left:
            for message in consumer.consume(1_000, 1.0):
                if message.error() is not None:
                    left -= 1
                else:
                    yield f"a record of {topic}", repr((message.key(), message.value(), message.headers())).encode()
    consumer.close()


def mqtt_login(port: int, user: str, password: str) -> str:
    """Return the answer of the MQTT server to a login."""
    said: list[str] = []
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5, client_id="planted")
    client.username_pw_set(user, password)
    client.on_connect = lambda _client, _data, _flags, reason, _properties: said.append(str(reason))
    client.connect("127.0.0.1", port)
    client.loop_start()
    wait_until(lambda: said, bool, "answered")
    client.loop_stop()
    client.disconnect()
    return said[0]


class Deployment:
    """A stack on the secured servers: its environment, and all that it was heard to say."""

    def __init__(self, secured: Secured, directory: Path, registry_url: str, device: Device) -> None:
        self.secured, self.device = secured, device
        self.meant, self.data = directory / "meant", directory / "stack"
        self.place = ["--data-dir", str(self.data)]
        self.offset = free_port_offset()
        self.ports = Ports.moved(self.offset)
        self.udp, self.tcp = free_port(), free_port()
        self.seen: list[tuple[str, bytes]] = []
        self.planted = plant(secured)
        self.given: list[tuple[str, bytes]] = []
        """What processes were given."""
        self.environment = self._environment(registry_url)

    def _environment(self, registry_url: str) -> dict[str, str]:
        made, meant, planted = self.secured.certificates, self.meant, self.planted
        (meant / "poll").mkdir(parents=True)
        for name, text in {
            "registry": planted["registry_password"],
            "poll/FILE": planted["poll_file"],
            "properties": json.dumps({"client.rack": planted["kafka_properties"]}),
            "sources": json.dumps({"crm": self.with_login("sql_sources")}),
        }.items():
            (meant / name).write_text(text)
        key = serialization.load_pem_private_key(made.client_key.read_bytes(), None)
        locked = serialization.BestAvailableEncryption(planted["kafka_key_password"].encode())
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        (meant / "client-key.pem").write_bytes(key.private_bytes(pem, form, locked))
        values = {
            "DATA_DIR": meant / "no-stack",
            "AUTH": "tokens",
            "STANDBYS": 0,
            "TOKENS_REFRESH_S": 0.3,
            "STREAMS_REFRESH_S": 0.3,
            "KAFKA_CERTIFICATE_FILE": made.client,
            "KAFKA_KEY_FILE": meant / "client-key.pem",
            "KAFKA_KEY_PASSWORD": planted["kafka_key_password"],
            "KAFKA_PROPERTIES_FILE": meant / "properties",
            "SQL_SOURCES_FILE": meant / "sources",
            "SCHEMA_REGISTRY_URL": registry_url,
            "SCHEMA_REGISTRY_USER": "strandline",
            "SCHEMA_REGISTRY_PASSWORD_FILE": meant / "registry",
            "POLL_HOSTS": '["127.0.0.0/8"]',
            "POLL_SECRETS": json.dumps({"VALUE": planted["poll_secrets"]}),
            "POLL_SECRETS_DIR": meant / "poll",
            "POLL_SECRET_HOSTS": json.dumps({name: ["127.0.0.1"] for name in ("VALUE", "FILE", "MISSING")}),
        }
        found = {**os.environ, **self.secured.environment} | {f"STRANDLINE_{k}": str(v) for k, v in values.items()}
        del found["STRANDLINE_KAFKA_PROPERTIES"]
        return found

    def run(
        self, *arguments: str, module: str = "", is_kept: bool = True, **changed: str | None
    ) -> subprocess.CompletedProcess[str]:
        """Run a verb, or a module that ends by itself. `changed`: settings that are otherwise, or not set."""
        environment = self.environment | {f"STRANDLINE_{name}": value or "" for name, value in changed.items()}
        for name in [name for name, value in changed.items() if value is None]:
            del environment[f"STRANDLINE_{name}"]
        self.given += [(name, value.encode()) for name, value in environment.items() if name.startswith("STRANDLINE_")]
        command = [sys.executable, "-m", module] if module else [STRANDLINE, *arguments]
        ran = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=stretched(240)
        )
        if is_kept:
            self.seen.append((f"what {module or arguments} said", (ran.stdout + ran.stderr).encode()))
        return ran

    def with_login(self, name: str) -> str:
        """The database's URL with a password, which is wrong: that of the setting."""
        scheme, _, rest = self.secured.environment["STRANDLINE_LEDGER_URL"].partition("://")
        return f"{scheme}://strandline:{quote(self.planted[name], safe='')}@{rest.rpartition('@')[2]}"

    def token(self, name: str, *rights: str) -> str:
        """A new token; its secret and its key are planted, too."""
        made = self.run("token", "create", name, *rights, *self.place, is_kept=False)
        text = made.stdout.strip()
        credential = read_token(text.encode())
        assert credential is not None, made.stderr
        self.planted |= {f"token {name}": credential.secret.decode(), f"key of {name}": digest_of(credential.secret)}
        return text


def plant(secured: Secured) -> dict[str, str]:
    """Return a secret for each setting that can hold one, and some more. The secured servers know four of them."""
    names = {name for kind in all_settings() for name in secret_names(kind)}
    others = ("registry_password", "poll_file", "wrong_token", "wrong_password", "basic", "influx_password")
    planted = {name: new_secret(name) for name in sorted([*names, *others])}
    for secret in secured.planted:
        name = secret.file.name.replace("index", "elasticsearch").replace("-", "_")
        assert name in planted, f"{name} is a setting"
        planted[name] = secret.text
    return planted


@pytest.mark.guarantee("G422")
@pytest.mark.long
@pytest.mark.timeout(500)
def test_a_secret_planted_in_every_setting_is_found_nowhere(
    secured: Secured, schema_registry: RegistryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret that is planted in any setting is found nowhere.

    1. Plant: every setting that can hold a secret has a different one. Also tokens, keys and passwords.

    2. The doctor finds the secured servers well, except the source of lookups, whose password is wrong. A stack starts.

    3. Everything is used, rightly and wrongly. A job runs.

    4. Wrong and malformed secrets are refused, each in a sentence that names its setting.

    5. Search all that was printed and written: logs, states, metrics, answers, arguments, the ledger, records in Kafka.
    """
    device = Device()
    stack = Deployment(secured, tmp_path, schema_registry.url, device)
    try:
        assert stack.run(module="strandline.services.setup").returncode == 0
        well = stack.run("doctor", "--json")
        assert [one["subject"] for one in wrong_findings(well)] == ["SQL sources"], well.stdout
        sink = stack.with_login("sql_sink_url")
        up = stack.run("up", "--detach", *stack.place, "--port-offset", str(stack.offset), SQL_SINK_URL=sink)
        assert up.returncode == 0, up.stderr
        assert up.stdout.count("(yours)") == 4, up.stdout
        well = stack.run("doctor", "--json", *stack.place)
        assert [one["subject"] for one in wrong_findings(well)] == ["SQL sources"], well.stdout
        use_everything(stack)
        use_what_is_wrong(stack)
    finally:
        down = stack.run("down", *stack.place)
        device.close()
    assert down.returncode == 0 and PidFile(stack.data).all() == {}, down.stderr

    settings = use(secured, monkeypatch)
    password = quote(stack.planted["ledger_password"], safe="")
    stack.seen += messages_of(settings.kafka_bootstrap, ["planted-records", "planted-lines"])
    ledger = settings.ledger_url.replace("strandline@", f"strandline:{password}@")
    stack.seen += tables_of(ledger, meant=["tokens.digest"])
    stack.seen += files_below(tmp_path, [*stack.meant.rglob("*"), stack.data / "admin.token"])
    places = " ".join(place for place, _ in stack.seen)
    for expected in (
        "control.log",
        "runner-turbine-planted",
        "stack.json",
        "table tokens",
        "a record of planted-lines",
    ):
        assert expected in places, f"{expected} was looked at"
    in_files = [(str(secret.file), secret.file.read_bytes()) for secret in secured.planted]
    found = leaks(stack.planted, [*stack.given, *in_files, *files_below(stack.meant, [])])
    settings_planted = {name for kind in all_settings() for name in secret_names(kind)}
    assert settings_planted <= {one.partition(" in ")[0] for one in found}, "every secret was given to some process"
    assert leaks(stack.planted, stack.seen) == []


def use_everything(stack: Deployment) -> None:
    """Use each gateway, with the right secret and with a wrong one; then all that the stack shows of itself."""
    planted, ports = stack.planted, stack.ports
    admin = (stack.data / "admin.token").read_text().strip()
    planted["local-admin"] = secret_of(admin)
    sensor = stack.token("sensor", "--write", "planted-records", "--write", "planted-lines")
    as_admin, as_sensor = ({"Authorization": f"Bearer {one}"} for one in (admin, sensor))
    strangers = [{"Authorization": f"Bearer {planted['wrong_token']}"}, httpx.Headers()]
    control = httpx.Client(base_url=f"http://127.0.0.1:{ports.control}", timeout=60, trust_env=False)
    http = httpx.Client(base_url=f"http://127.0.0.1:{ports.gateways['http_port']}", timeout=60, trust_env=False)

    def ask(client: httpx.Client, method: str, path: str, headers: Mapping[str, str], **more: Any) -> int:
        answer = client.request(method, path, headers=headers, **more)
        stack.seen.append((f"the answer to {method} {path}", str(answer.headers).encode() + answer.content))
        return answer.status_code

    documents = STREAM.format(udp=stack.udp - stack.offset, tcp=stack.tcp - stack.offset, url=stack.device.url)
    yaml = {"Content-Type": "application/yaml"}
    assert ask(control, "POST", "/v1/documents", {**as_admin, **yaml}, content=documents) == 200, stack.seen[-1]
    assert ask(control, "POST", "/v1/jobs/turbine-planted/start", as_admin) in (200, 202)

    plain, records = {"Content-Type": "application/json"}, "/v1/streams/planted-records/records"
    influx = f"/write?db=planted-lines&u=me&p={quote(planted['influx_password'], safe='')}"

    def taken(path: str, content: bytes) -> int:
        return ask(http, "POST", path, {**as_sensor, **plain}, content=content)

    wait_until(lambda: taken(records, b'{"n":1}'), lambda status: status == 200, "taken")
    wait_until(lambda: taken(influx, b"m v=1"), lambda status: status == 204, "taken")
    for stranger in strangers:
        assert ask(http, "POST", records, {**stranger, **plain}, content=b"{}") == 401
        assert ask(http, "POST", influx, {**stranger, **plain}, content=b"m v=1") == 401
    assert http.post(records, auth=("me", planted["basic"]), json={}).status_code == 401

    credential = read_token(sensor.encode())
    assert credential is not None
    key = bytes.fromhex(digest_of(credential.secret))

    def signed(with_key: bytes) -> bytes:
        now_us = time.time_ns() // 1_000
        token_id = credential.token_id
        return sign(b'{"n":2}', stream="planted-records", token_id=token_id, key=with_key, counter=now_us)

    def metric(port: int, name: str, **labels: str) -> float:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", headers=as_admin, trust_env=False).text
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        lines = [line for line in text.splitlines() if line.startswith(name) and all(one in line for one in wanted)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    pages = ports.gateways["udp_health_port"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:

        def confirmed() -> float:
            for datagram in (signed(key), signed(b"\0" * 32), planted["wrong_token"].encode()):
                one.sendto(datagram, ("127.0.0.1", stack.udp))
            return metric(pages, "strandline_ingest_confirmed_total", stream="planted-records")

        wait_until(confirmed, bool, "confirmed")
    assert metric(pages, "strandline_ingest_refused_total", reason="wrong_signature")

    with socket.create_connection(("127.0.0.1", stack.tcp), 30) as line:
        line.sendall(b'{"n":3}\n')
        assert line.recv(100) == b"ok 1\n"
    with socket.create_connection(("127.0.0.1", stack.tcp), 30) as browser:
        browser.sendall(f"POST / HTTP/1.1\r\nAuthorization: Bearer {planted['wrong_token']}\r\n\r\n".encode())
        assert browser.recv(100).startswith(b"error http")

    publish(stack.secured, [{"n": 4}])
    assert mqtt_login(ports.gateways["mqtt_listener_port"], "sensor", sensor) == "Success"
    assert mqtt_login(ports.gateways["mqtt_listener_port"], "sensor", planted["wrong_password"]) != "Success"
    wait_until(
        lambda: {(one.get("authorization"), one.get("x-api-key")) for one in stack.device.asked},
        lambda asked: (planted["poll_secrets"], planted["poll_file"]) in asked,
        "asked with both secrets",
    )
    wait_until(
        lambda: control.get("/v1/jobs/turbine-planted", headers=as_admin).json(),
        lambda job: job["state"] == "running" and job["slice"] is not None,
        "running",
        150,
    )
    for name in REST_OPERATIONS:
        method, _, template = name.partition(" ")
        path = re.sub(r"{alias}|{name}", "turbine-planted", template)
        if method == "GET" and "{" not in path:
            for headers in (as_admin, *strangers):
                ask(control, "GET", path, headers)
    for port in (ports.gateways[gateway.health_port.setting] for gateway in own_gateways().values()):
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            for headers in (as_admin, *strangers):
                ask(client, "GET", "/metrics", headers)
    assert ask(control, "GET", "/metrics", as_admin) == 200
    for verb in (
        ["job", "status"],
        ["job", "events"],
        ["token", "list", "--json"],
        ["stream", "show", "planted-records"],
    ):
        stack.run(*verb, *stack.place)
    stack.run("token", "list", "--url", str(control.base_url), TOKEN=planted["wrong_token"])
    assert len(PidFile(stack.data).alive()) >= 8
    stack.seen += arguments_of_processes()
    control.close()
    http.close()


def use_what_is_wrong(stack: Deployment) -> None:
    """Every client with a wrong secret, and every setting with a text that can't be one."""
    planted = stack.planted
    in_files = {f"{name}_PASSWORD_FILE": None for name in ("KAFKA", "ELASTICSEARCH", "LEDGER", "MQTT")}
    no_user = in_files | {"ELASTICSEARCH_USERNAME": None}
    scheme, _, place = stack.environment["STRANDLINE_ELASTICSEARCH_URL"].partition("://")
    broker = stack.environment["STRANDLINE_MQTT_URL"].partition("://")[2]

    def login(name: str) -> str:
        return f"strandline:{quote(planted[name], safe='')}@"

    wrong = {"KAFKA_PASSWORD": planted["wrong_password"], "SQL_SINK_URL": stack.with_login("sql_sink_url")}
    sick = stack.run(
        "doctor", "--json", **no_user, **wrong, MQTT_PASSWORD=planted["wrong_password"],
        ELASTICSEARCH_API_KEY=planted["elasticsearch_api_key"], LEDGER_URL=stack.with_login("ledger_url"),
    )  # fmt: skip
    said = wrong_findings(sick)
    subjects = {"Kafka", "Elasticsearch", "ledger", "MQTT broker", "SQL sink", "SQL sources"}
    assert {one["subject"] for one in said} == subjects, said
    assert all("STRANDLINE_" in one["message"] + one["remedy"] for one in said), said
    sick = stack.run(
        "doctor", "--json", **no_user, MQTT_URL=f"mqtts://{login('wrong_password')}{broker}",
        KAFKA_PASSWORD=planted["wrong_password"], ELASTICSEARCH_URL=f"{scheme}://{login('elasticsearch_url')}{place}",
        LEDGER_PASSWORD=planted["wrong_password"], KAFKA_KEY_PASSWORD=planted["wrong_password"],
    )  # fmt: skip
    assert len(wrong_findings(sick)) >= 4
    oauth = {"KAFKA_SASL_MECHANISM": "OAUTHBEARER", "KAFKA_OAUTH_CLIENT_ID": "strandline", "KAFKA_USERNAME": None}
    sick = stack.run(
        "doctor", "--json", **oauth, KAFKA_PASSWORD_FILE=None, KAFKA_BOOTSTRAP=stack.secured.kafka.token,
        KAFKA_OAUTH_TOKEN_URL=stack.secured.kafka.provider.token_url,
        KAFKA_OAUTH_CLIENT_SECRET=planted["kafka_oauth_client_secret"],
    )  # fmt: skip
    assert "STRANDLINE_KAFKA_OAUTH_CLIENT_SECRET" in str(wrong_findings(sick)), sick.stdout
    for name, text in MALFORMED.items():
        changed: dict[str, str | None] = {name: text % planted["wrong_password"]}
        if f"STRANDLINE_{name}_FILE" in stack.environment:
            changed[f"{name}_FILE"] = None
        module = "strandline.ingest.poll.gateway" if name == "POLL_SECRETS" else ""
        ended = stack.run("doctor", "--json", module=module, **changed)
        assert ended.returncode == 1, (name, ended.stdout)
    for module in ("control", "ingest.http.gateway", "ingest.udp.gateway", "ingest.poll.gateway"):
        name = f"strandline.{module}" if "." in module else f"strandline.services.{module}"
        ended = stack.run(module=name, LEDGER_PASSWORD_FILE=None, LEDGER_PASSWORD=planted["wrong_password"])
        assert ended.returncode == 1 and "STRANDLINE_LEDGER_PASSWORD" in ended.stderr, ended.stderr
