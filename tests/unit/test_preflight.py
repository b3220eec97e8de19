"""The checks of `up` before it starts: Java, ports, the directory, the servers' files, the addresses."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest
from rich.console import Console

from strandline.core.errors import InvalidSettings, StackError
from strandline.core.settings import Settings
from strandline.services.embedded import artifacts, preflight
from strandline.services.embedded.addresses import (
    Ports,
    StackAddresses,
    read_stack,
    settings_environment,
    stack_settings,
)
from strandline.services.embedded.artifacts import Artifact, find_java, provide
from strandline.services.embedded.stack import Stack
from tests.support.settings_classes import all_settings


def fake_java(home: Path, output: str) -> None:
    """Make a Java that only reports its properties."""
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{output}\nEND\n")
    launcher.chmod(0o755)


@pytest.mark.parametrize(
    "name",
    [
        "KAFKA_PASSWORD_FILE",
        "KAFKA_PROPERTIES",
        "ELASTICSEARCH_API_KEY",
        "http_tls_certificate",
        "LEDGER_PASSWORD",
        "MQTT_LISTENER_TLS_KEY",
    ],
)
def test_logins_and_certificates_are_refused_that_the_stacks_own_servers_have_not(name, tmp_path):
    with pytest.raises(InvalidSettings, match=f"STRANDLINE_{name} is set, but `strandline up`") as refused:
        preflight.require_embedded_settings({f"STRANDLINE_{name}": "planted"}, StackAddresses.of(tmp_path, 0))
    assert "planted" not in str(refused.value)


@pytest.mark.guarantee("G346")
@pytest.mark.parametrize(
    ("name", "outside"),
    [
        ("KAFKA_PASSWORD_FILE", {"kafka": "farm:9092"}),
        ("ELASTICSEARCH_API_KEY", {"elasticsearch": "https://farm:9200"}),
        ("LEDGER_PASSWORD", {"ledger": "postgresql+psycopg://me@farm/ledger"}),
        ("MQTT_URL", {"mqtt": "planted"}),
    ],
)
def test_the_login_of_a_server_that_is_not_the_stacks_own_is_honoured_and_of_no_other(name, outside, tmp_path):
    environment = {f"STRANDLINE_{name}": "planted"}
    preflight.require_embedded_settings(environment, StackAddresses.of(tmp_path, 0, outside))
    with pytest.raises(InvalidSettings):
        preflight.require_embedded_settings(environment, StackAddresses.of(tmp_path, 0))


def test_no_java_is_one_sentence_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StackError, match=r"there is no Java on the PATH.*openjdk-17-jre-headless"):
        find_java()


def test_java_home_without_java_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(StackError, match=rf"there is no Java in JAVA_HOME \({tmp_path}\)"):
        find_java()


@pytest.mark.parametrize(
    ("version", "shown"), [("1.8", "Java 8"), ("11", "Java 11"), ("16", "Java 16")], ids=["8", "11", "16"]
)
def test_old_java_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, shown: str) -> None:
    fake_java(tmp_path, f"    java.home = {tmp_path}\n    java.specification.version = {version}")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(StackError, match=rf"is {shown}, too old"):
        find_java()


def test_java_17_is_found_where_it_really_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The `java` in the PATH can be a link or a script of a version manager."""
    fake_java(
        tmp_path, "Picked up JAVA_TOOL_OPTIONS: -Dx=y\n    java.home = /real\n    java.specification.version = 17"
    )
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == Path("/real/bin/java")


def test_broken_java_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path, "cannot allocate memory")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(StackError, match=r"does not work \(cannot allocate memory\)"):
        find_java()


def test_taken_port_is_named_with_its_purpose() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert not preflight.is_free(port)
        with pytest.raises(StackError, match=rf"port {port} on 127\.0\.0\.1 for Kafka is used.*--port-offset"):
            preflight.require_free_ports(Ports(kafka=port), ["kafka"])
    assert preflight.is_free(port)


def test_only_the_ports_of_the_parts_to_start_must_be_free() -> None:
    with socket.socket() as kafka:
        kafka.bind(("127.0.0.1", 0))
        kafka.listen()
        ports = Ports(kafka=kafka.getsockname()[1])
        preflight.require_free_ports(ports, [])
        with pytest.raises(StackError, match="for Kafka is used by another program"):
            preflight.require_free_ports(ports, ["kafka"])


def test_every_port_belongs_to_a_part_of_the_stack(tmp_path: Path) -> None:
    known = preflight.ports_of_parts()
    assert sorted(name for of_part in known.values() for name in of_part) == sorted(Ports().all())
    assert set(known) == set(Stack(Settings(), tmp_path, 0, Console(quiet=True)).parts)


@pytest.mark.parametrize(
    ("name", "value", "is_refused"),
    [
        ("STRANDLINE_MQTT_URL", "mqtt://user:secret@farm:1883", True),
        ("STRANDLINE_MQTT_URL", "mqtt://127.0.0.1:1883", True),  # the broker of another stack: this one is moved by 100
        ("STRANDLINE_MQTT_URL", "mqtt://127.0.0.1:1983", False),
        ("STRANDLINE_MQTT_URL", "mqtt://localhost:1983", False),
        ("STRANDLINE_HTTP_HOST", "0.0.0.0", True),
        ("strandline_http_host", "0.0.0.0", True),
        ("STRANDLINE_CONTROL_HOST", "::", True),
        ("STRANDLINE_UDP_HOST", "10.0.0.1", True),
        ("STRANDLINE_TCP_HOST", "10.0.0.1", True),
        ("STRANDLINE_MQTT_LISTENER_HOST", "0.0.0.0", True),
        ("STRANDLINE_HTTP_HOST", "127.0.0.1", False),
        ("STRANDLINE_UDP_HOST", "localhost", False),
        ("STRANDLINE_MQTT_USERNAME", "kept", False),
    ],
)
def test_settings_that_up_cannot_honour_are_refused(tmp_path: Path, name: str, value: str, is_refused: bool) -> None:
    addresses = StackAddresses.of(tmp_path, 100)
    if not is_refused:
        preflight.require_embedded_settings({name: value}, addresses)
        return
    with pytest.raises(InvalidSettings, match=f"{name} is set, but") as refused:
        preflight.require_embedded_settings({name: value}, addresses)
    assert "\n" not in str(refused.value) and "secret" not in str(refused.value)


def test_each_host_setting_is_looked_at(tmp_path: Path) -> None:
    """A gateway with a new one must not be left out."""
    addresses = StackAddresses.of(tmp_path, 0)
    names = {name for model in all_settings() for name in model.model_fields if name.endswith("_host")}
    names.remove("spark_driver_host")  # nothing of the stack listens there
    assert len(names) >= 5
    for name in names:
        with pytest.raises(InvalidSettings):
            preflight.require_embedded_settings({f"STRANDLINE_{name.upper()}": "0.0.0.0"}, addresses)


@pytest.mark.parametrize("offset", [-2000, 56_300], ids=["below", "above"])
def test_offset_out_of_range_is_refused(offset: int) -> None:
    with pytest.raises(StackError, match=r"every port between 1024 and 65535 \(from -859 to 56235\)"):
        Ports.moved(offset)


def test_every_port_moves() -> None:
    assert Ports.moved(-859).mqtt == 1024 and Ports.moved(56_235).elasticsearch_transport == 65_535
    ports = Ports.moved(100)
    assert ports == Ports(9192, 9193, 9300, 9400, 1983, 8180, ports.gateways)
    assert sorted(ports.gateways.values()) == [1984, 8181, 8184, 8185, 8186, 8187, 8188]


def test_little_room_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        StackError, match=r"only \d+ MB are free in .*, but a stack needs \d+ MB; free some space, or pray"
    ):
        preflight.require_free_space(tmp_path, 2**60, "a stack", "pray")


def test_data_dir_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StackError, match=r"can't write to the data directory .*file/data \(Not a directory\)"):
        preflight.require_data_dir(tmp_path / "file" / "data")


def test_addresses_come_back(tmp_path: Path) -> None:
    addresses = StackAddresses.of(tmp_path, 100)
    addresses.write()
    assert read_stack(tmp_path) == addresses
    assert addresses.api_url == "http://127.0.0.1:8180"
    assert addresses.ledger_url == f"sqlite:///{tmp_path}/ledger.sqlite"


def test_directory_without_a_stack_is_told(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"no stack was ever started in .*strandline up --data-dir"):
        read_stack(tmp_path)


@pytest.mark.parametrize("content", ["{", "{}", "[]", '{"other": 1}'])
def test_damaged_stack_file_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "stack.json").write_text(content)
    with pytest.raises(StackError, match=r"can't use .*stack\.json"):
        read_stack(tmp_path)


def test_a_child_reads_back_the_settings_it_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The user's own settings stay, the stack's addresses win, and unknown names of other programs pass through."""
    monkeypatch.setenv("strandline_kafka_bootstrap", "elsewhere:1")
    monkeypatch.setenv("STRANDLINE_LOG_JSON", "true")
    monkeypatch.setenv("STRANDLINE_SOMETHING_ELSE", "kept")
    given = stack_settings(Settings(), StackAddresses.of(tmp_path, 100))
    environment = settings_environment(given)
    assert "strandline_kafka_bootstrap" not in environment
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Settings() == given
    assert given.kafka_bootstrap == "127.0.0.1:9192" and given.log_json and given.data_dir == tmp_path
    assert environment["STRANDLINE_SOMETHING_ELSE"] == "kept"


class TestCachedServer:
    """A server in the cache is used only when every file is as listed."""

    ARTIFACT = Artifact("tiny-1.0", dependencies="", download_bytes=1)

    @pytest.fixture
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        sums = tmp_path / "sums"
        sums.mkdir()
        digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"  # of "hello"
        (sums / "tiny-1.0.txt").write_text(f"{digest}  lib/a.jar\n{digest}  b.jar\n")
        monkeypatch.setattr(artifacts, "_SUMS_DIR", sums)
        home = tmp_path / "cache" / "tiny-1.0"
        (home / "lib").mkdir(parents=True)
        (home / "lib" / "a.jar").write_text("hello")
        (home / "b.jar").write_text("hello")
        return home

    def provide(self, home: Path) -> Path:
        return provide(self.ARTIFACT, home.parent, Path("/nowhere/java"), lambda fetched: None)

    def test_as_listed_is_used(self, home: Path) -> None:
        assert self.provide(home) == home

    def test_changed_file_is_refused(self, home: Path) -> None:
        (home / "b.jar").write_text("hellO")
        with pytest.raises(
            StackError, match=r"b\.jar of tiny-1\.0 is not the file that this version expects; delete .*tiny-1\.0"
        ):
            self.provide(home)

    def test_missing_file_is_refused(self, home: Path) -> None:
        shutil.rmtree(home / "lib")
        with pytest.raises(StackError, match=r"lib/a\.jar of tiny-1\.0 is missing; delete"):
            self.provide(home)

    def test_unknown_file_is_refused(self, home: Path) -> None:
        (home / "lib" / "evil.jar").touch()
        with pytest.raises(StackError, match=r"lib/evil\.jar is not a file of tiny-1\.0"):
            self.provide(home)


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        (
            "Host some.host not found. url=x\nUNRESOLVED DEPENDENCIES",
            "the package registry does not respond; check the network",
        ),
        ("java.net.ConnectException: Connection refused", "the package registry does not respond; check the network"),
        ("java.io.IOException: No space left on device", "the disk became full during the download of kafka"),
        ("\t:: a.b#c;1.0: not found\nmore", "can't download kafka-4.2.1 (a.b#c;1.0: not found)"),
        ("", "can't download kafka-4.2.1 (unknown reason)"),
    ],
    ids=["no name", "refused", "disk", "unresolved", "silent"],
)
def test_failed_fetch_is_one_sentence(log: str, sentence: str) -> None:
    told = artifacts._fetch_failure(artifacts.KAFKA, log, Path("/cache/kafka.log"))
    assert sentence in told and "\n" not in told
