"""External servers with security on: Kafka, Elasticsearch, PostgreSQL, and Mosquitto require TLS and a login."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import pwd
import secrets
import shutil
import ssl
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import httpx
import psycopg
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from strandline.core.settings import Settings
from strandline.services.certificates import DevCertificates, make_dev_certificates
from strandline.services.embedded.artifacts import ELASTICSEARCH, find_java, provide
from strandline.services.embedded.elasticsearch_server import elasticsearch_program
from strandline.services.processes.child_process import start, stop
from strandline.services.processes.pids import PidFile
from tests.support import postgresql
from tests.support.faults.kafka_cluster import KafkaCluster
from tests.support.faults.mosquitto import Mosquitto
from tests.support.gateways import MOSQUITTO
from tests.support.oidc_provider import Provider
from tests.support.ports import free_ports
from tests.support.waiting import stretched, wait_until

_FILTERS = Path(__file__).parent / "index_filters" / "IndexFilters.java"
_SECURITY = """\
xpack.security.enabled: true
xpack.security.autoconfiguration.enabled: false
xpack.security.http.ssl.enabled: true
xpack.security.http.ssl.key: server-key.pem
xpack.security.http.ssl.certificate: server.pem
xpack.security.http.ssl.certificate_authorities: ca.pem
xpack.security.authc.api_key.enabled: true
xpack.security.transport.ssl.enabled: false
xpack.license.self_generated.type: basic
"""
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_ROLE = """\
strandline:
  cluster: [monitor, manage_index_templates, manage_own_api_key]
  indices:
    - names: ["turbine-*", "*.dead-letters"]
      privileges: [create_doc, read, create_index, manage]
"""


@dataclass(frozen=True)
class Secret:
    """A planted secret and the file that holds it."""

    text: str
    file: Path

    @classmethod
    def new(cls, directory: Path, name: str, text: str | None = None) -> Secret:
        secret = cls(text or f"planted-{name}-{secrets.token_hex(8)}", directory / name)
        secret.file.write_text(f"{secret.text}\n")
        return secret


class SecuredKafka(NamedTuple):
    """The addresses of a broker, by how clients prove who they are there; all are TLS."""

    password: str
    """User `strandline`, by SCRAM and PLAIN."""
    certificate: str
    """A certificate of the authority."""
    token: str
    """A token of the provider."""
    provider: Provider
    """Client `strandline` has the same password there."""


@contextlib.contextmanager
def secured_kafka(directory: Path, certificates: DevCertificates, password: str) -> Iterator[SecuredKafka]:
    """A broker that takes clients by TLS and a proof of who they are alone."""
    store = directory / "kafka-store.pem"
    store.write_text(certificates.server_key.read_text() + certificates.server.read_text())
    provider = Provider()
    provider.keys = {"first": provider.first}
    provider.clients = {"strandline": password}
    keys = directory / "provider-keys.json"
    keys.write_text(json.dumps({"keys": [provider.first.as_dict(private=False, kid="first", use="sig", alg="RS256")]}))
    allowed = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.{what}={keys.as_uri()}" for what in ("urls", "files")]
    with (
        contextlib.closing(provider),
        contextlib.closing(KafkaCluster(directory / "kafka", java_options=allowed)) as cluster,
    ):
        (broker,) = cluster.brokers
        mutual, oauth = free_ports(2)
        ports = {"PLAIN": broker.port, "PROXIED": broker.proxied_port, "MUTUAL": mutual, "OAUTH": oauth}
        clients = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
        plain = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_strandline="{password}";'
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        with (broker.directory / "server.properties").open("a") as properties:
            properties.write(
                "listener.security.protocol.map="
                "PLAIN:PLAINTEXT,PROXIED:SASL_SSL,MUTUAL:SSL,OAUTH:SASL_SSL,CONTROLLER:PLAINTEXT\n"
                f"listeners={clients},CONTROLLER://127.0.0.1:{broker.controller_port}\nadvertised.listeners={clients}\n"
                f"ssl.keystore.type=PEM\nssl.keystore.location={store}\n"
                "listener.name.proxied.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512\n"
                f"listener.name.proxied.plain.sasl.jaas.config={plain}\n"
                f"listener.name.proxied.scram-sha-256.sasl.jaas.config={scram}\n"
                f"listener.name.proxied.scram-sha-512.sasl.jaas.config={scram}\n"
                "listener.name.mutual.ssl.client.auth=required\n"
                f"ssl.truststore.type=PEM\nssl.truststore.location={certificates.ca}\n"
                "listener.name.oauth.sasl.enabled.mechanisms=OAUTHBEARER\n"
                f"listener.name.oauth.oauthbearer.sasl.jaas.config={_OAUTH}.OAuthBearerLoginModule required;\n"
                "listener.name.oauth.oauthbearer.sasl.server.callback.handler.class="
                f"{_OAUTH}.OAuthBearerValidatorCallbackHandler\n"
                f"sasl.oauthbearer.jwks.endpoint.url={keys.as_uri()}\n"
                f"sasl.oauthbearer.expected.audience=strandline\nsasl.oauthbearer.expected.issuer={provider.url}\n"
            )
        cluster.start()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            upsertion = UserScramCredentialUpsertion(
                "strandline", ScramCredentialInfo(mechanism, 4096), password.encode()
            )
            for future in admin.alter_user_scram_credentials([upsertion]).values():
                future.result(stretched(30))
        yield SecuredKafka(f"127.0.0.1:{broker.proxied_port}", f"127.0.0.1:{mutual}", f"127.0.0.1:{oauth}", provider)


def _home_with_filters(directory: Path) -> Path:
    """Elasticsearch with what the index of API keys needs (index_filters), where this machine can compile it; else as it is."""
    home = provide(ELASTICSEARCH, Settings().cache_dir, find_java(), lambda _bytes: None)
    compiler = shutil.which("javac")
    if compiler is None:
        return home
    own = directory / "elasticsearch-home"
    shutil.copytree(home, own, copy_function=_link_or_copy, symlinks=True)
    plugin = own / "plugins" / "index-filters"
    plugin.mkdir(parents=True)
    classes = directory / "index-filters"
    subprocess.run([compiler, "-cp", f"{home}/lib/*", "-d", str(classes), str(_FILTERS)], check=True)
    with zipfile.ZipFile(plugin / "index-filters.jar", "w") as jar:
        for path in classes.rglob("*.class"):
            jar.write(path, path.relative_to(classes))
    (plugin / "plugin-descriptor.properties").write_text(
        "name=index-filters\nversion=1\ndescription=what the index of API keys needs\nclassname=strandline.IndexFilters\n"
        f"java.version=17\nelasticsearch.version={ELASTICSEARCH.name.rpartition('-')[2]}\n"
    )
    return own


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


@contextlib.contextmanager
def secured_elasticsearch(
    directory: Path, certificates: DevCertificates, password: str, *, asks_certificates: bool = False
) -> Iterator[str]:
    """A node that takes clients by TLS with a login alone: user `strandline`, which may do what docs/security.md says, and
    make API keys if the node can. `asks_certificates`: it takes clients without a certificate of the authority not at all.
    Yields its URL."""
    home = _home_with_filters(directory)
    own = directory / "elasticsearch"
    port, transport_port = free_ports(2)
    program = elasticsearch_program(home, find_java(), own, directory / "elasticsearch.log", port, transport_port)
    config = own / "config"
    settings = config / "elasticsearch.yml"
    asking = "xpack.security.http.ssl.client_authentication: required\n" if asks_certificates else ""
    settings.write_text(settings.read_text().replace("xpack.security.enabled: false\n", _SECURITY + asking))
    salt = secrets.token_bytes(32)
    derived = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, 1000, 32)
    hashed = f"{{PBKDF2}}1000${base64.b64encode(salt).decode()}${base64.b64encode(derived).decode()}"
    (config / "users").write_text(f"strandline:{hashed}\n")
    (config / "users_roles").write_text("strandline:strandline\n")
    (config / "roles.yml").write_text(_ROLE)
    for source in (certificates.server, certificates.server_key, certificates.ca):
        shutil.copyfile(source, config / source.name)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(config / source.name, nobody.pw_uid, nobody.pw_gid)
    url, context = f"https://127.0.0.1:{port}", ssl.create_default_context(cafile=certificates.ca)
    context.load_cert_chain(certificates.client, certificates.client_key)

    def answers() -> bool:
        try:
            answer = httpx.get(
                f"{url}/_cluster/health", verify=context, auth=("strandline", password), timeout=5, trust_env=False
            )
        except httpx.TransportError:
            return False
        return answer.status_code == 200 and answer.json()["status"] in ("green", "yellow")

    pids = PidFile(directory)
    child = start(replace(program, is_ready=answers), pids, lambda: None)
    try:
        yield url
    finally:
        stop(program.name, child.pid, pids, timeout_s=30)
        child.is_alive()  # reaps it


@contextlib.contextmanager
def secured_postgresql(certificates: DevCertificates, password: str) -> Iterator[str]:
    """A server that takes clients by TLS with a password alone. Yields the ledger's URL, without the password."""
    programs = postgresql.find_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed; `apt-get install postgresql` brings it")
    home = Path(tempfile.mkdtemp(prefix="strandline-postgresql-", dir="/tmp"))
    identity = postgresql.unprivileged(home)
    try:
        postgresql.run_initdb(programs, home, identity)
        data = home / "data"
        for source, name in ((certificates.server, "server.crt"), (certificates.server_key, "server.key")):
            target = data / name
            shutil.copyfile(source, target)
            target.chmod(0o600)
            if identity:
                os.chown(target, identity["user"], identity["group"])
        with (data / "postgresql.conf").open("a") as file:
            file.write("ssl = on\n")
        (port,) = free_ports(1)
        server = postgresql.start_server(programs, home, identity, port)
        try:
            assert postgresql.is_up(server, port), (home / "server.log").read_text()
            with psycopg.connect(f"postgresql://strandline@127.0.0.1:{port}/postgres", autocommit=True) as connection:
                connection.execute(f"ALTER USER strandline PASSWORD '{password}'".encode())
                (data / "pg_hba.conf").write_text("hostssl all strandline 127.0.0.1/32 scram-sha-256\n")
                connection.execute("SELECT pg_reload_conf()")
            url = f"postgresql+psycopg://strandline@127.0.0.1:{port}/postgres"
            wait_until(
                lambda: _takes_no_password(port), lambda is_so: not is_so, "closed to clients without a password"
            )
            yield f"{url}?sslmode=verify-full&sslrootcert={certificates.ca}"
        finally:
            postgresql.stop_server(server)
    finally:
        shutil.rmtree(home)


def _takes_no_password(port: int) -> bool:
    try:
        psycopg.connect(f"postgresql://strandline@127.0.0.1:{port}/postgres", connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


@contextlib.contextmanager
def secured_mosquitto(directory: Path, certificates: DevCertificates, password: str) -> Iterator[str]:
    """A broker that takes clients by TLS with a password alone: user `strandline`. Yields its URL."""
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    passwords = directory / "mosquitto-passwords"
    passwords.touch(mode=0o600)
    subprocess.run(["mosquitto_passwd", "-b", str(passwords), "strandline", password], check=True)
    settings = (
        f"allow_anonymous false\npassword_file {passwords}\n"
        f"certfile {certificates.server}\nkeyfile {certificates.server_key}"
    )
    with contextlib.closing(Mosquitto(directory / "mosquitto", settings)) as broker:
        yield f"mqtts://127.0.0.1:{broker.port}"


@dataclass(frozen=True)
class Secured:
    """All four, and what a process of Strandline needs to use them."""

    directory: Path
    certificates: DevCertificates
    environment: dict[str, str]
    planted: list[Secret]
    """Every secret that is to be found nowhere."""
    mqtt: Secret
    kafka: SecuredKafka


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """The servers, with secrets in files."""
    directory = tmp_path_factory.mktemp("secured")
    certificates = make_dev_certificates(directory / "certs")
    kafka, operator, ledger, mqtt = (
        Secret.new(directory, name) for name in ("kafka-password", "index-password", "ledger-password", "mqtt-password")
    )
    with contextlib.ExitStack() as stack:
        brokers = stack.enter_context(secured_kafka(directory, certificates, kafka.text))
        index_url = stack.enter_context(secured_elasticsearch(directory, certificates, operator.text))
        ledger_url = stack.enter_context(secured_postgresql(certificates, ledger.text))
        mqtt_url = stack.enter_context(secured_mosquitto(directory, certificates, mqtt.text))
        variables = {
            "KAFKA_BOOTSTRAP": brokers.password,
            "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
            "KAFKA_USERNAME": "strandline",
            "KAFKA_PASSWORD_FILE": kafka.file,
            "KAFKA_CA_FILE": certificates.ca,
            "KAFKA_PROPERTIES": '{"socket.keepalive.enable": true}',
            "ELASTICSEARCH_URL": index_url,
            "ELASTICSEARCH_USERNAME": "strandline",
            "ELASTICSEARCH_PASSWORD_FILE": operator.file,
            "ELASTICSEARCH_CA_FILE": certificates.ca,
            "LEDGER_URL": ledger_url,
            "LEDGER_PASSWORD_FILE": ledger.file,
            "MQTT_URL": mqtt_url,
            "MQTT_USERNAME": "strandline",
            "MQTT_PASSWORD_FILE": mqtt.file,
            "MQTT_CA_FILE": certificates.ca,
        }
        environment = {f"STRANDLINE_{name}": str(value) for name, value in variables.items()}
        yield Secured(directory, certificates, environment, [kafka, operator, ledger, mqtt], mqtt, brokers)
