"""A stack whose own Kafka and Elasticsearch require a password: its file, its readers, and how it is chosen."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shlex
import stat
from pathlib import Path

import pytest
from cryptography import x509
from rich.console import Console

from strandline.core.errors import InvalidSettings, StackError
from strandline.core.settings import Settings
from strandline.ingest.mqtt.bridge_settings import MqttBridgeSettings
from strandline.log.kafka_connection import aiokafka, librdkafka
from strandline.processing.notebook.request import request_of
from strandline.results.elasticsearch_client import is_of_settings, login_of
from strandline.services.doctor.finding import Finding, State
from strandline.services.embedded import preflight
from strandline.services.embedded.addresses import StackAddresses, read_stack, settings_environment, stack_settings
from strandline.services.embedded.elasticsearch_server import elasticsearch_program
from strandline.services.embedded.kafka_server import kafka_program
from strandline.services.embedded.passwords import (
    check_passwords,
    choose_passwords,
    ensure_passwords,
    login_settings,
    netrc_file,
    read_password,
    use_logins,
)
from strandline.services.embedded.stack import Stack
from strandline.services.processes.pids import PidFile

ALL = {"kafka", "elasticsearch", "mqtt", "kafka.properties", "netrc", "strandline.env"}


@pytest.fixture
def addresses(tmp_path: Path) -> StackAddresses:
    """Return the addresses of a stack that has passwords."""
    data_dir = tmp_path / "stack"
    data_dir.mkdir(mode=0o700)
    addresses = StackAddresses.of(data_dir, 100, passwords=True)
    ensure_passwords(addresses)
    addresses.write()
    return addresses


def directory_of(addresses: StackAddresses) -> Path:
    return Path(addresses.data_dir) / "passwords"


def passwords_of(addresses: StackAddresses) -> dict[str, str]:
    found = {server: read_password(addresses, server) for server in ("kafka", "elasticsearch", "mqtt")}
    return {server: password for server, password in found.items() if password is not None}


def use_environment(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name in [one for one in os.environ if one.upper().startswith("STRANDLINE_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.guarantee(
    "G496",
    "The passwords of a stack are only in files that only their owner can read. They are in no argument, environment, "
    "log, answer, or `stack.json`.",
    promise="secrets-and-connections-are-protected",
)
def test_passwords_are_made_once_for_their_owner_alone(addresses: StackAddresses) -> None:
    made = passwords_of(addresses)
    assert len(set(made.values())) == 3 and all(len(one) >= 40 for one in made.values())
    directory = directory_of(addresses)
    directory.chmod(0o755)
    (directory / "kafka").chmod(0o644)
    ensure_passwords(addresses)
    assert passwords_of(addresses) == made, "a start of the stack makes no new ones"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == dict.fromkeys(ALL, 0o600)


def test_a_stack_without_passwords_has_no_files_and_no_logins(tmp_path: Path) -> None:
    addresses = StackAddresses.of(tmp_path, 0)
    ensure_passwords(addresses)
    environment = {"STRANDLINE_KAFKA_PASSWORD": "kept"}
    use_logins(addresses, environment)
    assert list(tmp_path.iterdir()) == [] and login_settings(addresses) == {}
    assert environment == {"STRANDLINE_KAFKA_PASSWORD": "kept"} and passwords_of(addresses) == {}


def test_only_the_stacks_own_servers_have_a_password_of_the_stacks(tmp_path: Path) -> None:
    addresses = StackAddresses.of(tmp_path, 0, {"kafka": "farm:9092"}, passwords=True)
    ensure_passwords(addresses)
    assert {path.name for path in directory_of(addresses).iterdir()} == ALL - {"kafka", "kafka.properties"}
    assert not [name for name in login_settings(addresses) if "KAFKA" in name]
    assert stack_settings(Settings(kafka_username="theirs"), addresses).kafka_username == "theirs"


@pytest.mark.guarantee("G495")
@pytest.mark.guarantee(
    "G791",
    "The servers of a new stack require passwords. `--no-passwords` and `STRANDLINE_EMBEDDED_PASSWORDS=false` opt "
    "out, and an existing stack without passwords stays so. The commands in the README and the tutorials log in.",
    promise="each-operation-requires-its-right",
)
def test_what_is_given_goes_before_the_setting_and_that_before_what_the_last_start_was(tmp_path: Path) -> None:
    unset, asks, asks_not = Settings(), Settings(embedded_passwords=True), Settings(embedded_passwords=False)
    assert choose_passwords(None, unset, tmp_path), "the servers of a new stack ask"
    assert choose_passwords(True, asks_not, tmp_path) and choose_passwords(None, asks, tmp_path)
    assert not choose_passwords(False, asks, tmp_path) and not choose_passwords(None, asks_not, tmp_path)
    StackAddresses.of(tmp_path, 0).write()
    assert not choose_passwords(None, unset, tmp_path), "a stack that exists without passwords stays open"
    StackAddresses.of(tmp_path, 0, passwords=True).write()
    assert choose_passwords(None, unset, tmp_path)
    assert not choose_passwords(False, asks, tmp_path) and not choose_passwords(None, asks_not, tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"passwords": false', '"passwords": "false"', "passwords is 'false'"),
        ('"auth": "none"', '"auth": false', "auth is False"),
        (',\n  "auth": "none"', "", "auth.*start the stack again to rewrite it"),
    ],
)
def test_a_broken_stack_json_is_refused_with_what_to_do(tmp_path: Path, old: str, new: str, said: str) -> None:
    addresses = StackAddresses.of(tmp_path, 0)
    addresses.write()
    assert read_stack(tmp_path) == addresses
    text = (tmp_path / "stack.json").read_text()
    (tmp_path / "stack.json").write_text(text.replace(old, new))
    with pytest.raises(StackError, match=said):
        read_stack(tmp_path)


@pytest.mark.guarantee("G495")
@pytest.mark.guarantee("G496")
def test_every_process_of_the_stack_logs_in_and_no_password_is_in_its_environment(
    addresses: StackAddresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checked with the settings that `Stack` gives a child, read as the child reads them."""
    made = passwords_of(addresses)
    settings = stack_settings(Settings(kafka_username="another"), addresses)
    assert (settings.kafka_security_protocol, settings.kafka_username) == ("SASL_PLAINTEXT", "strandline")
    assert login_of(settings) == "user strandline", "as the doctor says it"
    given = settings_environment(settings) | login_settings(addresses)
    assert not [name for name, value in given.items() if any(one in value for one in made.values())]
    use_environment(monkeypatch, given)
    client = librdkafka(addresses.kafka_bootstrap, {})
    assert (client["security.protocol"], client["sasl.mechanism"]) == ("SASL_PLAINTEXT", "PLAIN")
    assert (client["sasl.username"], client["sasl.password"]) == ("strandline", made["kafka"])
    assert aiokafka()["sasl_plain_password"] == made["kafka"]
    settings = Settings.read()
    assert is_of_settings(addresses.elasticsearch_url, settings) and login_of(settings) == "user strandline"
    assert (
        settings.elasticsearch_password and settings.elasticsearch_password.get_secret_value() == made["elasticsearch"]
    )


def test_a_process_of_the_stack_sets_aside_the_login_for_another_server(addresses: StackAddresses) -> None:
    environment = {
        "strandline_kafka_username": "other",
        "STRANDLINE_KAFKA_PASSWORD": "other",
        "STRANDLINE_KAFKA_CA_FILE": "/other",
        "STRANDLINE_ELASTICSEARCH_API_KEY_FILE": "/other",
        "STRANDLINE_MQTT_PASSWORD": "other",
        "strandline_mqtt_ca_file": "/other",
    }
    kept = {"STRANDLINE_MQTT_VERSION": "3.1.1", "STRANDLINE_MQTT_LISTENER_PASSWORDS": "/kept"}
    environment |= kept
    use_logins(addresses, environment)
    assert environment == login_settings(addresses) | kept
    use_logins(addresses, environment)
    assert environment == login_settings(addresses) | kept


@pytest.mark.guarantee(
    "G792",
    "If a stack uses passwords or tokens, its MQTT broker refuses each client without the login of the stack, before "
    "the client can end another client's connection or session.",
    promise="each-operation-requires-its-right",
)
@pytest.mark.parametrize("passwords", [False, True])
@pytest.mark.parametrize("auth", ["none", "tokens"])
def test_the_broker_asks_in_a_stack_with_passwords_or_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auth: str, passwords: bool
) -> None:
    addresses = StackAddresses.of(tmp_path, 100, passwords=passwords, auth=auth)
    assert ("mqtt" in addresses.secured()) is (passwords or auth == "tokens")
    assert ("kafka" in addresses.secured()) is ("elasticsearch" in addresses.secured()) is passwords
    ensure_passwords(addresses)
    use_environment(monkeypatch, login_settings(addresses))
    bridge = MqttBridgeSettings.read()
    password = read_password(addresses, "mqtt")
    if "mqtt" not in addresses.secured():
        assert bridge.mqtt_username is bridge.mqtt_password is password is None
        return
    assert bridge.mqtt_password is not None and bridge.mqtt_password.get_secret_value() == password
    assert (bridge.mqtt_url, bridge.mqtt_username) == (addresses.mqtt_url, "strandline")
    outside = StackAddresses.of(tmp_path, 100, {"mqtt": "mqtt://farm"}, passwords=passwords, auth=auth)
    assert "mqtt" not in outside.secured()


@pytest.mark.guarantee(
    "G495",
    "With passwords, the default of a new stack, its Kafka and Elasticsearch answer no client without a password, on "
    "any port. Every process of the stack logs in through the settings for external servers.",
    promise="each-operation-requires-its-right",
)
def test_kafka_takes_nobody_else_on_any_port(addresses: StackAddresses, tmp_path: Path) -> None:
    data_dir = tmp_path / "kafka"
    (data_dir / "log").mkdir(parents=True)  # formatted before

    def properties(password: str | None) -> dict[str, str]:
        program = kafka_program(tmp_path, Path("/java"), data_dir, tmp_path / "kafka.log", 1, 2, password)
        assert password is None or not [one for one in program.arguments if password in one]
        file = data_dir / "server.properties"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        return dict(line.split("=", 1) for line in file.read_text().splitlines())

    password = passwords_of(addresses)["kafka"]
    secured = properties(password)
    listeners = [one.partition("://")[0] for one in secured["listeners"].split(",")]
    protocols = dict(one.split(":") for one in secured["listener.security.protocol.map"].split(","))
    assert [protocols[one] for one in listeners] == ["SASL_PLAINTEXT", "SASL_PLAINTEXT"], "the controller's port, too"
    for listener in listeners:
        module = secured[f"listener.name.{listener.lower()}.plain.sasl.jaas.config"]
        assert f'user_strandline="{password}"' in module and module.count("user_") == 1
    open_to_all = properties(None)
    assert open_to_all["listeners"] == "PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2"
    assert not [name for name in open_to_all if "sasl" in name or "security" in name]


@pytest.mark.guarantee("G495")
def test_elasticsearch_takes_one_user_and_no_other_node(addresses: StackAddresses, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "config").mkdir(parents=True)
    for name in ("roles.yml", "role_mapping.yml", "users", "users_roles"):
        (home / "config" / name).touch()
    data_dir = tmp_path / "elasticsearch"
    config = data_dir / "config"

    def settings(password: str | None) -> dict[str, str]:
        log = tmp_path / "elasticsearch.log"
        program = elasticsearch_program(home, Path("/jdk/bin/java"), data_dir, log, 1, 2, password)
        given = [*program.arguments, *program.environment.values()]
        files = [path.read_text() for path in data_dir.rglob("*") if path.is_file()]
        assert password is None or not [one for one in [*given, *files] if password in one]
        lines = (config / "elasticsearch.yml").read_text().splitlines()
        return dict(line.split(": ", 1) for line in lines)

    password = passwords_of(addresses)["elasticsearch"]
    secured = settings(password)
    assert secured["xpack.security.enabled"] == "true"
    user, _, hashed = (config / "users").read_text().strip().partition(":")
    _, rounds, salt, derived = hashed.replace("}", "}$", 1).split("$")
    expected = hashlib.pbkdf2_hmac("sha512", password.encode(), base64.b64decode(salt), int(rounds), 32)
    assert user == "strandline" and base64.b64decode(derived) == expected
    assert (config / "users_roles").read_text() == "superuser:strandline\n"
    ssl = "xpack.security.transport.ssl."
    assert (secured[f"{ssl}enabled"], secured[f"{ssl}client_authentication"]) == ("true", "required")
    first = x509.load_pem_x509_certificate((config / secured[f"{ssl}certificate_authorities"]).read_bytes())
    assert stat.S_IMODE((config / secured[f"{ssl}key"]).stat().st_mode) == 0o600
    settings(password)
    again = x509.load_pem_x509_certificate((config / secured[f"{ssl}certificate_authorities"]).read_bytes())
    assert first.serial_number != again.serial_number, "it never grows too old"
    assert settings(None)["xpack.security.enabled"] == "false"
    assert (config / "users").read_text() == "" and not (config / "transport").exists()


@pytest.mark.guarantee("G791")
def test_a_person_has_files_for_kafkas_tools_for_curl_and_for_further_processes(
    addresses: StackAddresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, directory = passwords_of(addresses), directory_of(addresses)
    kafka = dict(line.split("=", 1) for line in (directory / "kafka.properties").read_text().splitlines())
    assert kafka["security.protocol"] == "SASL_PLAINTEXT" and kafka["sasl.mechanism"] == "PLAIN"
    assert f'username="strandline" password="{made["kafka"]}"' in kafka["sasl.jaas.config"]
    netrc = (directory / "netrc").read_text().splitlines()
    login = f"login strandline password {made['elasticsearch']}"
    assert netrc == [f"machine 127.0.0.1 {login}", f"machine localhost {login}"]
    assert netrc_file(addresses) == directory / "netrc"
    assert str(netrc_file(StackAddresses.of(Path(addresses.data_dir), 100))) == "/dev/null", "the same command works"
    lines = (directory / "strandline.env").read_text().splitlines()
    read = {name: shlex.split(value)[0] for name, _, value in (line.partition("=") for line in lines)}
    assert read == login_settings(addresses)
    use_environment(monkeypatch, {})
    with pytest.raises(InvalidSettings, match=r"set -a; \. '.*/passwords/strandline\.env'; set \+a"):
        request_of({"stream": "s", "data_dir": addresses.data_dir})
    use_environment(monkeypatch, read)
    assert (
        request_of({"stream": "s", "data_dir": addresses.data_dir}).addresses.kafka_bootstrap
        == addresses.kafka_bootstrap
    )


def test_up_takes_its_own_logins_from_the_environment_and_no_others(addresses: StackAddresses) -> None:
    preflight.require_embedded_settings(login_settings(addresses), addresses)
    without = StackAddresses.of(Path(addresses.data_dir), 100)
    for other in ({"STRANDLINE_KAFKA_USERNAME": "me"}, {"STRANDLINE_ELASTICSEARCH_API_KEY": "planted"}):
        with pytest.raises(InvalidSettings, match="--passwords"):
            preflight.require_embedded_settings(login_settings(addresses) | other, addresses)
    with pytest.raises(InvalidSettings):
        preflight.require_embedded_settings(login_settings(addresses), without)


@pytest.mark.guarantee(
    "G497",
    "A stack can get or lose its passwords at any start, with all its data, and remembers the choice. A running stack "
    "isn't changed. A lost password gives one clear error.",
    promise="a-stack-keeps-its-data",
)
def test_a_running_stack_keeps_its_way(addresses: StackAddresses) -> None:
    PidFile(Path(addresses.data_dir)).add("control", os.getpid())
    stack = Stack(Settings(), Path(addresses.data_dir), 100, Console(quiet=True))
    said = (
        f"already runs with other options: it runs with --passwords, but --no-passwords is requested. To use it as it is, run "
        f"strandline up --data-dir {addresses.data_dir} without these options and variables. To change it, run strandline down "
    )
    with pytest.raises(StackError, match=re.escape(said)):
        stack._running_parts()


def test_a_running_stack_keeps_whom_it_lets_in(tmp_path: Path) -> None:
    """From a shell without the variable, its missing parts would be open to everybody."""
    PidFile(tmp_path).add("control", os.getpid())
    asks, asks_not = (Stack(Settings(auth=auth), tmp_path, 0, Console(quiet=True)) for auth in ("tokens", "none"))
    asks.addresses.write()
    assert asks._running_parts() == {"control"}
    said = "it runs with STRANDLINE_AUTH=tokens, but none is requested"
    with pytest.raises(StackError, match=said):
        asks_not._running_parts()
    asks_not.addresses.write()
    with pytest.raises(StackError, match="it runs with STRANDLINE_AUTH=none, but tokens is requested"):
        asks._running_parts()


@pytest.mark.guarantee("G497")
@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), ("short\n", "does not contain a password"), ('a"b' * 20, "does not contain a password")],
)
def test_a_password_that_is_gone_or_none_is_one_sentence(
    addresses: StackAddresses, content: str | None, said: str
) -> None:
    """Also for the watcher, which starts a server again: it makes no new one that the others would not know."""
    file = directory_of(addresses) / "kafka"
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(StackError, match=rf"{said}.*; .*strandline down, then up") as told:
        read_password(addresses, "kafka")
    assert content is None or content.strip() not in str(told.value)
    with pytest.raises(StackError, match=said):
        use_logins(addresses, {})
    if content is None:
        ensure_passwords(addresses)
        assert read_password(addresses, "kafka")


@pytest.mark.guarantee("G496")
def test_the_doctor_says_who_else_can_get_in(addresses: StackAddresses) -> None:
    def states() -> list[State]:
        return [one.state for one in found()]

    def found() -> list[Finding]:
        return list(check_passwords(addresses))

    assert states() == [State.OK]
    data_dir, directory = Path(addresses.data_dir), directory_of(addresses)
    data_dir.chmod(0o755)
    assert states() == [State.OK, State.WARNING]
    (directory / "netrc").chmod(0o640)
    wrong, _ = found()
    assert wrong.state is State.WRONG and f"chmod go= {directory / 'netrc'}" in wrong.remedy
    data_dir.chmod(0o700)
    (directory / "netrc").chmod(0o600)
    (one,) = check_passwords(StackAddresses.of(data_dir, 100))
    assert one.state is State.OK and "up --passwords" in one.message
    half_open = list(check_passwords(StackAddresses.of(data_dir, 100, auth="tokens")))
    assert "Kafka, Elasticsearch of the stack" in half_open[0].message and half_open[1].state is State.OK
    outside = {"kafka": "a:1", "elasticsearch": "http://b", "mqtt": "mqtt://c"}
    assert list(check_passwords(StackAddresses.of(data_dir, 100, outside))) == []
