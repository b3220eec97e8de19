"""The servers that are outside a stack, and how this is remembered."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from strandline.core.errors import InvalidSettings, StackError
from strandline.core.settings import Settings
from strandline.example.run import run_example
from strandline.services.embedded.addresses import StackAddresses, read_stack, settings_environment, stack_settings
from strandline.services.embedded.outside_servers import choose_outside, require_outside, take_over
from strandline.services.embedded.stack import Stack
from strandline.services.processes.pids import PidFile
from tests.support.ports import free_port

ALL = {
    "kafka": "farm:9092",
    "elasticsearch": "https://farm:9200",
    "mqtt": "mqtts://farm",
    "ledger": "postgresql+psycopg://me@farm/ledger",
}


def test_without_a_word_every_server_is_the_stacks_own(tmp_path: Path) -> None:
    assert choose_outside({}, tmp_path, 0) == {}


def test_what_is_given_goes_before_the_environment_and_that_before_what_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StackAddresses.of(tmp_path, 0, ALL).write()
    assert choose_outside({}, tmp_path, 0) == ALL
    monkeypatch.setenv("STRANDLINE_KAFKA_BOOTSTRAP", "set:9092")
    (tmp_path / "url").write_text("http://file:9200\n")
    monkeypatch.setenv("STRANDLINE_ELASTICSEARCH_URL_FILE", str(tmp_path / "url"))
    found = choose_outside({"mqtt": "mqtt://given"}, tmp_path, 0)
    assert found == ALL | {"kafka": "set:9092", "elasticsearch": "http://file:9200", "mqtt": "mqtt://given"}


@pytest.mark.parametrize("word", ["embedded", "127.0.0.1:9192", "localhost:9192"])
def test_embedded_or_the_stacks_own_address_takes_its_own_server_again(word: str, tmp_path: Path) -> None:
    StackAddresses.of(tmp_path, 100, ALL).write()
    assert "kafka" not in choose_outside({"kafka": word}, tmp_path, 100)


def test_another_stacks_server_is_an_outside_one(tmp_path: Path) -> None:
    assert choose_outside({"kafka": "127.0.0.1:9092"}, tmp_path, 100) == {"kafka": "127.0.0.1:9092"}


@pytest.mark.parametrize(
    ("name", "address", "said"),
    [
        ("kafka", "me:planted@farm:9092", "STRANDLINE_KAFKA_PASSWORD_FILE"),
        ("elasticsearch", "https://me:planted@farm:9200", "STRANDLINE_ELASTICSEARCH_PASSWORD_FILE"),
        ("mqtt", "mqtt://me:planted@farm", "STRANDLINE_MQTT_PASSWORD_FILE"),
        ("ledger", "postgresql+psycopg://me:planted@farm/ledger", "STRANDLINE_LEDGER_PASSWORD_FILE"),
        ("ledger", "postgresql+psycopg://me@farm/ledger?password=planted", "STRANDLINE_LEDGER_PASSWORD_FILE"),
        ("ledger", "sqlite:///ledger.sqlite", "sqlite:////DIRECTORY/FILE"),
    ],
)
def test_an_address_that_could_not_be_written_down_is_refused(
    name: str, address: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidSettings, match=said) as refused:
        choose_outside({name: address}, tmp_path, 0)
    assert "planted" not in str(refused.value)


def test_this_process_names_the_servers_itself_so_that_their_logins_count() -> None:
    environment = {"strandline_kafka_bootstrap": "a:1", "STRANDLINE_ELASTICSEARCH_URL_FILE": "/f", "OTHER": "kept"}
    take_over({"kafka": "farm:9092", "elasticsearch": "https://farm:9200"}, environment)
    assert environment == {
        "STRANDLINE_KAFKA_BOOTSTRAP": "farm:9092",
        "STRANDLINE_ELASTICSEARCH_URL": "https://farm:9200",
        "OTHER": "kept",
    }


def test_stack_json_remembers_and_the_stacks_processes_are_given_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"LEDGER_URL": ALL["ledger"], "LEDGER_PASSWORD": "planted"}.items():
        (tmp_path / name).write_text(text)
        monkeypatch.setenv(f"STRANDLINE_{name}_FILE", str(tmp_path / name))
    addresses = StackAddresses.of(tmp_path, 0, ALL)
    addresses.write()
    assert read_stack(tmp_path) == addresses and read_stack(tmp_path).outside_servers() == ALL
    given = stack_settings(Settings(stream_replication=3), addresses)
    assert given.kafka_bootstrap == "farm:9092" and given.stream_replication == 3
    environment = settings_environment(given)
    assert environment["STRANDLINE_LEDGER_URL"] == ALL["ledger"] and "STRANDLINE_LEDGER_URL_FILE" not in environment
    assert environment["STRANDLINE_LEDGER_PASSWORD_FILE"] == str(tmp_path / "LEDGER_PASSWORD")
    assert "planted" not in environment.values() and "planted" not in (tmp_path / "stack.json").read_text()


@pytest.mark.guarantee(
    "G346",
    "An embedded stack checks external servers before it starts anything, remembers them, and never starts, watches, "
    "or stops them. It uses their logins, and refuses logins for its own servers.",
    promise="a-stack-keeps-its-data",
)
def test_what_is_outside_is_no_part_to_start_watch_or_stop(tmp_path: Path) -> None:
    own = set(Stack(Settings(), tmp_path, 0, Console(quiet=True)).parts)
    given = {"kafka": "farm:9092", "elasticsearch": "http://farm:9200"}
    stack = Stack(Settings(), tmp_path, 0, Console(quiet=True), given)
    assert own - set(stack.parts) == {"kafka", "elasticsearch"}


@pytest.mark.guarantee("G346")
def test_a_running_stack_keeps_its_servers(tmp_path: Path) -> None:
    import os

    StackAddresses.of(tmp_path, 0, {"kafka": "farm:9092"}).write()
    PidFile(tmp_path).add("control", os.getpid())
    stack = Stack(Settings(), tmp_path, 0, Console(quiet=True), {"kafka": "other:9092"})
    with pytest.raises(
        StackError, match=r"runs with your kafka at farm:9092, but your kafka at other:9092 is requested"
    ):
        stack._running_parts()


def test_a_server_that_does_not_answer_is_said_before_anything_starts(tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    settings = Settings(elasticsearch_url=address)
    with pytest.raises(StackError, match=rf"Elasticsearch: GET / at {address}: no answer.*Nothing was started"):
        require_outside({"elasticsearch": address}, settings)


def test_the_example_fills_no_server_of_somebody_else(tmp_path: Path) -> None:
    StackAddresses.of(tmp_path, 0, {"kafka": "farm:9092"}).write()
    with pytest.raises(StackError, match="uses external servers; pass another --data-dir to the example"):
        run_example(Settings(), tmp_path, 0, 1.0, Console(quiet=True))
