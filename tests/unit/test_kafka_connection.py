"""Settings become the configuration of Kafka's clients, in one place; what can't be used is refused and named."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiokafka.errors import KafkaConnectionError, SaslAuthenticationFailed
from confluent_kafka import KafkaError

from strandline.core.errors import InvalidSettings
from strandline.core.settings import Settings
from strandline.log.kafka_connection import Refusals, aiokafka, librdkafka, remedy_of
from strandline.log.login.oauth_tokens import OauthClient, OauthTokens
from strandline.services.certificates import make_dev_certificates
from strandline.services.embedded.addresses import settings_environment
from tests.support.oidc_provider import Provider

SECRET = "planted-secret"
LOGIN = {"SECURITY_PROTOCOL": "SASL_SSL", "USERNAME": "ingest", "PASSWORD": SECRET}


def use(monkeypatch, **variables):
    for name, value in variables.items():
        monkeypatch.setenv(f"STRANDLINE_KAFKA_{name}", str(value))


def test_without_settings_clients_are_as_their_makers_want_them():
    assert librdkafka("host:1", {"linger.ms": 2}) == {"bootstrap.servers": "host:1", "linger.ms": 2}
    assert aiokafka() == {"security_protocol": "PLAINTEXT"}


def test_a_refused_login_is_told_although_the_settings_can_not_be_read_just_then(monkeypatch, tmp_path):
    """A health page asks for the reason while a password file is being replaced."""
    use(monkeypatch, SECURITY_PROTOCOL="SASL_SSL", USERNAME="ingest", PASSWORD_FILE=tmp_path / "gone")
    refusals = Refusals()
    refusals(KafkaError(KafkaError._AUTHENTICATION))
    assert "refused the login" in refusals.text() and "gone" in refusals.text()
    assert "refused the login" in remedy_of(SaslAuthenticationFailed("no"))
    assert remedy_of(KafkaConnectionError("closed")) == ""


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


@pytest.mark.guarantee(
    "G343",
    "Properties for Kafka's clients that would weaken a promise, or make a client run code, are refused by name.",
    promise="secrets-and-connections-are-protected",
)
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


@pytest.mark.guarantee("G342")
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
    with pytest.raises(InvalidSettings, match="it is not a cloud id"):
        Settings.read()


@pytest.fixture
def provider():
    made = Provider()
    made.keys = {"first": made.first}
    made.clients = {"strandline": SECRET}
    yield made
    made.close()


def use_tokens(monkeypatch, url, **changed):
    values = {"SECURITY_PROTOCOL": "SASL_SSL", "SASL_MECHANISM": "OAUTHBEARER", "OAUTH_TOKEN_URL": url}
    values |= {"OAUTH_CLIENT_ID": "strandline", "OAUTH_CLIENT_SECRET": SECRET} | changed
    use(monkeypatch, **{name: value for name, value in values.items() if value is not None})


def test_both_libraries_get_the_client_of_an_oauth_provider(provider, monkeypatch):
    use_tokens(monkeypatch, provider.token_url, OAUTH_SCOPE="kafka")
    assert librdkafka("host:1", {}) == {
        "bootstrap.servers": "host:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
        "sasl.oauthbearer.client.id": "strandline",
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.scope": "kafka",
    }
    assert provider.asked == [], "the provider is not asked before a client connects"
    first, second = aiokafka(), aiokafka()
    assert first["sasl_mechanism"] == "OAUTHBEARER"
    assert first["sasl_oauth_token_provider"] is second["sasl_oauth_token_provider"], "one token for all connections"


def test_a_token_is_used_until_most_of_its_time_is_over(provider):
    now_s = [0.0]
    tokens = OauthTokens(OauthClient(provider.token_url, "strandline", SECRET), clock_s=lambda: now_s[0])
    said = []
    for now_s[0] in (0.0, 0.8 * provider.lasts_s - 1, 0.8 * provider.lasts_s):
        said.append(asyncio.run(tokens.token()))
    assert said[0] == said[1] and len(provider.asked) == 2


@pytest.mark.guarantee(
    "G421",
    "Every client of Kafka can log in by a certificate or by OAuth tokens, and Elasticsearch by API key together with "
    "a certificate. A missing or wrong value gives one error that names the setting.",
    promise="each-operation-requires-its-right",
)
@pytest.mark.parametrize(
    ("told", "error", "said"),
    [
        ({"is_away": True}, KafkaConnectionError, "answers 503"),
        ({"clients": {}}, SaslAuthenticationFailed, "answers 401 to client strandline"),
        ({"answer_client": lambda *_: (200, {"error": "none"})}, SaslAuthenticationFailed, "without a token"),
        ({"answer_client": lambda *_: (200, {"access_token": "a\x01b"})}, SaslAuthenticationFailed, "without a token"),
        ({"answer_client": lambda *_: (302, {})}, SaslAuthenticationFailed, "answers 302"),
    ],
)
def test_an_endpoint_that_gives_no_token_is_one_sentence_without_the_secret(provider, told, error, said, monkeypatch):
    vars(provider).update(told)
    use_tokens(monkeypatch, provider.token_url)
    with pytest.raises(error, match=said) as refused:
        asyncio.run(OauthTokens(OauthClient(provider.token_url, "strandline", SECRET)).token())
    assert SECRET not in str(refused.value) + repr(OauthClient("", "", SECRET))
    remedy = remedy_of(refused.value)
    assert ("STRANDLINE_KAFKA_OAUTH_CLIENT_SECRET" in remedy) == (error is SaslAuthenticationFailed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"OAUTH_CLIENT_SECRET": None}, "needs STRANDLINE_KAFKA_OAUTH_CLIENT_SECRET, too"),
        ({"SASL_MECHANISM": "PLAIN", "USERNAME": "a", "PASSWORD": "b"}, "need no token"),
        ({"SECURITY_PROTOCOL": "SSL"}, "need no token"),
        ({"OAUTH_TOKEN_URL": "http://login.example/token"}, "write the provider's token endpoint"),
        ({"OAUTH_TOKEN_URL": "https://me:planted-secret@login.example/token"}, "write the provider's token endpoint"),
        ({"USERNAME": "a", "PASSWORD": SECRET}, "can't be used with STRANDLINE_KAFKA_USERNAME"),
    ],
)
def test_a_client_of_an_oauth_provider_in_half_is_refused(changed, said, monkeypatch):
    use_tokens(monkeypatch, "https://login.example/token", **changed)
    for configure in (lambda: librdkafka("host:1", {}), aiokafka):
        with pytest.raises(InvalidSettings, match=said) as refused:
            configure()
        assert SECRET not in str(refused.value)
