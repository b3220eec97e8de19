"""Settings become the configuration of Kafka's clients, in one place; what can't be used is refused and named."""

from __future__ import annotations

import json

import pytest

from strandline.core.errors import InvalidSettings
from strandline.core.settings import Settings
from strandline.log.kafka_connection import aiokafka, librdkafka
from strandline.services.certificates import make_dev_certificates
from strandline.services.embedded.addresses import settings_environment

SECRET = "planted-secret"
LOGIN = {"SECURITY_PROTOCOL": "SASL_SSL", "USERNAME": "ingest", "PASSWORD": SECRET}


def use(monkeypatch, **variables):
    for name, value in variables.items():
        monkeypatch.setenv(f"STRANDLINE_KAFKA_{name}", str(value))


def test_without_settings_clients_are_as_their_makers_want_them():
    assert librdkafka("host:1", {"linger.ms": 2}) == {"bootstrap.servers": "host:1", "linger.ms": 2}
    assert aiokafka() == {"security_protocol": "PLAINTEXT"}


def test_both_libraries_get_the_same_login_and_certificates(monkeypatch, tmp_path):
    made = make_dev_certificates(tmp_path)
    use(monkeypatch, **LOGIN, CA_FILE=made.ca, CERTIFICATE_FILE=made.client, KEY_FILE=made.client_key)
    found = librdkafka("host:1", {})
    assert found == {
        "bootstrap.servers": "host:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ingest",
        "sasl.password": SECRET,
        "ssl.ca.location": str(made.ca),
        "ssl.certificate.location": str(made.client),
        "ssl.key.location": str(made.client_key),
    }
    options = aiokafka()
    assert options.pop("ssl_context").check_hostname
    assert options == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "ingest",
        "sasl_plain_password": SECRET,
    }


def test_further_properties_go_before_those_of_the_maker(monkeypatch):
    use(monkeypatch, PROPERTIES=json.dumps({"linger.ms": 50, "socket.keepalive.enable": True}))
    found = librdkafka("host:1", {"linger.ms": 2})
    assert found == {"bootstrap.servers": "host:1", "linger.ms": "50", "socket.keepalive.enable": "true"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("enable.idempotence", "to keep its promises"),
        ("acks", "to keep its promises"),
        ("isolation.level", "to keep its promises"),
        ("transactional.id", "to keep its promises"),
        ("group.instance.id", "to keep its promises"),
        ("plugin.library.paths", "load or call code"),
        ("ssl.engine.location", "load or call code"),
        ("sasl.kerberos.kinit.cmd", "load or call code"),
        ("oauth_cb", "load or call code"),
        ("sasl.password", "docs/security.md"),
        ("enable.ssl.certificate.verification", "docs/security.md"),
        ("bootstrap.servers", "STRANDLINE_KAFKA_BOOTSTRAP"),
        ("no.such.property", "No such configuration property"),
    ],
)
def test_properties_that_break_a_promise_or_run_code_are_refused(name, said, monkeypatch):
    use(monkeypatch, PROPERTIES=json.dumps({name: SECRET}))
    with pytest.raises(InvalidSettings, match=said) as refused:
        librdkafka("host:1", {})
    assert name in str(refused.value) and SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "variables",
    [
        {"SECURITY_PROTOCOL": "SASL_SSL", "USERNAME": "ingest"},
        {"USERNAME": "ingest", "PASSWORD": SECRET},
        {"CA_FILE": "/ca.pem"},
        {"SECURITY_PROTOCOL": "SSL", "CA_FILE": "/no/such/ca.pem"},
    ],
    ids=["half a login", "a login that nothing uses", "an authority that nothing uses", "no such file"],
)
def test_what_can_not_be_meant_is_refused_for_both_libraries(variables, monkeypatch):
    use(monkeypatch, **variables)
    for configure in (lambda: librdkafka("host:1", {}), aiokafka):
        with pytest.raises(InvalidSettings, match="STRANDLINE_KAFKA_") as refused:
            configure()
        assert SECRET not in str(refused.value)


def test_a_secret_may_stand_in_a_file_and_is_read_when_a_client_is_made(monkeypatch, tmp_path):
    file = tmp_path / "password"
    file.write_text("first\n")
    use(monkeypatch, SECURITY_PROTOCOL="SASL_SSL", USERNAME="ingest", PASSWORD_FILE=file)
    assert librdkafka("host:1", {})["sasl.password"] == "first"
    file.write_text("second\n")
    assert librdkafka("host:1", {})["sasl.password"] == "second"
    use(monkeypatch, PASSWORD="third")
    with pytest.raises(InvalidSettings, match="KAFKA_PASSWORD and STRANDLINE_KAFKA_PASSWORD_FILE are both set"):
        Settings.read()
    monkeypatch.delenv("STRANDLINE_KAFKA_PASSWORD")
    file.unlink()
    with pytest.raises(InvalidSettings, match=r"PASSWORD_FILE names .*password, which can't be read: No such file"):
        Settings.read()


def test_properties_may_stand_in_a_file(monkeypatch, tmp_path):
    file = tmp_path / "properties"
    file.write_text('{"client.rack": "a"}')
    use(monkeypatch, PROPERTIES_FILE=file)
    assert librdkafka("host:1", {})["client.rack"] == "a"
    file.write_text("client.rack=a")
    with pytest.raises(InvalidSettings, match="STRANDLINE_KAFKA_PROPERTIES_FILE is wrong: it is not JSON"):
        Settings.read()


def test_settings_show_no_secret_and_hand_none_on_as_text(monkeypatch):
    use(monkeypatch, **LOGIN, PROPERTIES=json.dumps({"client.rack": SECRET}))
    settings = Settings.read()
    assert SECRET not in repr(settings) and SECRET not in settings.model_dump_json()
    handed = settings_environment(settings)
    assert handed["STRANDLINE_KAFKA_PASSWORD"] == SECRET, "inherited as it is, not as stars"
    assert json.loads(handed["STRANDLINE_KAFKA_PROPERTIES"]) == {"client.rack": SECRET}


def test_a_cloud_id_names_the_server(monkeypatch):
    # "eu.example.org$abc$kibana"
    monkeypatch.setenv("STRANDLINE_ELASTICSEARCH_CLOUD_ID", "mine:ZXUuZXhhbXBsZS5vcmckYWJjJGtpYmFuYQ==")
    assert Settings.read().elasticsearch_url == "https://abc.eu.example.org:443"
    monkeypatch.setenv("STRANDLINE_ELASTICSEARCH_URL", "http://other:9200")
    with pytest.raises(InvalidSettings, match="name different servers"):
        Settings.read()
    monkeypatch.setenv("STRANDLINE_ELASTICSEARCH_CLOUD_ID", "mine:none")
    with pytest.raises(InvalidSettings, match="it is no cloud id"):
        Settings.read()
